"""Trials that were cut off: they go on from state.pt, bit for bit, and start anew where it is damaged or another's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_encoder import GOAL, make_examples, read, write_encoder

from model.config import Head
from tuning.config import Finetune
from tuning.finetune import Work, run_trial
from tuning.halfway import NAME, Halfway, clear

pytestmark = pytest.mark.usefixtures("one_thread")
SETTINGS = {"learning_rate": 3e-3, "epochs": 4, "length": 16, "global_batch": 16, "layerwise_lr_decay": 0.9}
OWNER = {"inputs": "abc", "point": "p1", "seed": 0, "finetune": {"epochs": 4}}


class Cut(Exception):
    """Ends a trial as a kill would."""


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("encoder"))  # its dropout is BERT's, 0.1


@pytest.fixture(scope="module")
def splits(encoder):
    return read(make_examples(60, 1), encoder), read(make_examples(40, 2), encoder)


def run(
    encoder: Path, splits: Any, halfway: Halfway | None, mode: str = "full", cut_after: int | None = None
) -> tuple[dict[str, Any], dict[str, torch.Tensor], list[int]]:
    """The outcome, the weights, and the epochs that were told."""
    settings = Finetune.model_validate({**SETTINGS, "mode": mode})
    told = []

    def report(record: dict[str, Any]) -> None:
        told.append(record["epoch"])
        if record["epoch"] == cut_after:
            raise Cut

    train, validation = splits
    found = run_trial(Work(settings, Head(), encoder, GOAL, train.encoded, validation, 0), report, halfway=halfway)
    return *found, told


def cut(encoder: Path, splits: Any, folder: Path, after: int, mode: str = "full") -> None:
    with pytest.raises(Cut):
        run(encoder, splits, Halfway(folder, OWNER, 0), mode, after)


def same(one: tuple[dict[str, Any], dict[str, torch.Tensor], Any], other: tuple[Any, ...]) -> bool:
    """Equal epochs, score and weights, bit for bit."""
    told = ("status", "score", "best_epoch", "epochs", "trained_parameters", "error")
    equal = all(one[0][key] == other[0][key] for key in told) and one[1].keys() == other[1].keys()
    return equal and all(torch.equal(weight, other[1][name]) for name, weight in one[1].items())


@pytest.fixture(scope="module")
def whole(encoder, splits) -> dict[str, Any]:
    """Mode -> what comes out undisturbed."""
    return {mode: run(encoder, splits, None, mode) for mode in ("full", "top_k", "lora", "frozen")}


@pytest.mark.parametrize("mode", ["full", "top_k", "lora", "frozen"])
def test_a_trial_that_was_cut_off_goes_on_bit_for_bit(encoder, splits, whole, tmp_path, mode: str) -> None:
    cut(encoder, splits, tmp_path, 1, mode)
    cut(encoder, splits, tmp_path, 3, mode)
    assert torch.load(tmp_path / NAME, weights_only=True)["epoch"] == 3
    torch.manual_seed(7)  # another process has another generator
    went_on = run(encoder, splits, Halfway(tmp_path, OWNER, 0), mode)
    assert same(went_on, whole[mode]) and went_on[2] == [1, 2, 3, 4] and went_on[0]["log"] == []
    before = torch.load(tmp_path / NAME, weights_only=True)["course"]["seconds"]
    assert went_on[0]["seconds"] >= before > 0


def test_dropout_is_really_on(encoder, splits, whole) -> None:
    """Else the test above would say nothing of it."""
    module = write_encoder(encoder.parent / "without")
    text = (module / "config.json").read_text().replace('dropout_prob": 0.1', 'dropout_prob": 0.0')
    (module / "config.json").write_text(text)
    assert run(module, splits, None)[0]["epochs"] != whole["full"][0]["epochs"]


def test_a_trial_that_ended_but_for_its_result_trains_no_more(encoder, splits, whole, tmp_path) -> None:
    cut(encoder, splits, tmp_path, 4)
    stamp = (tmp_path / NAME).stat().st_mtime_ns
    assert same(run(encoder, splits, Halfway(tmp_path, OWNER, 0)), whole["full"])
    assert (tmp_path / NAME).stat().st_mtime_ns == stamp


def flip(content: bytes) -> bytes:
    """One bit of a weight."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def test_a_damaged_state_starts_the_trial_anew_and_is_told(encoder, splits, whole, tmp_path) -> None:
    cut(encoder, splits, tmp_path, 2)
    content = (tmp_path / NAME).read_bytes()
    for damaged, words in (
        (content[: len(content) // 2], "state.pt cannot be read"),
        (b"", "state.pt cannot be read"),
        (b"not a state at all", "state.pt cannot be read"),
        (flip(content), "state.pt is damaged"),
    ):
        (tmp_path / NAME).write_bytes(damaged)
        halfway = Halfway(tmp_path, OWNER, 1e9)
        assert halfway.load() is None and len(halfway.log) == 1
        assert halfway.log[0].startswith(words) and halfway.log[0].endswith("the trial started anew")
    anew = run(encoder, splits, Halfway(tmp_path, OWNER, 1e9))
    assert same(anew, whole["full"]) and "state.pt is damaged" in anew[0]["log"][0]


def test_a_state_of_another_trial_is_not_gone_on_from(encoder, splits, tmp_path) -> None:
    cut(encoder, splits, tmp_path, 1)
    assert Halfway(tmp_path, OWNER, 0).load()
    for other in ({"inputs": "other"}, {"seed": 1}, {"point": "p2"}, {"finetune": {"epochs": 5}}):
        halfway = Halfway(tmp_path, OWNER | other, 0)
        assert halfway.load() is None and "state.pt is of another trial" in halfway.log[0]


def test_a_file_that_would_run_code_is_not_loaded(encoder, splits, tmp_path) -> None:
    """weights_only: whoever can write there would else own the process."""
    torch.save({"owner": OWNER, "epoch": 1, "code": Cut("loaded")}, tmp_path / NAME)
    halfway = Halfway(tmp_path, OWNER, 0)
    assert halfway.load() is None and "cannot be read (UnpicklingError)" in halfway.log[0]


def test_it_is_saved_when_the_seconds_are_over_and_holds_what_trains_alone(encoder, splits, tmp_path) -> None:
    run(encoder, splits, Halfway(tmp_path / "never", OWNER, 3600))
    assert not (tmp_path / "never").exists()
    for mode in ("full", "frozen"):
        (tmp_path / mode).mkdir()
        cut(encoder, splits, tmp_path / mode, 1, mode)
        assert [file.name for file in (tmp_path / mode).iterdir()] == [NAME]
        state = torch.load(tmp_path / mode / NAME, weights_only=True)
        trained = sum(tensor.numel() for tensor in state["course"]["weights"].values())
        steps = len(state["engine"]) // 4  # of each weight: steps, two moments, itself
        assert sum(tensor.numel() for tensor in state["engine"]) == 3 * trained + steps
        assert (trained < 500) == (mode == "frozen")


def test_what_cannot_be_written_is_told_and_the_trial_goes_on(encoder, splits, whole, tmp_path) -> None:
    found = run(encoder, splits, Halfway(tmp_path / "not there", OWNER, 0))
    assert same(found, whole["full"])
    assert len(found[0]["log"]) == 4 and "epoch 1: state.pt could not be written" in found[0]["log"][0]


def test_several_ranks_go_on_together_or_not_at_all(tmp_path) -> None:
    """Rank 0 names the epoch; a rank whose part of it is missing or damaged starts all of them anew."""
    from rank_threads import in_threads

    def work(epoch: int | None, found: dict) -> Any:
        from threading import Barrier

        barrier, board = Barrier(2), {}

        def rank(number: int) -> None:
            def gather(value: Any) -> list[Any]:
                barrier.wait()
                board[number] = value
                barrier.wait()
                return [board[0], board[1]]

            halfway = Halfway(tmp_path, OWNER, 0, number, gather)
            if epoch is not None:
                halfway.save({"epoch": epoch, "engine": [torch.full((2,), float(number))]})
            found[number] = halfway.load(), halfway.log

        in_threads(2, rank, 20)
        return found

    saved = work(3, {})
    assert [saved[rank][0]["engine"][0][0].item() for rank in (0, 1)] == [0.0, 1.0]
    work(4, {})
    assert sorted(file.name for file in tmp_path.iterdir()) == ["state-r1-e4.pt", NAME]
    torch.save({}, tmp_path / "state-r1-e4.pt")
    damaged = work(None, {})
    assert damaged[0] == damaged[1] and damaged[0][0] is None and "state-r1-e4.pt" in damaged[0][1][0]
    (tmp_path / "state-r1-e4.pt").unlink()
    lost = work(None, {})
    assert lost[0][0] is lost[1][0] is None and "state-r1-e4.pt is not there" in lost[1][1][0]
    clear(tmp_path)
    assert list(tmp_path.iterdir()) == [] and work(None, {})[0] == (None, [])


def test_features_in_place_of_tokens_go_on_too(encoder, splits, tmp_path) -> None:
    from dataclasses import replace

    draw = np.random.default_rng(0)
    cached = [
        replace(p, encoded=replace(p.encoded, features=draw.normal(size=(len(p.encoded), 16)).astype(np.float32)))
        for p in splits
    ]
    expected = run(encoder, cached, None, "frozen")
    cut(encoder, cached, tmp_path, 2, "frozen")
    assert same(run(encoder, cached, Halfway(tmp_path, OWNER, 0), "frozen"), expected)
