"""The actor between driver, workers and the stream of a pretraining run: one word each to the others.

In: what each of them has to say. Out: what the others ask for. Knows nothing of rows and models.

A call whose answer is lost on its way (a connection that breaks) is made again by Ray: else one rank alone would take a
save for lost, or end. So what a call changes, it may change twice.

A run that a budget ends has no last step that the stream could know. Once the workers agree that the budget is spent,
rank 0 tells `finish`: one waiter then makes the last evaluation (its masks are the same whenever it is made), and
generation is over for all others.
"""

import asyncio
import re
import time
from typing import Any, NamedTuple

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestration.agreement import Agreement

MAKE, END, OVER = "make", "end", "over"  # what generation is told: go on, make the last evaluation, stop
LOOKAHEAD_STEPS = 48  # at least one segment of the stream, else generation and training wait for each other


class Wish(NamedTuple):
    """What rank 0 is asked for with the answer to its last record."""

    stop: bool = False
    """Save and end: the user wants it."""
    move: bool = False
    """Save and start again, with another number of workers."""


def start_pacer(name: str) -> Any:
    """The pacer of one start of a run. `name`: as two runs may share a namespace."""
    # On the driver's own node, for it must not end with another.
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return Pacer.options(
        name=name,
        scheduling_strategy=here,
        max_concurrency=10_000,  # each rank has a few calls waiting in it; Ray's own limit is 1,000
        max_task_retries=-1,  # of calls that did not come through; none once the actor is dead
    ).remote()


@ray.remote(num_cpus=0)
class Pacer(Agreement):
    """The one meeting point of driver, workers and generation: the cursor, the step in work, the newest record."""

    def __init__(self) -> None:
        super().__init__()
        self._start = 0
        self._opened: str | None = None
        self._restarts = 0
        self._planned = True
        self._workers = 0
        self._step = 0
        self._latest: dict[str, Any] = {}
        self._eval_loss: float | None = None
        self._failure: str | None = None
        self._stopping = False
        self._moving = False
        self._stopped: int | None = None
        self._finished = False
        self._end: int | None = None
        self._facts: dict[str, Any] = {}
        self._signs: dict[int, dict[str, Any]] = {}
        self._lost: str | None = None
        self._trouble: str | None = None
        self._log: list[str] = []
        self._moved = asyncio.Event()

    async def open(self, start: int, workers: int = 1, key: str | None = None) -> int:
        """Begin a stream at `start` for so many workers; streams opened before end. Returns the stream's number.

        `key`: of this call, where it may come twice.
        """
        if key is not None and key == self._opened:
            return self._group
        self._opened = key
        self._restarts += not self._planned
        self._planned = False
        self._start = self._step = start
        self._workers = workers
        self._moving = self._finished = False
        self._end = None
        self._signs = {}
        group = self._next_group()
        self._moved.set()
        return group

    async def start(self) -> int:
        """The step at which the open stream began: the checkpoint that workers load."""
        return self._start

    async def generation(self) -> int:
        """The number of the open stream, counted from 1: of the worker group that reads it."""
        return self._group

    async def wait(self, generation: int, step: int) -> str:
        """Return MAKE when generation may make `step`, OVER when its stream is over, END for the first step that is
        asked for after `finish`."""
        while self._is_open(generation) and not self._finished and step > self._step + LOOKAHEAD_STEPS:
            self._moved.clear()
            await self._moved.wait()
        if not self._is_open(generation):
            return OVER
        if not self._finished:
            return MAKE
        self._end = step if self._end is None else self._end
        return END if step == self._end else OVER

    def _is_open(self, generation: int) -> bool:
        return generation == self._group and self._stopped is None

    async def finish(self) -> None:
        """The budget is spent: no step behind those that were trained; one evaluation, and the open stream is over."""
        self._finished = True
        self._moved.set()

    async def begin(self, step: int, record: dict[str, Any]) -> Wish:
        """Rank 0 begins `step`; `record` is what the driver shows. Returns what it is asked for."""
        self._step = step
        self._latest = record
        self._eval_loss = record.get("eval_loss", self._eval_loss)
        self._lost = self._trouble = None
        self._moved.set()
        return Wish(self._stopping, self._moving)

    async def stop(self) -> None:
        """The driver wants the workers to save and end."""
        self._stopping = True

    async def move(self) -> None:
        """The workers are to save and start again, as there is room for another number of them."""
        self._moving = True

    async def stopped(self, step: int) -> None:
        """A rank saved the state before `step` and ends; generation ends too."""
        self._stopped = step
        self._moved.set()

    async def stopped_at(self) -> int | None:
        """What `stopped` was told."""
        return self._stopped

    async def lost(self, cause: str, planned: bool) -> None:
        """The worker group is gone; `planned`: it saved before. A rank that was stuck has told a better cause."""
        self._planned = planned
        of_rank = re.match(r"rank (\d+): ", cause)
        if of_rank and (sign := self._signs.get(int(of_rank[1]))):
            where = f"rank {of_rank[1]} on {sign['host']} (last seen at step {sign['step']}, {sign['stage']}): "
            cause = where + cause[of_rank.end() :]
        self._lost = cause if planned or not self._trouble else self._trouble
        self._log.append(f"the worker group ended at step {self._step}: {self._lost}")

    async def restarts(self) -> int:
        """How often the worker group was started again because something broke."""
        return self._restarts

    async def fail(self, cause: str) -> None:
        """A failure that all ranks agree on and that a restart would meet again: the group ends without one."""
        self._failure = cause

    async def failure(self) -> str | None:
        """What `fail` was told."""
        return self._failure

    async def is_over(self) -> bool:
        """Whether no group is to be started again: the state is saved as the user wanted, or `fail` was told."""
        return self._stopped is not None or self._failure is not None

    async def beat(self, rank: int, sign: dict[str, Any]) -> None:
        """A rank's sign of life: host, step, stage, how many stages it has passed and how many files delivered."""
        before, now = self._signs.get(rank), time.monotonic()
        is_still = before is not None and all(before[count] == sign[count] for count in ("passed", "files"))
        self._signs[rank] = {**sign, "heard": now, "moved": before["moved"] if before and is_still else now}

    async def signs(self) -> dict[int, dict[str, Any]]:
        """The newest sign of each rank, with the seconds since then as "silent", since its counts grew as "still"."""
        now = time.monotonic()
        return {
            rank: {**sign, "silent": now - sign["heard"], "still": now - sign["moved"]}
            for rank, sign in self._signs.items()
        }

    async def trouble(self, what: str, stack: str) -> None:
        """A rank is stuck, and ends its process; the first to say so knows the cause."""
        self._log.append(f"{what}; it stands here:\n{stack}")
        self._trouble = self._trouble or what

    async def news(self, logged: int = 0) -> dict[str, Any]:
        """What the driver shows: the newest record of rank 0 and held-out loss, the workers, what became of the last
        group, what is to be logged behind the first `logged` texts.
        """
        return {
            "line": self._latest,
            "eval_loss": self._eval_loss,
            "restarts": self._restarts,
            "workers": self._workers,
            "lost": self._lost,
            "trouble": self._trouble,
            "log": self._log[logged:],
            "warnings": await self.warnings(),
        }

    async def tell(self, facts: dict[str, Any]) -> None:
        """Rank 0 tells what it alone knows, of the model and of what was spent, for the summary."""
        self._facts |= facts

    async def facts(self) -> dict[str, Any]:
        """What `tell` was told."""
        return self._facts
