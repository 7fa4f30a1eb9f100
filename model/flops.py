"""Floating-point operations: what a pretraining step multiplies, and what a device can multiply in a second.

In: an encoder's shape and a step's counts; a device. Out: numbers for model FLOPs utilisation. Knows torch only.
"""

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from model.families import embedding_width, family_of, setting

# Dense bf16 operations per second by words of the device's name; the first entry whose words all stand in it counts.
# Source: https://www.nvidia.com/en-us/data-center/ (h200, h100, a100, l40s, l4, products/a10-gpu); where a data sheet
# gives its figure "with sparsity", half of it.
BF16_PEAKS = {
    "H200 NVL": 835e12,
    "H200": 989e12,
    "H100 NVL": 835e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10": 125e12,
}
SIDES = {"cpu": 1024, "cuda": 4096}  # of the square matrices whose product is timed: 10 ms or so
REPEATS = 5


def encoder_flops(config: Any, tokens: float, row_tokens: float) -> float:
    """Operations of one forward pass of an encoder over `tokens` that are not padding.

    `config`: transformers'; `row_tokens`: mean tokens of a row. A multiply-add is 2 operations. Per token and layer:
    4 D^2 for query, key, value and output, 2 D I for the feed-forward layer (3 D I where it is gated), 2 T D for
    attention over a row of T tokens (also where a layer attends to a part of them only); per token what the family
    adds. Looking up embeddings multiplies nothing; padding is not the model's work, and recomputed activations count
    once. Source: PaLM, arXiv:2204.02311 appendix B.
    """
    width, layers, feed_forward = (
        setting(config, name) for name in ("hidden_size", "num_hidden_layers", "intermediate_size")
    )
    family = family_of(config)
    layer = width * (4 * width + family.feed_forward_matrices * feed_forward + 2 * row_tokens)
    return 2 * tokens * (layers * layer + family.other_multiplies(config))


def masked_head_flops(config: Any, targets: float) -> float:
    """Operations of one forward pass of the masked-LM head at `targets` positions: D E + E V multiply-adds each, E the
    width of the embeddings."""
    return dense_flops(targets, (setting(config, "hidden_size"), embedding_width(config), config.vocab_size))


def dense_flops(vectors: float, widths: Sequence[int]) -> float:
    """Operations of one forward pass of `vectors` through matrices: widths (D, E, F) are a D x E and an E x F."""
    return 2 * vectors * sum(inner * outer for inner, outer in pairwise(widths))


def peak_flops(device: torch.device, bf16: bool) -> tuple[float, bool]:
    """(operations per second the device can do, True if that was measured here and not published).

    A known GPU in bf16 has its published peak. Of anything else the fastest of a few matrix products is taken: on a
    CPU what its share of cores gives, in some 0.1 s.
    """
    if device.type == "cuda" and bf16 and (peak := published(torch.cuda.get_device_name(device))):
        return peak, False
    side = SIDES.get(device.type, 1024)
    matrix = torch.ones(side, side, dtype=torch.bfloat16 if bf16 else torch.float32, device=device)
    fastest = float("inf")
    for _ in range(REPEATS):
        _wait(device)
        begun = time.perf_counter()
        torch.mm(matrix, matrix)
        _wait(device)
        fastest = min(fastest, time.perf_counter() - begun)
    return 2 * side**3 / fastest, True


def published(name: str) -> float | None:
    """The published bf16 peak of a GPU by its name; None for one we do not know, and for a slice (MIG) of one."""
    words = set(name.replace("-", " ").split())
    if "MIG" in words:
        return None
    return next((peak for known, peak in BF16_PEAKS.items() if set(known.split()) <= words), None)


def _wait(device: torch.device) -> None:
    """GPUs work behind the program's back."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
