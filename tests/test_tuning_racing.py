"""Sweeps on Ray that end before all is trained: races between points, budgets, searches that are given more."""

import json
from pathlib import Path
from typing import Any

import pytest
from test_tuning_search import make, plan
from test_tuning_sweep import configure, quiet, stamps
from tiny_encoder import GOAL, make_task, read, write_encoder

from orchestration.run import held
from tuning.search import Search
from tuning.sweep import sweep
from tuning.trials import Trial
from tuning.tuner import Inputs, run_trials

ONE_AT_A_TIME = {"sweep.cpus_per_trial": 2.5, "sweep.encoders": ["pretrained"]}


def results(run: Path) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in sorted(run.glob("trials/*/result.json"))]


def test_a_bad_learning_rate_is_stopped_before_its_last_epoch_and_the_good_one_is_not(ray_4_cpus, tmp_path) -> None:
    write_encoder(tmp_path / "tiny" / "export", width=32)
    space = {"finetune.learning_rate": [3e-3, 1e-6, 1e-7], "finetune.epochs": 9}
    config = configure(tmp_path, space, **ONE_AT_A_TIME, **{"sweep.scheduler": "asha"})
    run = tmp_path / "tiny-sweep"
    entries = sweep(config, run, quiet, make_task())
    assert [(e["learning_rate"], e["status"], e["rank"], e["seeds"]) for e in entries[:1]] == [(3e-3, "done", 1, 2)]
    assert {(e["learning_rate"], e["status"], e["rank"], e["seeds"]) for e in entries[1:]} == {
        (1e-6, "stopped", None, 1), (1e-7, "stopped", None, 1)
    }  # fmt: skip
    found = {(one["learning_rate"], one["seed"]): one for one in results(run)}
    epochs = {key: len(one["epochs"]) for key, one in found.items()}
    assert epochs[3e-3, 3] == epochs[3e-3, 4] == 9
    assert 0 < epochs[1e-6, 3] < 9 and 0 < epochs[1e-7, 3] < 9 and len(epochs) == 4
    assert sum(epochs.values()) < 3 * 2 * 9  # without the race
    for (rate, _), one in found.items():
        assert one["score"] == max(record["score"] for record in one["epochs"])
        assert one["encoder_rows"] == len(one["epochs"]) * (120 + 60) and one["train_size"] == 120
        assert one["num_epochs"] == 9 and one["worker_seconds"] == one["seconds"] > 0
        assert (one["status"] == "stopped") == (rate < 1e-5)
    assert {file.parent.name for file in run.glob("trials/*/weights.safetensors")} <= set(entries[0]["trials"])
    assert not list(run.glob("trials/*/state*"))

    before, board = stamps(run), (run / "leaderboard.json").stat().st_mtime_ns
    assert sweep(config, run, quiet, make_task()) == entries
    assert stamps(run) == before and (run / "leaderboard.json").stat().st_mtime_ns == board


def test_a_budget_of_trials_ends_a_search_and_more_of_everything_goes_on(ray_4_cpus, tmp_path) -> None:
    write_encoder(tmp_path / "tiny" / "export")
    space = {"finetune.mode": "frozen", "finetune.learning_rate": {"log_uniform": [1e-3, 1e-1]}, "finetune.epochs": 2}
    first = {**ONE_AT_A_TIME, "sweep.search": "random", "sweep.points": 3, "sweep.seeds": 1}
    run, told = tmp_path / "tiny-sweep", list[str]()
    little = configure(tmp_path, space, **first, **{"sweep.budget.trials": 2})
    entries = sweep(little, run, quiet, make_task(), told.append)
    assert [entry["status"] for entry in entries] == ["done", "done"] and (run / "best" / "config.json").is_file()
    assert len(told) == 1 and told[0].startswith("sweep.budget.trials=2 is used up: 2 trials ended, 2 of 3 points")
    before = stamps(run)
    again = sweep(little, run, quiet, make_task(), told.append)
    assert again == entries and stamps(run) == before and told[1] == told[0]

    more = {**first, "sweep.points": 4, "sweep.seeds": 2}
    after = sweep(configure(tmp_path, space, **more), run, quiet, make_task(), told.append)
    assert len(after) == 4 and all(entry["seeds"] == 2 and entry["status"] == "done" for entry in after)
    assert len(told) == 2 and before.items() <= stamps(run).items() and len(stamps(run)) == 8
    assert {entry["point"] for entry in entries} < {entry["point"] for entry in after}


@pytest.mark.soak
def test_hours_cut_a_trial_at_its_next_report_and_it_goes_on_from_there(ray_4_cpus, tmp_path) -> None:
    encoder, task, trials = write_encoder(tmp_path / "encoder"), make_task(), tmp_path / "trials"
    parts = {split: read(getattr(task, split), encoder) for split in ("train", "validation")}
    space = {"finetune.learning_rate": [1e-3], "finetune.epochs": 10}
    values = {"sweep.seeds": 1, "sweep.checkpoint_seconds": 0, "head.kind": "classification"}

    def made(*arguments: Any) -> Trial:
        return Trial(**{**vars(make(*arguments)), "folder": str(encoder)})

    def search(seconds, **changes: Any) -> tuple[Search, Inputs]:
        config = configure(tmp_path, space, **values, **changes)
        found = Search(config, ["a"], [None], "accuracy", made, seconds=seconds)
        return found, Inputs(GOAL, {found.waiting[0].reading: parts}, {}, trials, config)

    cut, inputs = search(lambda: 3600.0 * bool(list(trials.glob("*/state.pt"))), **{"sweep.budget.hours": 1})
    run_trials(cut, inputs, tmp_path / "run", quiet, lambda _: None)
    assert not cut.results and not cut.is_complete
    (trial,) = cut.waiting
    assert (trials / trial.id / "state.pt").is_file() and not (trials / trial.id / "result.json").exists()

    rest, inputs = search(lambda: 0.0)
    run_trials(rest, inputs, tmp_path / "run", quiet, lambda _: None)
    result = rest.results[trial.id]
    assert result["status"] == "done" and [one["epoch"] for one in result["epochs"]] == list(range(1, 11))
    assert result["encoder_rows"] == 10 * (120 + 60)  # no epoch twice
    assert not (trials / trial.id / "state.pt").exists()


def test_hours_in_which_no_trial_ends_are_said(ray_4_cpus, tmp_path) -> None:
    write_encoder(tmp_path / "tiny" / "export")
    config = configure(tmp_path, {"finetune.epochs": 1}, **ONE_AT_A_TIME, **{"sweep.budget.hours": 1e-9})
    run = tmp_path / "tiny-sweep"
    told = r"^sweep.budget.hours=1e-09 is used up, and no trial is at its end; the same command with more goes on"
    with pytest.raises(RuntimeError, match=told), held(run, config):
        sweep(config, run, quiet, make_task())
    assert plan(config).to_come > 0 and not list(run.glob("trials/*"))
    assert (run / "config.yaml").exists(), "the folder stays, and what was cut in it"
