"""Trials that several workers share, in Ray: what they ask for, lost ranks, ranks that end with their trial."""

import os
import re
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_tuning_engines import write_still_encoder
from test_tuning_sweep import quiet
from test_tuning_trials import make_trial, run_here
from tiny_encoder import GOAL, LABELS, make_task, read

from model.config import Head
from orchestration.recipe import build_config
from tuning.finetune import Goal
from tuning.groups import bundles
from tuning.search import Plan
from tuning.trials import Trial, read_results
from tuning.tuner import Inputs, run_trials

pytestmark = pytest.mark.timeout(600)
ASKED = {"sweep.workers_per_trial": 2, "sweep.cpus_per_trial": 0.5, "sweep.gpus_per_trial": 1, "zero.stage": 2}


class Unlucky(Goal):
    """A goal that ends the process of rank 1 when it comes there, as often as the file in `columns` says."""

    def __reduce__(self) -> Any:
        return come, (self.columns[0],)


def come(file: str) -> Goal:
    from ray._private.worker import global_worker

    worker: Any = global_worker
    actor = worker.actors.get(worker.actor_id)
    if type(actor).__name__ == "Rank" and actor._number == 1:
        left = int(Path(file).read_text())
        Path(file).write_text(str(left - 1))
        if left > 0:
            os.kill(os.getpid(), signal.SIGKILL)
    return Unlucky(LABELS, "accuracy", columns=(file,))


def test_a_trial_asks_for_a_place_for_each_worker() -> None:
    assert bundles(1, 1.5, 0).bundles == [{"CPU": 1.5}]
    assert bundles(1, 1, 0.25).bundles == [{"CPU": 1.0, "GPU": 0.25}]
    assert bundles(3, 0.5, 1).bundles == [{"CPU": 0.5, "GPU": 1.0}] * 3  # who waits for them asks for nothing


def inputs_of(encoder: Path, trial: Trial, trials: Path, goal: Goal = GOAL, **more: Any) -> Inputs:
    task = make_task()
    parts = {split: read(getattr(task, split), encoder) for split in ("train", "validation")}
    return Inputs(goal, {trial.reading: parts}, {}, trials, build_config({"name": "x"}, {**ASKED, **more}))


def ranks_alive() -> int:
    """How many ranks live in this Ray."""
    from ray._private.state import actors as known

    actors: Any = known().values()
    return sum(one["State"] == "ALIVE" and one["ActorClassName"] == "Rank" for one in actors)


def wait_for_none() -> None:
    deadline = time.monotonic() + 30
    while ranks_alive() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert ranks_alive() == 0


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Path:
    return write_still_encoder(tmp_path_factory.mktemp("encoder"))


def test_two_workers_give_the_scores_of_one_process_also_after_one_died_and_faults_name_the_rank(
    ray_4_cpus, encoder, tmp_path
) -> None:
    """Two trials at once: rank 1 of one dies when it starts, and its trial is tried once more; a head that cannot be is
    the result of the other."""
    trials, file, seen = tmp_path / "trials", tmp_path / "deaths", []
    good, wrong = make_trial(encoder, "p", 0, workers=2), make_trial(encoder, "q", 0, workers=2)
    wrong = replace(wrong, head=Head(kind="multiple_choice").model_dump(mode="json"))
    file.write_text("1")
    inputs = inputs_of(encoder, good, trials, Unlucky(LABELS, "accuracy", columns=(str(file),)))

    def progress(text: str, fraction: float | None = None, **facts: object) -> None:
        seen.append(ranks_alive())

    plan = Plan([good, wrong])
    run_trials(plan, inputs, tmp_path, progress, lambda _: None)
    assert int(file.read_text()) <= -1 and 2 <= max(seen) <= 4
    wait_for_none()
    result = plan.results[good.id]
    expected = run_here(make_trial(encoder, "p", 0), tmp_path / "alone")
    for ours, theirs in zip(result["epochs"], expected["epochs"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)
    assert result["status"] == "done" and result["score"] == pytest.approx(expected["score"], abs=1e-4)
    assert (result["workers"], result["train_size"], result["encoder_rows"]) == (2, 120, 3 * 180)
    assert result["worker_seconds"] == pytest.approx(2 * result["seconds"])
    assert {file.name for file in (trials / good.id).iterdir()} == {"result.json", "weights.safetensors"}
    told = read_results([wrong], trials)[wrong.id]
    assert told["status"] == "failed"
    assert re.search("rank [01]: ValueError: multiple_choice: num_choices", told["error"])


@pytest.mark.soak
def test_a_rank_that_dies_twice_is_named(ray_4_cpus, encoder, tmp_path) -> None:
    trial, trials, file = make_trial(encoder, "p", 0, workers=2), tmp_path / "trials", tmp_path / "deaths"
    file.write_text("9")
    plan = Plan([trial])
    unlucky = inputs_of(encoder, trial, trials, Unlucky(LABELS, "accuracy", columns=(str(file),)))
    run_trials(plan, unlucky, tmp_path, quiet, lambda _: None)
    assert int(file.read_text()) == 7  # once, and once more
    assert plan.results[trial.id]["status"] == "failed"
    assert "rank 1: its process was killed" in plan.results[trial.id]["error"]
    assert read_results([trial], trials) == {}  # the same command tries it again
    wait_for_none()


@pytest.mark.soak
def test_ranks_end_where_tune_stops_their_trial(ray_4_cpus, encoder, tmp_path) -> None:
    """As a race does, at an evaluation; the ranks work on meanwhile."""

    class Over(Plan):
        def is_over(self) -> bool:
            return True

        def returned(self, name: str) -> None:
            self.running.discard(name)
            cut.append(name)

    cut = []
    trial, trials = make_trial(encoder, "p", 0, workers=2, finetune={"epochs": 500}), tmp_path / "trials"
    plan = Over([trial])
    inputs = inputs_of(encoder, trial, trials, GOAL, **{"sweep.checkpoint_seconds": 0})
    run_trials(plan, inputs, tmp_path, quiet, lambda _: None)
    assert plan.results == {} and cut == [trial.id]
    wait_for_none()
    names = {file.name.partition("-e")[0] for file in (trials / trial.id).iterdir()}
    assert {"state.pt", "state-r1"} <= names  # the next run goes on from here
