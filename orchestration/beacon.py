"""Where a worker is in its work: what a watcher reads, and where the tests' faults strike.

In: the stage that the worker enters, with the step. Out: stage, step and since when, for a thread that watches.
Knows neither Ray nor torch; costs a function call per stage.
"""

import math
import os
import time
from collections.abc import Callable
from typing import Any

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


def poison(module: Any, beacon: Beacon, asked: str) -> None:
    """The fault "nan:RANK:STEP" of CLOZE_FAULT: the loss of that rank in that step is no number, at every try."""
    kind, _, place = asked.partition(":")
    if kind != "nan":
        return

    def spoil(module: Any, inputs: Any, outputs: Any) -> Any:
        if beacon.stage == "forward" and place == f"{beacon.rank}:{beacon.step}":
            return {term: value * math.nan for term, value in outputs[0].items()}, outputs[1]
        return outputs

    module.register_forward_hook(spoil)


def fault_of(asked: str) -> Callable[[str, int, int], None]:
    """The fault hook of the tests, from CLOZE_FAULT: "kill:RANK:STEP", "raise:RANK:STEP" or "nan:RANK:STEP"."""
    kind, of_rank, at_step = asked.split(":")

    def strike(stage: str, rank: int, step: int) -> None:
        if stage == "forward" and (rank, step) == (int(of_rank), int(at_step)):
            if kind == "nan":  # see poison
                return
            if kind == "kill":
                os.kill(os.getpid(), 9)
            raise RuntimeError(f"the fault that CLOZE_FAULT={asked} asked for")

    return strike
