"""How many rows encoders read, counted where they read them.

In: any module. Out: a number that grows while it works. Knows torch and transformers only.
"""

from typing import Any

from torch import nn
from transformers import PreTrainedModel


class RowCounter:
    """Counts the rows that the encoders inside a module read from now on: a hook on each, so that nothing is passed
    over. What stands in for an encoder (model/heads/native.py) is none."""

    def __init__(self, module: nn.Module) -> None:
        self.rows = 0
        for one in module.modules():
            if isinstance(one, PreTrainedModel) and one.base_model is one:
                one.register_forward_pre_hook(self._read, with_kwargs=True)

    def _read(self, encoder: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        ids = positional[0] if positional else named["input_ids"]
        self.rows += len(ids)
