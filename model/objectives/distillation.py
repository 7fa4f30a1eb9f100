"""Distillation: a smaller student follows a teacher's guesses and hidden states.

In: a batch with masked rows. Out: the losses of soft targets, masked tokens and hidden states. The teacher is no part
of the module: neither engine, optimizer nor checkpoint know it. Knows torch and transformers only.

Shapes: B rows, T tokens, N targets of the batch, M tokens with soft targets, D width, V vocabulary.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from model.config import Objective
from model.families import family_of
from model.flops import encoder_flops, masked_head_flops
from model.objectives.contract import IGNORED, Batch, Sums
from model.objectives.masked import MaskedLM, encoder_inputs, guess_loss, ratios, real_tokens


class Teacher:
    """A trained masked language model that only answers. No nn.Module, so that the one that asks does not own it."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model: Any = model.eval().requires_grad_(False)
        self.family = family_of(model.config)

    def answer(self, batch: Batch, asked: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """Batch, (B, T) True where guesses are asked for -> hidden states (B, T, D), logits (M, V); computed on the
        device and in the precision of `like`, where the teacher goes at the first call."""
        self.model.to(device=like.device, dtype=like.dtype)
        with torch.no_grad():
            hidden = self.model.base_model(**encoder_inputs(self.model, batch)).last_hidden_state
            return hidden, self.family.masked_lm_head(self.model, hidden[asked])


class DistilledLM(MaskedLM):
    """The triple loss of DistilBERT (arXiv:1910.01108 section 3).

    Soft targets are the teacher's distribution at a temperature; their loss is the divergence from it times the
    temperature squared, so that its gradient keeps its size (Hinton et al., arXiv:1503.02531 section 2). Where it is
    taken, and 1 - cosine of the last hidden states at all tokens, as in the paper's code (transformers' research
    project "distillation", distiller.py).
    """

    def __init__(self, model: PreTrainedModel, teacher: Teacher, objective: Objective) -> None:
        super().__init__(model)
        self.teacher, self.settings = teacher, objective

    def count_targets(self, batch: Batch) -> dict[str, int]:
        """Number of soft targets, of masked positions, of tokens."""
        asked = int(self._asked(batch).sum())
        return {"soft": asked, **super().count_targets(batch), "cosine": int(real_tokens(self.model, batch).sum())}

    def forward(self, batch: Batch) -> tuple[Sums, Sums]:
        """Batch -> the three loss sums, weighted; "correct" guesses of masked tokens, soft targets where student and
        teacher "agree", "tokens" read."""
        settings, labels, asked = self.settings, batch["labels"], self._asked(batch)
        encoded = self.model.base_model(**encoder_inputs(self.model, batch)).last_hidden_state  # (B, T, D)
        logits = self.family.masked_lm_head(self.model, encoded[asked])  # (M, V)
        hidden, wanted = self.teacher.answer(batch, asked, encoded)

        masked = labels[asked] != IGNORED
        loss, correct = guess_loss(logits[masked], labels[asked][masked])
        soft = functional.kl_div(
            functional.log_softmax(logits.float() / settings.temperature, dim=-1),
            functional.log_softmax(wanted.float() / settings.temperature, dim=-1),
            reduction="sum", log_target=True,
        )  # fmt: skip
        real = real_tokens(self.model, batch)
        cosine = functional.cosine_similarity(encoded[real].float(), hidden[real].float(), dim=-1)
        sums = {
            "soft": settings.soft_weight * settings.temperature**2 * soft,
            "mlm": settings.mlm_weight * loss,
            "cosine": settings.cosine_weight * (1 - cosine).sum(),
        }
        agree = (logits.argmax(dim=-1) == wanted.argmax(dim=-1)).sum()
        return sums, {"correct": correct, "agree": agree, "tokens": real.sum()}

    def _asked(self, batch: Batch) -> Tensor:
        """(B, T) True where the soft targets are compared."""
        target = batch["labels"] != IGNORED
        return target if self.settings.soft_targets == "masked" else target | real_tokens(self.model, batch)

    def scores(self, sums: Mapping[str, float], counts: Mapping[str, float]) -> dict[str, float]:
        """Share of masked tokens guessed right, and of soft targets where the student guesses as the teacher does."""
        return {**super().scores(sums, counts), **ratios({"agreement": (sums["agree"], counts["soft"])})}

    def flops(self, tokens: float, counts: Mapping[str, float], row_tokens: float) -> float:
        """Of the student, forward and backward, and of the teacher, forward."""
        student, teacher = self.model.config, self.teacher.model.config
        return sum(
            passes * (encoder_flops(config, tokens, row_tokens) + masked_head_flops(config, counts["soft"]))
            for passes, config in ((3, student), (1, teacher))
        )
