"""The engines: every ZeRO stage trains the same training, shards what it promises, and hands its weights back.

Two processes over gloo without Ray: engine, steps, schedule and model know none.
"""

import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from held_bytes import held_bytes

from data.batches import Part, micro_batches
from model.config import Encoder
from model.encoder import build_encoder
from model.objectives.masked import MaskedLM
from orchestration.engine import DeepSpeedEngine
from orchestration.optimizer import parameter_groups
from orchestration.plain_engine import PlainEngine
from orchestration.steps import Batch, evaluate, train_steps

VOCABULARY, ROWS, LENGTH, STEPS = 200, 8, 24, 4


def objective() -> MaskedLM:
    """A tiny BERT without dropout, the same in every process."""
    encoder = Encoder(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=64, dropout=0.0,
    )  # fmt: skip
    return MaskedLM(build_encoder(encoder, {"vocab_size": VOCABULARY, "pad_id": 0}, seed=3)[0])


def part(step: int) -> Part:
    """Eight ragged rows; the numbers of targets differ from row to row, and one row has none."""
    import numpy as np

    draw = np.random.default_rng(step)
    lengths = draw.integers(4, LENGTH, ROWS).astype(np.int32)
    ids = draw.integers(5, VOCABULARY, (ROWS, LENGTH)).astype(np.int32) * (np.arange(LENGTH) < lengths[:, None])
    labels = np.where((draw.random((ROWS, LENGTH)) < draw.random((ROWS, 1))) & (ids > 0), ids, -100)
    labels[3] = -100
    labels = labels.astype(np.int32)
    return Part(False, step, step + 1, 0, 0, np.full(ROWS, step), np.arange(ROWS), lengths, ids, labels)


def batches(step: int, rank: int, world_size: int, micro_batch: int, accumulation: int) -> list[Batch]:
    import numpy as np

    arrays = micro_batches(part(step), np.arange(ROWS)[rank::world_size], micro_batch, accumulation, pad_id=0)
    return [{key: torch.from_numpy(value) for key, value in batch.items()} for batch in arrays]


def deepspeed_engine(stage: int, micro_batch: int, accumulation: int, precision: str = "fp32") -> DeepSpeedEngine:
    return DeepSpeedEngine(
        objective(), stage=stage, micro_batch=micro_batch, accumulation=accumulation, weight_decay=0.01,
        gradient_clipping=1.0, precision=precision, persistence_threshold=0, device="cpu",
    )  # fmt: skip


def in_rank(
    rank: int, world_size: int, port: int, folder: str, cases: list[dict[str, Any]], num_steps: int
) -> None:
    """What one process does: train each case, save what it saw."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=str(port))  # fmt: skip
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    seen = []
    for number, case in enumerate(cases):
        engine = deepspeed_engine(**case)
        shape = (rank, world_size, case["micro_batch"], case["accumulation"])
        held: dict[str, int] = {}
        backward = engine.backward

        def measured(loss: torch.Tensor, held=held, engine=engine, backward=backward) -> None:
            backward(loss)
            for kind, num_bytes in held_bytes(engine).items():  # the most that is ever held
                held[kind] = max(held.get(kind, 0), num_bytes)

        def rate(step: int) -> float:
            return 1e-2 / (1 + step)

        engine.backward = measured
        records = list(train_steps(engine, ((s, batches(s, *shape)) for s in range(num_steps)), rate))
        scores = evaluate(engine, batches(99, rank, world_size, case["micro_batch"], case["accumulation"]))
        engine.save(Path(folder) / f"state-{world_size}-{number}")
        coming = range(num_steps, num_steps + 2)
        more = list(train_steps(engine, ((s, batches(s, *shape)) for s in coming), rate))
        again = deepspeed_engine(**case)
        again.load(Path(folder) / f"state-{world_size}-{number}", world_size, case["stage"])
        resumed = list(train_steps(again, ((s, batches(s, *shape)) for s in coming), rate))
        state = engine.full_state()
        seen.append({"losses": [r.loss for r in records], "norms": [r.gradient_norm for r in records],
                     "targets": [r.targets for r in records], "rates": [r.learning_rate for r in records],
                     "held": held, "state": state, "scores": scores,
                     "more": [r.loss for r in more], "resumed": [r.loss for r in resumed]})  # fmt: skip
    torch.save(seen, Path(folder) / f"seen-{world_size}-{rank}.pt")
    dist.destroy_process_group()


CASES = {
    1: [{"stage": 1, "micro_batch": 8, "accumulation": 1}],
    2: [
        {"stage": 0, "micro_batch": 4, "accumulation": 1},
        {"stage": 1, "micro_batch": 4, "accumulation": 1},
        {"stage": 2, "micro_batch": 4, "accumulation": 1},
        {"stage": 3, "micro_batch": 4, "accumulation": 1},
        {"stage": 0, "micro_batch": 1, "accumulation": 4},
        {"stage": 1, "micro_batch": 1, "accumulation": 4},
        {"stage": 2, "micro_batch": 1, "accumulation": 4},
        {"stage": 3, "micro_batch": 1, "accumulation": 4},
        {"stage": 1, "micro_batch": 3, "accumulation": 2},  # two filler rows on each rank
    ],
}


BF16 = [{"stage": stage, "micro_batch": 2, "accumulation": 2, "precision": "bf16"} for stage in range(4)]
BF16_STEPS = 20


def spawn(
    folder: Path, world_size: int, cases: list[dict[str, Any]], num_steps: int = STEPS
) -> list[list[dict[str, Any]]]:
    """Train the cases in processes of their own; returns rank -> case -> what it saw."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(in_rank, (world_size, port, str(folder), cases, num_steps), nprocs=world_size)
    return [torch.load(folder / f"seen-{world_size}-{r}.pt", weights_only=False) for r in range(world_size)]


@pytest.fixture(scope="module")
def seen(tmp_path_factory) -> dict[int, list[list[dict[str, Any]]]]:
    """world size -> rank -> case -> what it saw."""
    return {w: spawn(tmp_path_factory.mktemp("engine"), w, cases) for w, cases in CASES.items()}


@pytest.fixture(scope="module")
def plain() -> tuple[list[float], list[float], dict[str, torch.Tensor]]:
    """The same training in one process of plain torch: losses, norms, weights."""
    engine = PlainEngine(objective())
    steps = ((s, batches(s, 0, 1, ROWS, 1)) for s in range(STEPS + 2))
    records = list(train_steps(engine, steps, lambda step: 1e-2 / (1 + step)))
    return [r.loss for r in records], [r.gradient_norm for r in records], engine.module.state_dict()


@pytest.mark.parametrize("world_size, case", [(w, c) for w in CASES for c in range(len(CASES[w]))])
def test_every_stage_and_shape_is_the_same_training(seen, plain, world_size, case):
    """1 x 8 and 2 x 4 rows, accumulation 1 and 4, filler rows, ZeRO 0-3: losses and norms equal to 1e-5."""
    for rank in range(world_size):
        got = seen[world_size][rank][case]
        assert got["losses"] == pytest.approx(plain[0][:STEPS], abs=1e-5)
        assert got["norms"] == pytest.approx(plain[1][:STEPS], rel=1e-4)
        assert got["more"] == pytest.approx(plain[0][STEPS:], abs=1e-5)


@pytest.mark.parametrize("world_size, case", [(w, c) for w in CASES for c in range(len(CASES[w]))])
def test_saved_and_loaded_training_goes_on_exactly(seen, world_size, case):
    got = seen[world_size][0][case]
    assert got["resumed"] == got["more"]


@pytest.mark.parametrize("case", range(len(CASES[2])))
def test_gathered_weights_are_whole(seen, plain, case):
    """ZeRO-3 keeps pieces; the export needs every tensor whole, and the decoder tied to the embeddings."""
    state = seen[2][0][case]["state"]
    assert {name: tensor.shape for name, tensor in state.items()} == {n: t.shape for n, t in plain[2].items()}
    for name, tensor in plain[2].items():
        assert torch.allclose(state[name], tensor, atol=1e-3), name
    tied = "model.cls.predictions.decoder.weight", "model.bert.embeddings.word_embeddings.weight"
    assert torch.equal(state[tied[0]], state[tied[1]])
    assert seen[2][1][case]["state"] == {}


def test_each_stage_shards_what_it_promises(seen):
    """Bytes per rank, persistence threshold 0: optimizer state from 1 on, gradients from 2 on, parameters at 3."""
    held = [[seen[2][rank][4 + stage]["held"] for rank in range(2)] for stage in range(4)]  # accumulation 4
    parameters = sum(p.nbytes for p in objective().parameters())
    padding = 1.05  # partitions are padded to equal size
    for rank in range(2):
        assert held[0][rank]["optimizer"] >= 2 * parameters
        assert held[0][rank]["gradients"] == pytest.approx(parameters, rel=0.02)
        assert held[0][rank]["parameters"] == parameters
        for stage in (1, 2, 3):
            assert held[stage][rank]["optimizer"] <= held[0][rank]["optimizer"] / 2 * padding
        assert held[1][rank]["gradients"] >= parameters
        for stage in (2, 3):
            assert held[stage][rank]["gradients"] <= parameters / 2 * padding
        for stage in (0, 1, 2):
            assert held[stage][rank]["parameters"] == parameters
        assert held[3][rank]["parameters"] <= parameters / 2 * padding


def test_bf16_trains_at_every_stage_and_resumes(tmp_path, monkeypatch):
    """20 steps with losses near fp32's, norms reported, a saved state that goes on exactly; no compiler, no CUDA."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    engine = PlainEngine(objective())
    steps = ((s, batches(s, 0, 1, ROWS, 1)) for s in range(BF16_STEPS))
    plain = list(train_steps(engine, steps, lambda step: 1e-2 / (1 + step)))
    for rank in spawn(tmp_path, 2, BF16, BF16_STEPS):
        for got in rank:
            assert got["losses"] == pytest.approx([r.loss for r in plain], abs=0.1)
            assert got["norms"] == pytest.approx([r.gradient_norm for r in plain], rel=0.2)
            assert got["resumed"] == got["more"]


def test_evaluation_weighs_targets_not_batches(seen, plain):
    engine = PlainEngine(objective())
    list(train_steps(engine, ((s, batches(s, 0, 1, ROWS, 1)) for s in range(STEPS)), lambda step: 1e-2 / (1 + step)))
    whole = evaluate(engine, batches(99, 0, 1, ROWS, 1))
    for case in range(len(CASES[2])):
        for rank in range(2):
            scores = seen[2][rank][case]["scores"]
            assert scores["loss"] == pytest.approx(whole["loss"], abs=1e-5)
            assert (scores["targets"], scores["accuracy"]) == (whole["targets"], whole["accuracy"])


def test_a_loss_that_is_no_number_stops_before_the_weights_move():
    module = objective()
    engine = PlainEngine(module)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with torch.no_grad():
        module.model.cls.predictions.bias[7] = float("nan")
    before["model.cls.predictions.bias"][7] = before["model.cls.predictions.decoder.bias"][7] = float("nan")
    with pytest.raises(FloatingPointError, match="step 0: the loss is nan"):
        list(train_steps(engine, [(0, batches(0, 0, 1, ROWS, 1))], lambda step: 1e-2))
    for name, value in module.state_dict().items():
        assert torch.equal(value.nan_to_num(nan=-1), before[name].nan_to_num(nan=-1)), name


def test_biases_and_layer_norms_do_not_decay():
    module = objective()
    groups = parameter_groups(module, 0.01)
    decays = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    names = dict(module.named_parameters())
    assert len(decays) == len(names)
    for name, parameter in names.items():
        assert decays[id(parameter)] == (0.0 if name.endswith("bias") or "LayerNorm" in name else 0.01), name


def test_nothing_to_train_is_refused():
    module = objective()
    module.requires_grad_(False)
    with pytest.raises(ValueError, match="nothing to train"):
        parameter_groups(module, 0.01)
