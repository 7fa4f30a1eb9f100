"""Every objective is the same training whole (ZeRO-0) and in pieces (ZeRO-3): two processes over gloo, without Ray.

Objectives use parameters in more than one place: tied output projections, shared tables, differences of tables. What
ZeRO-3 did not gather where it is used would be an empty tensor, or a rank that waits for ever. One rank has no target.
"""

import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from model.config import Objective
from model.objectives.catalogue import build_objective
from orchestration.engine import DeepSpeedEngine
from orchestration.plain_engine import PlainEngine
from orchestration.steps import evaluate, train_steps
from tests.objective_batches import TOKENIZER, batch, objective_of, tiny, write_teacher

CASES = {
    "spans": ("mlm_sbo", "bert"),
    "shared": ("rtd", "electra"),
    "disentangled": ("rtd", "deberta-v3"),
    "distillation": ("distillation", "distilbert"),
    "next sentence": ("mlm_nsp", "bert"),
    "order": ("mlm_sop", "albert"),
}
STEPS = 2
# A softmax does not change where all keys get the same addend: rounding is all there is, and Adam makes it large.
WITHOUT_GRADIENT = ("key.bias", "k_lin.bias", "key_proj.bias")


def objective(case: str, teacher: str) -> Any:
    name, family = CASES[case]
    section: Objective = objective_of(name, Path(teacher) if name == "distillation" else None)
    return build_objective(section, tiny(family), TOKENIZER, seed=3)[0]


def batches(step: int, rank: int | None) -> list[dict[str, torch.Tensor]]:
    """Two micro-batches of a rank, or of all (None). In step 1 rank 1 has none but filler rows, without a target."""
    whole = [batch(10 * step + number, rows=6) for number in range(2)]
    for number, some in enumerate(whole):
        if step == 1:
            filler = batch(0, rows=6)
            for name, value in some.items():
                value[3:] = filler[name][-1]
        if rank is not None:
            whole[number] = {name: value[3 * rank : 3 * rank + 3] for name, value in some.items()}
    return whole


def trained(engine: Any, rank: int | None) -> dict[str, Any]:
    records = list(train_steps(engine, ((s, batches(s, rank)) for s in range(STEPS)), lambda step: 1e-2))
    return {
        "losses": [record.loss for record in records], "norms": [record.gradient_norm for record in records],
        "scores": evaluate(engine, batches(50, rank)),
    }  # fmt: skip


def in_rank(rank: int, port: int, folder: str) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=str(port))  # fmt: skip
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    seen: dict[str, Any] = {}
    for case in CASES:
        for stage in (0, 3):
            engine = DeepSpeedEngine(
                objective(case, f"{folder}/teacher"), stage=stage, micro_batch=3, accumulation=2, weight_decay=0.01,
                gradient_clipping=1.0, persistence_threshold=0, device="cpu",
            )  # fmt: skip
            got = trained(engine, rank)
            state = engine.full_state()
            if rank == 0:
                got["exports"] = [(one.folder, one.state, one.extra) for one in engine.module.exports(state)]  # pyright: ignore[reportCallIssue]
            seen[f"{case} {stage}"] = got
    torch.save(seen, Path(folder) / f"seen-{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def teacher(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("objectives")
    write_teacher(folder / "teacher")
    return folder


@pytest.fixture(scope="module")
def seen(teacher) -> list[dict[str, Any]]:
    """rank -> "case stage" -> what it saw."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(in_rank, (port, str(teacher)), nprocs=2)
    return [torch.load(teacher / f"seen-{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.parametrize("case", CASES)
def test_whole_and_in_pieces_is_the_same_training(seen, teacher, case):
    """Losses, norms and held-out scores of both stages on both ranks are those of one process; exports are equal."""
    plain = trained(PlainEngine(objective(case, str(teacher / "teacher"))), None)
    for rank in range(2):
        for stage in (0, 3):
            got = seen[rank][f"{case} {stage}"]
            assert got["losses"] == pytest.approx(plain["losses"], abs=1e-5)
            assert got["norms"] == pytest.approx(plain["norms"], rel=1e-4)
            assert got["scores"] == pytest.approx(plain["scores"], abs=1e-5)
    whole, pieces = (seen[0][f"{case} {stage}"]["exports"] for stage in (0, 3))
    assert [one[0] for one in whole] == [one[0] for one in pieces] != []
    for one, other in zip(whole, pieces, strict=True):
        for here, there in zip(one[1:], other[1:], strict=True):
            assert {name: t.shape for name, t in here.items()} == {name: t.shape for name, t in there.items()}
            for name, tensor in here.items():
                if not name.endswith(WITHOUT_GRADIENT):
                    assert torch.allclose(tensor, there[name], atol=1e-5), name
