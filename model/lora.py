"""Low-rank matrices beside those of the encoder's layers: put in before training, merged into plain weights after it.

In: an encoder. Out: the same one, changed in place. Knows peft, and its layers only: no wrapper of the model.
"""

from typing import Any

import torch
from torch import nn

from model.families import family_of


def add_lora(encoder: Any, rank: int, alpha: float, seed: int) -> None:
    """Put W + alpha / rank B A in place of every matrix W of the layers, A drawn from `seed` and B zero.

    Source: LoRA, arXiv:2106.09685 section 4.1; on all matrices of the layers: QLoRA, arXiv:2305.14314 section 4.
    Where layers share their weights (ALBERT) they share what is added, too.
    """
    from peft import LoraConfig, inject_adapter_in_model

    layers = encoder.get_submodule(family_of(encoder.config).layers)
    matrices = {name.rpartition(".")[2] for name, one in layers.named_modules() if isinstance(one, nn.Linear)}
    settings: Any = {"r": rank, "lora_alpha": alpha, "target_modules": sorted(matrices)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(LoraConfig(**settings), layers)


def merge_lora(model: nn.Module) -> None:
    """Add what was trained to the weights it stands beside and take it out: plain libraries load the result."""
    from peft.tuners.lora import LoraLayer

    for name, module in list(model.named_modules()):
        if isinstance(module, LoraLayer):
            module.merge()  # pyright: ignore[reportAttributeAccessIssue]
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, module.get_base_layer())
