"""Activation checkpointing: activations of a layer are computed again in the backward pass instead of being kept.

In: a module with encoders in it. Out: the same module, whose loss and gradients are the same. Knows transformers.
"""

from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from model.families import family_of


def recompute_activations(module: nn.Module) -> None:
    """Switch it on in every encoder of a module, a generator's too: memory of one layer for a second forward pass.

    Transformers' own switch, and for a family without one (ALBERT) torch's around each layer. Dropout drops the same
    both times.
    Source: Training Deep Nets with Sublinear Memory Cost, arXiv:1604.06174.
    """
    for model in module.modules():
        if not isinstance(model, PreTrainedModel) or model.base_model is not model:
            continue
        if any(isinstance(part, GradientCheckpointingLayer) for part in model.modules()):
            model.activation_checkpointing_enable({"use_reentrant": False})
            continue
        for layer in model.get_submodule(family_of(model.config).layers).children():
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
