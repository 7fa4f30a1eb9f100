"""What the stream carries, as a pure function of a run's plan: the parts of its windows and of its evaluations.

In: a plan. Out: Parts (data/batches.py) of masked rows, one for each rank and SEGMENT_STEPS steps. Phases follow one
another, each with a store and an order of its own; windows and steps are numbered through. Reads stores; knows no Ray.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from data.batches import PAIRS, Part
from data.config import Masking
from data.masking import Vocabulary, mask_rows, mlm_probability, token_draws
from data.order import Order, rank_rows
from data.store import Store, TokenRows, open_store
from orchestration.plan import Phase, number_of_phase

SEGMENT_STEPS = 16  # of one part; LOOKAHEAD_STEPS are a multiple of it
EVALUATION_VISIT = 2**32 - 1  # key of the masks of held-out rows: fixed, and no visit of training
EVALUATION_ROWS = 4096  # held-out rows of one part


@dataclass(frozen=True)
class PlanPhase(Phase):
    """A phase and the store of its rows."""

    store: str


@dataclass(frozen=True)
class Plan:
    """All that decides the stream, but for the step it starts at and the number of ranks."""

    run: str
    phases: tuple[PlanPhase, ...]
    seed: int
    global_batch: int
    eval_every_steps: int | None
    masking: Masking
    weights: tuple[float, ...]
    """Visits of each source's rows per epoch."""
    needs_draws: bool = False
    """The objective samples tokens."""

    @property
    def steps(self) -> int:
        """Of all phases."""
        return self.phases[-1].end_step

    def evaluates_before(self, step: int) -> bool:
        """Whether held-out rows (of the phase that `step` is of) are evaluated before `step` is trained."""
        every = self.eval_every_steps
        first = any(step == phase.first_step for phase in self.phases)
        return first or step == self.steps or (every is not None and step % every == 0)


@lru_cache(maxsize=4)
def open_phase(plan: Plan, number: int) -> tuple[Store, Order]:
    """The store of a phase and its order, opened once per process."""
    store = open_store(Path(plan.phases[number].store))
    return store, order_of(store, plan.weights, plan.seed, plan.global_batch)


def windows_of(plan: Plan) -> list[int]:
    """How many windows each phase has."""
    return [
        open_phase(plan, number)[1].window_of(phase.end_step - phase.first_step - 1) + 1
        for number, phase in enumerate(plan.phases)
    ]


def window_of(plan: Plan, step: int) -> int:
    """The window that holds `step`, numbered through; of the step behind the last one the window behind the last."""
    before = 0
    for number, (phase, windows) in enumerate(zip(plan.phases, windows_of(plan), strict=True)):
        if step < phase.end_step:
            return before + open_phase(plan, number)[1].window_of(step - phase.first_step)
        before += windows
    return before


def order_of(store: Store, weights: tuple[float, ...], seed: int, global_batch: int) -> Order:
    """The order of a store's training rows."""
    return Order(store.train.shard_rows, store.train.shard_sources, weights, seed, global_batch)


def window_parts(
    plan: Plan, window_number: int, start: int, world_size: int
) -> Iterator[tuple[int, Iterator[Part]]]:
    """The segments of a window from step `start` on: first step and parts of each."""
    number = 0
    while window_number >= (windows := windows_of(plan)[number]):
        window_number, number = window_number - windows, number + 1
    phase, (store, order) = plan.phases[number], open_phase(plan, number)
    window = order.window(window_number)
    first_of_window = phase.first_step + window.first_step
    first, last = max(start, first_of_window), min(phase.end_step, first_of_window + len(window.rows))
    # Cut where a segment is full and where held-out rows come in between.
    cuts = [s for s in range(first, last) if (s - first) % SEGMENT_STEPS == 0 or plan.evaluates_before(s)]
    here = slice(first - first_of_window, last - first_of_window)
    row_ids, visits = np.concatenate(window.rows[here]), np.concatenate(window.visits[here])
    ends = np.cumsum([0, *map(len, window.rows[here])])
    rows: TokenRows | None = None

    def segment(begin: int, end: int) -> Iterator[Part]:
        nonlocal rows
        if plan.evaluates_before(begin):
            yield from evaluation_parts(plan, begin, world_size)
        if rows is None:  # only now: a window is not read before its turn
            rows = store.train.read(row_ids)
        steps = Steps(begin, ends[begin - first : end - first + 1], evaluation=False)
        yield from _parts(rows, row_ids, visits, steps, window.epoch, plan, store, world_size)

    for begin, end in zip(cuts, [*cuts[1:], last], strict=True):
        yield begin, segment(begin, end)


@dataclass(frozen=True)
class Steps:
    """Consecutive steps, or batches of an evaluation that play their part."""

    first_step: int
    ends: np.ndarray
    """(steps + 1,): where the rows of each step begin, and where the last one's end."""
    evaluation: bool
    ends_run: bool = False


def evaluation_parts(plan: Plan, step: int, world_size: int, ends_run: bool = False) -> Iterator[Part]:
    """All held-out rows of the phase that `step` is of, dealt to the ranks in batches.

    Where they end the run there is at least one part for each rank, without rows where none are held out.
    """
    number = number_of_phase(plan.phases, step)
    store = open_phase(plan, number)[0]
    batch = plan.phases[number].micro_batch * world_size
    num_rows = store.held_out.num_rows
    rows_per_part = max(1, EVALUATION_ROWS // batch) * batch
    for begin in range(0, max(num_rows, int(ends_run)), rows_per_part):
        row_ids = np.arange(begin, min(begin + rows_per_part, num_rows))
        ends = np.append(np.arange(0, len(row_ids), batch), len(row_ids))
        is_last = ends_run and begin + rows_per_part >= num_rows
        visits = np.full(len(row_ids), EVALUATION_VISIT)
        rows = store.held_out.read(row_ids)
        steps = Steps(step, ends, True, is_last)
        yield from _parts(rows, row_ids, visits, steps, EVALUATION_VISIT, plan, store, world_size)


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
        places = np.concatenate([np.empty(0, np.int64), *of_steps])
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
            ends_run=steps.ends_run,
        )  # fmt: skip
