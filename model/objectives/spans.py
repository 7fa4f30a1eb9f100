"""Masked language modelling, and the span-boundary objective: guess masked spans from the tokens around them.

In: a batch with masked spans. Out: two cross-entropies at the masked positions. Spans are found in the labels alone.
Knows torch and transformers only.

Shapes: B rows, T tokens, N targets of the batch, D width, E width of the embeddings, V vocabulary.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from model.encoder import draw_weights
from model.families import embedding_width, setting
from model.flops import dense_flops
from model.objectives.contract import IGNORED, Batch, Export, Sums
from model.objectives.masked import MaskedLM, encoder_inputs, guess_loss, part_of, ratios, tokens_of

# Places within a span that have a vector of their own (later ones take the last), and its width.
# Source: SpanBERT's public code, pretraining/fairseq/models/pair_bert.py, BertPairTargetPredictionHead.
PLACES, PLACE_WIDTH = 20, 200


class SpanBoundaries(NamedTuple):
    """Of each target, in the order of labels[target]: (N,) each."""

    row: Tensor
    left: Tensor
    """Token before its span."""
    right: Tensor
    """Token behind its span."""
    place: Tensor
    """Its number within the span, from 0."""


def span_boundaries(labels: Tensor) -> SpanBoundaries:
    """Labels (B, T) -> where each target's span lies. A span is a maximal run of targets.

    A row's first and last token are special, so there is a token on both sides; where there is none, as in a row cut
    by hand, the span's own end stands for it.
    """
    target = labels != IGNORED
    tokens = labels.shape[1]
    places = torch.arange(tokens, device=labels.device).expand_as(labels)
    before = torch.where(target, -1, places).cummax(1).values  # last token before it that is no target
    behind = torch.where(target, tokens, places).flip(1).cummin(1).values.flip(1)  # first one behind it
    row, place = target.nonzero(as_tuple=True)
    left, right = before[row, place], behind[row, place]
    return SpanBoundaries(row, left.clamp(min=0), right.clamp(max=tokens - 1), place - left - 1)


class BoundaryDecoder(nn.Module):
    """Two layers over the boundary tokens and the place within the span.

    Source: SpanBERT, arXiv:1907.10529 section 3.2, equations (1) to (3).
    """

    def __init__(self, model: Any, seed: int) -> None:
        """`model`: the masked language model whose output matrix it shares."""
        super().__init__()
        config = model.config
        width, embedding = setting(config, "hidden_size"), embedding_width(config)
        self.places = nn.Embedding(PLACES, PLACE_WIDTH)
        self.layers = nn.Sequential(
            nn.Linear(2 * width + PLACE_WIDTH, width), nn.GELU(), nn.LayerNorm(width),
            nn.Linear(width, embedding), nn.GELU(), nn.LayerNorm(embedding),
        )  # fmt: skip
        draw_weights(self, config, seed)
        self.output = nn.Linear(embedding, config.vocab_size)
        # The paper's "exactly like MLM": with the same matrix, which ZeRO-3 gathers for this module too.
        self.output.weight = model.get_output_embeddings().weight
        nn.init.zeros_(self.output.bias)

    def forward(self, left: Tensor, right: Tensor, place: Tensor) -> Tensor:
        """Boundary states (N, D) each, places (N,) -> logits (N, V)."""
        return self.output(self.layers(torch.cat([left, right, self.places(place.clamp(max=PLACES - 1))], dim=-1)))


class SpanLM(MaskedLM):
    """Masked tokens guessed twice: from their own states, and from those at their span's boundaries."""

    def __init__(self, model: PreTrainedModel, seed: int) -> None:
        super().__init__(model)
        self.boundary = BoundaryDecoder(model, seed)

    def count_targets(self, batch: Batch) -> dict[str, int]:
        """Number of masked positions, of both terms."""
        masked = super().count_targets(batch)["mlm"]
        return {"mlm": masked, "sbo": masked}

    def forward(self, batch: Batch) -> tuple[Sums, Sums]:
        """Batch -> both cross-entropy sums; "correct", "boundary_correct", "tokens" read."""
        encoded = self.model.base_model(**encoder_inputs(self.model, batch)).last_hidden_state  # (B, T, D)
        labels = batch["labels"]
        loss, correct = self.masked_loss(encoded, labels)
        row, left, right, place = span_boundaries(labels)
        logits = self.boundary(encoded[row, left], encoded[row, right], place)
        boundary_loss, boundary_correct = guess_loss(logits, labels[labels != IGNORED])
        sums = {"correct": correct, "boundary_correct": boundary_correct, "tokens": tokens_of(self.model, batch)}
        return {"mlm": loss, "sbo": boundary_loss}, sums

    def scores(self, sums: Mapping[str, float], counts: Mapping[str, float]) -> dict[str, float]:
        """Share of masked tokens guessed right, and of those guessed right from the boundaries."""
        boundary = ratios({"boundary_accuracy": (sums["boundary_correct"], counts["sbo"])})
        return {**super().scores(sums, counts), **boundary}

    def flops(self, tokens: float, counts: Mapping[str, float], row_tokens: float) -> float:
        """Of masked language modelling, and of the boundary decoder at the targets."""
        config = self.model.config
        width, embedding = setting(config, "hidden_size"), embedding_width(config)
        widths = (2 * width + PLACE_WIDTH, width, embedding, config.vocab_size)
        return super().flops(tokens, counts, row_tokens) + 3 * dense_flops(counts["sbo"], widths)

    def exports(self, state: Mapping[str, Tensor]) -> list[Export]:
        """The masked language model; the boundary decoder has served."""
        return [Export("", self.model, part_of(state, "model."))]
