"""The actor between driver, workers and the stream of a pretraining run: one word each to the others.

In: what each of them has to say. Out: what the others ask for. Knows nothing of rows and models.

A run that a budget ends has no last step that the stream could know. Once the workers agree that the budget is spent,
rank 0 tells `finish`: one waiter then makes the last evaluation (its masks are the same whenever it is made), and
generation is over for all others.
"""

import asyncio
from typing import Any

import ray

MAKE, END, OVER = "make", "end", "over"  # what generation is told: go on, make the last evaluation, stop
LOOKAHEAD_STEPS = 48  # at least one segment of the stream, else generation and training wait for each other


@ray.remote(num_cpus=0)
class Pacer:
    """The one meeting point of driver, workers and generation: the cursor, the step in work, the newest record."""

    def __init__(self) -> None:
        self._start = 0
        self._generation = 0
        self._step = 0
        self._latest: dict[str, Any] = {}
        self._failure: str | None = None
        self._stopping = False
        self._stopped: int | None = None
        self._finished = False
        self._ending = False
        self._facts: dict[str, Any] = {}
        self._moved = asyncio.Event()

    async def open(self, start: int) -> int:
        """Begin a stream at `start`; streams opened before end. Returns the stream's number."""
        self._generation += 1
        self._start = self._step = start
        self._finished = self._ending = False
        self._moved.set()
        return self._generation

    async def start(self) -> int:
        """The step at which the open stream began: the checkpoint that workers load."""
        return self._start

    async def wait(self, generation: int, step: int) -> str:
        """Return MAKE when generation may make `step`, OVER when its stream is over, END to the first that asks after
        `finish`."""
        while self._is_open(generation) and not self._finished and step > self._step + LOOKAHEAD_STEPS:
            self._moved.clear()
            await self._moved.wait()
        if not self._is_open(generation) or self._ending:
            return OVER
        self._ending = self._finished
        return END if self._ending else MAKE

    def _is_open(self, generation: int) -> bool:
        return generation == self._generation and self._stopped is None

    async def finish(self) -> None:
        """The budget is spent: no step behind those that were trained; one evaluation, and the open stream is over."""
        self._finished = True
        self._moved.set()

    async def begin(self, step: int, record: dict[str, Any]) -> bool:
        """Rank 0 begins `step`; `record` is what the driver shows. Returns True where it is to save and stop."""
        self._step = step
        self._latest = record
        self._moved.set()
        return self._stopping

    async def stop(self) -> None:
        """The driver wants the workers to save and end."""
        self._stopping = True

    async def stopped(self, step: int) -> None:
        """A rank saved the state before `step` and ends; generation ends too."""
        self._stopped = step
        self._moved.set()

    async def stopped_at(self) -> int | None:
        """What `stopped` was told."""
        return self._stopped

    async def restarts(self) -> int:
        """How often the worker group was started again."""
        return max(self._generation - 1, 0)

    async def fail(self, cause: str) -> None:
        """A failure that all ranks agree on and that a restart would meet again: the group ends without one."""
        self._failure = cause

    async def failure(self) -> str | None:
        """What `fail` was told."""
        return self._failure

    async def latest(self) -> dict[str, Any]:
        """The newest record of rank 0."""
        return self._latest

    async def tell(self, facts: dict[str, Any]) -> None:
        """Rank 0 tells what it alone knows, of the model and of what was spent, for the summary."""
        self._facts |= facts

    async def facts(self) -> dict[str, Any]:
        """What `tell` was told."""
        return self._facts
