"""What a worker decides by itself: its threads, its precision."""

import os

import pytest
import torch

from orchestration.device import precision_of, share_cores

CPU = torch.device("cpu")


@pytest.mark.parametrize("workers", [1, 2, 3, 1000])
def test_threads_times_workers_are_at_most_the_cores(workers):
    before = torch.get_num_threads()
    cores = len(os.sched_getaffinity(0))
    try:
        share_cores(workers, CPU)
        assert torch.get_num_threads() == max(1, cores // workers)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("precision, used", [("auto", "fp32"), ("fp32", "fp32"), ("bf16", "bf16")])
def test_a_cpu_computes_in_fp32_unless_told_otherwise(precision, used):
    assert precision_of(precision, CPU) == used


def test_fp16_without_a_gpu_is_refused_by_the_worker():
    with pytest.raises(RuntimeError, match="pretrain.precision=fp16: torch sees no GPU on .*; give "):
        precision_of("fp16", CPU)
