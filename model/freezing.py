"""Which weights of a head on an encoder train, and how fast.

In: a model, the names of what is its head, the mode. Out: requires_grad set, a rule that keeps what is frozen in
evaluation mode (a frozen encoder with active dropout is noise, and could not be cached), learning rates by layer.
Knows torch and the table of families.
"""

from collections.abc import Iterable
from typing import Any

from torch import nn

from model.families import family_of, setting

MODES = ("frozen", "top_k", "lora", "full")


def freeze(module: nn.Module, head: Iterable[str], mode: str) -> dict[str, int]:
    """Set requires_grad for `mode` and return the numbers {"trained", "total"} of parameters.

    `head` names submodules by their dotted path; they train in every mode: with top_k those of the last layers
    (`last_layers`) are among them. lora: the matrices that model/lora.py added train too.
    Raises ValueError for an unknown mode, or where nothing is left to train; AttributeError for a missing submodule.
    """
    if mode not in MODES:
        raise ValueError(f"mode {mode!r}: not one of {', '.join(MODES)}")
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(mode == "full" or (mode == "lora" and ".lora_" in name))
    for name in head:
        for parameter in module.get_submodule(name).parameters():
            parameter.requires_grad_(True)
    counts = count_parameters(module)
    if counts["trained"] == 0:
        raise ValueError(f"nothing to train: mode {mode} leaves every parameter frozen, and the head has none")
    return counts


def last_layers(encoder: Any, top_k: int) -> list[str]:
    """Names inside the encoder of its last `top_k` layers, and of the norm behind them.

    Raises ValueError as `layers_a_group`.
    """
    family, groups = family_of(encoder.config), _groups(encoder.config)
    size = layers_a_group(encoder.config, top_k)
    names = [f"{family.layers}.{number}" for number in range(groups - top_k // size, groups)]
    return [*names, family.final_norm] if family.final_norm else names


def layers_a_group(config: Any, top_k: int) -> int:
    """How many layers of an encoder with this config share their weights: 1, but for ALBERT.

    Raises ValueError where the encoder has fewer than `top_k` layers, or where the last `top_k` share weights with
    layers below: a sweep asks before it starts.
    """
    layers = setting(config, "num_hidden_layers")
    if top_k > layers:
        raise ValueError(f"top_k={top_k}: the encoder has {layers} layers; give top_k<={layers}")
    size = layers // getattr(config, "num_hidden_groups", layers)
    if top_k % size:
        raise ValueError(
            f"top_k={top_k}: each {size} of the {layers} layers of this {config.model_type} share their weights, so "
            f"they train together or not at all; give a multiple of {size}, or mode full, lora or frozen"
        )
    return size


def _groups(config: Any) -> int:
    """Layers that have weights of their own."""
    return getattr(config, "num_hidden_groups", setting(config, "num_hidden_layers"))


def count_parameters(module: nn.Module) -> dict[str, int]:
    """{"trained", "total"} numbers of parameters, a tied one counted once."""
    parameters = list(module.parameters())
    return {
        "trained": sum(p.numel() for p in parameters if p.requires_grad),
        "total": sum(p.numel() for p in parameters),
    }


def rest_frozen(module: nn.Module) -> None:
    """Put every subtree whose parameters are all frozen into evaluation mode. Call after each `.train()`.

    Dropout has no parameters: it belongs to the module around it.
    """
    parameters = list(module.parameters())
    if parameters and not any(p.requires_grad for p in parameters):
        module.eval()
        return
    for child in module.children():
        rest_frozen(child)


def learning_rate_scales(module: Any, decay: float) -> dict[str, float]:
    """Learning rate of every trained parameter of a HeadModule as a share of the head's, by name.

    decay ** (L + 1 - depth): depth of the embeddings 0, of layer l (from the bottom, 1 to L) l, of the head L + 1. So
    the head has 1, the top layer decay, the embeddings decay ** (L + 1). What an encoder holds besides (position
    tables, a projection of the embeddings) has the embeddings' depth, its last norm that of the top layer. Layers that
    share their weights are one.
    Source: ELECTRA, arXiv:2003.10555 appendix B. (Its code skips one power between head and top layer.)
    """
    encoder, family = module.encoder, family_of(module.encoder.config)
    inside = next(f"{name}." for name, one in module.named_modules() if one is encoder)
    top = _groups(encoder.config)
    depths = {f"{inside}{family.layers}.{number}.": number + 1 for number in range(top)}
    if family.final_norm:
        depths[f"{inside}{family.final_norm}."] = top
    if family.pooler:
        depths[f"{inside}{family.pooler}."] = top + 1
    scales: dict[str, float] = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            found = (depth for start, depth in depths.items() if name.startswith(start))
            depth = next(found, 0) if name.startswith(inside) else top + 1
            scales[name] = decay ** (top + 1 - depth)
    return scales
