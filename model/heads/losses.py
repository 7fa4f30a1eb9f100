"""Loss sums over labels, with class weights and label smoothing.

In: logits in fp32, labels with fillers. Out: 0-dimensional sums. Knows torch only.

Letters of shapes: N targets, C classes.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional


def weigh_classes(
    asked: Literal["balanced"] | Mapping[str, float] | None, labels: Sequence[str], counts: Mapping[str, int] | None
) -> Tensor | None:
    """Weight of each label (C,), None where none is asked for.

    balanced: N / (C n) for a label with n of the N training targets (scikit-learn's formula): their mean over those
    targets is 1, so that the loss stays comparable; 1 for a label without any, as for one that a mapping leaves out.
    Raises ValueError for a mapping with an unknown label, or where `counts` of the training targets are wanted.
    """
    if asked is None:
        return None
    if asked == "balanced":
        if counts is None:
            raise ValueError("class_weights=balanced: needs the number of training targets of each label")
        total, known = sum(counts.values()), [label for label in labels if counts.get(label)]
        return torch.tensor([total / (len(known) * counts[x]) if counts.get(x) else 1.0 for x in labels])
    if unknown := sorted(set(asked) - set(labels)):
        raise ValueError(
            f"class_weights: no label {', '.join(map(repr, unknown[:3]))}; labels are {', '.join(labels[:10])}"
        )
    return torch.tensor([float(asked.get(label, 1.0)) for label in labels])


def cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor | None = None, smoothing: float = 0.0) -> Tensor:
    """Sum over targets of (N, C) logits against labels (N,), -100 for filler; torch's own with reduction "sum"."""
    return functional.cross_entropy(
        logits, labels, weight=weights, ignore_index=-100, reduction="sum", label_smoothing=smoothing
    )


def binary_cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor | None, smoothing: float) -> Tensor:
    """Sum over (N, C) independent decisions, labels 0 or 1, NaN for filler; `weights` (C,) weigh the columns.

    Smoothed, a decision is to be smoothing / 2 or 1 - smoothing / 2: the same share spread over its two outcomes.
    """
    known = ~labels.isnan()
    targets = labels.masked_fill(~known, 0.0) * (1 - smoothing) + smoothing / 2
    losses = functional.binary_cross_entropy_with_logits(logits, targets, weight=weights, reduction="none")
    return losses.masked_fill(~known, 0.0).sum()


def squared_error(values: Tensor, labels: Tensor) -> Tensor:
    """Sum of (value - label)^2 over (N,), labels NaN for filler. Raises ValueError where shapes differ."""
    if values.shape != labels.shape:
        raise ValueError(f"values {tuple(values.shape)} against labels {tuple(labels.shape)}")
    known = ~labels.isnan()
    return ((values - labels.masked_fill(~known, 0.0)) ** 2).masked_fill(~known, 0.0).sum()
