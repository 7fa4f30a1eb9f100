"""Where a worker is in its work: what a watcher reads, and where the tests' faults strike.

In: the stage that the worker enters, with the step. Out: stage, step and since when, for a thread that watches.
Knows neither Ray nor torch; costs a function call per stage.
"""

import os
import time
from collections.abc import Callable

STAGES = ("starting", "reading", "forward", "backward", "all-reduce", "update", "evaluating", "saving", "exporting")


class Beacon:
    """The stage that this rank is in."""

    def __init__(self, rank: int, strike: Callable[[str, int, int], None] | None = None) -> None:
        """`strike(stage, rank, step)` is called at each change of stage: a fault that a test asked for."""
        self.rank = rank
        self.stage = "starting"
        self.step = 0
        self.since = time.monotonic()
        self._strike = strike

    def at(self, stage: str, step: int | None = None) -> None:
        """The worker enters `stage`; None: of the same step as before."""
        self.stage, self.since = stage, time.monotonic()
        if step is not None:
            self.step = step
        if self._strike:
            self._strike(stage, self.rank, self.step)

    def passes(self, point: str, step: int) -> None:
        """A thread beside training passes a point that has a name; the rank's stage stays what it is."""
        if self._strike:
            self._strike(point, self.rank, step)


def fault_of(asked: str) -> Callable[[str, int, int], None]:
    """The fault hook of the tests, from CLOZE_FAULT: "kill:RANK:STEP" or "raise:RANK:STEP"."""
    kind, of_rank, at_step = asked.split(":")

    def strike(stage: str, rank: int, step: int) -> None:
        if stage == "forward" and (rank, step) == (int(of_rank), int(at_step)):
            if kind == "kill":
                os.kill(os.getpid(), 9)
            raise RuntimeError(f"the fault that CLOZE_FAULT={asked} asked for")

    return strike
