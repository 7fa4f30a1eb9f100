"""Budgets and phases through the command line: what ends a run, what a kill costs, what a raised budget does."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from orchestration.budget import LEDGER

pytestmark = [pytest.mark.road, pytest.mark.timeout(420)]

SMALL = [
    "corpus.sources=corpus.txt", "corpus.held_out=0.1", "tokenizer.vocab_size=120", "rows.length=32",
    "rows.packing=document", "encoder.hidden_size=32", "encoder.num_attention_heads=2", "encoder.intermediate_size=64",
    "pretrain.global_batch=7", "pretrain.micro_batch=2", "pretrain.learning_rate=5e-3", "pretrain.eval_every_steps=30",
    "checkpoints.every_steps=20", "zero.persistence_threshold=0", "scaling.max_restarts=1", "scaling.cpus_per_worker=1",
]  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("budget")
    draw = random.Random(0)
    words = ["cat", "dog", "clerk", "judge", "court", "saw", "heard", "paid", "asked", "left", "the", "and"]
    texts = [" ".join(draw.choices(words, k=draw.randint(10, 40))) + f" doc{number:04d}" for number in range(300)]
    (folder / "corpus.txt").write_text("\n\n".join(texts))
    return folder


@pytest.fixture(scope="module")
def cloze_here(cloze, home: Path):
    return partial(cloze, cwd=home)


def words(name: str, *more: str) -> list[str]:
    return ["pretrain", f"name={name}", *SMALL, *more]


def lines(run: Path, *without: str) -> list[dict[str, Any]]:
    """metrics.jsonl, without what no two runs have alike."""
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    left_out = {"tokens_per_second", "data_wait_fraction", *without}
    return [{key: value for key, value in line.items() if key not in left_out} for line in found]


def summary_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "summary.json").read_text())


def killed_once(home: Path, address: str, command: list[str], there: Path) -> None:
    """Start the command and kill its driver as soon as a file is there."""
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestration", *command], cwd=home, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "RAY_ADDRESS": address},
    )  # fmt: skip
    deadline = time.monotonic() + 240
    while not there.exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.mark.soak
def test_hours_end_a_run_with_an_export_and_an_account(home: Path, cloze_here):
    hours = 10 / 3600
    done = cloze_here(*words("hours", f"pretrain.budget.hours={hours}", "cluster.price_per_worker_hour=9"))
    assert done.returncode == 0, done.stderr
    run = home / "runs" / "hours"
    summary, spent = summary_of(run), summary_of(run)["spent"]
    assert (run / "export" / "model.safetensors").exists() and summary["budget"] == {"hours": pytest.approx(hours)}
    assert spent["worker_seconds"] == pytest.approx(2 * spent["seconds"])
    assert spent["money"] == pytest.approx(spent["worker_seconds"] / 3600 * 9, abs=1e-4)
    steps = [line for line in lines(run) if "loss" in line]
    assert spent["tokens"] == summary["tokens"] == sum(line["tokens"] for line in steps)
    assert summary["steps"] == len(steps) and steps[-1]["budget_share"] == 1
    assert 0 < steps[0]["learning_rate"] < 5e-3, "what loading took of the budget skips no warm-up"
    assert spent["worker_seconds_before_steps"] == pytest.approx(2 * spent["seconds_before_steps"])
    assert spent["seconds_before_steps"] > 0
    assert all(line["budget_share"] < 1 for line in steps[:-1])
    assert 10 <= spent["seconds"] < 25, "the last evaluation, save and export come on top of it"
    assert lines(run)[-1]["step"] == len(steps) and "eval_loss" in lines(run)[-1]
    assert f"{len(steps)} steps, spent: " in done.stdout and "in money" in done.stdout
    assert "| spent |" in (run / "export" / "README.md").read_text()
    again = cloze_here(*words("hours", f"pretrain.budget.hours={hours}", "cluster.price_per_worker_hour=9"))
    assert again.returncode == 0 and "finished: nothing to do" in again.stdout
    assert json.loads((run / "status.json").read_text())["budget"].endswith(" hours")
    assert "100% of " in cloze_here("status", "hours").stdout


@pytest.mark.soak
def test_the_seconds_of_a_killed_driver_are_spent(home: Path, ray_4_cpus: str, cloze_here):
    command = words("killed", f"pretrain.budget.hours={30 / 3600}")
    run = home / "runs" / "killed"
    killed_once(home, ray_4_cpus, command, run / LEDGER)
    before = json.loads((run / LEDGER).read_text())["seconds"]
    assert 9 < before < 25
    begun = time.monotonic()
    done = cloze_here(*command)
    assert done.returncode == 0, done.stderr
    assert 30 <= summary_of(run)["spent"]["seconds"] < 30 + 15
    steps = [line for line in lines(run) if "budget_share" in line]
    assert all(a["budget_share"] <= b["budget_share"] for a, b in zip(steps, steps[1:], strict=False))
    assert summary_of(run)["spent"]["seconds"] - before <= time.monotonic() - begun


@pytest.mark.soak
def test_a_token_budget_killed_and_resumed_is_the_undisturbed_run_and_a_raised_one_goes_on(
    home: Path, ray_4_cpus: str, cloze_here
):
    command = [*words("whole", "pretrain.budget.tokens=12000")]
    done = cloze_here(*command)
    assert done.returncode == 0, done.stderr
    whole = lines(home / "runs" / "whole")
    run = home / "runs" / "cut"
    again = words("cut", "pretrain.budget.tokens=12000")
    killed_once(home, ray_4_cpus, again, run / "checkpoints" / "step-00000020" / "manifest.json")
    done = cloze_here(*again, CLOZE_FAULT="kill:1:35")
    assert done.returncode == 0, done.stderr
    assert lines(run) == whole
    spent = summary_of(run)["spent"]["tokens"]
    assert 12000 <= spent < 12000 + max(line["tokens"] for line in whole if "loss" in line)

    done = cloze_here(*words("cut", "pretrain.budget.tokens=14000"))
    assert done.returncode == 0, done.stderr
    raised = [line for line in lines(run) if "loss" in line]
    trained = [line for line in whole if "loss" in line]
    assert raised[: len(trained)] == trained and len(raised) > len(trained)
    assert lines(run)[: len(whole)] == whole, "with the evaluation that was the last one"
    share = spent / 14000  # the rate follows the new budget: the share that is spent is smaller again
    assert raised[len(trained)]["learning_rate"] == pytest.approx(5e-3 * (1 - share) / 0.94)
    assert summary_of(run)["spent"]["tokens"] >= 14000


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_two_phases_killed_at_their_border_are_the_undisturbed_run(home: Path, cloze_here):
    phases = ["rows.length=[16,48]", "pretrain.steps=[30,15]", "pretrain.micro_batch=[4,1]"]
    phases.append("checkpoints.every_steps=10")
    done = cloze_here(*words("two", *phases))
    assert done.returncode == 0, done.stderr
    run = home / "runs" / "two"
    evaluated = {line["step"]: line["rows_length"] for line in lines(run) if "eval_loss" in line}
    assert evaluated == {0: 16, 30: 48, 45: 48}
    summary = summary_of(run)
    assert (summary["rows_length"], summary["steps"]) == ([16, 48], 45)
    assert json.loads((run / "export" / "tokenizer_config.json").read_text())["model_max_length"] == 48
    for name, step in (("before", 29), ("behind", 31)):
        done = cloze_here(*words(name, *phases), CLOZE_FAULT=f"kill:1:{step}")
        assert done.returncode == 0, done.stderr
        assert json.loads((home / "runs" / name / "status.json").read_text())["restarts"] == 1
        assert lines(home / "runs" / name) == lines(run)
    for step, length in ((29, 16), (30, 48)):
        shown = cloze_here("inspect", "name=two", *SMALL, *phases, "--step", str(step), "--rows", "2", "--json")
        assert shown.returncode == 0, shown.stderr
        assert json.loads(shown.stdout)["rows"]["length"] == length
    other = cloze_here(*words("two", *phases, "pretrain.steps=[30,16]"))
    assert other.returncode == 2 and "pretrain.steps: run two was started with [30, 15]" in other.stderr
