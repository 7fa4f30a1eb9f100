"""Where a worker group begins: all ranks agree on a checkpoint whose every byte is right, before any of them loads it.

In: a run, and the engine of each rank. Out: the step to begin at, told to the pacer, so that the stream begins there
too; and the state in the engines. Knows torch.distributed; what a state looks like is the engine's business.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import torch.distributed as dist

from data.storage import fetch, forget, is_remote, mirror_id
from orchestration import checkpoint
from orchestration.engine import DeepSpeedEngine, gathered


@dataclass(frozen=True)
class Beginning:
    """What a worker group begins with."""

    step: int
    manifest: checkpoint.Manifest | None
    """Of the checkpoint before `step`; None: from scratch."""
    best_loss: float
    """The lowest held-out loss of all checkpoints that count; infinity: none was evaluated."""


@dataclass(frozen=True)
class Neighbours:
    """The ranks that see the same files of a checkpoint as this one, and its place among them."""

    number: int
    place: int


def neighbours(run: Path) -> Neighbours:
    """In a mounted folder all ranks; in a bucket those that share a mirror. All ranks must call it.

    Ray's local ranks would not do: they go by IP address, which nodes may share.
    """
    if not is_remote(run):
        return Neighbours(dist.get_world_size(), dist.get_rank())
    here: list[int] = [rank for rank, mirror in enumerate(gathered(mirror_id())) if mirror == mirror_id()]
    return Neighbours(len(here), here.index(dist.get_rank()))


def agree(run: Path, owner: Mapping[str, Any], warn: Callable[[str], object], pacer: Any) -> Beginning:
    """The newest checkpoint whose files are what its manifest says, hashes included; all ranks must call it.

    Each that is passed over is named to `warn` (on rank 0), and one with wrong bytes is set aside. Of a bucket each
    node has a copy of the checkpoint then, which `load` takes away again. Raises OSError where storage cannot be read,
    RuntimeError where all that was saved is damaged: a run does not begin at step 0 in silence.
    """
    rank, near = dist.get_rank(), neighbours(run)
    named: set[str] = set()
    copied_again: set[str] = set()
    while True:
        step, manifest, complaints, best = _of_rank_0(lambda: _look(run, owner))
        if rank == 0:
            for complaint in (c for c in complaints if c.partition(":")[0] not in named):
                warn(f"checkpoint passed over: {complaint}")
        if manifest is None:
            if gone := checkpoint.lost(complaints):
                raise RuntimeError(f"no checkpoint is left to begin at: {'; '.join(gone)}")
            break
        folder = checkpoint.folder_of(run, step)
        if near.place == 0:
            for other in folder.parent.glob("*"):  # the copy of a group that died before it loaded it
                if other != folder:
                    forget(other)
            fetch(folder)
        dist.barrier()
        mine = checkpoint.shares(manifest["files"], near.number)[near.place]
        faults = _judged(folder, {name: manifest["files"][name] for name in mine})
        if not faults:
            break
        if near.place == 0:
            forget(folder)
        dist.barrier()
        if is_remote(run) and folder.name not in copied_again:
            copied_again.add(folder.name)  # a copy may be damaged where the bucket's file is not
            continue
        named.add(folder.name)
        if rank == 0:
            checkpoint.set_aside(folder)
            warn(f"checkpoint passed over: {folder.name}: {'; '.join(faults)}")
        dist.barrier()
    if rank == 0:
        ray.get(pacer.resume_at.remote(step))
    dist.barrier()
    return Beginning(step, manifest, best)


def load(engine: DeepSpeedEngine, run: Path, beginning: Beginning) -> None:
    """Load the checkpoint that was agreed on; all ranks must call it."""
    if beginning.manifest is None:
        return
    folder = checkpoint.folder_of(run, beginning.step)
    manifest = beginning.manifest
    engine.load(folder, manifest["world_size"], manifest["zero_stage"], manifest["precision"])
    near = neighbours(run)
    dist.barrier()
    if near.place == 0:
        forget(folder)


def _judged(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What is wrong with a checkpoint, by all ranks' shares of its files. Raises OSError on all ranks alike."""
    try:
        mine: tuple[list[str], str | None] = checkpoint.damaged(folder, files), None
    except OSError as error:
        mine = [], f"rank {dist.get_rank()}: {error}"
    told = gathered(mine)
    if unread := [error for _, error in told if error is not None]:
        raise OSError(f"{folder.name} cannot be read: {unread[0]}")
    return sorted({fault for faults, _ in told for fault in faults})


def _look(run: Path, owner: Mapping[str, Any]) -> tuple[int, checkpoint.Manifest | None, list[str], float]:
    step, manifest, complaints = checkpoint.newest(run, owner)
    best = checkpoint.best(run, owner)
    return step, manifest, complaints, float("inf") if best is None else best["eval_loss"]


def _of_rank_0(ask: Callable[[], Any]) -> Any:
    """What rank 0 answers, on all ranks; its OSError too, so that none waits for one that has gone."""
    answer: list[Any] = [None]
    if dist.get_rank() == 0:
        try:
            answer = [ask()]
        except OSError as error:
            answer = [error]
    dist.broadcast_object_list(answer, src=0)
    if isinstance(answer[0], OSError):
        raise OSError(f"checkpoints cannot be read: {answer[0]}")
    return answer[0]
