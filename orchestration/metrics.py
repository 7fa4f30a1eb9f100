"""metrics.jsonl: one line per optimizer step, and one per evaluation.

In: records of rank 0. Out: a file in which no step stands twice, whatever was killed and resumed.
    step      step epoch tokens targets loss learning_rate gradient_norm tokens_per_second data_wait_fraction
    evaluation   step eval_loss eval_accuracy eval_targets      (before that step is trained)
Knows neither Ray nor torch.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read(path: Path) -> Iterator[dict[str, Any]]:
    """All whole lines of a metrics file; a line cut by a kill is left out."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):
                yield json.loads(line)


def cut(path: Path, step: int) -> None:
    """Remove the lines of `step` and later ones: training starts again there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = [json.dumps(record) + "\n" for record in read(path) if record["step"] < step]
    part = path.with_name(path.name + ".part")
    part.write_text("".join(kept), encoding="utf-8")
    part.replace(path)


class Writer:
    """Appends records to a metrics file, from `step` on."""

    def __init__(self, path: Path, step: int) -> None:
        cut(path, step)
        self._file = path.open("a", encoding="utf-8", buffering=1)  # line-buffered: at most one line is lost

    def write(self, record: dict[str, Any]) -> None:
        """Append one record."""
        self._file.write(json.dumps(record) + "\n")
