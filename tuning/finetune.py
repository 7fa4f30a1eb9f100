"""One trial: an encoder folder, a head and examples -> validation scores per epoch and the best weights.

Runs in the trial's own process, or in each rank of its group (tuning/groups.py), through the one loop of
orchestration/steps.py. The order of examples depends on (seed, epoch) alone, so that all modes, pretrained and random
encoders see the same, and dropout on (seed, step, rank), so that a trial that goes on drops what an undisturbed one
would. Knows neither Ray nor files of runs.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data.decoding import decode
from data.examples import IGNORED, Encoded, Examples
from model.config import Head
from model.counting import RowCounter
from model.heads.building import build_head
from model.heads.contract import HeadModule
from orchestration.feed import seed_dropout
from orchestration.inference import outputs_of
from orchestration.schedule import learning_rate
from orchestration.steps import train_steps
from tuning.config import Finetune
from tuning.course import Course
from tuning.engines import MakeEngine, TrialEngine, plain_engine
from tuning.halfway import Halfway
from tuning.scores import RANKED, rank_passages, score


@dataclass(frozen=True)
class Goal:
    """What a trial must know of its task beside the examples."""

    labels: tuple[str, ...]
    metric: str
    scheme: str | None = None
    """tagging: how tags mark entities."""
    label_counts: Mapping[str, int] | None = None
    """Training targets of each label."""
    num_choices: int | None = None
    """multiple_choice: how many an example has."""
    target_mean: float | None = None
    """regression: mean of the training numbers."""
    columns: tuple[str, ...] = ()
    """Of the task's files: the text's, then the second text's or the choices'."""


@dataclass(frozen=True)
class Part:
    """One split as a trial reads it."""

    examples: Examples
    encoded: Encoded
    passages: Encoded | None = None
    """embedding: what is searched, M rows."""
    right: np.ndarray | None = None
    """(N,) int64: of the passages, the right one of each example."""

    def take(self, numbers: np.ndarray) -> "Part":
        """Some of the examples, in the order given; what is searched stays whole."""
        right = None if self.right is None else self.right[numbers]
        return Part(self.examples.take([int(n) for n in numbers]), self.encoded.take(numbers), self.passages, right)


def counted(goal: Goal, train: Examples) -> Goal:
    """The goal with what is counted of these training examples: targets of each label, or the mean of the numbers."""
    targets: Iterable[Any] = train.targets or []
    if train.kind == "regression":
        return replace(goal, target_mean=float(np.mean(list(targets))))
    if train.kind in ("tagging", "multi_label"):
        targets = (name for names in targets for name in names)
    elif train.kind != "classification":
        return goal
    return replace(goal, label_counts=Counter(targets))


def epoch_order(units: int, seed: int, epoch: int) -> np.ndarray:
    """The permutation in which epoch `epoch` (0-based) reads the training units."""
    return np.random.default_rng((seed, epoch)).permutation(units)


def make_head(
    settings: Finetune, head: Head, goal: Goal, encoder: Path | str, seed: int, cached: bool = False
) -> HeadModule:
    """The module that a trial trains, new; `cached`: for features. Raises ValueError as build_head does."""
    return build_head(
        encoder, head, goal.labels, mode=settings.mode, top_k=settings.top_k, lora_rank=settings.lora_rank,
        lora_alpha=settings.lora_alpha, seed=seed, label_counts=goal.label_counts,
        num_choices=goal.num_choices, target_mean=goal.target_mean, cached=cached,
    )  # fmt: skip


@dataclass(frozen=True)
class Work:
    """What a trial trains."""

    settings: Finetune
    head: Head
    encoder: Path | str
    """Hugging Face folder."""
    goal: Goal
    train: Encoded
    validation: Part | None
    """What its epochs are judged by; None: they are not."""
    seed: int


def run_trial(
    work: Work, report: Callable[[dict[str, Any]], None], device: str = "cpu", **more: Any
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Train one point with one seed; `report` is called with what `train_trial` yields, and gets the rest."""
    training = train_trial(work, device, **more)
    while True:
        try:
            report(next(training))
        except StopIteration as end:
            return end.value


def train_trial(
    work: Work,
    device: str = "cpu",
    *,
    make_engine: MakeEngine = plain_engine,
    halfway: Halfway | None = None,
    last_epoch: int | None = None,
) -> Generator[dict[str, Any], None, tuple[dict[str, Any], dict[str, Tensor]]]:
    """Train one point with one seed on this rank, epoch by epoch.

    Yields each epoch's record ({"epoch" from 1, "train_loss", "loss", "score"}) together with what the trial has cost
    so far ("seconds", "encoder_rows", "trained_parameters", "total_parameters"). Epochs that `halfway` holds are told,
    not trained again. Returns the outcome (status "done" or "nan", score and best_epoch of the best one by validation,
    epochs: the records, seconds of training and validation, encoder_rows: rows that the encoder read, the numbers of
    parameters, error, log: what else to say) and the trained weights of that epoch by name (on rank 0).
    A frozen trial may get features in place of tokens: the encoder then is not run. `last_epoch`: where to end, with
    the learning rates of settings.epochs; without work.validation the last epoch's weights are returned, unscored.
    """
    settings, goal = work.settings, work.goal
    with torch.random.fork_rng(devices=list(range(torch.cuda.device_count())) if device != "cpu" else []):
        cached = work.train.features is not None
        module = make_head(settings, work.head, goal, work.encoder, work.seed, cached)
        began = time.monotonic()  # loading, and the imports of a process's first trial (6 s), are not training
        engine, judge = make_engine(module, settings, device)
        counters = [RowCounter(one) for one in dict.fromkeys((module, judge))]
        saved = halfway.load() if halfway else None
        course = Course(goal.metric, **(saved["course"] if saved else {}))
        if saved:
            engine.restore(saved["engine"])
        began, rows = began - course.seconds, course.encoder_rows
        counts = {f"{name}_parameters": count for name, count in module.parameter_counts.items()}

        def cost() -> dict[str, Any]:
            course.seconds = round(time.monotonic() - began, 3)
            course.encoder_rows = rows + sum(engine.gather(sum(counter.rows for counter in counters)))
            return {"seconds": course.seconds, "encoder_rows": course.encoder_rows, **counts}

        so_far = cost()
        for record in course.epochs:
            yield {**record, **so_far}
        epochs, error = range(len(course.epochs), last_epoch or settings.epochs), None
        try:
            for record in _epochs(engine, judge, work, epochs):
                course.add(record, judge if engine.rank == 0 else None)
                so_far = cost()
                if halfway and halfway.is_due():
                    halfway.save({"epoch": record["epoch"], "course": course.state(), "engine": engine.state()})
                yield {**record, **so_far}
        except FloatingPointError as fault:
            error = str(fault)
            course.forget()
    if error is None and course.score is None and work.validation is not None:
        error = f"{goal.metric} is no number in any epoch: every prediction is the same, or every target"
    outcome = {
        "status": "done" if error is None else "nan",
        "score": course.score,
        "best_epoch": course.best_epoch,
        "epochs": course.epochs,
        **cost(),
        "error": error,
        "log": halfway.log if halfway else [],
    }
    return outcome, course.weights


def _epochs(engine: TrialEngine, judge: Any, work: Work, epochs: range) -> Iterator[dict[str, Any]]:
    """Train epoch by epoch (numbers from 0); yields the records, equal on all ranks. Raises FloatingPointError.

    `judge`: a module that this rank can run by itself, for validation.
    """
    settings, train = work.settings, work.train
    units = len(train)
    steps_per_epoch = -(-units // settings.global_batch)
    steps = steps_per_epoch * settings.epochs

    def batches() -> Iterator[tuple[int, list[dict[str, Tensor]]]]:
        for epoch in epochs:
            order = epoch_order(units, work.seed, epoch)
            for k in range(steps_per_epoch):
                chosen = order[k * settings.global_batch : (k + 1) * settings.global_batch]
                step = epoch * steps_per_epoch + k
                seed_dropout(work.seed, step, engine.rank)
                yield step, [share(train, chosen, engine.rank, engine.world_size)]

    def rate(step: int) -> float:
        return learning_rate(step, steps, settings.learning_rate, settings.warmup_ratio)

    loss, targets = 0.0, 0
    for record in train_steps(engine, batches(), rate):
        loss, targets = loss + record.loss * record.targets, targets + record.targets
        epoch, last = divmod(record.step + 1, steps_per_epoch)
        if last:
            continue
        found, validation_loss = None, None
        engine.copy_to(judge)
        if work.validation is not None:
            found, validation_loss = judged(engine, judge, work.goal, work.validation)
            if not math.isfinite(validation_loss):
                raise FloatingPointError(f"epoch {epoch}: the validation loss is {validation_loss}")
        yield {"epoch": epoch, "train_loss": loss / max(1, targets), "loss": validation_loss, "score": found}
        loss, targets = 0.0, 0


def share(train: Encoded, chosen: np.ndarray, rank: int, world_size: int) -> dict[str, Tensor]:
    """This rank's units of a global batch; where there are fewer than ranks, one that counts for nothing."""
    own = chosen[rank::world_size]
    batch = tensors(train, own if len(own) else chosen[:1])
    if not len(own):
        batch["labels"] = torch.full_like(batch["labels"], math.nan if batch["labels"].is_floating_point() else IGNORED)
    return batch


def judged(engine: TrialEngine, module: Any, goal: Goal, part: Part) -> tuple[float | None, float]:
    """(score of the goal's metric, None where it is no number; loss per target) of a split, dropout off; equal on all
    ranks, which share the work. `module`: as `judge` in _epochs."""
    sums, counts = 0.0, 0

    def seen(batch: dict[str, Tensor]) -> None:
        nonlocal sums, counts
        sums += float(sum(module(batch)[0].values()))
        counts += sum(module.count_targets(batch).values())

    training = module.training
    module.eval()
    predictions = predicted(module, goal, part, str(engine.device), seen, engine)
    module.train(training)
    found = score(goal.metric, part.examples.kind, part.examples.targets or [], predictions) if predictions else None
    told = engine.gather((found, sums, counts))
    return told[0][0], sum(one[1] for one in told) / max(1, sum(one[2] for one in told))


def predicted(
    module: Any,
    goal: Goal,
    part: Part,
    device: str,
    seen: Callable[[dict[str, Tensor]], None] = lambda batch: None,
    engine: TrialEngine | None = None,
) -> list[dict[str, Any]]:
    """A prediction for each example, as data/decoding.py has them; of retrieval {"rank"}. `seen`: as in outputs_of.

    `engine`: whose ranks share the work, and of which the first gets the predictions, the others none.
    """

    def outputs(encoded: Encoded, seen: Callable[[dict[str, Tensor]], None]) -> dict[str, np.ndarray]:
        if engine is None or engine.world_size == 1:
            return outputs_of(module, encoded, device, seen)
        told = engine.gather(outputs_of(module, encoded, device, seen, (engine.rank, engine.world_size)))
        return {name: np.sum([one[name] for one in told if name in one], 0) for name in set().union(*told)}

    found = outputs(part.encoded, seen)
    passages = None if part.passages is None else outputs(part.passages, lambda batch: None)["vectors"]
    if engine is not None and engine.rank:
        return []
    if goal.metric not in RANKED:
        return decode(part.encoded, found, part.examples, goal.labels, goal.scheme)
    assert passages is not None and part.right is not None
    ranks = rank_passages(found["vectors"][:: part.encoded.group], passages, part.right)
    return [{"rank": int(rank)} for rank in ranks]


def tensors(encoded: Encoded, units: np.ndarray) -> dict[str, Tensor]:
    """Units as a batch of tensors."""
    return {name: torch.from_numpy(array) for name, array in encoded.batch(units).items()}
