"""Rank 0's record of a run: lines of metrics.jsonl, and the newest one for the driver's progress.

In: records of steps and evaluations. Out: the file (orchestration/metrics.py), and whether the pacer wants the workers
to stop or to move. Knows Ray only as the way to the pacer.
"""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray

from orchestration import metrics
from orchestration.bad_steps import BadSteps, finite
from orchestration.pacer import Wish
from orchestration.steps import StepRecord

logger = logging.getLogger(__name__)

CARRY_SECONDS = 30  # metrics reach a bucket this often, and at every checkpoint


class Journal:
    """Rank 0's record of the run: metrics.jsonl, and the newest line for the driver's progress."""

    def __init__(self, run: Path, start: int, epoch_of: Callable[[int], int], workers: int, pacer: Any) -> None:
        self._epoch_of = epoch_of
        self._workers = workers
        self._pacer = pacer
        self._writer = metrics.Writer(run / "metrics.jsonl", start)
        self.write_bad = BadSteps(run, start).add
        self.carry = self._writer.carry
        self.finish = self._writer.finish
        self._carried = time.monotonic()
        self._carrier = threading.Thread()
        self._answer: Any = None  # of the pacer: looked at when it is there, never waited for
        self._wish = Wish()

    def write_step(
        self, record: StepRecord, seconds: float, waited_seconds: float, budget_share: float | None = None
    ) -> None:
        """One line per optimizer step; `budget_share`: how much of its budget the run has spent, where it has one."""
        line = {
            "step": record.step,
            "epoch": self._epoch_of(record.step),
            "tokens": int(record.metrics["tokens"]),
            "targets": record.targets,
            "loss": finite(record.loss),
            "learning_rate": record.learning_rate,
            "gradient_norm": finite(record.gradient_norm),
            "tokens_per_second": record.metrics["tokens"] / seconds,
            "data_wait_fraction": waited_seconds / seconds,
            "workers": self._workers,
        }
        if record.skipped:
            line["skipped"] = True
        if budget_share is not None:
            line["budget_share"] = budget_share
        self._writer.write(line)
        answer = self._pacer.begin.remote(record.step + 1, line)
        self._answer = self._answer or answer
        if time.monotonic() - self._carried > CARRY_SECONDS and not self._carrier.is_alive():
            self._carrier = threading.Thread(target=self._carry_beside, daemon=True, name="cloze-metrics-carrier")
            self._carrier.start()
            self._carried = time.monotonic()

    def write_last_step(
        self, record: StepRecord, seconds: float, waited_seconds: float, budget_share: float | None = None
    ) -> None:
        """The step that ended the run: no checkpoint will bring its line to the storage."""
        self.write_step(record, seconds, waited_seconds, budget_share)
        self._carry_beside()

    def _carry_beside(self) -> None:
        """Training does not wait for the storage; a checkpoint does (orchestration/saving.py)."""
        try:
            self.carry()
        except OSError as error:
            logger.warning("lines of metrics are not in the storage yet: %s", error)

    def wish(self) -> Wish:
        """What the pacer asked for, of late."""
        if self._answer is not None and ray.wait([self._answer], timeout=0)[0]:
            answer: Any = ray.get(self._answer)
            self._wish, self._answer = answer, None
        return self._wish

    def write_evaluation(self, step: int, scores: dict[str, float], facts: dict[str, Any]) -> None:
        """One line per evaluation, of the weights before `step`; `facts`: what else is to be said of it."""
        line: dict[str, Any] = {"step": step, **{f"eval_{name}": value for name, value in scores.items()}, **facts}
        line["eval_targets"] = int(scores["targets"])
        self._writer.write(line)
        self._pacer.begin.remote(step, line)
