"""Ranks that train, save and resume for real: two processes, gloo, DeepSpeed, and the pacer of a Ray that is there."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from conftest import free_port
from test_orchestration_engine import batches, deepspeed_engine

from orchestration.config import Checkpoints
from orchestration.engine import DeepSpeedEngine
from orchestration.resuming import Beginning, agree, load
from orchestration.saving import Saver
from orchestration.steps import train_steps

OWNER = {"config": {"seed": 1}, "tokenizer": "t", "data": "d"}


class Group:
    """One start of a worker group, in each of its ranks."""

    def __init__(self, run: Path, pacer: Any, told: list[str], stage: int = 1) -> None:
        self.engine: DeepSpeedEngine = deepspeed_engine(stage=stage, micro_batch=4, accumulation=1)
        self.beginning: Beginning = agree(run, OWNER, told.append, pacer)
        load(self.engine, run, self.beginning)
        group = [ray.get(pacer.open.remote(self.beginning.step, dist.get_world_size())) if dist.get_rank() == 0 else 0]
        dist.broadcast_object_list(group, src=0)
        self.saver = Saver(
            run, Checkpoints(every_steps=2, keep=3), self.engine, rank=dist.get_rank(), ranks=dist.get_world_size(),
            pacer=pacer, group=group[0], lease=None, beginning=self.beginning, owner=OWNER,
            made_by={"zero_stage": stage, "precision": "fp32"},
        )  # fmt: skip

    def train(self, end: int, save: bool = True) -> list[float]:
        """Losses of the steps up to `end`; every second state is saved."""
        shape = (dist.get_rank(), dist.get_world_size(), 4, 1)
        steps = ((step, batches(step, *shape)) for step in range(self.beginning.step, end))
        losses = []
        for record in train_steps(self.engine, steps, lambda step: 1e-2):
            losses.append(record.loss)
            if save and self.saver.is_due(record.step + 1):
                self.saver.save(record.step + 1, None, {})
        if save:
            self.saver.finish()
        return losses


def in_ranks(work: Callable[..., Any], *arguments: Any, address: str, seconds: float = 120) -> list[Any]:
    """What `work(pacer name, *arguments)` returns on each of two ranks. Raises where one fails or takes too long."""
    context = mp.get_context("spawn")
    port, answers = free_port(), context.Manager().dict()
    ranks = mp.spawn(_rank, (port, address, answers, work, arguments), nprocs=2, join=False)
    if not ranks.join(timeout=seconds) and not ranks.join(timeout=1):
        for process in ranks.processes:
            process.kill()
        raise TimeoutError(f"ranks still work after {seconds} s")
    return [answers[rank] for rank in range(2)]


def _rank(
    rank: int, port: int, address: str, answers: Any, work: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    import ray

    os.environ.update(
        RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    torch.set_num_threads(1)
    ray.init(address, namespace="tests", log_to_driver=False, logging_level="CRITICAL")
    dist.init_process_group("gloo")
    answers[rank] = work(ray.get_actor("pacer-of-tests"), *arguments)
    dist.barrier()
    dist.destroy_process_group()


def flip(file: Path) -> None:
    """Turn one bit of a file."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def files_of_rank(folder: Path, rank: int) -> list[Path]:
    """Its optimizer's shard."""
    return [path for path in (folder / "state").iterdir() if f"rank_{rank}_" in path.name]
