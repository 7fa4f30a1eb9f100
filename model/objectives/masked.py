"""Masked language modelling: guess the masked tokens.

In: a batch with masked rows. Out: the cross-entropy at the masked positions. Knows torch and transformers only.

Shapes: B rows, T tokens, N targets of the batch, D width, V vocabulary.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from model.families import family_of
from model.flops import encoder_flops, masked_head_flops
from model.objectives.contract import IGNORED, Batch, Export, PretrainingObjective, Sums


class MaskedLM(PretrainingObjective):
    """Guess the masked tokens (BERT, arXiv:1810.04805 section 3.1, task 1).

    The vocabulary projection, the largest matrix of a small encoder, is done at the targets only: (N, V) logits
    instead of (B, T, V), about a seventh of the work and memory at 15 %.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        self.family = family_of(model.config)

    def count_targets(self, batch: Batch) -> dict[str, int]:
        """Number of masked positions."""
        return {"mlm": int((batch["labels"] != IGNORED).sum())}

    def forward(self, batch: Batch) -> tuple[Sums, Sums]:
        """Batch -> cross-entropy sum; "correct" guesses, "tokens" read."""
        encoded = self.model.base_model(**encoder_inputs(self.model, batch)).last_hidden_state  # (B, T, D)
        loss, correct = self.masked_loss(encoded, batch["labels"])
        return {"mlm": loss}, {"correct": correct, "tokens": tokens_of(self.model, batch)}

    def masked_loss(self, encoded: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states (B, T, D), labels (B, T) -> cross-entropy sum over the targets, number guessed right."""
        target = labels != IGNORED
        return guess_loss(self.family.masked_lm_head(self.model, encoded[target]), labels[target])

    def scores(self, sums: Mapping[str, float], counts: Mapping[str, float]) -> dict[str, float]:
        """Share of masked tokens guessed right."""
        return ratios({"accuracy": (sums["correct"], counts["mlm"])})

    def flops(self, tokens: float, counts: Mapping[str, float], row_tokens: float) -> float:
        """Of the encoder over all tokens, and of the head at the targets."""
        config = self.model.config
        return 3 * (encoder_flops(config, tokens, row_tokens) + masked_head_flops(config, counts["mlm"]))

    def exports(self, state: Mapping[str, Tensor]) -> list[Export]:
        """The model as it is."""
        return [Export("", self.model, part_of(state, "model."))]


def guess_loss(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (N, V) of the tokens (N,) -> cross-entropy sum in fp32, number guessed right."""
    loss = functional.cross_entropy(logits.float(), tokens, reduction="sum")
    return loss, (logits.argmax(dim=-1) == tokens).sum()


def ratios(parts: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Metric -> part / whole, without those whose whole is 0."""
    return {name: part / whole for name, (part, whole) in parts.items() if whole}


def real_tokens(model: PreTrainedModel, batch: Batch) -> Tensor:
    """(B, T) True on tokens that are neither padding nor filler (of which one [PAD] is attended)."""
    return (batch["attention_mask"] == 1) & (batch["input_ids"] != model.config.pad_token_id)


def tokens_of(model: PreTrainedModel, batch: Batch) -> Tensor:
    """Number of tokens that are neither padding nor filler."""
    return real_tokens(model, batch).sum()


def part_of(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors of one submodule by its own names."""
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def encoder_inputs(model: PreTrainedModel, batch: Batch, causal: bool = False) -> dict[str, Any]:
    """What of a batch this model's encoder takes: input_ids, attention_mask and, where they are there and the family
    has them, segments and positions.

    Packed documents (document_ids) attend to themselves only: a block-diagonal mask (B, 1, T, T), True where attended.
    Padding is a document of its own, so that no row of the mask is empty, which would be NaN in the softmax.
    causal: no token attends to a later one. A mask of four dimensions is taken as it is, so the window of local
    layers is cut out of it here, as transformers' create_bidirectional_sliding_window_mask does for others.
    """
    family = family_of(model.config)
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    if family.segments and "token_type_ids" in batch:
        inputs["token_type_ids"] = batch["token_type_ids"]
    if "position_ids" in batch:
        inputs["position_ids"] = batch["position_ids"] + family.unused_positions(model.config.pad_token_id or 0)
    if "document_ids" not in batch and not causal:
        return inputs
    documents = batch["document_ids"] if "document_ids" in batch else batch["attention_mask"]  # (B, T)
    attended = documents[:, :, None] == documents[:, None, :]
    attended = (attended.tril() if causal else attended)[:, None]
    if family.window is None:
        return {**inputs, "attention_mask": attended}
    places = torch.arange(attended.shape[-1], device=attended.device)
    near = (places[:, None] - places).abs() <= getattr(model.config, family.window)
    return {**inputs, "attention_mask": {"full_attention": attended, "sliding_attention": attended & near}}
