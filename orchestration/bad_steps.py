"""bad_steps.jsonl: the steps whose loss or gradient was no finite number, and the rows that did it.

In: records of skipped steps. Out: a line for each rank that is suspect of one,
    step rank row_ids loss gradient_norm
null where a number is not finite; and the command that shows those rows. There is no file where there is no such step.
Knows neither Ray nor torch.
"""

import json
import logging
import math
import shlex
from pathlib import Path
from typing import Any

from data.storage import fetch, is_remote, publish, shown
from orchestration import metrics
from orchestration.steps import StepRecord

logger = logging.getLogger(__name__)

FILE = "bad_steps.jsonl"
ROWS_SHOWN = 16  # in the command of an error; the file has all


class BadSteps:
    """Rank 0's list of them, from `step` on."""

    def __init__(self, run: Path, step: int) -> None:
        self.path = run / FILE
        self._lines: list[dict[str, Any]] = []
        fetch(self.path)
        if self.path.exists():
            self._lines = [line for line in metrics.read(self.path) if line["step"] < step]
            self._write()

    def add(self, record: StepRecord) -> None:
        """Of one step."""
        numbers = {"loss": finite(record.loss), "gradient_norm": finite(record.gradient_norm)}
        self._lines += [
            {"step": record.step, "rank": rank, "row_ids": list(rows), **numbers}
            for rank, rows in record.suspects.items()
        ]
        try:
            self._write()
        except OSError as error:  # a full disk ends no run: the next bad step writes these lines too
            logger.warning("%s could not be written: %s", self.path, error)

    def _write(self) -> None:
        """The whole file: there are few lines, and a bucket cannot be appended to."""
        part = self.path.with_name(self.path.name + ".part")
        part.write_text("".join(json.dumps(line) + "\n" for line in self._lines), encoding="utf-8")
        part.replace(self.path)
        publish(self.path)


def hint(run: Path, record: StepRecord) -> str:
    """How to see the rows of a bad step: the end of an error."""
    row_ids = [row for rows in record.suspects.values() for row in rows][:ROWS_SHOWN]
    recipe = "RECIPE" if is_remote(run) else shlex.quote(str(run / "config.yaml"))
    words = f"cloze inspect -c {recipe} --step {record.step} --row-ids {','.join(map(str, row_ids))}"
    return f"{words} shows them, {shown(run / FILE)} has all such steps"


def finite(number: float) -> float | None:
    """A number for a line of JSON, which knows no NaN."""
    return number if math.isfinite(number) else None
