"""Scores of predictions: the table of metrics, with the direction in which each is better, and the majority baseline.

In: integer labels and predictions. Out: floats. Pure; knows scikit-learn only, and imports it when first asked.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Metric:
    """How a score is computed and which way is up."""

    compute: Callable[[np.ndarray, np.ndarray], float]
    """(labels (N,), predictions (N,)) -> score."""
    higher_is_better: bool = True

    def beats(self, new: float, old: float | None) -> bool:
        """Is `new` strictly better than `old`? Anything finite beats None."""
        if not np.isfinite(new):
            return False
        return old is None or (new > old if self.higher_is_better else new < old)

    def rank_key(self, score: float | None) -> tuple[bool, float]:
        """Sorts best first, None last."""
        if score is None:
            return (True, 0.0)
        return (False, -score if self.higher_is_better else score)


def accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Share of equal pairs."""
    return float((labels == predictions).mean())


def macro_f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Mean of the classes' F1 scores, each class counting alike; a class never predicted has 0."""
    from sklearn.metrics import f1_score

    return float(f1_score(labels, predictions, average="macro", zero_division=0))  # pyright: ignore[reportArgumentType]


def matthews(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Matthews correlation, -1 to 1; 0 for constant predictions, however common the class.

    Source: Gorodkin 2004, doi:10.1016/j.compbiolchem.2004.09.006 (several classes).
    """
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(labels, predictions))


METRICS = {"accuracy": Metric(accuracy), "macro_f1": Metric(macro_f1), "matthews": Metric(matthews)}


def majority_baseline(train_labels: np.ndarray, labels: np.ndarray, metric: str) -> float:
    """Score of always answering the most frequent label of the training examples."""
    most_frequent = np.bincount(train_labels).argmax()
    return METRICS[metric].compute(labels, np.full_like(labels, most_frequent))
