"""Heads that transformers has no class for: mean or maximum over tokens, a multi-layer perceptron, a CRF, embeddings.

In: an encoder (transformers' AutoModel class) and a batch. Out: the head's logits. Knows torch only.

Letters of shapes: R rows, T tokens, D width, C outputs.
"""

from typing import Any

from torch import Tensor, nn

from model.heads.native import pool
from model.objectives.contract import Batch
from model.objectives.masked import encoder_inputs


class OwnModel(nn.Module):
    """An encoder and a head of ours.

    `pooling`: cls, mean or max; None: the head is applied to every token. `parts`: what belongs to the head besides,
    such as the transitions of a CRF; the kind of head applies them.
    """

    def __init__(self, encoder: Any, pooling: str | None, head: nn.Module, **parts: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.pooling = pooling
        self.head = head
        for name, part in parts.items():
            self.add_module(name, part)

    @property
    def config(self) -> Any:
        """The encoder's."""
        return self.encoder.config

    def features(self, batch: Batch) -> Tensor:
        """Pooled hidden states (R, D), or all of them (R, T, D): of the encoder, or those that the batch holds."""
        if "features" in batch:
            return batch["features"]
        hidden = self.encoder(**encoder_inputs(self.encoder, batch)).last_hidden_state
        return hidden if self.pooling is None else pool(hidden, batch["attention_mask"], self.pooling)

    def logits(self, batch: Batch, group: int) -> Tensor:
        """(R, C) or (R, T, C); (R / group, group) where a unit has several rows and each one number: choices."""
        logits = self.head(self.features(batch))
        return logits.view(-1, group) if group > 1 and logits.shape[-1] == 1 else logits


def encoder_path(model: Any) -> str:
    """Name of the encoder inside a model of ours or of transformers."""
    return "encoder" if isinstance(model, OwnModel) else model.base_model_prefix


def dense_layers(width: int, outputs: int, layers: str | None, dropout: float) -> nn.Sequential:
    """linear (or None): dropout and a matrix; mlp: dense, GELU, dropout, matrix; (.., width) -> (.., outputs).

    Raises ValueError for others.
    """
    if layers not in (None, "linear", "mlp"):
        raise ValueError(f"layers {layers!r}: not one of linear, mlp")
    first = [nn.Linear(width, width), nn.GELU()] if layers == "mlp" else []
    return nn.Sequential(*first, nn.Dropout(dropout), nn.Linear(width, outputs))
