"""The one training loop, for pretraining objectives and downstream heads alike.

In: an engine (which holds the objective), the micro-batches of each step, a learning rate per step.
Out: a record per optimizer step. Knows neither Ray nor files: whoever drains the generator saves, logs and evaluates.

The loss of a step is a sum over targets divided by the number of targets of the whole step, over all ranks and
micro-batches, each loss term with its own count. A mean of means would weigh a target by its neighbours' number, and
1 x 8 and 2 x 4 rows would be two different trainings.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from orchestration.gate import Gate

Batch = dict[str, Tensor]


class Engine(Protocol):
    """What the loop needs of an engine: orchestration/engine.py has two."""

    module: nn.Module
    device: torch.device
    rank: int
    world_size: int

    def all_reduce(self, values: Tensor) -> Tensor:
        """Sum over ranks."""
        ...

    def gather(self, value: Any) -> list[Any]:
        """The value of each rank, in their order."""
        ...

    def forward(self, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Loss sum per term, metric sums."""
        ...

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of this rank's share of the step's loss."""
        ...

    def step(self, learning_rate: float) -> float:
        """Sum gradients over ranks, clip, update; returns the gradient's norm before clipping.

        A norm that is not finite, on all ranks alike, is one that moved nothing.
        """
        ...

    def rescaled(self) -> bool:
        """Whether the last step was refused only to look for a loss scale."""
        ...


class Step(NamedTuple):
    """What a rank brings to an optimizer step; a pair of the first two is one too."""

    number: int
    micro_batches: list[Batch]
    row_ids: Sequence[int] = ()
    """Of its rows in their order, without filler rows."""


@dataclass(frozen=True)
class StepRecord:
    """One optimizer step, equal on every rank."""

    step: int
    loss: float
    terms: dict[str, float]
    """Mean loss per target of each term."""
    counts: dict[str, int]
    """Targets of each term, over all ranks and micro-batches."""
    metrics: dict[str, float]
    """Metric sums over the step, such as "correct"."""
    learning_rate: float
    gradient_norm: float
    is_last: bool = False
    """Some rank was asked to stop: all ranks stop after this step."""
    moves: bool = False
    """Some rank was asked to leave: all ranks save after this step and start again elsewhere."""
    seconds: float = 0.0
    """Sum of what `clock` said on the ranks."""
    skipped: bool = False
    """The gradient was no finite number: no weight moved."""
    suspects: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """Of a skipped step, rank -> ids of its rows that made it so: those of the micro-batches with a loss that is no
    finite number, of all ranks where only the gradient, which is their sum, is none. Empty where fp16 looked for a loss
    scale."""

    @property
    def targets(self) -> int:
        """Of all terms."""
        return sum(self.counts.values())


def train_steps(
    engine: Engine,
    steps: Iterable[Step | tuple[int, list[Batch]]],
    learning_rate: Callable[[int], float],
    asked_to_stop: Callable[[], bool] = lambda: False,
    at: Callable[[str, int], None] = lambda stage, step: None,
    asked_to_move: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = lambda: 0.0,
    gate: Gate | None = None,
    count: Callable[[int, Mapping[str, float], float], None] = lambda step, sums, seconds: None,
) -> Iterator[StepRecord]:
    """Train on `steps` (step number, this rank's micro-batches); yields after each optimizer step.

    Every rank must bring the same number of micro-batches. `asked_to_stop` and `asked_to_move` are called once a step;
    where one rank says yes, all ranks end after the same step. `clock` is called once a step and summed over ranks: one
    of them tells the time. `at` is told each stage of a step (orchestration/beacon.py). `count` is told a step, its
    metric sums and that time, before the learning rate of the step is asked for.
    A step whose loss or gradient is not finite is skipped by all ranks alike: no weight moves. Raises
    FloatingPointError where `gate` (None: one that lets none pass) has seen too many in a row.
    """
    engine.module.train()
    gate = gate or Gate()
    for item in steps:
        step, micro_batches, row_ids = item if isinstance(item, Step) else Step(*item)
        at("all-reduce", step)
        counts = _targets(engine, micro_batches)
        totals: dict[str, Tensor] = {}
        losses: list[Tensor] = []
        loss, terms, metric_sums, is_last, moves, seconds = 0.0, {}, {}, False, False, 0.0
        for number, batch in enumerate(micro_batches, start=1):
            at("forward", step)
            sums, metrics = engine.forward(batch)
            # 0 targets of a term in the whole step: 0 loss and 0 weight, not 0/0.
            share = torch.stack([value / max(counts[term], 1) for term, value in sums.items()]).sum()
            losses.append(share.detach())
            _add(totals, {f"loss.{term}": value.detach() for term, value in sums.items()})
            _add(totals, metrics)
            if number == len(micro_batches):
                at("all-reduce", step)
                totals["asked_to_stop"] = torch.tensor(float(asked_to_stop()))
                totals["asked_to_move"] = torch.tensor(float(asked_to_move()))
                totals["seconds"] = torch.tensor(clock(), dtype=torch.float64)
                metric_sums = _reduced(engine, totals)
                is_last, moves = metric_sums.pop("asked_to_stop") > 0, metric_sums.pop("asked_to_move") > 0
                seconds = metric_sums.pop("seconds")
                terms = {term: metric_sums.pop(f"loss.{term}") / max(count, 1) for term, count in counts.items()}
                loss = sum(terms.values())
                if not math.isfinite(loss):
                    # Known to all ranks before the last backward pass: it spoils the gradient, so that what guards
                    # the weights against a gradient that is no number guards them against such a loss too.
                    share = share * math.nan
            at("backward", step)
            engine.backward(share)
        count(step, metric_sums, seconds)
        rate = learning_rate(step)
        at("update", step)
        norm = engine.step(rate)
        skipped, suspects = not math.isfinite(norm), {}
        if skipped and not (math.isfinite(loss) and engine.rescaled()):
            suspects = _suspects(engine, micro_batches, losses, row_ids)
        record = StepRecord(
            step, loss, terms, counts, metric_sums, rate, norm, is_last, moves, seconds, skipped, suspects
        )
        gate.judge(record)
        yield record
        if is_last or moves:
            return


def _suspects(
    engine: Engine, micro_batches: list[Batch], losses: list[Tensor], row_ids: Sequence[int]
) -> dict[int, list[int]]:
    """StepRecord.suspects of a bad step; all ranks must call it."""
    rows, found, begin = [int(row) for row in row_ids], list[int](), 0
    bad = [not math.isfinite(loss) for loss in losses]
    for batch, is_bad in zip(micro_batches, bad, strict=True):
        size = len(next(iter(batch.values())))
        found += rows[begin : begin + size] if is_bad else []
        begin += size
    told = engine.gather((any(bad), found, rows))
    if any(is_bad for is_bad, _, _ in told):
        return {rank: found for rank, (is_bad, found, _) in enumerate(told) if is_bad}
    return {rank: rows for rank, (_, _, rows) in enumerate(told)}


@torch.no_grad()
def evaluate(
    engine: Engine, batches: Iterable[Batch], at: Callable[[str], None] = lambda stage: None
) -> dict[str, float]:
    """Loss per target over all ranks' batches, without training: {"loss", "targets", the objective's scores, and
    "loss_<term>" of each term where there are several}.

    Every rank must bring the same number of batches. Dropout is off; the mode the module was in comes back. `at` is
    told each batch.
    """
    training = engine.module.training
    engine.module.eval()
    totals: dict[str, Tensor] = {}
    counts: dict[str, int] = {}
    for batch in batches:
        at("evaluating")
        for term, count in engine.module.count_targets(batch).items():  # pyright: ignore[reportCallIssue]
            counts[term] = counts.get(term, 0) + int(count)
        sums, metrics = engine.forward(batch)
        _add(totals, {f"loss.{term}": value for term, value in sums.items()})
        _add(totals, metrics)
    engine.module.train(training)
    at("all-reduce")
    _add(totals, {f"count.{term}": torch.tensor(float(count)) for term, count in counts.items()})
    reduced = _reduced(engine, totals)
    targets = {term: reduced.pop(f"count.{term}") for term in counts}
    terms = {f"loss_{term}": reduced.pop(f"loss.{term}") / max(count, 1) for term, count in targets.items()}
    scores: dict[str, float] = engine.module.scores(reduced, targets)  # pyright: ignore[reportCallIssue]
    apart = terms if len(terms) > 1 else {}
    return {"loss": sum(terms.values()), "targets": sum(targets.values()), **apart, **scores}


def _targets(engine: Engine, micro_batches: list[Batch]) -> dict[str, int]:
    """Targets of each loss term over the whole step, known before the first backward pass."""
    counts: dict[str, Tensor] = {}
    for batch in micro_batches:
        module_counts = engine.module.count_targets(batch)  # pyright: ignore[reportCallIssue]
        _add(counts, {term: torch.tensor(float(count)) for term, count in module_counts.items()})
    return {term: round(count) for term, count in _reduced(engine, counts).items()}


def _add(totals: dict[str, Tensor], more: dict[str, Tensor]) -> None:
    """Add sums by name, in double precision: a long evaluation adds millions of small terms."""
    for name, value in more.items():
        value = value.detach().double()
        totals[name] = totals[name] + value if name in totals else value


def _reduced(engine: Engine, totals: dict[str, Tensor]) -> dict[str, float]:
    """Sum every total over all ranks, in one all-reduce."""
    names = sorted(totals)
    values = engine.all_reduce(torch.stack([totals[name].to(engine.device) for name in names]))
    return dict(zip(names, values.tolist(), strict=True))
