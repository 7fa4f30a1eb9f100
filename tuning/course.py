"""What the epochs of a trial brought so far: their records, the best of them, its weights, what they cost.

In: a record and a module after each epoch. Out: plain values and tensors, to be kept and read again. Knows no files.
"""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from model.heads.contract import HeadModule
from tuning.scores import METRICS


@dataclass
class Course:
    """Of one trial, by its metric."""

    metric: str
    epochs: list[dict[str, Any]] = field(default_factory=list)
    """Records, as train_trial has them."""
    score: float | None = None
    best_epoch: int | None = None
    weights: dict[str, Tensor] = field(default_factory=dict)
    """Trained weights of the best epoch."""
    seconds: float = 0.0
    encoder_rows: int = 0
    """Rows that the encoder read."""

    def add(self, record: dict[str, Any], module: HeadModule | None) -> None:
        """Another epoch, after which `module` has its weights (None: another rank keeps them).

        Without a validation loss it was not judged: then the last epoch counts.
        """
        self.epochs.append(record)
        beats = record["score"] is not None and METRICS[self.metric].beats(record["score"], self.score)
        if beats or record["loss"] is None:
            self.score, self.best_epoch = record["score"], record["epoch"]
            self.weights = {} if module is None else trained_weights(module)

    def forget(self) -> None:
        """The training diverged: nothing of it is good."""
        self.score, self.best_epoch, self.weights = None, None, {}

    def state(self) -> dict[str, Any]:
        """All but the metric: what another Course begins with."""
        return {name: value for name, value in vars(self).items() if name != "metric"}


def trained_weights(module: HeadModule) -> dict[str, Tensor]:
    """Copies of the weights that train, by the model's own names, on the CPU."""
    return {n: p.detach().cpu().clone() for n, p in module.model.named_parameters() if p.requires_grad}
