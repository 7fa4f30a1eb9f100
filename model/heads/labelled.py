"""Heads on whole texts, or pairs of them: one label, any number of labels, a number, one of several choices.

In: batches of units. Out: loss sums and logits. Knows torch only.

Letters of shapes: B units, G rows of a unit (choices; 1 elsewhere), C classes.
"""

from torch import Tensor

from model.heads.contract import IGNORED, HeadModule
from model.heads.losses import binary_cross_entropy, cross_entropy, squared_error
from model.objectives.contract import Batch, Sums


class Classification(HeadModule):
    """One label of C: cross-entropy against labels (B,)."""

    def count_targets(self, batch: Batch) -> dict[str, int]:
        """Units that are not filler."""
        return {"classification": int((batch["labels"] != IGNORED).sum())}

    def forward(self, batch: Batch) -> tuple[Sums, Sums]:
        """Cross-entropy; units whose label is the most likely one are "correct"."""
        logits, labels = self.logits(batch), batch["labels"]
        loss = cross_entropy(logits, labels, self.class_weights, self.head.label_smoothing)
        return {"classification": loss}, {"correct": ((logits.argmax(-1) == labels) & (labels != IGNORED)).sum()}

    def outputs(self, batch: Batch) -> dict[str, Tensor]:
        """{"logits": (B, C)}."""
        return {"logits": self.logits(batch)}


class MultiLabel(HeadModule):
    """Any of C labels, each a decision of its own: binary cross-entropy against labels (B, C) of 0, 1 and NaN."""

    def count_targets(self, batch: Batch) -> dict[str, int]:
        """Decisions that are not filler: C of each unit, as transformers divides."""
        return {"multi_label": int((~batch["labels"].isnan()).sum())}

    def forward(self, batch: Batch) -> tuple[Sums, Sums]:
        """Binary cross-entropy; decisions on the right side of 0.5 are "correct"."""
        logits, labels = self.logits(batch), batch["labels"]
        loss = binary_cross_entropy(logits, labels, self.class_weights, self.head.label_smoothing)
        return {"multi_label": loss}, {"correct": (((logits > 0) == (labels > 0.5)) & ~labels.isnan()).sum()}

    def outputs(self, batch: Batch) -> dict[str, Tensor]:
        """{"logits": (B, C)}."""
        return {"logits": self.logits(batch)}


class Regression(HeadModule):
    """A number: squared error against labels (B,), NaN for filler."""

    def count_targets(self, batch: Batch) -> dict[str, int]:
        """Units that are not filler."""
        return {"regression": int((~batch["labels"].isnan()).sum())}

    def forward(self, batch: Batch) -> tuple[Sums, Sums]:
        """Squared error."""
        return {"regression": squared_error(self.outputs(batch)["value"], batch["labels"].float())}, {}

    def outputs(self, batch: Batch) -> dict[str, Tensor]:
        """{"value": (B,)}."""
        return {"value": self.logits(batch).squeeze(-1)}


class MultipleChoice(HeadModule):
    """Which of G continuations: one number each, cross-entropy over them against labels (B,). Rows are (B x G, T).

    G (`group`) is free: a folder of transformers does not tell it, and whoever loads one sets it.
    """

    def logits(self, batch: Batch) -> Tensor:
        """(B, G). Raises ValueError where nobody said how many choices there are."""
        if not self.group:
            raise ValueError("multiple choice: how many choices has a unit? set `group`")
        return super().logits(batch)

    def count_targets(self, batch: Batch) -> dict[str, int]:
        """Units that are not filler."""
        return {"multiple_choice": int((batch["labels"] != IGNORED).sum())}

    def forward(self, batch: Batch) -> tuple[Sums, Sums]:
        """Cross-entropy; units whose right choice has the largest number are "correct"."""
        logits, labels = self.logits(batch), batch["labels"]
        correct = ((logits.argmax(-1) == labels) & (labels != IGNORED)).sum()
        return {"multiple_choice": cross_entropy(logits, labels)}, {"correct": correct}

    def outputs(self, batch: Batch) -> dict[str, Tensor]:
        """{"logits": (B, G)}."""
        return {"logits": self.logits(batch)}
