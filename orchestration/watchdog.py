"""No rank hangs without a word: a thread in every worker that tells where the worker is, and ends one that is stuck.

In: the worker's beacon. Out: a sign of life for the pacer every few seconds; of a rank that stays in one stage too
long its name, stage and stack, in the log and to the pacer; then the end of its process, so that Ray starts the group
again from the newest checkpoint. Knows neither torch nor what is trained.

Who is to blame: all ranks pass the same stages in the same order (orchestration/beacon.py), so a rank that waits in a
collective has passed more of them than the one that it waits for. The one behind ends itself when the limit is over;
those ahead wait GRACE longer, for a process that is frozen cannot speak: they name it in its place.
"""

import logging
import math
import os
import signal
import socket
import sys
import threading
import time
import traceback
from typing import Any

import ray
from ray.exceptions import RayError

from data.retries import LIMIT_SECONDS
from orchestration.beacon import Beacon

logger = logging.getLogger(__name__)

# Loading a model, compiling, the first step on a GPU and writing an export take their time and no beacon.
# Stage -> the least seconds of its limit; a save may wait for uploads that storage refuses for a while.
SLOW = {"starting": 600.0, "exporting": 600.0, "saving": 2 * LIMIT_SECONDS + 60}
SLOW_FACTOR = 3
GRACE_FACTOR, GRACE_SECONDS = 1.5, 5.0
LONGEST_BEAT_SECONDS = 5.0
# Of a rank that has said nothing since its group began.
UNHEARD = {
    "host": "an unknown host", "step": "none", "stage": "starting", "passed": -1, "silent": math.inf, "still": math.inf,
}  # fmt: skip


def limit_of(stage: str, steps_passed: int, stuck_seconds: float) -> float:
    """Seconds that a rank may stay in a stage; longer for the slow ones, and until one step is behind it."""
    if stage in SLOW or steps_passed == 0:
        return max(SLOW_FACTOR * stuck_seconds, SLOW.get(stage, 0.0))
    return stuck_seconds


def beat_seconds(stuck_seconds: float) -> float:
    """Between two signs of life."""
    return min(LONGEST_BEAT_SECONDS, max(0.2, stuck_seconds / 5))


def told(rank: int, sign: dict[str, Any]) -> str:
    """Where a rank is, in words."""
    return f"rank {rank} on {sign['host']}, step {sign['step']}, {sign['stage']}"


def blame(signs: dict[int, dict[str, Any]], silent_after: float) -> tuple[list[int], list[int]]:
    """(ranks that the others wait for, those of them that give no sign of life), by the pacer's table.

    A rank is waited for where none has passed fewer stages.
    """
    least = min(sign["passed"] for sign in signs.values())
    behind = sorted(rank for rank, sign in signs.items() if sign["passed"] == least)
    return behind, [rank for rank in behind if signs[rank]["silent"] > silent_after]


class Watchdog:
    """Watches the thread that makes it, from `start` until `stop`."""

    def __init__(self, beacon: Beacon, ranks: int, stuck_seconds: float, pacer: Any) -> None:
        self._beacon = beacon
        self._ranks = ranks
        self._limit = stuck_seconds
        self._beat = beat_seconds(stuck_seconds)
        self._pacer = pacer
        self._watched = threading.get_ident()
        self._host = socket.gethostname()
        self._first_step: int | None = None
        self._ended = threading.Event()

    def start(self) -> "Watchdog":
        """Watch from now on."""
        threading.Thread(target=self._watch, daemon=True, name="cloze-watchdog").start()
        return self

    def stop(self) -> None:
        """The work is done."""
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(self._beat):
            try:
                self._look()
            except RayError as error:  # the driver's node is gone or slow; without a pacer nobody is to blame
                logger.warning("no word from the pacer: %s", error)

    def _look(self) -> None:
        beacon = self._beacon
        seconds = time.monotonic() - beacon.since
        if self._first_step is None and beacon.stage != "starting":
            self._first_step = beacon.step
        sign = {
            "host": self._host, "step": beacon.step, "stage": beacon.stage, "passed": beacon.passed,
            "files": beacon.files,
        }  # fmt: skip
        self._pacer.beat.remote(beacon.rank, sign)
        limit = limit_of(beacon.stage, beacon.step - (self._first_step or 0), self._limit)
        if seconds < limit:
            return
        signs: dict[int, dict[str, Any]] = dict.fromkeys(range(self._ranks), UNHEARD)
        signs |= ray.get(self._pacer.signs.remote(), timeout=10)
        if beacon.stage == "saving" and min(sign["still"] for sign in signs.values()) < limit:
            return  # files of some rank reach the storage: slow is not stuck
        behind, silent = blame(signs, silent_after=3 * self._beat + 2)
        if beacon.rank in behind and not silent:
            self._end(f"{told(beacon.rank, sign)}: stuck for {seconds:.0f} s (scaling.stuck_seconds={self._limit:g})")
        elif seconds > GRACE_FACTOR * limit + GRACE_SECONDS:
            names = "; ".join(
                f"{told(rank, signs[rank])}: no sign of life for {signs[rank]['silent']:.0f} s" if rank in silent else
                f"{told(rank, signs[rank])}: still there" for rank in behind
            )  # fmt: skip
            self._end(f"{names}; {told(beacon.rank, sign)} waited for it {seconds:.0f} s")

    def _end(self, trouble: str) -> None:
        """Say it here and to the driver, then end this process: Ray starts the group again."""
        frame = sys._current_frames().get(self._watched)
        stack = "".join(traceback.format_stack(frame)) if frame else "(its thread has ended)\n"
        logger.error("%s; it stands here:\n%s", trouble, stack)
        try:
            ray.get(self._pacer.trouble.remote(trouble, stack), timeout=10)
        finally:
            for handler in logging.getLogger().handlers:
                handler.flush()
            os.kill(os.getpid(), signal.SIGKILL)
