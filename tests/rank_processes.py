"""Ranks for tests of engines: processes over gloo, without Ray, and the tiny training that they share."""

import math
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from data.batches import Part, micro_batches
from model.config import Encoder
from model.encoder import build_encoder
from model.objectives.masked import MaskedLM
from orchestration.engine import DeepSpeedEngine
from orchestration.feed import tensors
from orchestration.gate import Gate
from orchestration.schedule import learning_rate
from orchestration.steps import Step, StepRecord, train_steps

VOCABULARY, ROWS, LENGTH, STEPS = 60, 8, 16, 8


def spawn(world_size: int, work: Callable[..., Any], folder: Path, *arguments: Any) -> list[Any]:
    """Run work(rank, world size, folder, *arguments) in processes of its own; returns rank -> what it returned."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(_in_rank, (world_size, port, work, str(folder), arguments), nprocs=world_size)
    return [torch.load(folder / f"returned-{rank}.pt", weights_only=False) for rank in range(world_size)]


def _in_rank(rank: int, world_size: int, port: int, work: Any, folder: str, arguments: tuple[Any, ...]) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=str(port))  # fmt: skip
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.save(work(rank, world_size, Path(folder), *arguments), Path(folder) / f"returned-{rank}.pt")
    dist.destroy_process_group()


def objective(dropout: float = 0.0, seed: int = 3) -> MaskedLM:
    """A tiny BERT whose decoder is tied to the embeddings."""
    encoder = Encoder(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, max_position_embeddings=32,
        dropout=dropout,
    )  # fmt: skip
    return MaskedLM(build_encoder(encoder, {"vocab_size": VOCABULARY, "pad_id": 0}, seed=seed)[0])


def part_of(step: int) -> Part:
    """Eight ragged rows with ids of their own; one row has no target."""
    draw = np.random.default_rng(step)
    lengths = draw.integers(4, LENGTH, ROWS).astype(np.int32)
    ids = draw.integers(5, VOCABULARY, (ROWS, LENGTH)).astype(np.int32) * (np.arange(LENGTH) < lengths[:, None])
    labels = np.where((draw.random((ROWS, LENGTH)) < 0.3) & (ids > 0), ids, -100).astype(np.int32)
    labels[3] = -100
    row_ids = ROWS * step + np.arange(ROWS)
    return Part(False, step, step + 1, 0, 0, np.full(ROWS, step), row_ids, lengths, ids, labels)


def steps_of(numbers: Iterable[int], rank: int, world_size: int, micro_batch: int) -> Iterator[Step]:
    """This rank's share of each step; dropout is seeded as orchestration/feed.py does."""
    for number in numbers:
        part, rows = part_of(number), np.arange(ROWS)[rank::world_size]
        torch.manual_seed(1000 * number + rank)
        batches = micro_batches(part, rows, micro_batch, ROWS // world_size // micro_batch, pad_id=0)
        yield Step(number, tensors(batches), part.row_ids[rows])


def engine_of(
    stage: int, world_size: int, micro_batch: int = 2, module: Any = None, **settings: Any
) -> DeepSpeedEngine:
    """An engine over eight rows a step."""
    return DeepSpeedEngine(
        module or objective(), stage=stage, micro_batch=micro_batch, accumulation=ROWS // world_size // micro_batch,
        weight_decay=0.1, gradient_clipping=1.0, persistence_threshold=0, device="cpu", **settings,
    )  # fmt: skip


def rate_of(step: int) -> float:
    """Warm-up over two steps, then linear decay."""
    return learning_rate(step, STEPS, 1e-2, 0.25)


def train(
    engine: DeepSpeedEngine, numbers: Iterable[int], micro_batch: int = 2, gate: Gate | None = None
) -> list[StepRecord]:
    """Train the steps of these numbers."""
    steps = steps_of(numbers, engine.rank, engine.world_size, micro_batch)
    return list(train_steps(engine, steps, rate_of, gate=gate))


def held_by(engine: Any) -> list[torch.Tensor]:
    """Copies of all that this rank holds of weights and optimizer state."""
    inner = engine.engine.optimizer
    states = getattr(inner, "optimizer", inner).state.values()
    held = [value for state in states for value in state.values() if torch.is_tensor(value)]
    held += [getattr(p, "ds_tensor", p) for p in engine.module.parameters()]
    masters = getattr(inner, "single_partition_of_fp32_groups", getattr(inner, "fp32_partitioned_groups_flat", []))
    return [tensor.detach().clone() for tensor in [*held, *masters]]


def equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    """Bit for bit."""
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


class _Infinite(torch.autograd.Function):
    """Passes a loss on, and an infinite gradient back."""

    @staticmethod
    def forward(context: Any, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return gradient * math.inf


def spoil(module: Any, what: Callable[[], str | None]) -> None:
    """From now on the loss of a batch, or only its gradient, is no finite number where what() is "loss", "gradient"."""

    def hook(module: Any, inputs: Any, outputs: Any) -> Any:
        (sums, metrics), kind = outputs, what()
        if kind == "loss":
            return {term: value * math.nan for term, value in sums.items()}, metrics
        if kind == "gradient":
            return {term: _Infinite.apply(value) for term, value in sums.items()}, metrics
        return outputs

    module.register_forward_hook(hook)
