"""One trial: an encoder folder, a head and labelled examples -> validation scores per epoch and the best weights.

Runs in the trial's own process through the one loop of orchestration/steps.py. The order of examples depends on
(seed, epoch) alone, so that frozen and full, pretrained and random see the same. Knows neither Ray nor files of runs.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from model.config import Head
from model.heads.building import build_head
from model.heads.contract import HeadModule
from orchestration.engine import PlainEngine
from orchestration.schedule import learning_rate
from orchestration.steps import train_steps
from tuning.config import Finetune
from tuning.scores import METRICS

EVAL_ROWS = 128  # rows of an evaluation batch; sorted by length first, so little of it is padding


@dataclass(frozen=True)
class Split:
    """Labelled examples: N of them, at most T tokens long."""

    input_ids: np.ndarray
    """(N, T) integers, padded on the right."""
    lengths: np.ndarray
    """(N,) tokens that are not padding."""
    labels: np.ndarray
    """(N,) int64."""
    features: np.ndarray | None = None
    """(N, D) float32: the frozen encoder's outputs, which then stand for the tokens."""

    def batch(self, rows: np.ndarray) -> dict[str, Tensor]:
        """The examples `rows` as a batch, no longer than the longest of them."""
        batch = {"labels": torch.from_numpy(self.labels[rows].astype(np.int64))}
        if self.features is not None:
            return {**batch, "features": torch.from_numpy(self.features[rows].astype(np.float32))}
        lengths = self.lengths[rows]
        longest = int(lengths.max())
        mask = np.arange(longest) < lengths[:, None]
        ids = self.input_ids[rows, :longest].astype(np.int64)
        return {**batch, "input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask.astype(np.int64))}


def epoch_order(examples: int, seed: int, epoch: int) -> np.ndarray:
    """The permutation in which epoch `epoch` (0-based) reads the training examples."""
    return np.random.default_rng((seed, epoch)).permutation(examples)


def run_trial(
    settings: Finetune,
    encoder: Path | str,
    labels: Sequence[str],
    train: Split,
    validation: Split,
    metric: str,
    seed: int,
    report: Callable[[dict[str, Any]], None],
    device: str = "cpu",
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Train one point with one seed; `report` is called with every epoch's record.

    Returns the outcome (status "done" or "nan", score and best_epoch of the best epoch by validation, epochs: the
    records, seconds of training and validation, trained_parameters, total_parameters, error) and the trained weights
    of that epoch by name.
    A frozen trial may get features in place of tokens: the encoder then is not run.
    """
    epochs: list[dict[str, Any]] = []
    best: dict[str, Tensor] = {}
    score, best_epoch, error = None, None, None
    with torch.random.fork_rng(devices=list(range(torch.cuda.device_count())) if device != "cpu" else []):
        objective = build_head(
            encoder, Head(), labels, mode=settings.mode, top_k=settings.top_k, lora_rank=settings.lora_rank,
            lora_alpha=settings.lora_alpha, seed=seed,
        )  # fmt: skip
        started = time.monotonic()  # loading, and the imports of a process's first trial (6 s), are not training
        torch.manual_seed(seed)  # dropout
        engine = PlainEngine(objective, settings.weight_decay, settings.gradient_clipping, device)
        try:
            for record in _epochs(engine, settings, train, validation, metric, seed):
                epochs.append(record)
                if METRICS[metric].beats(record["score"], score):
                    score, best_epoch = record["score"], record["epoch"]
                    best = trained_weights(objective)
                report(record)
        except FloatingPointError as fault:
            score, best_epoch, error, best = None, None, str(fault), {}
    outcome = {
        "status": "done" if error is None else "nan",
        "score": score,
        "best_epoch": best_epoch,
        "epochs": epochs,
        "seconds": round(time.monotonic() - started, 3),
        "trained_parameters": objective.parameter_counts["trained"],
        "total_parameters": objective.parameter_counts["total"],
        "error": error,
    }
    return outcome, best


def _epochs(
    engine: PlainEngine, settings: Finetune, train: Split, validation: Split, metric: str, seed: int
) -> Iterator[dict[str, Any]]:
    """Train epoch by epoch; yields {"epoch" from 1, "train_loss", "loss", "score"}. Raises FloatingPointError."""
    examples = len(train.labels)
    steps_per_epoch = -(-examples // settings.global_batch)
    steps = steps_per_epoch * settings.epochs

    def batches() -> Iterator[tuple[int, list[dict[str, Tensor]]]]:
        for epoch in range(settings.epochs):
            order = epoch_order(examples, seed, epoch)
            for k in range(steps_per_epoch):
                rows = order[k * settings.global_batch : (k + 1) * settings.global_batch]
                yield epoch * steps_per_epoch + k, [train.batch(rows)]

    def rate(step: int) -> float:
        return learning_rate(step, steps, settings.learning_rate, settings.warmup_ratio)

    loss, targets = 0.0, 0
    for record in train_steps(engine, batches(), rate):
        loss, targets = loss + record.loss * record.targets, targets + record.targets
        epoch, last = divmod(record.step + 1, steps_per_epoch)
        if last:
            continue
        logits = predict_logits(engine.module, validation, engine.device)
        validation_loss = float(functional.cross_entropy(torch.from_numpy(logits), torch.from_numpy(validation.labels)))
        if not np.isfinite(validation_loss):
            raise FloatingPointError(f"epoch {epoch}: the validation loss is {validation_loss}")
        score = METRICS[metric].compute(validation.labels, logits.argmax(-1))
        yield {"epoch": epoch, "train_loss": loss / targets, "loss": validation_loss, "score": score}
        loss, targets = 0.0, 0


@torch.no_grad()
def predict_logits(objective: Any, split: Split, device: torch.device | str = "cpu") -> np.ndarray:
    """(N, C) float32 logits in the order of the split, dropout off; the mode that was set before comes back."""
    training = objective.training
    objective.eval()
    order = np.argsort(split.lengths, kind="stable")
    pieces = []
    for start in range(0, len(order), EVAL_ROWS):
        batch = split.batch(order[start : start + EVAL_ROWS])
        pieces.append(objective.logits({key: value.to(device) for key, value in batch.items()}).float().cpu().numpy())
    objective.train(training)
    logits = np.concatenate(pieces)
    back = np.empty_like(logits)
    back[order] = logits
    return back


def trained_weights(objective: HeadModule) -> dict[str, Tensor]:
    """Copies of the weights that train, by the classifier's own names, on the CPU."""
    return {n: p.detach().cpu().clone() for n, p in objective.model.named_parameters() if p.requires_grad}
