"""One trial: an encoder folder, a head and examples -> validation scores per epoch and the best weights.

Runs in the trial's own process through the one loop of orchestration/steps.py. The order of examples depends on
(seed, epoch) alone, so that all modes, pretrained and random encoders see the same. Knows neither Ray nor files of
runs.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data.decoding import decode
from data.examples import Encoded, Examples
from model.config import Head
from model.counting import RowCounter
from model.freezing import learning_rate_scales
from model.heads.building import build_head
from model.heads.contract import HeadModule
from orchestration.engine import PlainEngine
from orchestration.inference import outputs_of
from orchestration.schedule import learning_rate
from orchestration.steps import train_steps
from tuning.config import Finetune
from tuning.scores import METRICS, RANKED, rank_passages, score


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


def run_trial(
    settings: Finetune,
    head: Head,
    encoder: Path | str,
    goal: Goal,
    train: Encoded,
    validation: Part,
    seed: int,
    report: Callable[[dict[str, Any]], None],
    device: str = "cpu",
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Train one point with one seed; `report` is called with every epoch's record.

    Returns the outcome (status "done" or "nan", score and best_epoch of the best epoch by validation, epochs: the
    records, seconds of training and validation, encoder_rows: rows that the encoder read, trained_parameters,
    total_parameters, error) and the trained weights of that epoch by name.
    A frozen trial may get features in place of tokens: the encoder then is not run.
    """
    epochs: list[dict[str, Any]] = []
    best: dict[str, Tensor] = {}
    top, best_epoch, error = None, None, None
    with torch.random.fork_rng(devices=list(range(torch.cuda.device_count())) if device != "cpu" else []):
        module = make_head(settings, head, goal, encoder, seed, cached=train.features is not None)
        counter = RowCounter(module)
        started = time.monotonic()  # loading, and the imports of a process's first trial (6 s), are not training
        torch.manual_seed(seed)  # dropout
        scales = learning_rate_scales(module, settings.layerwise_lr_decay) if settings.layerwise_lr_decay < 1 else None
        engine = PlainEngine(module, settings.weight_decay, settings.gradient_clipping, device, scales)
        try:
            for record in _epochs(engine, settings, goal, train, validation, seed):
                epochs.append(record)
                if record["score"] is not None and METRICS[goal.metric].beats(record["score"], top):
                    top, best_epoch = record["score"], record["epoch"]
                    best = trained_weights(module)
                report(record)
        except FloatingPointError as fault:
            top, best_epoch, error, best = None, None, str(fault), {}
    if error is None and top is None:
        error = f"{goal.metric} is no number in any epoch: every prediction is the same, or every target"
    outcome = {
        "status": "done" if error is None else "nan",
        "score": top,
        "best_epoch": best_epoch,
        "epochs": epochs,
        "seconds": round(time.monotonic() - started, 3),
        "encoder_rows": counter.rows,
        **{f"{name}_parameters": count for name, count in module.parameter_counts.items()},
        "error": error,
    }
    return outcome, best


def _epochs(
    engine: PlainEngine, settings: Finetune, goal: Goal, train: Encoded, validation: Part, seed: int
) -> Iterator[dict[str, Any]]:
    """Train epoch by epoch; yields {"epoch" from 1, "train_loss", "loss", "score"}. Raises FloatingPointError."""
    units = len(train)
    steps_per_epoch = -(-units // settings.global_batch)
    steps = steps_per_epoch * settings.epochs

    def batches() -> Iterator[tuple[int, list[dict[str, Tensor]]]]:
        for epoch in range(settings.epochs):
            order = epoch_order(units, seed, epoch)
            for k in range(steps_per_epoch):
                chosen = order[k * settings.global_batch : (k + 1) * settings.global_batch]
                yield epoch * steps_per_epoch + k, [tensors(train, chosen)]

    def rate(step: int) -> float:
        return learning_rate(step, steps, settings.learning_rate, settings.warmup_ratio)

    loss, targets = 0.0, 0
    for record in train_steps(engine, batches(), rate):
        loss, targets = loss + record.loss * record.targets, targets + record.targets
        epoch, last = divmod(record.step + 1, steps_per_epoch)
        if last:
            continue
        found, validation_loss = judged(engine, goal, validation)
        if not math.isfinite(validation_loss):
            raise FloatingPointError(f"epoch {epoch}: the validation loss is {validation_loss}")
        yield {"epoch": epoch, "train_loss": loss / max(1, targets), "loss": validation_loss, "score": found}
        loss, targets = 0.0, 0


def judged(engine: PlainEngine, goal: Goal, part: Part) -> tuple[float | None, float]:
    """(score of the goal's metric, None where it is no number; loss per target) of a split, dropout off."""
    module: Any = engine.module
    sums, counts = 0.0, 0

    def seen(batch: dict[str, Tensor]) -> None:
        nonlocal sums, counts
        sums += float(sum(module(batch)[0].values()))
        counts += sum(module.count_targets(batch).values())

    training = module.training
    module.eval()
    predictions = predicted(module, goal, part, str(engine.device), seen)
    module.train(training)
    return score(goal.metric, part.examples.kind, part.examples.targets or [], predictions), sums / max(1, counts)


def predicted(
    module: Any, goal: Goal, part: Part, device: str, seen: Callable[[dict[str, Tensor]], None] = lambda batch: None
) -> list[dict[str, Any]]:
    """A prediction for each example, as data/decoding.py has them; of retrieval {"rank"}. `seen`: as in outputs_of."""
    outputs = outputs_of(module, part.encoded, device, seen)
    if goal.metric not in RANKED:
        return decode(part.encoded, outputs, part.examples, goal.labels, goal.scheme)
    assert part.passages is not None and part.right is not None
    passages = outputs_of(module, part.passages, device)["vectors"]
    ranks = rank_passages(outputs["vectors"][:: part.encoded.group], passages, part.right)
    return [{"rank": int(rank)} for rank in ranks]


def tensors(encoded: Encoded, units: np.ndarray) -> dict[str, Tensor]:
    """Units as a batch of tensors."""
    return {name: torch.from_numpy(array) for name, array in encoded.batch(units).items()}


def trained_weights(module: HeadModule) -> dict[str, Tensor]:
    """Copies of the weights that train, by the model's own names, on the CPU."""
    return {n: p.detach().cpu().clone() for n, p in module.model.named_parameters() if p.requires_grad}
