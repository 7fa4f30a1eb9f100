"""Where a worker is in its work: what a watcher reads, and where the tests' faults strike.

In: the stage that the worker enters, with the step. Out: stage, step, since when and how many stages there were, for a
thread that watches. Knows neither Ray nor torch; costs a function call per stage.
"""

import math
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from data.config import UserError

STAGES = ("starting", "reading", "forward", "backward", "all-reduce", "update", "evaluating", "saving", "exporting")
POINTS = ("saving:state", "saving:file", "saving:manifest", "saving:retention")  # inside the stage saving
FAULTS = ("kill", "raise", "stall", "nan")

Strike = Callable[[str, int, int], None]
T = TypeVar("T")


class Beacon:
    """The stage that this rank is in.

    All ranks pass the same stages in the same order, so the one with the fewest behind it is the one that others wait
    for: `passed` is a clock that all of them share.
    """

    def __init__(self, rank: int, strike: Strike | None = None) -> None:
        """`strike(stage, rank, step)`: see `faults_of`."""
        self.rank = rank
        self.stage = "starting"
        self.step = 0
        self.passed = 0
        self.since = time.monotonic()
        self.files = 0
        """Delivered of all saves: what moves while the stage is saving."""
        self.strike = strike

    def at(self, stage: str, step: int | None = None) -> None:
        """The worker enters `stage`; None: of the same step as before."""
        self.stage, self.since = stage, time.monotonic()
        self.passed += 1
        if step is not None:
            self.step = step
        self.passes(stage, self.step)

    def passes(self, point: str, step: int) -> None:
        """A point inside a stage, such as "saving:manifest", perhaps of a thread beside training; the rank's stage
        stays what it is.
        """
        self.files += point == "saving:file"
        if self.strike:
            self.strike(point, self.rank, step)

    def reading(self, parts: Iterable[T]) -> Iterator[T]:
        """Pass `parts` on; while one is waited for, the stage is reading."""
        source = iter(parts)
        while True:
            self.at("reading")
            try:
                part = next(source)
            except StopIteration:
                return
            yield part


def poison(module: Any, beacon: Beacon, asked: str) -> None:
    """The fault "nan:RANK:STEP" of CLOZE_FAULT: the loss of that rank in that step is no number, in every group."""
    asked_for = (word.removesuffix(":forward") for word in asked.split() if word.startswith("nan:"))
    places = {word.removeprefix("nan:") for word in asked_for}

    def spoil(module: Any, inputs: Any, outputs: Any) -> Any:
        if beacon.stage == "forward" and f"{beacon.rank}:{beacon.step}" in places:
            return {term: value * math.nan for term, value in outputs[0].items()}, outputs[1]
        return outputs

    if places:
        module.register_forward_hook(spoil)


def faults_of(asked: str) -> list[Strike]:
    """The faults of CLOZE_FAULT, for tests: "KIND:RANK:STEP[:STAGE]", several apart by spaces, "-" for none.

    The n-th strikes in the n-th worker group that a driver starts. Kinds: kill (SIGKILL), raise (an exception), stall
    (sleeps for ever), nan (see poison). Without a stage: forward. Raises UserError.
    """
    return [_fault_of(word) for word in asked.split()]


def _fault_of(word: str) -> Strike:
    if word == "-":
        return lambda stage, rank, step: None
    kind, _, rest = word.partition(":")
    of_rank, _, rest = rest.partition(":")
    at_step, _, at_stage = rest.partition(":")
    places = ("", "forward") if kind == "nan" else ("", *STAGES[1:], *POINTS)
    if kind not in FAULTS or not of_rank.isdecimal() or not at_step.isdecimal() or at_stage not in places:
        raise UserError(
            f"CLOZE_FAULT={word}: no fault; give KIND:RANK:STEP[:STAGE], KIND one of {', '.join(FAULTS)}, STAGE one of "
            f"{', '.join((*STAGES[1:], *POINTS))} (nan: forward)"
        )

    def strike(stage: str, rank: int, step: int) -> None:
        if (stage, rank, step) != (at_stage or "forward", int(of_rank), int(at_step)):
            return
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "raise":
            raise RuntimeError(f"the fault that CLOZE_FAULT={word} asked for")
        while kind == "stall":
            time.sleep(3600)

    return strike
