"""Vectors whose cosine tells likeness: Sentence-BERT's two losses, and in-batch negatives.

In: batches of pairs, rows 2i and 2i + 1 are unit i; or single texts for their vectors. Out: loss sums, vectors of
length 1. Knows torch only.

Letters of shapes: B pairs, T tokens, D width, C classes.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from model.heads.contract import IGNORED, HeadModule
from model.heads.losses import cross_entropy, squared_error
from model.objectives.contract import Batch, Sums


class Embedding(HeadModule):
    """One vector for each text, trained by head.loss.

    softmax: the label (B,) of a pair from (u, v, |u - v|); cosine: cos(u, v) is to be the number (B,), both of
    Sentence-BERT, arXiv:1908.10084 section 3; in_batch: a first text finds its second among those of the whole batch,
    by cosine / temperature (E5, arXiv:2212.03533 section 3), labels (B,) 0. Filler is -100 (NaN for cosine).
    """

    group = 2

    def count_targets(self, batch: Batch) -> dict[str, int]:
        """Pairs that are not filler."""
        labels = batch["labels"]
        known = ~labels.isnan() if labels.is_floating_point() else labels != IGNORED
        return {"embedding": int(known.sum())}

    def forward(self, batch: Batch) -> tuple[Sums, Sums]:
        """The loss; pairs that are told right are "correct" (not of cosine)."""
        texts = self.logits(batch)
        first, second = texts[0::2], texts[1::2]  # (B, D)
        labels = batch["labels"]
        if self.head.loss == "cosine":
            return {"embedding": squared_error(functional.cosine_similarity(first, second), labels.float())}, {}
        if self.head.loss == "softmax":
            logits = self._classes(first, second)
        else:
            logits = self._likeness(first, second, batch)
            labels = torch.where(labels == IGNORED, IGNORED, torch.arange(len(labels), device=labels.device))
        correct = ((logits.argmax(-1) == labels) & (labels != IGNORED)).sum()
        return {"embedding": cross_entropy(logits, labels)}, {"correct": correct}

    def _classes(self, first: Tensor, second: Tensor) -> Tensor:
        """Logits (B, C) of the pairs' labels, from (u, v, |u - v|)."""
        both: Any = torch.cat([first, second, (first - second).abs()], -1)
        return self.model.pair_classifier(both.to(self.model.pair_classifier.weight.dtype)).float()

    def _likeness(self, first: Tensor, second: Tensor, batch: Batch) -> Tensor:
        """Cosines / temperature of every first with every second text, (B, B); -inf where the second one is filler, or
        the same text as the pair's own, which is no wrong answer: told by passage_ids (B,), else by the tokens."""
        cosines = functional.normalize(first, dim=-1) @ functional.normalize(second, dim=-1).T
        if "passage_ids" in batch:
            ids = batch["passage_ids"]
            same = ids[:, None] == ids
        else:
            tokens = (batch["input_ids"] * batch["attention_mask"])[1::2]
            same = (tokens[:, None] == tokens).all(-1)
        filler = (batch["labels"] == IGNORED).expand_as(same)
        left_out = (same | filler) & ~torch.eye(len(same), dtype=torch.bool, device=same.device)
        return (cosines / self.head.temperature).masked_fill(left_out, -torch.inf)

    def outputs(self, batch: Batch) -> dict[str, Tensor]:
        """{"vectors": one of length 1 for every row}: single texts too; of pairs (passage_ids tell) that a label is
        learned for also {"logits": (B, C)}.
        """
        texts = self.logits(batch)
        found = {"vectors": functional.normalize(texts, dim=-1)}
        if self.head.loss == "softmax" and "passage_ids" in batch:
            found["logits"] = self._classes(texts[0::2], texts[1::2])
        return found
