"""Masked language modelling, and whether the second segment of a row follows the first or the two stand in order.

In: a batch of sentence pairs. Out: the cross-entropy at the masked positions and that of the pairs. What pairs are is
the data's business (rows.packing). Knows torch and transformers only.

Shapes: B rows, T tokens, D width.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from model.families import setting
from model.flops import dense_flops
from model.objectives.contract import IGNORED, Batch, Sums
from model.objectives.masked import MaskedLM, encoder_inputs, ratios, tokens_of


class PairedLM(MaskedLM):
    """Masked tokens and pairs, on transformers' BertForPreTraining or AlbertForPreTraining.

    Source: BERT, arXiv:1810.04805 section 3.1, task 2 (next sentence); ALBERT, arXiv:1909.11942 section 3.1 (order).
    """

    def __init__(self, model: PreTrainedModel, term: str) -> None:
        super().__init__(model)
        self.term = term
        """Name of the pairs' loss: "nsp" or "sop"."""
        assert self.family.pair_head is not None, self.family.model_type
        self.pair_head = self.family.pair_head

    def count_targets(self, batch: Batch) -> dict[str, int]:
        """Number of masked positions, and of pairs (filler rows are none)."""
        return {**super().count_targets(batch), self.term: int((batch["pair_labels"] != IGNORED).sum())}

    def forward(self, batch: Batch) -> tuple[Sums, Sums]:
        """Batch -> both cross-entropy sums; "correct" tokens, "pairs_correct", "tokens" read."""
        encoded = self.model.base_model(**encoder_inputs(self.model, batch))
        loss, correct = self.masked_loss(encoded.last_hidden_state, batch["labels"])
        labels = classes_of(batch["pair_labels"])
        logits = self.pair_head(self.model, encoded.pooler_output).float()  # (B, 2)
        pair_loss = functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
        pairs_correct = ((logits.argmax(dim=-1) == labels) & (labels != IGNORED)).sum()
        sums = {"correct": correct, "pairs_correct": pairs_correct, "tokens": tokens_of(self.model, batch)}
        return {"mlm": loss, self.term: pair_loss}, sums

    def scores(self, sums: Mapping[str, float], counts: Mapping[str, float]) -> dict[str, float]:
        """Share of masked tokens guessed right, and of pairs."""
        pairs = ratios({"pair_accuracy": (sums["pairs_correct"], counts[self.term])})
        return {**super().scores(sums, counts), **pairs}

    def flops(self, tokens: float, counts: Mapping[str, float], row_tokens: float) -> float:
        """Of masked language modelling, and of pooler and classifier for each pair."""
        width = setting(self.model.config, "hidden_size")
        return super().flops(tokens, counts, row_tokens) + 3 * dense_flops(counts[self.term], (width, width, 2))


def classes_of(pair_labels: Tensor) -> Tensor:
    """The data's 1 for "follows" or "in order" -> class 0, which it is for transformers (next_sentence_label,
    sentence_order_label), so that an exported head means there what it meant here."""
    return torch.where(pair_labels == IGNORED, pair_labels, 1 - pair_labels)
