"""The ledger in which the workers of a run keep count of what it spends, the same on all ranks after each step.

In: what was spent before, the steps of a worker group. Out: the share of the run that is done, and `spent.json` in the
run's folder. What is counted stands in orchestration/budget.py.

Tokens are counted by steps, from the checkpoint on: what a fault made the run repeat counts once, and the same steps
give the same count, whatever the number of workers. Time is counted by the clock of rank 0, while the worker group
exists: loading, repeated steps, evaluations and saves count, waiting for workers does not. The schedule goes by what
the first step found of the budget. The time reaches the other ranks in the all-reduce of each step; the file, written
every LEDGER_SECONDS, keeps what was spent since the checkpoint when a driver is killed.
"""

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import ray
import torch.distributed as dist

from data.storage import is_remote, publish
from orchestration.budget import LEDGER, Limit, Spent, limit_of, spent_before
from orchestration.checkpoint import write_json
from orchestration.config import Config

logger = logging.getLogger(__name__)

LEDGER_SECONDS, BUCKET_SECONDS = 10.0, 30.0  # a bucket's as often as metrics are carried there


def open_ledger(
    run: Path, manifest: Mapping[str, Any] | None, start: int, config: Config, pacer: Any, began: float
) -> "Ledger":
    """The ledger of a group that exists since `began` (by time.monotonic) and goes on at step `start`, the checkpoint
    of `manifest`; all ranks must call it. Rank 0 alone reads and writes files.

    Of a run that was trained to the end of its budget, but not exported, the stream is told to bring the last
    evaluation only: it must be open.
    """
    is_first = dist.get_rank() == 0
    before: list[Any] = [spent_before(run, manifest) if is_first else None]
    dist.broadcast_object_list(before, src=0)
    ledger = Ledger(
        before[0], start, dist.get_world_size(), limit_of(config), config.pretrain.total_steps,
        run / LEDGER if is_first else None, began,
    )  # fmt: skip
    if is_first and ledger.is_spent:
        ray.get(pacer.finish.remote())
    return ledger


class Ledger:
    """One worker's count of what the run has spent: the same on all ranks after each step."""

    def __init__(
        self,
        before: Spent,
        start: int,
        workers: int,
        limit: Limit | None,
        steps: int | None,
        path: Path | None,
        began: float | None = None,
    ) -> None:
        """`before`: spent when this group began, at step `start`. `steps` end the run where `limit` is None. `path`: of
        rank 0's file. `began`: by time.monotonic; None: now."""
        self._before, self._workers = before, workers
        self._limit, self._steps = limit, steps
        self._begun = time.monotonic() if began is None else began
        self._stop = threading.Event()
        self._path = path
        self._done = start
        self.spent = self._earlier = before
        self._thread = threading.Thread(target=self._keep, daemon=True, name="cloze-ledger")
        self._thread.start()

    def clock(self) -> float:
        """What this rank adds to the time that all ranks agree on: rank 0 the seconds of this group, others nothing."""
        return 0.0 if self._path is None else time.monotonic() - self._begun

    def begin(self, seconds: float) -> None:
        """The steps of this group begin, at the agreed time. Those of a run at step 0 have trained nothing yet: its
        schedule begins here."""
        self.spent = replace(self._after(seconds), tokens=self.spent.tokens)
        if self._done == 0:
            lead = [self.spent.seconds, self.spent.worker_seconds]
            self._before = Spent(self._before.tokens, self._before.seconds, self._before.worker_seconds, *lead)
            self.spent = Spent(self.spent.tokens, *lead, *lead)

    def count(self, step: int, sums: Mapping[str, float], seconds: float) -> None:
        """A step spends its tokens, over all ranks, and the agreed time, as its all-reduce told them."""
        self._earlier = self.spent
        self.spent = replace(self._after(seconds), tokens=self.spent.tokens + round(sums["tokens"]))
        self._done = step + 1

    def shares(self) -> tuple[float, float]:
        """Of what the steps of the run may spend, before and after the step that was counted last."""
        assert self._limit is not None
        return self._limit.share_of_steps(self._earlier), self._limit.share_of_steps(self.spent)

    def share(self) -> float:
        """How far the run is, 0 to 1."""
        if self._limit is not None:
            return self._limit.share(self.spent)
        assert self._steps is not None
        return min(1.0, self._done / self._steps)

    @property
    def is_spent(self) -> bool:
        """Whether a budget ends the run here; never before its first step."""
        return self._limit is not None and self._done > 0 and self.share() >= 1

    def finish(self) -> Spent:
        """The group ends: write the ledger for the last time and return what was spent, by this rank's clock."""
        self._stop.set()
        self._thread.join()
        self.spent = replace(self._after(time.monotonic() - self._begun), tokens=self.spent.tokens)
        self._write()
        return self.spent

    def _after(self, seconds: float) -> Spent:
        before = self._before
        spent = {"seconds": before.seconds + seconds, "worker_seconds": before.worker_seconds + seconds * self._workers}
        return replace(before, **spent)

    def _keep(self) -> None:
        seconds = BUCKET_SECONDS if self._path is not None and is_remote(self._path) else LEDGER_SECONDS
        while not self._stop.wait(seconds):
            self._write()

    def _write(self) -> None:
        """Write the ledger down. A disk that is full does not end the run."""
        if self._path is None:
            return
        try:
            write_json(self._path, asdict(replace(self._after(self.clock()), tokens=self.spent.tokens)))
            publish(self._path)
        except OSError as error:
            logger.warning("%s could not be written: %s", LEDGER, error)
