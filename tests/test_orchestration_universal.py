"""A state goes on exactly where nothing changed, and equal to rounding on other ranks: 2 -> 1 -> 2, at every stage.

Every start is processes of its own with other initial weights, so what is equal afterwards came out of the state. The
objective has a decoder tied to the embeddings, a frozen table, and a buffer that is saved.
"""

import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_processes import engine_of, equal, held_by, objective, spawn, train

from model.activations import recompute_activations
from orchestration import universal
from orchestration.engine import DeepSpeedEngine

pytestmark = pytest.mark.timeout(400)

STAGES = range(4)
EXACT = {
    **{f"stage {stage}": {"stage": stage} for stage in STAGES},
    **{f"offload at stage {stage}": {"stage": stage, "offload": "optimizer"} for stage in (1, 2, 3)},
    **{f"recomputed at stage {stage}": {"stage": stage, "recompute": True} for stage in (0, 3)},
}
CHANGES = [(1, 3), (3, 1), (0, 2), (2, 0)]  # of the stage, and of the number of ranks at the same time
TIED = "model.cls.predictions.decoder.weight", "model.bert.embeddings.word_embeddings.weight"
FROZEN = "model.bert.embeddings.position_embeddings.weight"


def built(
    stage: int, world_size: int, seed: int, dropout: float = 0.0, recompute: bool = False, **settings: Any
) -> DeepSpeedEngine:
    """An engine of initial weights by `seed`."""
    module = objective(dropout, seed)
    module.get_parameter(FROZEN).requires_grad_(False)
    module.register_buffer("seen", torch.tensor([float(seed)]))
    if recompute:
        recompute_activations(module)
    return engine_of(stage, world_size, module=module, **settings)


def outcome(engine: DeepSpeedEngine, numbers: range) -> dict[str, Any]:
    """What training these steps gives."""
    records = train(engine, numbers)
    return {
        "losses": [r.loss for r in records], "norms": [r.gradient_norm for r in records],
        "rates": [r.learning_rate for r in records], "held": held_by(engine), "state": engine.full_state(),
        "decays": [group["weight_decay"] for group in engine.engine.optimizer.param_groups],
        "frozen": engine._gathered([FROZEN, "seen"]),
        "tied": len({engine.module.get_parameter(name).data_ptr() for name in TIED}),
    }  # fmt: skip


def begin(rank: int, world_size: int, folder: Path) -> dict[str, Any]:
    """Two ranks: two steps, a save, and the steps that an interrupted run has to repeat."""
    seen: dict[str, Any] = {}
    for name, settings in EXACT.items():
        engine = built(world_size=world_size, seed=3, dropout=0.1, **settings)
        train(engine, range(2))
        engine.save(folder / name)
        seen[name] = outcome(engine, range(2, 4))
    for stage in STAGES:
        engine = built(stage, world_size, seed=3)
        train(engine, range(2))
        engine.save(folder / f"two-{stage}")
        seen[f"undisturbed {stage}"] = outcome(engine, range(2, 6))
    return seen


def shrink(rank: int, world_size: int, folder: Path) -> dict[str, Any]:
    """One rank goes on; also at another stage."""
    seen: dict[str, Any] = {}
    for saved, stage in [*((stage, stage) for stage in STAGES), *CHANGES]:
        engine = built(stage, world_size, seed=5)
        engine.load(folder / f"two-{saved}", 2, saved, scratch=folder / "scratch")
        seen[f"{saved} {stage}"] = outcome(engine, range(2, 4))
        if saved == stage:
            engine.save(folder / f"one-{stage}")
    seen["left"] = list((folder / "scratch").iterdir())
    return seen


def grow(rank: int, world_size: int, folder: Path) -> dict[str, Any]:
    """Two ranks again; and the exact ones, with nothing changed, but for one that was saved in another precision."""
    seen: dict[str, Any] = {}
    for name, settings in EXACT.items():
        engine = built(world_size=world_size, seed=5, dropout=0.1, **settings)
        engine.load(folder / name, 2, settings["stage"])
        seen[name] = outcome(engine, range(2, 4))
    for stage in STAGES:
        engine = built(stage, world_size, seed=5)
        engine.load(folder / f"one-{stage}", 1, stage, scratch=folder / "scratch")
        seen[f"{stage} {stage}"] = outcome(engine, range(4, 6))
    engine = built(3, world_size, seed=5, precision="bf16")
    engine.load(folder / "two-3", 2, 3, "fp32", scratch=folder / "scratch")
    seen["bf16"] = outcome(engine, range(2, 4))
    missing = folder / "two-1"
    if rank == 0:
        shutil.copytree(missing, folder / "cut")
        (folder / "cut/state/zero_pp_rank_1_mp_rank_00_optim_states.pt").write_bytes(b"cut")
    engine.gather(None)
    engine = built(2, world_size, seed=5)
    try:
        engine.load(folder / "cut", 2, 1, scratch=folder / "scratch")
    except RuntimeError as error:
        seen["cut"] = str(error)
    engine.gather(None)  # the rank that converted has cleared up
    seen["left"] = list((folder / "scratch").iterdir())
    return seen


@pytest.fixture(scope="module")
def seen(tmp_path_factory) -> dict[str, list[dict[str, Any]]]:
    """Of each of the three starts: rank -> what it saw."""
    folder = tmp_path_factory.mktemp("elastic")
    return {
        "begin": spawn(2, begin, folder), "shrink": spawn(1, shrink, folder), "grow": spawn(2, grow, folder),
    }  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_a_resumed_run_is_bit_for_bit_the_undisturbed_one(seen, name):
    """Accumulation 2, dropout on: losses, norms, rates, and every weight and moment that a rank holds."""
    for rank in range(2):
        old, new = seen["begin"][rank][name], seen["grow"][rank][name]
        for key in ("losses", "norms", "rates", "decays"):
            assert old[key] == new[key], key
        assert equal(old["held"], new["held"])
        assert all(torch.equal(tensor, new["state"][key]) for key, tensor in old["state"].items())


@pytest.mark.parametrize("stage", STAGES)
def test_other_numbers_of_ranks_go_on_with_the_same_training(seen, stage):
    """2 -> 1 -> 2 ranks: losses within 1e-5 of the undisturbed run of two, weights within 1e-4."""
    undisturbed = seen["begin"][0][f"undisturbed {stage}"]
    one, two = seen["shrink"][0][f"{stage} {stage}"], seen["grow"][0][f"{stage} {stage}"]
    assert one["losses"] + two["losses"] == pytest.approx(undisturbed["losses"], abs=1e-5)
    assert one["norms"] + two["norms"] == pytest.approx(undisturbed["norms"], rel=1e-4)
    for name, tensor in undisturbed["state"].items():
        assert torch.allclose(two["state"][name], tensor, atol=1e-4), name


@pytest.mark.parametrize("saved, stage", CHANGES)
def test_another_stage_goes_on_with_the_same_training(seen, saved, stage):
    undisturbed = seen["begin"][0][f"undisturbed {saved}"]
    assert seen["shrink"][0][f"{saved} {stage}"]["losses"] == pytest.approx(undisturbed["losses"][:2], abs=1e-5)


def test_another_precision_goes_on_near_it(seen):
    undisturbed = seen["begin"][0]["undisturbed 3"]
    assert seen["grow"][0]["bf16"]["losses"] == pytest.approx(undisturbed["losses"][:2], abs=0.02)


@pytest.mark.parametrize("name", [f"{stage} {stage}" for stage in STAGES] + [f"{s} {t}" for s, t in CHANGES])
def test_groups_frozen_tied_and_buffers_survive(seen, name):
    """Matrices decay and the rest does not; frozen weights are the first start's, not those of the later ones."""
    first = objective(seed=3).get_parameter(FROZEN)
    assert not torch.allclose(first, objective(seed=5).get_parameter(FROZEN))
    for start in ("shrink", "grow"):
        if name in (got := seen[start][0]):
            assert got[name]["decays"] == [0.1, 0.0]
            assert torch.equal(got[name]["frozen"][FROZEN], first)
            assert got[name]["frozen"]["seen"] == 3
            assert got[name]["tied"] == 1
            state = got[name]["state"]
            assert torch.equal(state[TIED[0]], state[TIED[1]]) and state[TIED[0]].abs().sum() > 0


def test_recomputing_activations_changes_no_loss(seen):
    """Dropout on: each layer drops the same when it is computed again."""
    for stage in (0, 3):
        kept, recomputed = (seen["begin"][0][f"{kind} {stage}"] for kind in ("stage", "recomputed at stage"))
        # Up to the last bit: its kernels choose their instructions by where in memory a tensor lies.
        for told in ("losses", "norms"):
            assert kept[told] == pytest.approx(recomputed[told], rel=1e-6)


def test_nothing_is_left_behind_and_a_fault_of_one_rank_is_told_by_all(seen):
    assert seen["shrink"][0]["left"] == []
    for rank in range(2):
        assert seen["grow"][rank]["left"] == []
        assert "cut/state could not be converted for these workers: " in seen["grow"][rank]["cut"]


def test_a_disk_that_is_too_small_says_how_much_it_needs(tmp_path, monkeypatch):
    state, scratch = tmp_path / "state", tmp_path / "scratch"
    state.mkdir()
    scratch.mkdir()
    (state / "mp_rank_00_model_states.pt").write_bytes(bytes(1_000_000))
    free = namedtuple("usage", "total used free")(0, 0, 1_000_000)
    monkeypatch.setattr(universal.shutil, "disk_usage", lambda folder: free)
    with pytest.raises(OSError, match=r"scratch needs 0\.0 GB for it and has 0\.0 GB free; make room there, or go on"):
        universal.convert(state, scratch, [["weight"]], 1)
