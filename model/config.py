"""What the model room may be told: encoder, objective and head sections of the config tree.

In: plain mappings. Out: frozen, validated sections. Knows pydantic only, so that reading a config starts nothing.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Section(BaseModel):
    """A frozen section of the config tree that refuses keys it does not own."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, coerce_numbers_to_str=True, allow_inf_nan=False
    )


Size = Annotated[int, Field(ge=1)]


class Encoder(Section):
    """The encoder's shape. Names are those of transformers' BertConfig."""

    family: Literal["bert"] = "bert"
    """Architecture. Source: BERT, arXiv:1810.04805."""
    hidden_size: Size = 128
    """Width D of a token's vector."""
    num_hidden_layers: Size = 2
    num_attention_heads: Size = 2
    intermediate_size: Size = 512
    """Width of the feed-forward layer."""
    max_position_embeddings: Size = 512
    """Longest row the encoder can read, in tokens."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Dropout of hidden states and of attention probabilities."""
    init: str | None = None
    """Hugging Face folder to continue from; None: random weights drawn from `seed`."""

    @model_validator(mode="after")
    def _heads_divide(self) -> "Encoder":
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {self.num_attention_heads}"
            )
        return self


class Objective(Section):
    """What the encoder is trained to do."""

    name: Literal["mlm"] = "mlm"
    """mlm: guess the masked tokens. Source: BERT, arXiv:1810.04805 section 3.1."""


class Head(Section):
    """What is put on the encoder for a downstream task."""

    kind: Literal["classification"] = "classification"
    """classification: one label for a text."""
    pooling: Literal["cls"] = "cls"
    """cls: the vector of the first token, through BERT's pooler (dense + tanh), which is part of the head."""
