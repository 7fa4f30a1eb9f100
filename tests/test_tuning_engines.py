"""Ranks that share a trial, two processes over gloo without Ray: the same training as in one, at every ZeRO stage."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rank_processes import spawn
from tiny_encoder import GOAL, LABELS, make_examples, read, write_encoder

from data.alignment import encode_examples
from data.examples import Examples
from model.config import Head
from orchestration.config import Zero
from orchestration.engine import gathered
from tuning.config import Finetune
from tuning.engines import zero_engine
from tuning.finetune import Goal, Part, Work, run_trial
from tuning.halfway import Halfway

pytestmark = pytest.mark.usefixtures("one_thread")
STAGES = (0, 1, 2, 3)
MODES = {"full": {"layerwise_lr_decay": 0.8}, "top_k": {"top_k": 1}, "lora": {}}
CASES = [*(("full", stage) for stage in STAGES), ("top_k", 2), ("lora", 1), ("lora", 3), ("crf", 3)]
SETTINGS = {"learning_rate": 3e-3, "epochs": 2, "length": 16, "global_batch": 8}
OWNER = {"inputs": "abc"}


class Cut(Exception):
    """Ends a trial as a kill would."""


def write_still_encoder(folder: Path) -> Path:
    """Without dropout, whose draws depend on who reads which example."""
    write_encoder(folder)
    config = folder / "config.json"
    config.write_text(config.read_text().replace('dropout_prob": 0.1', 'dropout_prob": 0.0'))
    return folder


def settings_of(mode: str) -> Finetune:
    # 33 examples in batches of 8: the last one of an epoch has a single example, so one rank has none.
    return Finetune.model_validate({**SETTINGS, "mode": mode, **MODES[mode]})


def classified(encoder: Path, mode: str, **more: Any) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    train, validation = read(make_examples(33, 1), encoder), read(make_examples(50, 2), encoder)
    report = more.pop("report", lambda record: None)
    return run_trial(Work(settings_of(mode), Head(), encoder, GOAL, train.encoded, validation, 4), report, **more)


def tagged(encoder: Path, **more: Any) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """A CRF's own weights are no layer's: nothing gathers them before a layer runs."""
    draw = np.random.default_rng(1)
    words = [[f"w{word}" for word in draw.integers(0, 60, draw.integers(1, 9))] for _ in range(33)]
    tags = [[LABELS[int(word[1:]) % 3] for word in sentence] for sentence in words]
    examples = Examples("tagging", [" ".join(one) for one in words], words=words, targets=tags)
    part = Part(examples, encode_examples(examples, list(LABELS), encoder, 16))
    goal, head = Goal(LABELS, "accuracy"), Head(kind="tagging", crf=True)
    return run_trial(Work(settings_of("full"), head, encoder, goal, part.encoded, part, 4), lambda record: None, **more)


def trained(case: str, encoder: Path, **more: Any) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    return tagged(encoder, **more) if case == "crf" else classified(encoder, case, **more)


def in_rank(rank: int, world_size: int, folder: Path, encoder: str) -> dict[Any, Any]:
    """Every case at every stage, and one of them cut off and gone on with."""
    found: dict[Any, Any] = {}
    for stage in STAGES:
        ranks = {"make_engine": zero_engine(Zero(stage=stage, persistence_threshold=0))}
        for case in (case for case, of in CASES if of == stage):
            found[case, stage] = trained(case, Path(encoder), **ranks)
        own = folder / f"trial-{stage}"
        own.mkdir(exist_ok=True)

        def cut(record: dict[str, Any]) -> None:
            if record["epoch"] == 1:
                raise Cut

        with pytest.raises(Cut):
            classified(Path(encoder), "full", report=cut, halfway=Halfway(own, OWNER, 0, rank, gathered), **ranks)
        halfway = Halfway(own, OWNER, 1e9, rank, gathered)
        there = halfway.load()
        found["had saved", stage] = None if there is None else there["epoch"]
        found["went on", stage] = classified(Path(encoder), "full", halfway=halfway, **ranks)
    return found


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Path:
    return write_still_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def seen(encoder, tmp_path_factory) -> list[dict[Any, Any]]:
    return spawn(2, in_rank, tmp_path_factory.mktemp("ranks"), str(encoder))


@pytest.fixture(scope="module")
def alone(encoder) -> dict[str, Any]:
    return {case: trained(case, encoder) for case in dict(CASES)}


@pytest.mark.parametrize(("case", "stage"), CASES)
def test_two_ranks_train_what_one_process_trains(seen, alone, case: str, stage: int) -> None:
    (outcome, weights), (expected, whole) = seen[0][case, stage], alone[case]
    for ours, theirs in zip(outcome["epochs"], expected["epochs"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)
    for key in ("status", "best_epoch", "trained_parameters", "total_parameters"):
        assert outcome[key] == expected[key]
    assert outcome["score"] == pytest.approx(expected["score"], abs=1e-4)
    assert weights.keys() == whole.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(weight, whole[name], atol=1e-3, rtol=0)
    other, nothing = seen[1][case, stage]
    assert {k: v for k, v in other.items() if k != "seconds"} == {k: v for k, v in outcome.items() if k != "seconds"}
    assert nothing == {}  # rank 0 hands them over
    # Each example is read once an epoch, by one of the ranks, and a filler row where a rank has no example.
    rows = len(outcome["epochs"])
    assert outcome["encoder_rows"] == expected["encoder_rows"] + rows


@pytest.mark.parametrize("stage", STAGES)
def test_ranks_that_were_cut_off_go_on_bit_for_bit(seen, stage: int) -> None:
    for rank in (0, 1):
        assert seen[rank]["had saved", stage] == 1, "else it would have begun anew, which gives the same"
        (outcome, weights), (expected, whole) = seen[rank]["went on", stage], seen[rank]["full", stage]
        assert outcome["epochs"] == expected["epochs"] and outcome["log"] == []
        assert weights.keys() == whole.keys()
        assert all(torch.equal(weight, whole[name]) for name, weight in weights.items())


def test_the_learning_rate_of_a_layer_is_scaled_under_zero_too(seen, alone, encoder) -> None:
    """Without its scales the case above would train otherwise."""
    train, validation = read(make_examples(33, 1), encoder), read(make_examples(50, 2), encoder)
    flat = settings_of("full").model_copy(update={"layerwise_lr_decay": 1.0})
    other = run_trial(Work(flat, Head(), encoder, GOAL, train.encoded, validation, 4), lambda record: None)[0]
    assert abs(other["epochs"][-1]["loss"] - alone["full"][0]["epochs"][-1]["loss"]) > 1e-3


