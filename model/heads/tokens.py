"""Heads on tokens: a tag for each word, and the span that answers a question.

In: batches of units of one row. Out: loss sums, tags or logits of positions. Knows torch only.

Letters of shapes: B units, T tokens, C tags.
"""

from typing import Any

import torch
from torch import Tensor

from model.heads.contract import IGNORED, HeadModule
from model.heads.losses import cross_entropy
from model.objectives.contract import Batch, Sums


class Tagging(HeadModule):
    """A tag for each word, said of its first token: cross-entropy of single tags, or of sequences under a CRF.

    labels (B, T) are -100 on continuations, special tokens and padding. A CRF's chain runs over the other tokens alone;
    where there are no labels, over the first token of each word as word_ids (B, T) tells (-1: of no word).
    """

    def count_targets(self, batch: Batch) -> dict[str, int]:
        """Tags."""
        return {"tagging": int((batch["labels"] != IGNORED).sum())}

    def forward(self, batch: Batch) -> tuple[Sums, Sums]:
        """Cross-entropy, or negative log-likelihood of the sequences; tags guessed right are "correct"."""
        logits, labels = self.logits(batch), batch["labels"]
        known = labels != IGNORED
        if self.crf is None:
            flat = logits.flatten(0, 1), labels.flatten()
            loss = cross_entropy(*flat, self.class_weights, self.head.label_smoothing)
            tags = logits.argmax(-1)
        else:
            loss = -self.crf.log_likelihood(logits, labels.clamp(min=0), known).sum()
            with torch.no_grad():
                tags = self.crf.best(logits, known)
        return {"tagging": loss}, {"correct": ((tags == labels) & known).sum()}

    def outputs(self, batch: Batch) -> dict[str, Tensor]:
        """{"tags": (B, T) int64, "scores": (B, T) their probabilities}; 0 where nothing is attended (with a CRF: at
        tokens that begin no word). Raises ValueError where a CRF is told neither labels nor word_ids."""
        logits = self.logits(batch)
        if self.crf is None:
            scores, tags = logits.softmax(-1).max(-1)
            read = batch["attention_mask"].bool()
        else:
            read = first_tokens(batch)
            tags = self.crf.best(logits, read)
            scores = self.crf.marginals(logits, read).gather(-1, tags[:, :, None]).squeeze(-1)
        return {"tags": tags.masked_fill(~read, 0), "scores": scores.masked_fill(~read, 0.0)}

    @property
    def crf(self) -> Any:
        """The CRF, where there is one."""
        return getattr(self.model, "crf", None)


def first_tokens(batch: Batch) -> Tensor:
    """Which tokens are the first of a word, (B, T) bool. Raises ValueError where the batch does not tell."""
    if "word_ids" in batch:
        words = batch["word_ids"]
        before = torch.cat([torch.full_like(words[:, :1], -1), words[:, :-1]], 1)
        return (words >= 0) & (words != before)
    if "labels" in batch:
        return batch["labels"] != IGNORED
    raise ValueError("a crf tags words: the batch needs word_ids or labels")


class Answering(HeadModule):
    """First and last token of an answer: cross-entropy over the tokens of each, halved and added as in transformers.

    labels (B, 2); (0, 0) where the text holds no answer (BERT, arXiv:1810.04805 section 4.3); -100 for filler.
    """

    def count_targets(self, batch: Batch) -> dict[str, int]:
        """Units that are not filler."""
        return {"answering": int((batch["labels"][:, 0] != IGNORED).sum())}

    def forward(self, batch: Batch) -> tuple[Sums, Sums]:
        """Cross-entropy over attended tokens; units with both ends right are "correct"."""
        logits, labels = self.logits(batch), batch["labels"]
        # Padding answers nothing, and how much of it there is depends on the other rows of a batch. Not -inf: of a row
        # that attends nothing the gradient would be NaN.
        logits = logits.masked_fill(~batch["attention_mask"].bool()[:, :, None], torch.finfo(logits.dtype).min)
        loss = sum(cross_entropy(logits[:, :, end], labels[:, end]) for end in (0, 1)) / 2
        correct = (logits.argmax(1) == labels).all(-1) & (labels[:, 0] != IGNORED)
        return {"answering": torch.as_tensor(loss)}, {"correct": correct.sum()}

    def outputs(self, batch: Batch) -> dict[str, Tensor]:
        """{"starts": (B, T), "ends": (B, T)} logits."""
        starts, ends = self.logits(batch).unbind(-1)
        return {"starts": starts, "ends": ends}
