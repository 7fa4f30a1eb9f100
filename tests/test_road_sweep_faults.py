"""A sweep that loses a node of a real cluster while it runs trials there: all trials end, those that had ended stay."""

import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fault_runs import nodes
from tiny_encoder import make_examples, write_encoder

pytestmark = [pytest.mark.road, pytest.mark.soak, pytest.mark.timeout(1200)]

WORDS = [
    "sweep", "name=lost", "sweep.encoders=encoder", "task.train=train.csv", "task.validation=dev.csv", "sweep.seeds=3",
    "finetune.length=24", "finetune.global_batch=8", "sweep.cpus_per_trial=1.5",  # of 2 CPUs a node: one trial
    "sweep.space={finetune.mode: [full], finetune.learning_rate: [1e-3, 3e-3, 1e-2], finetune.epochs: [60]}",
]  # fmt: skip


def results(home: Path) -> dict[Path, int]:
    """Files of the trials that ended -> when they were written."""
    return {path: path.stat().st_mtime_ns for path in (home / "runs" / "lost-sweep" / "trials").glob("*/result.json")}


def test_trials_of_a_lost_node_run_again_on_the_others(tmp_path):
    write_encoder(tmp_path / "encoder")
    for name, number, seed in (("train", 96, 0), ("dev", 48, 1)):
        examples = make_examples(number, seed)
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *zip(examples.texts, examples.targets, strict=True)])
    with nodes() as cluster, (tmp_path / "log.txt").open("w") as log:
        cluster.add()
        sweep = subprocess.Popen(
            [sys.executable, "-m", "orchestration", *WORDS], cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=log,
            stderr=log, env={**os.environ, "RAY_ADDRESS": cluster.address},
        )  # fmt: skip
        try:
            deadline = time.monotonic() + 600
            # A trial has ended, and one runs on each node.
            while not results(tmp_path) or len({trial.ppid() for trial in cluster.workers("ImplicitFunc")}) < 2:
                assert sweep.poll() is None and time.monotonic() < deadline, (tmp_path / "log.txt").read_text()
                time.sleep(0.1)
            before = results(tmp_path)
            cluster.lose()
            assert sweep.wait(600) == 0, (tmp_path / "log.txt").read_text()
        finally:
            if sweep.poll() is None:
                sweep.kill()
                sweep.wait()
    after = results(tmp_path)
    assert len(before) < len(after) == 9 and before.items() <= after.items()
    told = [json.loads(path.read_text()) for path in after]
    assert {(trial["status"], len(trial["epochs"])) for trial in told} == {("done", 60)}
    entries = json.loads((tmp_path / "runs" / "lost-sweep" / "leaderboard.json").read_text())
    assert [(entry["status"], entry["seeds"]) for entry in entries] == [("done", 3)] * 3
    assert max(entry["score_mean"] for entry in entries) > 0.8
