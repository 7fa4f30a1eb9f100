"""The Train side of the stream: masked rows from the store to each rank, from any step, in an order that is exact.

In: a store of rows and the plan of a run. Out: per rank an iterator of Parts (data/batches.py), through Ray Train's
`get_dataset_shard`. What is in a part is a pure function of the plan; this file only moves it.

    windows -> generate: read a window once, mask it, yield one part per rank for every SEGMENT_STEPS steps
            -> streaming_split: part i goes to rank i mod world size

How it stays exact: a block holds one row, the encoded part, so Ray, which merges and cuts blocks by size, can do
neither; with `preserve_order` and equal row counts the splitter deals them round-robin. Each part names its rank and
steps, and the worker checks them.
How it stays cheap: one execution for all epochs and evaluations (each new one would restart the executor behind a
barrier), and a pacer that holds generation at most LOOKAHEAD_STEPS ahead: with output ready and nothing to do Ray's
executor spins, up to half a core.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.train import DataConfig

from data.batches import Part, encode
from data.config import Masking
from data.masking import Vocabulary, mask_rows
from data.order import Order, rank_rows
from data.store import Shards, Store, open_store
from orchestration import checkpoint

SEGMENT_STEPS = 16
LOOKAHEAD_STEPS = 3 * SEGMENT_STEPS  # at least one segment, else generation and training wait for each other
EVALUATION_EPOCH = 2**32 - 1  # key of the masks of held-out rows: fixed, and no epoch of training
EVALUATION_ROWS = 4096  # held-out rows of one part


@dataclass(frozen=True)
class Plan:
    """All that decides the stream, but for the step it starts at and the number of ranks."""

    run: str
    store: str
    seed: int
    steps: int
    global_batch: int
    evaluation_batch: int
    """Held-out rows that one rank evaluates at once."""
    eval_every_steps: int | None
    masking: Masking

    def evaluates_before(self, step: int) -> bool:
        """Whether held-out rows are evaluated before `step` is trained."""
        every = self.eval_every_steps
        return step in (0, self.steps) or (every is not None and step % every == 0)


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
        self._moved = asyncio.Event()

    async def open(self, start: int) -> int:
        """Begin a stream at `start`; streams opened before end. Returns the stream's number."""
        self._generation += 1
        self._start = self._step = start
        self._moved.set()
        return self._generation

    async def start(self) -> int:
        """The step at which the open stream began: the checkpoint that workers load."""
        return self._start

    async def wait(self, generation: int, step: int) -> bool:
        """Return True when generation may make `step`, False when its stream is over."""
        while self._is_open(generation) and step > self._step + LOOKAHEAD_STEPS:
            self._moved.clear()
            await self._moved.wait()
        return self._is_open(generation)

    def _is_open(self, generation: int) -> bool:
        return generation == self._generation and self._stopped is None

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


@lru_cache(maxsize=2)
def _open(path: str) -> Store:
    """The store, opened once per process."""
    return open_store(Path(path))


def generate(
    batch: dict[str, np.ndarray], plan: Plan, first_window: int, start: int, world_size: int, pacer: Any, stream: int
) -> Iterator[dict[str, list[bytes]]]:
    """Yield the parts of window `first_window + batch["id"]`, one block each, ranks in turn.

    The window behind the last one stands for the evaluation after the last step.
    """
    store = _open(plan.store)
    order = Order(store.train.group_rows, plan.seed, plan.global_batch)
    number = first_window + int(batch["id"][0])
    if number > order.window_of(plan.steps - 1):
        if ray.get(pacer.wait.remote(stream, plan.steps)):
            yield from _blocks(_evaluation_parts(store, plan, plan.steps, world_size))
        return
    window = order.window(number)
    first, last = max(start, window.first_step), min(plan.steps, window.first_step + len(window.rows))
    # Cut where a segment is full and where held-out rows come in between.
    cuts = [s for s in range(first, last) if (s - first) % SEGMENT_STEPS == 0 or plan.evaluates_before(s)]
    for begin, end in zip(cuts, [*cuts[1:], last], strict=True):
        if not ray.get(pacer.wait.remote(stream, begin)):
            return
        if plan.evaluates_before(begin):
            yield from _blocks(_evaluation_parts(store, plan, begin, world_size))
        rows = window.rows[begin - window.first_step : end - window.first_step]
        yield from _blocks(_parts(store.train, plan, store, rows, begin, window.epoch, world_size, evaluation=False))


def _evaluation_parts(store: Store, plan: Plan, step: int, world_size: int) -> Iterator[Part]:
    """All held-out rows, dealt to the ranks in batches that play the part of steps."""
    batch = plan.evaluation_batch * world_size
    ids = np.arange(store.held_out.num_rows, dtype=np.int64)
    batches_per_part = max(1, EVALUATION_ROWS // batch)
    batches = [ids[i : i + batch] for i in range(0, len(ids), batch)]
    for i in range(0, len(batches), batches_per_part):
        rows = batches[i : i + batches_per_part]
        yield from _parts(store.held_out, plan, store, rows, step, EVALUATION_EPOCH, world_size, evaluation=True)


def _parts(
    shards: Shards, plan: Plan, store: Store, rows: Any, first_step: int, epoch: int, world_size: int, evaluation: bool
) -> Iterator[Part]:
    """Mask the rows of consecutive steps and deal them: one part per rank."""
    tokenizer = store.manifest["tokenizer"]
    vocabulary = Vocabulary(tokenizer["vocab_size"], tokenizer["mask_id"], tuple(tokenizer["special_ids"]))
    for rank in range(world_size):
        of_rank = [rank_rows(step_rows, rank, world_size) for step_rows in rows]
        row_ids = np.concatenate(of_rank)
        input_ids, lengths = shards.rows(row_ids)
        inputs, labels = mask_rows(input_ids, row_ids, epoch, plan.seed, plan.masking, vocabulary)
        steps = np.repeat(np.arange(first_step, first_step + len(rows)), [len(r) for r in of_rank])
        yield Part(
            evaluation, first_step, first_step + len(rows), rank, epoch, steps, row_ids, lengths, inputs, labels
        )


def _blocks(parts: Iterator[Part]) -> Iterator[dict[str, list[bytes]]]:
    """One block of one row for each part."""
    for part in parts:
        yield {"part": [encode(part)]}


class Stream(DataConfig):
    """Builds the stream at every start of the worker group, at the newest complete checkpoint.

    The one place that decides where a group starts: workers ask the pacer, so they load the very checkpoint that
    the stream begins at. A Dataset handed to the trainer would replay from row 0 instead.
    """

    def __init__(self, plan: Plan, pacer: Any) -> None:
        super().__init__(enable_shard_locality=False)  # locality would deal parts out of turn
        self._plan = plan
        self._pacer = pacer

    def configure(self, datasets: Any, world_size: int, *_: Any, **__: Any) -> list[dict[str, Any]]:
        """One shard per rank: {"rows": iterator}."""
        start, _manifest, _complaints = checkpoint.newest(Path(self._plan.run))
        stream: Any = ray.get(self._pacer.open.remote(start))
        shards = build(self._plan, start, world_size, self._pacer, stream)
        return [dict.fromkeys(datasets, shard) for shard in shards]


def build(plan: Plan, start: int, world_size: int, pacer: Any, stream: int) -> list[Any]:
    """The stream from `start` on, one DataIterator per rank."""
    order = Order(open_store(Path(plan.store)).train.group_rows, plan.seed, plan.global_batch)
    end_window = order.window_of(plan.steps - 1) + 1
    first_window = order.window_of(start) if start < plan.steps else end_window
    windows = end_window - first_window + 1
    make: Any = generate
    # from_items, because ray.data.range and from_arrow run tasks that ask for a whole CPU: workers may leave less.
    items = [{"id": number} for number in range(windows)]
    dataset = ray.data.from_items(items, override_num_blocks=min(windows, 1000)).map_batches(
        make,
        fn_kwargs={
            "plan": plan, "first_window": first_window, "start": start,
            "world_size": world_size, "pacer": pacer, "stream": stream,
        },
        batch_size=1,
        num_cpus=0,  # whatever is free: a run whose workers have their CPUs must not wait for the end of another
        compute=ray.data.TaskPoolStrategy(size=2),
    )  # fmt: skip
    dataset.set_name(f"{Path(plan.run).name}-stream")
    context = dataset.context
    context.target_max_block_size = 1  # bytes: every yield is a block of its own
    context.execution_options.preserve_order = True
    context.execution_options.verbose_progress = False
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_no_progress_timeout_s = -1  # a consumer may pause: it evaluates, or saves
    return dataset.streaming_split(world_size, equal=False)


def parts_of(shard: Any, rank: int) -> Iterator[Part]:
    """The parts of one rank, in order. Raises RuntimeError where a part is not this rank's."""
    from data.batches import decode

    for batch in shard.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=1):
        for payload in batch["part"]:
            part = decode(payload.as_py())
            if part.rank != rank:
                raise RuntimeError(f"the stream dealt steps {part.first_step}.. of rank {part.rank} to rank {rank}")
            yield part
