"""Trials that end badly and sweeps that are killed: what is kept, what runs again, which weights stay on the disk."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from test_tuning_sweep import quiet, stamps
from tiny_encoder import GOAL, make_task, read, write_encoder

from model.config import Head
from tuning.config import Finetune
from tuning.trials import Trial, make_result, prune_weights, read_results
from tuning.tuner import Inputs, run_trials

WEIGHTS = "weights.safetensors"


class Deadly:
    """A goal that ends the process that reads it, as a lack of memory would."""

    @property
    def labels(self) -> tuple[str, ...]:
        os.kill(os.getpid(), signal.SIGKILL)
        return ()


def make_trial(folder: Path, point: str, seed: int, encoder: str = "pretrained") -> Trial:
    settings = Finetune(mode="full", epochs=1, length=16).model_dump(mode="json")
    name = f"{encoder}-{point}-s{seed}"
    head = Head().model_dump(mode="json")
    return Trial(name, encoder, str(folder), point, {}, settings, head, seed, "accuracy", "inputs")


def test_a_trial_whose_process_died_failed_and_is_tried_again_by_the_same_command(ray_4_cpus, tmp_path) -> None:
    encoder, task = write_encoder(tmp_path / "encoder"), make_task()
    parts = {split: read(getattr(task, split), encoder) for split in ("train", "validation")}
    trial, trials = make_trial(encoder, "p", 0), tmp_path / "trials"
    deadly = Inputs(Deadly(), {trial.reading: parts}, {}, trials, 1, 0)
    result = run_trials([trial], deadly, tmp_path, quiet, lambda _: None)[trial.id]
    assert result["status"] == "failed" and result["error"] and result["score"] is None
    assert not (trials / trial.id / "result.json").exists() and read_results([trial], trials) == {}
    healthy, ended = dataclasses.replace(deadly, goal=GOAL), []
    assert run_trials([trial], healthy, tmp_path, quiet, ended.append)[trial.id]["status"] == "done"
    assert [one["status"] for one in ended] == ["done"] and read_results([trial], trials)[trial.id] == ended[0]


def test_weights_that_cannot_win_are_deleted_while_the_sweep_runs(tmp_path) -> None:
    wanted = {("pretrained", point): 2 for point in ("low", "high", "running", "nan")}
    results = []

    def end(point: str, seed: int, score: float | None) -> set[str]:
        trial = make_trial(tmp_path, point, seed)
        (tmp_path / trial.id).mkdir()
        (tmp_path / trial.id / WEIGHTS).write_bytes(b"")
        outcome = {"score": score, "status": "done" if score is not None else "nan"}
        results.append(make_result(trial, outcome))
        prune_weights(results, wanted, tmp_path)
        return {file.parent.name.removeprefix("pretrained-") for file in tmp_path.glob(f"*/{WEIGHTS}")}

    assert end("nan", 0, None) == {"nan-s0"}
    assert end("nan", 1, None) == set()
    assert end("low", 0, 0.2) == {"low-s0"}
    assert end("low", 1, 0.3) == {"low-s1"}  # the point's best trial
    assert end("running", 0, 0.9) == {"low-s1", "running-s0"}
    assert end("high", 0, 0.8) == {"low-s1", "running-s0", "high-s0"}
    assert end("high", 1, 0.7) == {"running-s0", "high-s0"}


def test_a_killed_sweep_goes_on_where_it_was(ray_4_cpus, cloze, tmp_path) -> None:
    write_encoder(tmp_path / "runs" / "tiny" / "export")
    task = make_task()
    for name in ("train", "validation"):
        part = getattr(task, name)
        lines = [f"{text}\t{label}\n" for text, label in zip(part.texts, part.targets, strict=True)]
        (tmp_path / f"{name}.tsv").write_text("text\tlabel\n" + "".join(lines))
    command = [
        "sweep", "name=tiny", "task.train=train.tsv", "task.validation=validation.tsv", "finetune.length=16",
        "sweep.encoders=[pretrained]", "sweep.space={finetune.learning_rate: [0.001, 0.003], finetune.epochs: 20}",
        "sweep.cpus_per_trial=2.5",  # one at a time on 4 CPUs
    ]  # fmt: skip
    run = tmp_path / "runs" / "tiny-sweep"
    driver = subprocess.Popen(
        [sys.executable, "-m", "orchestration", *command],
        cwd=tmp_path, env={**os.environ, "RAY_ADDRESS": ray_4_cpus}, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 150
    while len(stamps(run)) < 2 and driver.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert driver.poll() is None
    driver.kill()
    driver.wait()
    time.sleep(1)  # Ray ends the trial that was running
    before = stamps(run)
    assert 2 <= len(before) < 4
    done = cloze(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    after = stamps(run)
    assert len(after) == 4 and {name: after[name] for name in before} == before
    entries = json.loads((run / "leaderboard.json").read_text())
    assert [entry["status"] for entry in entries] == ["done", "done"] and entries[0]["test_score"] is None
    assert (run / "best" / "model.safetensors").exists()
