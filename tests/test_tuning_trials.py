"""Trials that end badly and sweeps that are killed: what is kept, what runs again, which weights stay on the disk."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_tuning_sweep import quiet, stamps
from tiny_encoder import GOAL, LABELS, make_task, read, write_encoder

from data.examples import Examples
from model.config import Head
from orchestration.recipe import build_config
from tuning.config import Finetune
from tuning.finetune import Goal, Work, counted, run_trial
from tuning.halfway import digest_of
from tuning.search import Plan
from tuning.trials import (
    WEIGHTS,
    Trial,
    execute,
    make_result,
    prune_weights,
    read_results,
    stopped_result,
    write_result,
)
from tuning.tuner import Inputs, run_trials


class Deadly(Goal):
    """A goal that ends the process that it comes to, as a lack of memory would."""

    def __reduce__(self) -> Any:
        return die, ()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def make_trial(
    folder: Path, point: str, seed: int, encoder: str = "pretrained", mode: str = "full", **more: Any
) -> Trial:
    changes = more.pop("finetune", {})
    settings = Finetune.model_validate({"mode": mode, "epochs": 3, "length": 16, **changes}).model_dump(mode="json")
    name = f"{encoder}-{point}-s{seed}"
    head = Head().model_dump(mode="json")
    return Trial(name, encoder, str(folder), point, {}, settings, head, seed, "accuracy", "inputs", **more)


def test_a_trial_whose_process_died_failed_and_is_tried_again_by_the_same_command(ray_4_cpus, tmp_path) -> None:
    encoder, task = write_encoder(tmp_path / "encoder"), make_task()
    parts = {split: read(getattr(task, split), encoder) for split in ("train", "validation")}
    trial, trials = make_trial(encoder, "p", 0), tmp_path / "trials"
    deadly = Inputs(Deadly(LABELS, "accuracy"), {trial.reading: parts}, {}, trials, build_config({"name": "x"}, {}))
    plan = Plan([trial])
    run_trials(plan, deadly, tmp_path, quiet, lambda _: None)
    result = plan.results[trial.id]
    assert result["status"] == "failed" and result["error"] and result["score"] is None
    assert not (trials / trial.id / "result.json").exists() and read_results([trial], trials) == {}
    healthy, ended = dataclasses.replace(deadly, goal=GOAL), []
    run_trials(Plan([trial]), healthy, tmp_path, quiet, ended.append)
    assert [one["status"] for one in ended] == ["done"] and read_results([trial], trials)[trial.id] == ended[0]


def run_here(trial: Trial, folder: Path, report: Any = lambda record: None, **more: Any) -> dict[str, Any]:
    """A trial in this process."""
    task = make_task()
    parts = {split: read(getattr(task, split), Path(trial.folder)) for split in ("train", "validation")}
    return execute(trial, GOAL, parts, None, folder, 0, report, **more)


def test_a_trial_that_was_cut_off_goes_on_and_leaves_its_result_alone(tmp_path) -> None:
    """What a kill leaves is state.pt and no result; what an end leaves is a result and its weights."""
    trial, trials = make_trial(write_encoder(tmp_path / "encoder"), "p", 0), tmp_path / "trials"
    expected = run_here(trial, tmp_path / "whole")
    assert {file.name for file in (tmp_path / "whole" / trial.id).iterdir()} == {"result.json", WEIGHTS}

    def cut(record: dict[str, Any]) -> None:
        if record["epoch"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_here(trial, trials, cut, checkpoint_seconds=0)
    assert [file.name for file in (trials / trial.id).iterdir()] == ["state.pt"]
    told = []
    result = run_here(trial, trials, told.append, checkpoint_seconds=0)
    assert [one["epoch"] for one in told] == [1, 2, 3] and result["log"] == []
    assert {file.name for file in (trials / trial.id).iterdir()} == {"result.json", WEIGHTS}
    for key in ("epochs", "score", "best_epoch", "encoder_rows", "train_size"):
        assert result[key] == expected[key]
    weights = [(folder / trial.id / WEIGHTS).read_bytes() for folder in (trials, tmp_path / "whole")]
    assert weights[0] == weights[1]
    # Another encoder or task under the same name is another trial.
    with pytest.raises(KeyboardInterrupt):
        run_here(trial, trials, cut, checkpoint_seconds=0)
    other = run_here(dataclasses.replace(trial, inputs="others"), trials, checkpoint_seconds=0)
    assert other["log"] == ["state.pt is of another trial: the trial started anew"]


def test_results_say_what_was_used(tmp_path) -> None:
    """120 examples, 60 to validate on, 3 epochs: every row read is counted; a subset has label counts of its own."""
    encoder = write_encoder(tmp_path / "encoder")
    whole = run_here(make_trial(encoder, "p", 0), tmp_path)
    assert (whole["train_size"], whole["encoder_rows"], whole["workers"]) == (120, 3 * (120 + 60), 1)
    assert whole["worker_seconds"] == whole["seconds"] > 0
    few = np.sort(np.random.default_rng(3).permutation(120)[:30])
    trial = make_trial(encoder, "p", 1, train_size=30)
    trial = dataclasses.replace(trial, head=Head(class_weights="balanced").model_dump(mode="json"))
    part = run_here(trial, tmp_path, subset=few)
    assert (part["train_size"], part["encoder_rows"]) == (30, 3 * (30 + 60))
    task = make_task()
    settings, head = Finetune(**trial.finetune), Head(**trial.head)
    alone = dataclasses.replace(make_task(), train=task.train.take(few.tolist()))
    goal = counted(GOAL, alone.train)
    assert goal.label_counts == Counter(alone.train.targets) and len(alone.train) == 30
    train, validation = read(alone.train, encoder), read(alone.validation, encoder)
    expected = run_trial(Work(settings, head, encoder, goal, train.encoded, validation, 1), lambda record: None)[0]
    assert part["epochs"] == expected["epochs"]
    assert make_result(dataclasses.replace(trial, workers=3), {"seconds": 2.5})["worker_seconds"] == 7.5


def test_numbers_are_counted_of_the_examples_that_are_trained_on() -> None:
    train = Examples("regression", ["a", "b", "c", "d"], targets=[1.0, 2.0, 3.0, 10.0])
    goal = Goal((), "pearson")
    assert counted(goal, train).target_mean == 4.0 and counted(goal, train.take([0, 1])).target_mean == 1.5


def test_a_trial_that_its_race_stopped_has_a_result_of_what_it_did(tmp_path) -> None:
    trial, reports = make_trial(write_encoder(tmp_path / "encoder"), "p", 0), []
    whole = run_here(trial, tmp_path / "whole", reports.append)
    result = stopped_result(trial, reports[:2])
    assert result["status"] == "stopped" and result["epochs"] == whole["epochs"][:2]
    scores = [one["score"] for one in whole["epochs"][:2]]
    assert result["score"] == max(scores) and result["best_epoch"] == scores.index(max(scores)) + 1
    assert result["seconds"] == reports[1]["seconds"] > 0 and result["encoder_rows"] == 2 * 180
    assert (result["train_size"], result["trained_parameters"]) == (120, whole["trained_parameters"])
    assert result.keys() == whole.keys()
    (tmp_path / trial.id).mkdir()
    for left in ("state.pt", "state-r1-e2.pt", "state.pt.part"):
        (tmp_path / trial.id / left).write_bytes(b"")
    write_result(result, tmp_path)
    assert [file.name for file in (tmp_path / trial.id).iterdir()] == ["result.json"]
    assert read_results([trial], tmp_path)[trial.id] == result


def test_weights_that_cannot_win_are_deleted_while_the_sweep_runs_and_after(tmp_path) -> None:
    """Of two seeds a point: one set of weights a mode, and one for each point that lacks a seed."""
    results: list[dict[str, Any]] = []

    def end(point: str, seed: int, score: float | None, mode: str = "full", **more: Any) -> set[str]:
        size = more.pop("size", 100)
        trial = make_trial(tmp_path, point, seed, mode=mode)
        (tmp_path / trial.id).mkdir()
        for name in (WEIGHTS, "state.pt", "state-r1-e3.pt", "result.json"):
            (tmp_path / trial.id / name).write_bytes(b"")
        outcome = {"score": score, "status": "done" if score is not None else "nan", "best_epoch": 1, **more}
        costs = {"train_size": size, "trained_parameters": 10 if mode == "full" else 1}
        results.append(make_result(trial, {**outcome, **costs}))
        prune_weights(results, 2, tmp_path)
        assert not [*tmp_path.glob("*/state*")] and len([*tmp_path.glob("*/result.json")]) == len(results)
        return {file.parent.name.removeprefix("pretrained-") for file in tmp_path.glob(f"*/{WEIGHTS}")}

    assert end("small", 0, 0.99, size=50) == {"small-s0"}  # until there is a larger number of examples
    assert end("nan", 0, None) == set()
    assert end("low", 0, 0.2) == {"low-s0"}
    assert end("low", 1, 0.3) == {"low-s1"}  # the point's best trial
    assert end("running", 0, 0.9) == {"low-s1", "running-s0"}
    assert end("high", 0, 0.8) == {"low-s1", "running-s0", "high-s0"}
    assert end("high", 1, 0.7) == {"running-s0", "high-s0"}
    assert end("behind", 0, 0.95, status="stopped") == {"running-s0", "high-s0"}  # its race stopped it
    assert end("frozen", 0, 0.4, "frozen") == {"running-s0", "high-s0", "frozen-s0"}
    assert end("frozen", 1, 0.5, "frozen") == {"running-s0", "high-s0", "frozen-s1"}
    assert end("icy", 0, 0.6, "frozen") == {"running-s0", "high-s0", "frozen-s1", "icy-s0"}
    assert end("icy", 1, 0.6, "frozen") == {"running-s0", "high-s0", "icy-s0"}
    prune_weights(results, None, tmp_path)  # at the end, also of a budget, nothing is waited for
    kept = {file.parent.name.removeprefix("pretrained-") for file in tmp_path.glob(f"*/{WEIGHTS}")}
    assert kept == {"high-s0", "icy-s0"}


def test_what_a_lost_trial_goes_on_from_stays_and_that_of_another_space_does_not(tmp_path) -> None:
    trials = {point: make_trial(tmp_path, point, 0) for point in ("done", "lost", "cut", "other")}
    for trial in trials.values():
        (tmp_path / trial.id).mkdir()
        for name in (WEIGHTS, "state.pt"):
            (tmp_path / trial.id / name).write_bytes(b"")
    results = [
        make_result(trials["done"], {"score": 0.5, "status": "done", "train_size": 9, "trained_parameters": 1}),
        make_result(trials["lost"], {"error": "its process died"}),
    ]

    def left() -> set[str]:
        return {f"{file.parent.name.split('-')[1]}/{file.name}" for file in tmp_path.glob("*/*")}

    everything = left()
    lost = {trials["lost"].id}
    prune_weights(results, 2, tmp_path, lost)
    assert everything - left() == {"done/state.pt"}
    prune_weights(results, None, tmp_path, lost)  # a budget was used up: what was cut goes on another time
    assert everything - left() == {"done/state.pt"}
    prune_weights(results, None, tmp_path, lost, {trials[one].id for one in ("done", "lost", "cut")})
    assert everything - left() == {"done/state.pt", f"other/{WEIGHTS}", "other/state.pt"}


def test_of_a_mode_the_entry_that_would_win_is_kept_not_the_leading_one(tmp_path) -> None:
    """Two points of top_k that cannot be told apart: the cheaper one wins, though its mean is lower."""
    results = []
    for point, scores, parameters in (("dear", (0.80, 0.82, 0.81), 100), ("cheap", (0.79, 0.83, 0.80), 10)):
        for seed, score in enumerate(scores):
            trial = make_trial(tmp_path, point, seed, mode="top_k")
            (tmp_path / trial.id).mkdir()
            (tmp_path / trial.id / WEIGHTS).write_bytes(b"")
            outcome = {"score": score, "status": "done", "train_size": 9, "trained_parameters": parameters}
            results.append(make_result(trial, outcome))
    prune_weights(results, 3, tmp_path)
    assert [file.parent.name for file in tmp_path.glob(f"*/{WEIGHTS}")] == ["pretrained-cheap-s1"]


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_killed_sweep_goes_on_where_it_was_also_in_the_middle_of_a_trial(ray_4_cpus, cloze, tmp_path) -> None:
    write_encoder(tmp_path / "runs" / "tiny" / "export")
    task = make_task()
    for name in ("train", "validation"):
        part = getattr(task, name)
        lines = [f"{text}\t{label}\n" for text, label in zip(part.texts, part.targets, strict=True)]
        (tmp_path / f"{name}.tsv").write_text("text\tlabel\n" + "".join(lines))
    command = [
        "sweep", "name=tiny", "task.train=train.tsv", "task.validation=validation.tsv", "finetune.length=16",
        "sweep.encoders=[pretrained]", "sweep.space={finetune.learning_rate: [0.001, 0.003], finetune.epochs: 12}",
        "sweep.cpus_per_trial=2.5",  # one at a time on 4 CPUs
        "sweep.checkpoint_seconds=0",
    ]  # fmt: skip
    run = tmp_path / "runs" / "tiny-sweep"
    driver = subprocess.Popen(
        [sys.executable, "-m", "orchestration", *command],
        cwd=tmp_path, env={**os.environ, "RAY_ADDRESS": ray_4_cpus}, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline, kept = time.monotonic() + 200, 0

    def half_way() -> list[Path]:
        return [path for path in run.glob("trials/*/state.pt") if not (path.parent / "result.json").exists()]

    while not (stamps(run) and half_way()) and driver.poll() is None and time.monotonic() < deadline:
        kept = max(kept, len(list(run.glob(f"trials/*/{WEIGHTS}"))))
        time.sleep(0.02)
    assert driver.poll() is None
    driver.kill()
    driver.wait()
    time.sleep(2)  # Ray ends the trial that was running
    before = stamps(run)
    (left,) = half_way()
    assert 1 <= len(before) < 4 and kept <= 3  # of the mode, of the point that runs, and of a trial that ends just now
    # What only it can know: epochs that were trained before are not trained again.
    state = torch.load(left, weights_only=True)
    assert 1 <= state["epoch"] < 12
    state["course"]["epochs"][0]["train_loss"] = 123.0
    del state["digest"]
    torch.save({**state, "digest": digest_of(state)}, left)
    done = cloze(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    after = stamps(run)
    assert len(after) == 4 and {name: after[name] for name in before} == before
    went_on = json.loads((left.parent / "result.json").read_text())
    assert went_on["epochs"][0]["train_loss"] == 123.0 and went_on["log"] == [] and len(went_on["epochs"]) == 12
    entries = json.loads((run / "leaderboard.json").read_text())
    assert [entry["status"] for entry in entries] == ["done", "done"] and entries[0]["test_score"] is None
    assert (run / "best" / "model.safetensors").exists()
    assert len(list(run.glob(f"trials/*/{WEIGHTS}"))) == 1 and not list(run.glob("trials/*/state*"))
