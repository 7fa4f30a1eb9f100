"""Ranks that save, as threads of one process: savers on a real pacer, and states that are bytes in place of engines."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from rank_threads import in_threads

from orchestration import checkpoint
from orchestration.config import Checkpoints
from orchestration.resuming import Beginning
from orchestration.saving import Saver

OWNER = {"config": {"seed": 1, "pretrain.steps": 100}, "tokenizer": "t", "data": "d"}
FRESH = Beginning(0, None, float("inf"))


def made(run: Path, step: int, loss: float | None = None, owner: dict[str, Any] = OWNER, world_size: int = 2) -> Path:
    """A checkpoint, whole, of files of 100 bytes and one more for each rank."""
    folder = checkpoint.folder_of(run, step)
    files = {}
    for rank in range(world_size):
        name = f"state/rank{rank}.bin"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(bytes([step % 256]) * (100 + rank))
        files[name] = {"bytes": 100 + rank, "hash": checkpoint.digest(folder / name)}
    made_by = {"world_size": world_size, "zero_stage": 1, "precision": "fp32"}
    manifest = {"step": step, **made_by, **owner, "eval_loss": loss, "files": files}
    checkpoint.write_json(folder / "manifest.json", manifest)
    return folder


class State:
    """What a rank would save: `state/rank<N>.bin`, which says of which rank and version it is."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.version = 0
        self.error: Exception | None = None

    def save(self, folder: Path) -> None:
        """As an engine's: writes, or raises the OSError that stands for what a disk answers."""
        if self.error is not None:
            raise self.error
        (folder / "state").mkdir()
        (folder / "state" / f"rank{self.rank}.bin").write_bytes(f"{self.rank} {self.version}".encode())


class Ranks:
    """A worker group, less the training."""

    def __init__(self, run: Path, pacer: Any, ranks: int = 2, beginning: Beginning = FRESH, **settings: Any) -> None:
        carry = settings.pop("carry", None)
        passes = settings.pop("passes", lambda point, step: None)
        lease = settings.pop("lease", None)
        run.mkdir(parents=True, exist_ok=True)
        self.run, self.pacer = run, pacer
        self.states = [State(rank) for rank in range(ranks)]
        group: Any = ray.get(pacer.open.remote(beginning.step, ranks))
        self.savers = [
            Saver(
                run, Checkpoints(**{"every_steps": 10, "keep": 2, **settings}), self.states[rank],  # pyright: ignore
                rank=rank, ranks=ranks, pacer=pacer, group=group, lease=lease, beginning=beginning,
                owner=OWNER, made_by={"zero_stage": 1, "precision": "fp32"}, carry=carry if rank == 0 else None,
                passes=passes,
            )
            for rank in range(ranks)
        ]  # fmt: skip

    def all(self, work: Callable[[Saver], Any]) -> list[Any]:
        """What `work` returns or raises on each rank, all at once."""
        answers: list[Any] = [None] * len(self.savers)

        def ask(rank: int) -> None:
            try:
                answers[rank] = work(self.savers[rank])
            except Exception as error:
                answers[rank] = error

        in_threads(len(self.savers), ask, 60)
        return answers

    def save(self, step: int, loss: float | None = None) -> None:
        """Save on all ranks; the state is the one of this step."""
        for state in self.states:
            state.version = step
        for answer in self.all(lambda saver: saver.save(step, loss, {"tokens": step})):
            if answer is not None:
                raise answer

    def finish(self) -> None:
        for answer in self.all(lambda saver: saver.finish()):
            if answer is not None:
                raise answer

    def steps(self) -> list[int]:
        """Of the checkpoints that count."""
        return sorted(manifest["step"] for _, manifest in checkpoint.find(self.run, OWNER))
