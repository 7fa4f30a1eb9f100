"""What a pretraining objective is to the rest of the road.

One module that holds everything trainable; a teacher stays outside of it, so that engine and checkpoint do not know it.
"""

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor, nn
from transformers import PreTrainedModel

Batch = dict[str, Tensor]
Sums = dict[str, Tensor]
IGNORED = -100  # label of a position without a target


class Export(NamedTuple):
    """One Hugging Face folder of a trained objective."""

    folder: str
    """Inside the run's export: "" is the encoder itself, "generator" what stands beside it."""
    model: PreTrainedModel
    """Its class and config."""
    state: dict[str, Tensor]
    """Its weights by its own names."""
    extra: dict[str, Tensor] = {}
    """Weights that transformers has no place for; written to extra.safetensors beside them."""


class PretrainingObjective(nn.Module):
    """Batch (data/batches.py) -> loss sums by term, already weighted, and sums for metrics.

    Dividing a term by the number of its targets is the loop's business, which alone knows the whole step.
    """

    def count_targets(self, batch: Batch) -> dict[str, int]:
        """Targets of each loss term in this batch; filler rows have none."""
        raise NotImplementedError

    def forward(self, batch: Batch) -> tuple[Sums, Sums]:
        """(weighted loss sum of each term, sums for metrics), 0-dimensional tensors with a gradient where they have
        one: also where a batch holds no target (0 loss, 0 gradient), so that all ranks do the same."""
        raise NotImplementedError

    def scores(self, sums: Mapping[str, float], counts: Mapping[str, float]) -> dict[str, float]:
        """Metrics over any number of batches, from the sums of `forward`'s second part and of `count_targets`.

        "accuracy" is the objective's main one; a metric without targets is left out.
        """
        raise NotImplementedError

    def flops(self, tokens: float, counts: Mapping[str, float], row_tokens: float) -> float:
        """Operations of forward and backward (which multiplies twice what forward does) over `tokens` that are not
        padding, with `counts` targets of each term and rows of `row_tokens` on average."""
        raise NotImplementedError

    def exports(self, state: Mapping[str, Tensor]) -> list[Export]:
        """The folders to write. `state`: whole tensors by this module's own names (ZeRO has sharded the module's)."""
        raise NotImplementedError
