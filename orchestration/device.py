"""What a worker computes with: how many threads, in which precision.

In: the config's wish and the device that the worker got. Out: what holds there. Knows torch only.
"""

import os
import socket

import torch


def share_cores(workers_on_node: int, device: torch.device) -> None:
    """Threads x workers <= cores: Ray would leave one thread to each, torch would take all cores for each."""
    if device.type == "cpu":
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // workers_on_node))


def precision_of(precision: str, device: torch.device) -> str:
    """What the engine computes in. "auto": bf16 on a GPU that has it; on CPUs without AMX it is slower than fp32.

    Raises RuntimeError for fp16 where torch has no GPU.
    """
    if precision == "fp16" and device.type != "cuda":
        raise RuntimeError(
            f"pretrain.precision=fp16: torch sees no GPU on {socket.gethostname()}, and CPUs do not train in fp16; "
            f"give pretrain.precision=bf16 or fp32, or install torch for GPUs there"
        )
    if precision == "auto":
        return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"
    return precision
