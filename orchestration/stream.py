"""The Train side of the stream: masked rows from the store to each rank, from any step, in an order that is exact.

In: a store of rows and the plan of a run. Out: per rank an iterator of Parts (data/batches.py), through Ray Train's
`get_dataset_shard`. What is in a part is a pure function of the plan; this file only moves it.

    windows -> generate: read a window once, mask it, yield one part per rank for every SEGMENT_STEPS steps
            -> streaming_split: part i goes to rank i mod world size

How it stays exact: a block holds one row, the encoded part, so Ray, which merges and cuts blocks by size, can do
neither; with `preserve_order` and equal row counts the splitter deals them round-robin. Each part names its rank and
steps, and the worker checks them.
How it stays cheap: one execution for all epochs and evaluations (each new one would restart the executor behind a
barrier), and a pacer that holds generation a few segments ahead: with output ready and nothing to do Ray's
executor spins, up to half a core.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.train import DataConfig

from data.batches import PAIRS, Part, encode
from data.config import Masking
from data.masking import Vocabulary, mask_rows, mlm_probability, token_draws
from data.order import Order, rank_rows
from data.retries import be_patient
from data.store import Store, TokenRows, open_store

SEGMENT_STEPS = 16  # of one part; LOOKAHEAD_STEPS are a multiple of it
EVALUATION_VISIT = 2**32 - 1  # key of the masks of held-out rows: fixed, and no visit of training
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
    weights: tuple[float, ...]
    """Visits of each source's rows per epoch."""
    needs_draws: bool = False
    """The objective samples tokens."""

    def evaluates_before(self, step: int) -> bool:
        """Whether held-out rows are evaluated before `step` is trained."""
        every = self.eval_every_steps
        return step in (0, self.steps) or (every is not None and step % every == 0)


@lru_cache(maxsize=2)
def _open(plan: Plan) -> tuple[Store, Order]:
    """The store and its order, opened once per process."""
    store = open_store(Path(plan.store))
    return store, order_of(store, plan.weights, plan.seed, plan.global_batch)


def order_of(store: Store, weights: tuple[float, ...], seed: int, global_batch: int) -> Order:
    """The order of a store's training rows."""
    return Order(store.train.shard_rows, store.train.shard_sources, weights, seed, global_batch)


def generate(
    batch: dict[str, np.ndarray], plan: Plan, first_window: int, start: int, world_size: int, pacer: Any, stream: int
) -> Iterator[dict[str, list[bytes]]]:
    """Yield the parts of window `first_window + batch["id"]`, one block each, ranks in turn.

    The window behind the last one stands for the evaluation after the last step.
    """
    be_patient()
    store, order = _open(plan)
    number = first_window + int(batch["id"][0])
    if number > order.window_of(plan.steps - 1):
        if ray.get(pacer.wait.remote(stream, plan.steps)):
            yield from _blocks(_evaluation_parts(store, plan, plan.steps, world_size))
        return
    window = order.window(number)
    first, last = max(start, window.first_step), min(plan.steps, window.first_step + len(window.rows))
    # Cut where a segment is full and where held-out rows come in between.
    cuts = [s for s in range(first, last) if (s - first) % SEGMENT_STEPS == 0 or plan.evaluates_before(s)]
    here = slice(first - window.first_step, last - window.first_step)
    row_ids, visits = np.concatenate(window.rows[here]), np.concatenate(window.visits[here])
    ends = np.cumsum([0, *map(len, window.rows[here])])
    rows: TokenRows | None = None
    for begin, end in zip(cuts, [*cuts[1:], last], strict=True):
        if not ray.get(pacer.wait.remote(stream, begin)):
            return
        if plan.evaluates_before(begin):
            yield from _blocks(_evaluation_parts(store, plan, begin, world_size))
        if rows is None:  # only now: a window is not read before its turn
            rows = store.train.read(row_ids)
        steps = Steps(begin, ends[begin - first : end - first + 1], evaluation=False)
        yield from _blocks(_parts(rows, row_ids, visits, steps, window.epoch, plan, store, world_size))


@dataclass(frozen=True)
class Steps:
    """Consecutive steps, or batches of an evaluation that play their part."""

    first_step: int
    ends: np.ndarray
    """(steps + 1,): where the rows of each step begin, and where the last one's end."""
    evaluation: bool


def _evaluation_parts(store: Store, plan: Plan, step: int, world_size: int) -> Iterator[Part]:
    """All held-out rows, dealt to the ranks in batches."""
    batch = plan.evaluation_batch * world_size
    num_rows = store.held_out.num_rows
    rows_per_part = max(1, EVALUATION_ROWS // batch) * batch
    for begin in range(0, num_rows, rows_per_part):
        row_ids = np.arange(begin, min(begin + rows_per_part, num_rows))
        ends = np.append(np.arange(0, len(row_ids), batch), len(row_ids))
        visits = np.full(len(row_ids), EVALUATION_VISIT)
        rows = store.held_out.read(row_ids)
        yield from _parts(rows, row_ids, visits, Steps(step, ends, True), EVALUATION_VISIT, plan, store, world_size)


def _parts(
    rows: TokenRows, row_ids: np.ndarray, visits: np.ndarray, steps: Steps, epoch: int, plan: Plan, store: Store,
    world_size: int,
) -> Iterator[Part]:  # fmt: skip
    """Mask the rows of consecutive steps and deal them: one part per rank."""
    tokenizer, packing = store.manifest["tokenizer"], store.manifest["rows"]["packing"]
    vocabulary = Vocabulary(tokenizer["vocab_size"], tokenizer["mask_id"], tuple(tokenizer["special_ids"]))
    num_steps = len(steps.ends) - 1
    for rank in range(world_size):
        of_steps = [rank_rows(np.arange(*steps.ends[i : i + 2]), rank, world_size) for i in range(num_steps)]
        places = np.concatenate(of_steps)
        step = np.repeat(np.arange(steps.first_step, steps.first_step + num_steps), [len(of) for of in of_steps])
        mine = rows.take(places)
        share = mlm_probability(plan.masking, np.zeros_like(step) if steps.evaluation else step, plan.steps)
        inputs, labels = mask_rows(
            mine.input_ids, mine.word_starts, row_ids[places], visits[places], share, plan.seed, plan.masking,
            vocabulary,
        )  # fmt: skip
        drawn = token_draws(row_ids[places], visits[places], inputs.shape[1], plan.seed) if plan.needs_draws else None
        yield Part(
            steps.evaluation, steps.first_step, steps.first_step + num_steps, rank, epoch, step, row_ids[places],
            mine.lengths, inputs, labels,
            segments=mine.segments if packing in (*PAIRS, "packed") else None,
            pair_labels=mine.labels if packing in PAIRS else None,
            draws=drawn,
        )  # fmt: skip


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
        stream: Any = ray.get(self._pacer.open.remote(start, world_size))
        shards = build(self._plan, start, world_size, self._pacer, stream)
        return [dict.fromkeys(datasets, shard) for shard in shards]


def build(plan: Plan, start: int, world_size: int, pacer: Any, stream: int) -> list[Any]:
    """The stream from `start` on, one DataIterator per rank."""
    order = _open(plan)[1]
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
