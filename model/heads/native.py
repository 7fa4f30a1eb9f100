"""Heads that are transformers' own classes: Bert/Roberta/...ForSequenceClassification and the like.

In: such a model and a batch. Out: its logits, by its own forward. Cached features go through the same forward, with the
encoder replaced by a stub that returns them: so no family's head is written down here once more. Knows torch and
transformers only.

Letters of shapes: R rows, T tokens, D width, C classes.
"""

import copy
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

    def features(self, batch: Batch) -> Tensor:
        """(R, D): the first token's hidden state, or the mean over tokens where the family's own head takes that."""
        hidden = self.encoder(**encoder_inputs(self.model, batch)).last_hidden_state
        name = family_of(self.model.config).pooling_setting
        pooling = getattr(self.model.config, name) if name else "cls"
        return pool(hidden, batch["attention_mask"], pooling)

    def decide(self, features: Tensor) -> Tensor:
        """Features (R, D) -> logits (R, C), as if they were the hidden states of a row of one token."""
        hidden, family = features[:, None], family_of(self.model.config)
        has_pooler = family.pooler is not None and getattr(self.encoder, family.pooler) is not None
        pooled = family.pool(self.encoder, hidden) if has_pooler and family.pool else None
        output: Any = BaseModelOutputWithPooling(last_hidden_state=hidden, pooler_output=pooled)  # pyright: ignore[reportArgumentType]
        decider = copy.copy(self.model)  # shares every module but the encoder
        decider._modules = {**self.model._modules, self.model.base_model_prefix: _Stub(output)}
        mask = torch.ones(len(features), 1, dtype=torch.long, device=features.device)
        return decider(input_ids=torch.zeros_like(mask), attention_mask=mask).logits

    def logits(self, batch: Batch, group: int) -> Tensor:
        """(R, C), (R, T, C) of heads on tokens (C = 2 of answering: begin, end), (R / group, group) of choices."""
        inputs = encoder_inputs(self.model, batch)
        if type(self.model).__name__.endswith("ForMultipleChoice"):
            inputs = {name: value.unflatten(0, (-1, group)) for name, value in inputs.items()}
        output = self.model(**inputs)
        if "start_logits" in output:
            return torch.stack([output.start_logits, output.end_logits], dim=-1)
        return output.logits


class _Stub(nn.Module):
    """Stands for an encoder: gives the same output whatever it is given."""

    def __init__(self, output: BaseModelOutputWithPooling) -> None:
        super().__init__()
        self.output = output

    def forward(self, *_: Any, **__: Any) -> BaseModelOutputWithPooling:
        return self.output


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
