"""A worker's side of checkpoints: all ranks load and save together.

In: engine, run and step. Out: a checkpoint (orchestration/checkpoint.py), or the state of one in the engine.
Knows torch.distributed; what a state looks like is the engine's business.
"""

from pathlib import Path
from typing import Any

import torch.distributed as dist

from data.storage import fetch, forget, mirror_id
from orchestration import checkpoint
from orchestration.config import Config
from orchestration.engine import DeepSpeedEngine


def is_first_of_node() -> bool:
    """Whether no lower rank shares this one's mirror. Ray's local ranks go by IP address, which nodes may share."""
    mirrors: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(mirrors, mirror_id())
    return mirrors.index(mirrors[dist.get_rank()]) == dist.get_rank()


def load(engine: DeepSpeedEngine, folder: Path) -> None:
    """Load a checkpoint, all ranks together; out of a bucket the first rank of each node brings it."""
    is_first = is_first_of_node()
    if is_first:
        fetch(folder)
    dist.barrier()
    engine.load(folder)
    dist.barrier()
    if is_first:
        forget(folder)


def save(engine: DeepSpeedEngine, run: Path, config: Config, step: int, spent: dict[str, Any]) -> None:
    """Save the state before `step`, all ranks together; `spent`: what the run spent up to there."""
    checkpoint.save(
        run,
        step,
        write_state=engine.save,
        barrier=dist.barrier,
        is_first_rank=dist.get_rank() == 0,
        is_first_of_node=is_first_of_node(),
        facts={"world_size": dist.get_world_size(), "zero_stage": config.zero.stage, "spent": spent},
        keep=config.checkpoints.keep,
    )
