"""Causal language modelling with the same encoder: guess the next token, seeing none behind it.

In: a batch, masked or not. Out: the cross-entropy of each next token. The control of experiments that compare
bidirectional with causal training; not a generator of text. Knows torch and transformers only.

Shapes: B rows, T tokens, N targets of the batch, D width.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from model.flops import encoder_flops, masked_head_flops
from model.objectives.contract import IGNORED, Batch, Sums
from model.objectives.masked import MaskedLM, encoder_inputs, guess_loss, ratios, real_tokens, tokens_of


class CausalLM(MaskedLM):
    """Every token from those before it in its document. Source: GPT, Radford et al. 2018, section 3.1."""

    def count_targets(self, batch: Batch) -> dict[str, int]:
        """Number of tokens that have one before them in their document."""
        return {"clm": int(self._followed(batch).sum())}

    def forward(self, batch: Batch) -> tuple[Sums, Sums]:
        """Batch -> cross-entropy sum; "correct" guesses, "tokens" read."""
        batch = {**batch, "input_ids": torch.where(batch["labels"] == IGNORED, batch["input_ids"], batch["labels"])}
        encoded = self.model.base_model(**encoder_inputs(self.model, batch, causal=True)).last_hidden_state
        followed = self._followed(batch)
        logits = self.family.masked_lm_head(self.model, encoded[:, :-1][followed])  # (N, V)
        loss, correct = guess_loss(logits, batch["input_ids"][:, 1:][followed])
        return {"clm": loss}, {"correct": correct, "tokens": tokens_of(self.model, batch)}

    def _followed(self, batch: Batch) -> Tensor:
        """(B, T - 1) True where the next token is real and of the same document."""
        real = real_tokens(self.model, batch)
        followed = real[:, :-1] & real[:, 1:]
        if "document_ids" in batch:
            followed &= batch["document_ids"][:, :-1] == batch["document_ids"][:, 1:]
        return followed

    def scores(self, sums: Mapping[str, float], counts: Mapping[str, float]) -> dict[str, float]:
        """Share of next tokens guessed right."""
        return ratios({"accuracy": (sums["correct"], counts["clm"])})

    def flops(self, tokens: float, counts: Mapping[str, float], row_tokens: float) -> float:
        """Of the encoder over all tokens (masked attention multiplies all the same), and of the head at the targets."""
        config = self.model.config
        return 3 * (encoder_flops(config, tokens, row_tokens) + masked_head_flops(config, counts["clm"]))
