"""What a worker decides by itself: its threads, its precision."""

import os

import pytest
import torch

from orchestration.worker import share_cores, uses_bf16

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


@pytest.mark.parametrize("precision, uses", [("auto", False), ("fp32", False), ("bf16", True)])
def test_a_cpu_computes_in_fp32_unless_told_otherwise(precision, uses):
    assert uses_bf16(precision, CPU) is uses
