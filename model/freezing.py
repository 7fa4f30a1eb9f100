"""Which weights of a classifier train: mode "full" all of them, mode "frozen" the head alone.

In: a module and the names of the submodules that are its head. Out: requires_grad set, and a rule that keeps what is
frozen in evaluation mode. A frozen encoder with active dropout is noise, and could not be cached.
Knows torch only.
"""

from collections.abc import Iterable

from torch import nn


def freeze(module: nn.Module, head: Iterable[str], mode: str) -> dict[str, int]:
    """Set requires_grad for `mode` and return the numbers {"trained", "total"} of parameters.

    `head` names submodules by their dotted path; they train in every mode.
    Raises ValueError for an unknown mode, a missing submodule, or where nothing is left to train.
    """
    if mode not in ("frozen", "full"):
        raise ValueError(f"mode {mode!r}: not one of frozen, full")
    for parameter in module.parameters():
        parameter.requires_grad_(mode == "full")
    for name in head:
        for parameter in module.get_submodule(name).parameters():
            parameter.requires_grad_(True)
    counts = count_parameters(module)
    if counts["trained"] == 0:
        raise ValueError("nothing to train: every parameter is frozen")
    return counts


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
