"""What a head on an encoder is to the rest of the road: one module for each kind of task.

In: a model (transformers' own class, or ours), the head section, labels. Out: loss sums for the loop, outputs for the
decoding of predictions. Knows torch only.

Letters of shapes: B units, G rows of a unit, T tokens, D width, C classes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from model.config import Head
from model.freezing import count_parameters, rest_frozen
from model.heads.native import Native
from model.heads.own import OwnModel
from model.objectives.contract import Batch, Sums

IGNORED = -100  # a label that counts for nothing, as in transformers; of real numbers: NaN


class HeadModule(nn.Module):
    """An encoder with a head for one task.

    A batch has input_ids and attention_mask (B x G, T), where the family has them token_type_ids, and labels. Where the
    encoder has a stand-in (`cached` in building.py), a frozen encoder's features stand for the tokens: (B x G, D), or
    (B, T, D) with the attention_mask, as `head.reads_features` tells. Filler units have the label -100 (NaN).
    """

    group = 1
    """G: rows of a unit: 2 for the pairs of an embedding, the number of choices for multiple choice."""

    class_weights: Tensor | None

    def __init__(self, model: Any, head: Head, labels: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self.head = head
        self.labels = tuple(labels)
        self.register_buffer("class_weights", None, persistent=False)  # (C,), follows the module to its device
        self.parameter_counts = count_parameters(model)

    @property
    def body(self) -> Native | OwnModel:
        """What reads a batch: (features, decide, logits)."""
        return self.model if isinstance(self.model, OwnModel) else Native(self.model)

    @property
    def encoder(self) -> Any:
        """The encoder itself, transformers' AutoModel class."""
        return self.body.encoder

    def train(self, mode: bool = True) -> "HeadModule":
        """Switch dropout on or off; what is frozen stays off."""
        super().train(mode)
        rest_frozen(self.model)
        return self

    def logits(self, batch: Batch) -> Tensor:
        """What the head says in fp32: (B x G, C), or (B, T, C) of heads on tokens; from tokens or cached features, or
        what the batch already holds as "logits", so that loss and outputs cost one pass of the encoder."""
        if "logits" in batch:
            return batch["logits"]
        if "features" in batch:
            batch = {**batch, "features": batch["features"].to(next(self.model.parameters()).dtype)}
        return self.body.logits(batch, self.group).float()

    def count_targets(self, batch: Batch) -> dict[str, int]:
        """Targets of each loss term that are not filler."""
        raise NotImplementedError

    def forward(self, batch: Batch) -> tuple[Sums, Sums]:
        """(loss sum of each term, sums for metrics), 0-dimensional, with a gradient also where there is no target."""
        raise NotImplementedError

    def outputs(self, batch: Batch) -> dict[str, Tensor]:
        """What decoding reads (data/decoding.py), from a batch with or without labels."""
        raise NotImplementedError

    def scores(self, sums: Mapping[str, float], counts: Mapping[str, float]) -> dict[str, float]:
        """Accuracy where `forward` counts what is "correct"."""
        total = sum(counts.values())
        return {"accuracy": sums["correct"] / total} if "correct" in sums and total else {}
