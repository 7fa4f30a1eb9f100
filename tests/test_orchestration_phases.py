"""The border of two phases in the engine: another number of micro-batches, the same steps, in every ZeRO stage."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from conftest import free_port
from made_store import made_store

from data.config import Masking
from model.config import Encoder
from model.encoder import build_encoder
from model.objectives.masked import MaskedLM
from orchestration.engine import DeepSpeedEngine
from orchestration.feed import Feed
from orchestration.segments import Plan, PlanPhase, window_of, window_parts
from orchestration.steps import train_steps

STEPS, BORDER, BATCH, WORLD = 6, 3, 8, 2
SHAPES = {"whole": ((4, 1), (4, 1)), "phases": ((4, 1), (1, 4)), "back": ((1, 4), (2, 2))}  # micro-batch, accumulation


def plan_of(folder: Path) -> Plan:
    names = ("short", "long")
    phases = tuple(
        PlanPhase(number * BORDER, (number + 1) * BORDER, length=16, micro_batch=4, store=str(folder / name))
        for number, name in enumerate(names)
    )
    return Plan(str(folder), phases, seed=3, global_batch=BATCH, eval_every_steps=10**9, masking=Masking(),
                weights=(1.0,))  # fmt: skip


def in_rank(rank: int, port: int, folder: str) -> None:
    """Train each case, save its losses and gradient norms."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(WORLD), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=str(port))  # fmt: skip
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    plan = plan_of(Path(folder))
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    encoder = Encoder(**sizes, max_position_embeddings=24, dropout=0.0)
    seen: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for stage in range(4):
        for name, shapes in SHAPES.items():
            made = DeepSpeedEngine(
                MaskedLM(build_encoder(encoder, {"vocab_size": 100, "pad_id": 0}, seed=1)[0]), stage=stage,
                micro_batch=shapes[0][0], accumulation=shapes[0][1], weight_decay=0.01, gradient_clipping=1.0,
                persistence_threshold=0, device="cpu",
            )  # fmt: skip
            records = []
            for number, (micro_batch, accumulation) in enumerate(shapes):
                first = plan.phases[number].first_step
                parts = [
                    part
                    for _, segment in window_parts(plan, window_of(plan, first), first, WORLD)
                    for part in segment
                    if part.rank == rank and not part.evaluation
                ]
                made.accumulate(accumulation)
                feed = Feed(rank, 3, micro_batch, accumulation, pad_id=0)
                steps = feed.steps(parts, first, lambda lengths, positions: None, lambda stage, step: None)
                records += list(train_steps(made, steps, lambda step: 1e-2))
            assert [record.step for record in records] == list(range(STEPS))
            seen[stage, name] = [(record.loss, record.gradient_norm) for record in records]
    torch.save(seen, Path(folder) / f"seen-{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_phase_with_other_micro_batches_trains_the_same_steps(tmp_path: Path):
    made_store(tmp_path / "short", [60])
    made_store(tmp_path / "long", [50], length=24)
    mp.spawn(in_rank, args=(free_port(), str(tmp_path)), nprocs=WORLD)  # pyright: ignore[reportPrivateImportUsage]
    seen = torch.load(tmp_path / "seen-0.pt")
    whole = np.array(seen[0, "whole"])
    assert whole[:, 0].min() < whole[0, 0]
    for case, values in seen.items():
        np.testing.assert_allclose(np.array(values), whole, rtol=1e-4, atol=1e-5, err_msg=str(case))
