"""The Train side of the stream: masked rows from the store to each rank, from any step, in an order that is exact.

In: the plan of a run. Out: per rank an iterator of Parts (data/batches.py), through Ray Train's `get_dataset_shard`.
What is in a part is a pure function of the plan (orchestration/segments.py); this file only moves it.

    windows -> generate: read a window once, mask it, yield one part per rank for every SEGMENT_STEPS steps
            -> streaming_split: part i goes to rank i mod world size

How it stays exact: a block holds one row, the encoded part, so Ray, which merges and cuts blocks by size, can do
neither; with `preserve_order` and equal row counts the splitter deals them round-robin. Each part names its rank and
steps, and the worker checks them.
How it stays cheap: one execution for all epochs and evaluations (each new one would restart the executor behind a
barrier), and a pacer that holds generation a few segments ahead: with output ready and nothing to do Ray's
executor spins, up to half a core.
"""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.train import DataConfig

from data.batches import Part, encode
from data.retries import be_patient
from orchestration.pacer import END, MAKE, OVER
from orchestration.segments import Plan, evaluation_parts, window_of, window_parts

ALONE_WINDOWS = 200  # windows that are a task of their own; Ray keeps every task's item from the start


def generate(
    batch: dict[str, np.ndarray], plan: Plan, start: int, world_size: int, pacer: Any, stream: int
) -> Iterator[dict[str, list[bytes]]]:
    """Yield the parts of windows batch["begin"] to batch["end"] - 1, one block each, ranks in turn.

    The window behind the last one stands for the evaluation after the last step; it comes sooner where the pacer says
    that the run ends before.
    """
    be_patient()
    for number in range(int(batch["begin"][0]), int(batch["end"][0])):
        if number == window_of(plan, plan.steps):
            if ray.get(pacer.wait.remote(stream, plan.steps)) != OVER:
                yield from _blocks(evaluation_parts(plan, plan.steps, world_size, ends_run=True))
            return
        for step, parts in window_parts(plan, number, start, world_size):
            answer = ray.get(pacer.wait.remote(stream, step))
            if answer == END:
                yield from _blocks(evaluation_parts(plan, step, world_size, ends_run=True))
            if answer != MAKE:
                return
            yield from _blocks(parts)


def _blocks(parts: Iterator[Part]) -> Iterator[dict[str, list[bytes]]]:
    """One block of one row for each part."""
    for part in parts:
        yield {"part": [encode(part)]}


class Stream(DataConfig):
    """Builds the stream at every start of the worker group, at the checkpoint that its workers agreed on.

    They do so before they ask for their shards (orchestration/resuming.py), and the pacer tells that one number to both
    sides. A Dataset handed to the trainer would replay from row 0 instead.
    """

    def __init__(self, plan: Plan, pacer: Any) -> None:
        super().__init__(enable_shard_locality=False)  # locality would deal parts out of turn
        self._plan = plan
        self._pacer = pacer

    def configure(self, datasets: Any, world_size: int, *_: Any, **__: Any) -> list[dict[str, Any]]:
        """One shard per rank: {"rows": iterator}."""
        start: Any = ray.get(self._pacer.resumes_at.remote())
        stream: Any = ray.get(self._pacer.open.remote(start, world_size, uuid.uuid4().hex))
        shards = build(self._plan, start, world_size, self._pacer, stream)
        return [dict.fromkeys(datasets, shard) for shard in shards]


def build(plan: Plan, start: int, world_size: int, pacer: Any, stream: int) -> list[Any]:
    """The stream from `start` on, one DataIterator per rank."""
    first = window_of(plan, start)
    ends = _ends_of_items(window_of(plan, plan.steps) + 1 - first)
    make: Any = generate
    # from_items, because ray.data.range and from_arrow run tasks that ask for a whole CPU: workers may leave less.
    items = [{"begin": first + begin, "end": first + end} for begin, end in zip([0, *ends], ends, strict=False)]
    dataset = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
        make,
        fn_kwargs={"plan": plan, "start": start, "world_size": world_size, "pacer": pacer, "stream": stream},
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


def _ends_of_items(windows: int) -> list[int]:
    """Where the items of the dataset end, each a task: a window each of the first ALONE, then ALONE equal runs of them.

    So a run whose budget ends it, for which a billion steps are planned, starts and ends as quickly as another.
    """
    alone = min(windows, ALONE_WINDOWS)
    runs = min(windows - alone, ALONE_WINDOWS)
    return [*range(1, alone + 1), *(alone + (windows - alone) * run // runs for run in range(1, runs + 1))]


def parts_of(shard: Any, rank: int) -> Iterator[Part]:
    """The parts of one rank, in order, to the one that ends the run. Raises RuntimeError for another rank's part."""
    from data.batches import decode

    for batch in shard.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=1):
        for payload in batch["part"]:
            part = decode(payload.as_py())
            if part.rank != rank:
                raise RuntimeError(f"the stream dealt steps {part.first_step}.. of rank {part.rank} to rank {rank}")
            if part.first_step < part.last_step:
                yield part
            if part.ends_run:
                return
