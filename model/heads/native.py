"""Heads that are transformers' own classes: Bert/Roberta/...ForSequenceClassification and the like.

In: such a model and a batch. Out: its logits, by its own forward. Cached features go through the same forward, with a
stand-in for the encoder that returns them: so no family's head is written down here once more. Knows torch and
transformers only.

Letters of shapes: R rows, T tokens, D width, C classes.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling

from model.families import family_of
from model.objectives.contract import Batch
from model.objectives.masked import encoder_inputs

SUFFIXES = {
    "classification": "ForSequenceClassification",
    "multi_label": "ForSequenceClassification",
    "regression": "ForSequenceClassification",
    "tagging": "ForTokenClassification",
    "answering": "ForQuestionAnswering",
    "multiple_choice": "ForMultipleChoice",
}
"""Kind of head -> end of the class's name in transformers; an embedding has none."""
ON_TOKENS = ("tagging", "answering")


class Native(NamedTuple):
    """Reads a batch with a model of transformers."""

    model: PreTrainedModel

    @property
    def encoder(self) -> Any:
        """The encoder inside."""
        return self.model.base_model

    def logits(self, batch: Batch, group: int) -> Tensor:
        """(R, C), (R, T, C) of heads on tokens (C = 2 of answering: begin, end), (R / group, group) of choices.

        Where the encoder has a stand-in, of features (R, D), as of rows of one token, or (R, T, D).
        """
        if "features" in batch:
            batch = self.encoder.give(batch)
        inputs = encoder_inputs(self.model, batch)
        if type(self.model).__name__.endswith("ForMultipleChoice"):
            inputs = {name: value.unflatten(0, (-1, group)) for name, value in inputs.items()}
        output = self.model(**inputs)
        if "start_logits" in output:
            return torch.stack([output.start_logits, output.end_logits], dim=-1)
        return output.logits


class StandIn(nn.Module):
    """In an encoder's place: gives what that made of rows before. It keeps of the encoder its config, its pooler, which
    belongs to the head, and what has no weights."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.config = encoder.config
        self._pooler = family_of(self.config).pooler
        self._hidden: Tensor | None = None
        for name, child in encoder.named_children():
            if name == self._pooler or not list(child.parameters()):
                self.add_module(name, child)

    def give(self, batch: Batch) -> Batch:
        """A batch of rows that have the features as their hidden states, (R, D) of their only token or (R, T, D)."""
        features = batch["features"]
        self._hidden = features[:, None] if features.ndim == 2 else features
        ones = torch.ones(self._hidden.shape[:2], dtype=torch.long, device=features.device)
        return {"input_ids": torch.zeros_like(ones), "attention_mask": batch.get("attention_mask", ones)}

    def forward(self, *_: Any, **__: Any) -> BaseModelOutputWithPooling:
        """What was given: hidden states (R, T, D), and pooled (R, D) where the encoder has a pooler.

        Raises ValueError where nothing was: each is given out once.
        """
        hidden, self._hidden = self._hidden, None
        if hidden is None:
            raise ValueError("a head without its encoder reads features: the batch has none")
        family, pooled = family_of(self.config), None
        if family.pool and self._pooler and getattr(self, self._pooler, None) is not None:
            pooled = family.pool(self, hidden)
        return BaseModelOutputWithPooling(last_hidden_state=hidden, pooler_output=pooled)  # pyright: ignore[reportArgumentType]


def pool(hidden: Tensor, attention_mask: Tensor, pooling: str) -> Tensor:
    """Hidden states (R, T, D), mask (R, T) -> one vector a row (R, D), of the tokens that are attended alone.

    pooling: cls (the first token), mean or max. Raises ValueError for another.
    """
    if pooling == "cls":
        return hidden[:, 0]
    attended = attention_mask[:, :, None].bool()
    if pooling == "mean":
        total = hidden.masked_fill(~attended, 0).sum(1, dtype=torch.float32)
        return (total / attended.sum(1).clamp(min=1)).to(hidden.dtype)
    if pooling == "max":
        return hidden.masked_fill(~attended, torch.finfo(hidden.dtype).min).amax(1)
    raise ValueError(f"pooling {pooling!r}: not one of cls, mean, max")
