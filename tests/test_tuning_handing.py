"""The winner: best/ and winner.json, trained again on all labelled examples where asked, from the config alone."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_tuning_sweep import configure, quiet
from test_tuning_trials import make_trial, run_here
from tiny_encoder import GOAL, LABELS, make_examples, make_task, read, write_encoder
from transformers import AutoModelForSequenceClassification

from data.examples import Examples
from model.config import Head
from tuning.analysis import analyse
from tuning.finetune import Work, make_head, predicted, run_trial
from tuning.handing import export, joined
from tuning.scores import score
from tuning.sweep import sweep
from tuning.trials import WEIGHTS, Trial, execute

pytestmark = pytest.mark.usefixtures("one_thread")
CARD = {"title": "tiny", "recipe": ""}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("encoder"), width=32)


def splits(encoder: Path) -> dict[str, Any]:
    task = make_task()
    return {name: read(getattr(task, name), encoder) for name in ("train", "validation", "test")}


def again_of(trial: Trial, last_epoch: int) -> Trial:
    return replace(trial, id=f"{trial.id}-again", last_epoch=last_epoch)


def test_best_holds_the_winner_and_winner_json_what_it_gets_wrong(encoder, tmp_path) -> None:
    trial, parts = make_trial(encoder, "p", 0, finetune={"learning_rate": 3e-3}), splits(encoder)
    result = run_here(trial, tmp_path / "trials")
    found, told = export(trial, trial.id, GOAL, parts["validation"], parts["test"], tmp_path, encoder, CARD, 0)
    module = make_head(trial_settings(trial), Head(), GOAL, encoder, 0).eval()
    module.model.load_state_dict(load_file(tmp_path / "trials" / trial.id / WEIGHTS), strict=False)
    targets = parts["test"].examples.targets
    assert found == score("accuracy", "classification", targets, predicted(module, GOAL, parts["test"], "cpu"))
    best = AutoModelForSequenceClassification.from_pretrained(str(tmp_path / "best")).state_dict()
    assert all(torch.equal(best[name], tensor) for name, tensor in module.model.state_dict().items())
    assert "test accuracy" in (tmp_path / "best" / "README.md").read_text()
    # What it gets wrong is told of validation: the test split is scored, not studied.
    predictions = predicted(module, GOAL, parts["validation"], "cpu")
    expected = analyse("classification", LABELS, parts["validation"].examples, predictions)
    about = {"trial": trial.id, "encoder": "pretrained", "mode": "full", "retrained": False}
    assert told == {**about, **expected}
    assert 1 - told["num_wrong"] / told["num_examples"] == pytest.approx(result["score"])


def trial_settings(trial: Trial) -> Any:
    from tuning.config import Finetune

    return Finetune(**trial.finetune)


def test_the_winner_from_its_config_alone_has_the_same_score(encoder, tmp_path) -> None:
    """In another process, whose generators are elsewhere."""
    trial, parts = make_trial(encoder, "p", 5, finetune={"learning_rate": 3e-3}), splits(encoder)
    result = run_here(trial, tmp_path)
    torch.manual_seed(99)
    work = Work(
        trial_settings(trial), Head(**trial.head), encoder, GOAL, parts["train"].encoded, parts["validation"], 5
    )
    outcome, weights = run_trial(work, lambda record: None)
    assert outcome["score"] == pytest.approx(result["score"], abs=1e-6)
    for ours, theirs in zip(outcome["epochs"], result["epochs"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-6)
    kept = load_file(tmp_path / trial.id / WEIGHTS)
    assert kept.keys() == weights.keys() and all(torch.equal(kept[name], weights[name]) for name in kept)


def test_a_winner_trained_again_sees_validation_examples_and_never_those_of_the_test(encoder, tmp_path) -> None:
    """180 examples, as many epochs as were best, the learning rates of the whole schedule; nothing is evaluated."""
    trial, task = make_trial(encoder, "p", 0, finetune={"learning_rate": 3e-3, "epochs": 4}), make_task()
    parts = splits(encoder)
    run_here(trial, tmp_path / "trials")
    everything = joined(task.train, task.validation)
    assert len(everything) == 180 and everything.texts == task.train.texts + task.validation.texts
    again, reports = again_of(trial, 2), []
    unread = {"train": read(everything, encoder), "validation": None}  # looking at it would raise
    result = execute(again, GOAL, unread, None, tmp_path / "trials", 0, reports.append)
    assert (result["status"], result["score"], result["best_epoch"]) == ("done", None, 2)
    assert [(one["epoch"], one["loss"], one["score"]) for one in reports] == [(1, None, None), (2, None, None)]
    assert result["encoder_rows"] == 2 * 180 and result["train_size"] == 180
    # The first two epochs of four, not a schedule of two: the same weights as a run that is cut after the second.
    seen = []

    def keep(record: dict[str, Any]) -> None:
        seen.append(record["train_loss"])

    whole = make_trial(encoder, "p", 0, finetune={"learning_rate": 3e-3, "epochs": 4})
    more = Work(
        trial_settings(whole), Head(**whole.head), encoder, GOAL, unread["train"].encoded, parts["validation"], 0
    )
    run_trial(more, keep)
    assert [one["train_loss"] for one in reports] == seen[:2]
    found, told = export(trial, again.id, GOAL, parts["validation"], parts["test"], tmp_path, encoder, CARD, 0)
    best = AutoModelForSequenceClassification.from_pretrained(str(tmp_path / "best")).state_dict()
    kept = load_file(tmp_path / "trials" / again.id / WEIGHTS)
    assert all(torch.equal(best[name], tensor) for name, tensor in kept.items()) and found is not None
    assert told["retrained"] is True and told["trial"] == trial.id and told["num_examples"] == 60


def test_weights_of_another_mode_are_refused(encoder, tmp_path) -> None:
    trial, parts = make_trial(encoder, "p", 0, mode="frozen"), splits(encoder)
    run_here(trial, tmp_path / "trials")
    other = make_trial(encoder, "p", 0, mode="full")
    with pytest.raises(RuntimeError, match="not those of mode full"):
        export(other, trial.id, GOAL, parts["validation"], None, tmp_path, encoder, CARD, 0)
    assert not (tmp_path / "best").exists()


def test_examples_of_two_splits_join_in_all_their_columns() -> None:
    first = Examples("regression", ["a"], pairs=["b"], targets=[1.0], places=["x:1"])
    second = Examples("regression", ["c", "d"], pairs=["e", "f"], targets=[2.0, 3.0], places=["y:1", "y:2"])
    assert joined(first, second).take([1, 2]) == second
    assert len(joined(make_examples(3, 1), make_examples(4, 2)).targets or []) == 7
    assert joined(replace(first, groups=["g"]), second) == joined(first, second)  # groups are read of train alone


@pytest.mark.soak
def test_a_finished_sweep_is_trained_again_where_that_is_asked_for_later(ray_4_cpus, tmp_path) -> None:
    """On cached features too, of which those of validation examples become training's."""
    write_encoder(tmp_path / "tiny" / "export", width=32)
    space = {"finetune.mode": "frozen", "finetune.learning_rate": 1e-2, "finetune.epochs": 4}
    alone = {"sweep.encoders": ["pretrained"], "sweep.seeds": 1}
    run, scores, weights = tmp_path / "tiny-sweep", [], []
    for retrain in (False, True):
        config = configure(tmp_path, space, **alone, **{"sweep.retrain": retrain})
        entries = sweep(config, run, quiet, make_task())
        told, card = json.loads((run / "winner.json").read_text()), (run / "best" / "README.md").read_text()
        assert told["retrained"] is retrain and told["num_examples"] == 60
        assert ("training and validation examples together (180)" in card) == retrain
        assert entries[0]["test_score"] is not None and f"{entries[0]['score_mean']:.4f}" in card
        scores.append(entries[0]["score_mean"])
        weights.append((run / "best" / "model.safetensors").read_bytes())
        assert [file.name for file in sorted(run.glob("trials/*"))] == [entries[0]["trials"][0]]
    assert scores[0] == scores[1] and weights[0] != weights[1]
    stamp = (run / "best" / "model.safetensors").stat().st_mtime_ns
    sweep(config, run, quiet, make_task())
    assert (run / "best" / "model.safetensors").stat().st_mtime_ns == stamp
    # Other test examples under the same names: the winner is scored again. A kill before that leaves no old answer.
    changed = replace(make_task(), test=make_examples(40, seed=77))
    before = entries[0]["test_score"]
    again = sweep(config, run, quiet, changed)
    assert again[0]["test_score"] != before == sweep(config, run, quiet, make_task())[0]["test_score"]
    (run / "winner.json").unlink()
    assert sweep(config, run, quiet, make_task())[0]["test_score"] == before and (run / "winner.json").exists()
    # What best/ holds: the head trained by the same seed on all 180 for the best number of epochs.
    result = json.loads((run / "trials" / entries[0]["trials"][0] / "result.json").read_text())
    task, encoder = make_task(), tmp_path / "tiny" / "export"
    settings = config.finetune.model_copy(update={"mode": "frozen", "learning_rate": 1e-2, "epochs": 4})
    everything = read(joined(task.train, task.validation), encoder)
    work = Work(settings, Head(), encoder, GOAL, everything.encoded, None, 3)
    _, expected = run_trial(work, lambda record: None, last_epoch=result["best_epoch"])
    best = AutoModelForSequenceClassification.from_pretrained(str(run / "best")).state_dict()
    for name, tensor in expected.items():
        torch.testing.assert_close(best[name], tensor, atol=1e-4, rtol=0)
