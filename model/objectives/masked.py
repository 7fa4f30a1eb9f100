"""Masked language modelling: guess the masked tokens.

In: a batch with masked rows. Out: the cross-entropy at the masked positions. Knows torch and transformers only.

Shapes: B rows, T tokens, N targets of the batch, D width, V vocabulary.
"""

from collections.abc import Mapping

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
        logits = self.family.masked_lm_head(self.model, encoded[target])  # (N, V)
        loss = functional.cross_entropy(logits.float(), labels[target], reduction="sum")
        return loss, (logits.argmax(dim=-1) == labels[target]).sum()

    def scores(self, sums: Mapping[str, float], counts: Mapping[str, float]) -> dict[str, float]:
        """Share of masked tokens guessed right."""
        return {"accuracy": sums["correct"] / counts["mlm"]} if counts["mlm"] else {}

    def flops(self, tokens: float, counts: Mapping[str, float], row_tokens: float) -> float:
        """Of the encoder over all tokens, and of the head at the targets."""
        config = self.model.config
        return 3 * (encoder_flops(config, tokens, row_tokens) + masked_head_flops(config, counts["mlm"]))

    def exports(self, state: Mapping[str, Tensor]) -> list[Export]:
        """The model as it is."""
        return [Export("", self.model, {name.removeprefix("model."): tensor for name, tensor in state.items()})]


def tokens_of(model: PreTrainedModel, batch: Batch) -> Tensor:
    """Number of tokens that are neither padding nor filler."""
    return (batch["input_ids"] != model.config.pad_token_id).sum()


def encoder_inputs(model: PreTrainedModel, batch: Batch, causal: bool = False) -> Batch:
    """What of a batch this model's encoder takes: input_ids, attention_mask and, where they are there and the family
    has them, segments and positions.

    Packed documents (document_ids) attend to themselves only: a block-diagonal mask (B, 1, T, T), True where attended.
    Padding is a document of its own, so that no row of the mask is empty, which would be NaN in the softmax.
    causal: no token attends to a later one.
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
    return {**inputs, "attention_mask": (attended.tril() if causal else attended)[:, None]}
