"""Saves of several ranks: training waits for the local write alone, and all ranks know how each save ended."""

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import uuid

import pytest
import ray
from saving_ranks import OWNER, Ranks, made
from storage_gate import Gate

from data import retries, storage
from orchestration import checkpoint
from orchestration.pacer import Pacer
from orchestration.resuming import Beginning
from orchestration.saving import MOST_FAILURES, SavingError

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def pacer(ray_4_cpus):
    actor = Pacer.remote()
    yield actor
    ray.kill(actor)


@pytest.fixture(autouse=True)
def _new_group(pacer):
    ray.get(pacer.open.remote(0))


@pytest.fixture(params=["folder", "bucket"])
def run(request, tmp_path, s3, monkeypatch):
    """A run's folder: mounted, or the mirror of one in a bucket."""
    if request.param == "folder":
        yield tmp_path / "run"
        return
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    path = storage.place(f"s3://cloze-test/{uuid.uuid4().hex[:8]}/run")
    yield path
    shutil.rmtree(path.parent, ignore_errors=True)


def test_a_checkpoint_is_every_ranks_files_and_all_that_is_known_of_them(run, pacer):
    ranks = Ranks(run, pacer, 3)
    ranks.save(10, 4.5)
    ranks.finish()
    if storage.is_remote(run):
        shutil.rmtree(run)  # what counts lies in the bucket
    step, manifest, complaints = checkpoint.newest(run, OWNER)
    assert (step, complaints) == (10, []) and manifest is not None
    assert (manifest["world_size"], manifest["zero_stage"], manifest["precision"]) == (3, 1, "fp32")
    assert (manifest["eval_loss"], manifest["spent"], manifest["config"]) == (4.5, {"tokens": 10}, OWNER["config"])
    assert manifest["versions"]["torch"] and set(manifest["files"]) == {f"state/rank{n}.bin" for n in range(3)}
    folder = checkpoint.folder_of(run, 10)
    storage.fetch(folder)
    assert checkpoint.damaged(folder, manifest["files"]) == []
    assert (folder / "state/rank2.bin").read_text() == "2 10"
    assert not (run / ".saving").exists()


def test_training_does_not_wait_for_the_storage_but_the_next_save_does(tmp_path, pacer):
    storage_answers = threading.Event()
    ranks = Ranks(tmp_path, pacer, carry=lambda: storage_answers.wait(60))
    begun = time.monotonic()
    ranks.save(10)
    assert time.monotonic() - begun < 5 and ranks.steps() == []
    second = threading.Thread(target=ranks.save, args=(20,))
    second.start()
    time.sleep(0.5)
    assert second.is_alive(), "two saves at once"
    assert ranks.steps() == []
    storage_answers.set()
    second.join(30)
    assert 10 in ranks.steps()
    ranks.finish()
    assert ranks.steps() == [10, 20]
    assert all(saver.stall_seconds > 0.4 and saver.saves == 2 for saver in ranks.savers), "the wait is stall"


def test_the_lines_of_metrics_are_there_before_the_checkpoint_counts(tmp_path, pacer):
    seen = []
    ranks = Ranks(tmp_path, pacer, carry=lambda: seen.append(ranks.steps()))
    ranks.save(10)
    ranks.save(20)
    ranks.finish()
    assert seen == [[], [10]]


def test_the_points_where_faults_may_strike(tmp_path, pacer):
    points = []
    ranks = Ranks(tmp_path, pacer, 2, passes=lambda point, step: points.append((point, step, len(ranks.steps()))))
    ranks.save(10)
    ranks.finish()
    assert [point for point in points if point[0] == "saving:state"] == [("saving:state", 10, 0)] * 2
    assert [point for point in points if point[0] == "saving:file"] == [("saving:file", 10, 0)] * 2
    assert points[-2:] == [("saving:manifest", 10, 0), ("saving:retention", 10, 1)]


def test_what_is_evaluated_is_saved_when_due_or_the_best_so_far(tmp_path, pacer):
    ranks = Ranks(tmp_path, pacer, keep=1)

    def evaluated(step, loss, is_end=False):
        (answer,) = set(ranks.all(lambda saver: saver.evaluated(step, loss, {}, is_end)))
        ranks.all(lambda saver: saver.settle(60))
        return answer

    assert not evaluated(0, 9.0), "before the first step there is nothing to save"
    assert evaluated(5, 8.0) and evaluated(10, 8.5), "the best, then a due one"
    assert not evaluated(15, 8.2) and ranks.steps() == [5, 10]
    assert not evaluated(17, float("nan"))
    assert evaluated(20, float("nan")), "due, whatever its loss is"
    manifest = checkpoint.read_manifest(checkpoint.folder_of(tmp_path, 20), OWNER)
    assert isinstance(manifest, dict) and manifest["eval_loss"] is None
    assert ranks.steps() == [5, 20]
    assert evaluated(25, 7.0) and ranks.steps() == [25]
    assert evaluated(33, 7.5, is_end=True) and ranks.steps() == [25, 33]
    ranks.finish()
    best = checkpoint.best(tmp_path, OWNER)
    assert best is not None and (best["step"], best["eval_loss"]) == (25, 7.0)


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_best_stays_when_saves_and_evaluations_part(tmp_path, pacer, keep):
    ranks = Ranks(tmp_path, pacer, every_steps=1, keep=keep)
    for step in range(8, 13):
        if step == 8:
            ranks.all(lambda saver: saver.evaluated(8, 1.0, {}))
        else:
            ranks.save(step)
    ranks.finish()
    assert ranks.steps() == sorted({8, *range(13 - keep, 13)})
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == [f"step-{s:08d}" for s in ranks.steps()]


def test_an_evaluation_behind_its_save_comes_into_the_manifest(run, pacer):
    ranks = Ranks(run, pacer)
    ranks.save(10)
    assert set(ranks.all(lambda saver: saver.evaluated(10, 3.5, {}))) == {False}
    ranks.finish()
    best = checkpoint.best(run, OWNER)
    assert best is not None and (best["step"], best["eval_loss"]) == (10, 3.5)
    again = Ranks(run, pacer, beginning=Beginning(10, {**best, "eval_loss": None}, float("inf")))
    assert set(again.all(lambda saver: saver.evaluated(10, 3.25, {}))) == {False}
    again.finish()
    best = checkpoint.best(run, OWNER)
    assert best is not None and best["eval_loss"] == 3.25


def test_an_evaluation_that_no_manifest_takes_is_said_and_written_with_the_next_save(tmp_path, pacer):
    """Else the best checkpoint would be deleted as one that was never evaluated."""
    ranks = Ranks(tmp_path, pacer, keep=1)
    ranks.save(10)
    ranks.all(lambda saver: saver.settle(60))
    shutil.rmtree(tmp_path / ".saving")
    (tmp_path / ".saving").touch()  # no folder can be made there
    ranks.all(lambda saver: saver.evaluated(10, 3.5, {}))
    deadline = time.monotonic() + 30
    while not (told := ray.get(pacer.warnings.remote())) or "step-00000010" not in told[-1]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert told[-1].startswith("the held-out loss of step-00000010 could not be written: ")
    assert checkpoint.best(tmp_path, OWNER) is None
    (tmp_path / ".saving").unlink()
    ranks.save(20, 4.5)
    ranks.save(30)
    ranks.finish()
    best = checkpoint.best(tmp_path, OWNER)
    assert best is not None and (best["step"], best["eval_loss"]) == (10, 3.5) and ranks.steps() == [10, 30]


def test_what_saving_cost_is_counted_over_worker_groups(tmp_path, pacer):
    """Also over starts of the driver: the count goes with the checkpoint. A save that failed is none."""
    ranks = Ranks(tmp_path, pacer)
    ranks.save(10)
    ranks.states[1].error = OSError("no")
    ranks.save(20)
    ranks.states[1].error = None
    ranks.save(30)
    ranks.finish()
    _, manifest, _ = checkpoint.newest(tmp_path, OWNER)
    assert manifest is not None and manifest["saving"]["checkpoints_saved"] == 2
    again = Ranks(tmp_path, pacer, beginning=Beginning(30, manifest, float("inf")))
    again.save(40)
    again.finish()
    told = again.savers[0].told()
    assert told["checkpoints_saved"] == 3
    assert told["checkpoint_stall_seconds"] > manifest["saving"]["checkpoint_stall_seconds"]


def test_the_same_step_is_saved_once(tmp_path, pacer):
    ranks = Ranks(tmp_path, pacer)
    ranks.save(10)
    ranks.states[0].version = 11
    ranks.all(lambda saver: saver.save(10, None, {}))
    ranks.finish()
    assert (checkpoint.folder_of(tmp_path, 10) / "state/rank0.bin").read_text() == "0 10"
    assert ranks.savers[0].saves == 1


def test_what_a_fault_left_of_the_same_step_is_gone_once_the_save_counts(run, pacer):
    """Files of ranks that are no more: who converts the state for other ranks would take them for its own."""
    folder = checkpoint.folder_of(run, 10)
    (folder / "state").mkdir(parents=True)
    (folder / "state" / "rank7.bin").write_text("of a save that was broken off")
    storage.publish(folder)
    ranks = Ranks(run, pacer)
    ranks.save(10)
    ranks.finish()
    assert ranks.steps() == [10] and "state/rank7.bin" not in storage.sizes(folder)


def test_a_full_disk_fails_the_save_and_not_the_run(run, pacer):
    ranks = Ranks(run, pacer, keep=3)
    for step, loss in ((10, 1.0), (20, 2.0), (30, 3.0)):
        ranks.save(step, loss)
    ranks.states[1].error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    ranks.save(40)
    ranks.all(lambda saver: saver.settle(60))
    told = ray.get(pacer.warnings.remote())
    assert "rank 1, step 40: " in told[-1] and "MB free on" in told[-1] and "\n" not in told[-1]
    assert told[-1].startswith("a save failed, training goes on") and "the disk is full" in told[-1]
    # In a bucket nothing is deleted: that would make no room here.
    shares_the_disk = not storage.is_remote(run)
    assert ("deleted to make room: step-00000020" in told[-1]) == shares_the_disk
    assert ranks.steps() == ([10, 30] if shares_the_disk else [10, 20, 30]), "the best, and the newest"
    assert "step-00000040" not in storage.children(run / "checkpoints"), "its remains are gone"
    ranks.states[1].error = None
    ranks.save(50)
    ranks.finish()
    assert ranks.steps()[-2:] == [30, 50] and 10 in ranks.steps()


def test_failures_in_a_row_end_the_run_on_all_ranks_alike(tmp_path, pacer):
    ranks = Ranks(tmp_path, pacer)
    ranks.save(10)
    ranks.states[0].error = OSError("the disk answers nonsense")
    for number in range(MOST_FAILURES):
        ranks.save(20 + number)
    answers = ranks.all(lambda saver: saver.save(30, None, {}))
    assert all(isinstance(answer, SavingError) for answer in answers) and len(set(map(str, answers))) == 1
    assert str(answers[0]).startswith("3 saves in a row failed; the last: rank 0, step 22: ")
    assert "the disk answers nonsense" in str(answers[0]) and ranks.steps() == [10]


def test_one_success_between_failures_begins_the_count_anew_and_the_end_must_succeed(tmp_path, pacer):
    ranks = Ranks(tmp_path, pacer)
    for step in range(10, 10 * (2 * MOST_FAILURES + 2), 10):
        ranks.states[0].error = None if step % 30 == 0 else OSError("no")
        ranks.save(step)
    ranks.states[1].error = OSError("no")
    ranks.save(90)
    answers = ranks.all(lambda saver: saver.finish())
    assert all(isinstance(answer, SavingError) and "step 90" in str(answer) for answer in answers)


def test_a_rank_that_dies_leaves_nothing_that_counts_and_holds_up_nobody(tmp_path, pacer):
    made(tmp_path, 10)
    dying = Ranks(tmp_path, pacer)
    dying.states[0].version = 20
    dying.savers[0].save(20, None, {})  # rank 1 died before it
    dying.savers[0].settle(1)
    assert checkpoint.newest(tmp_path, OWNER)[0] == 10
    ray.get(pacer.open.remote(10))  # the next group
    ranks = Ranks(tmp_path, pacer, beginning=Beginning(10, {"eval_loss": None}, float("inf")))
    ranks.save(20)
    ranks.finish()
    assert ranks.steps() == [10, 20]
    manifest = json.loads((checkpoint.folder_of(tmp_path, 20) / "manifest.json").read_text())
    assert set(manifest["files"]) == {"state/rank0.bin", "state/rank1.bin"}


def test_leftovers_of_desks_are_wiped(tmp_path, pacer):
    (tmp_path / ".saving" / "rank-0007" / "state").mkdir(parents=True)
    ranks = Ranks(tmp_path, pacer)
    ranks.save(10)
    ranks.finish()
    assert not (tmp_path / ".saving").exists()


@pytest.fixture
def gate(s3, monkeypatch):
    """The test server behind a gate that can be shut, and a run's folder there."""
    with Gate(s3["AWS_ENDPOINT_URL"]) as gate:
        for name, value in {**s3, "AWS_ENDPOINT_URL": gate.address}.items():
            monkeypatch.setenv(name, value)
        storage._filesystem.cache_clear()
        gate.run = storage.place(f"s3://cloze-test/{uuid.uuid4().hex[:8]}/run")
        yield gate
        shutil.rmtree(gate.run.parent, ignore_errors=True)
    retries.be_patient(0)
    storage._filesystem.cache_clear()


@pytest.mark.parametrize("answer", ["reset", "503"])
def test_storage_that_answers_errors_for_a_while_is_ridden_out_beside_training(gate, pacer, answer, monkeypatch):
    monkeypatch.setattr(retries, "LONGEST_WAIT_SECONDS", 0.5)
    told = []
    retries.be_patient(60, told.append)
    ranks = Ranks(gate.run, pacer)
    ranks.save(10)
    ranks.all(lambda saver: saver.settle(60))
    gate.shut(answer)
    begun = time.monotonic()
    ranks.save(20)
    assert time.monotonic() - begun < 5, "training goes on"
    while not told:
        time.sleep(0.05)
    assert "state/rank" in told[0] and "trying again for 60 s" in told[0]
    gate.open()
    ranks.finish()
    assert ranks.steps() == [10, 20] and any("works again after" in line for line in told)


@pytest.mark.soak
def test_storage_that_is_away_for_longer_than_the_limit_fails_the_save(gate, pacer, monkeypatch):
    monkeypatch.setattr(retries, "LONGEST_WAIT_SECONDS", 0.2)
    retries.be_patient(0.5)
    ranks = Ranks(gate.run, pacer)
    ranks.save(10)
    ranks.all(lambda saver: saver.settle(60))
    gate.shut("reset")
    ranks.save(20)
    answers = ranks.all(lambda saver: saver.finish())
    assert len(set(map(str, answers))) == 1 and isinstance(answers[0], SavingError)
    uri = storage.shown(checkpoint.folder_of(gate.run, 20))
    assert str(answers[0]).startswith(f"rank 0, step 20: {uri}/state/rank0.bin: ") and "\n" not in str(answers[0])
    assert "no success within" in str(answers[0])
    gate.open()
    assert ranks.steps() == [10]


def test_a_driver_whose_run_another_took_saves_nothing_more_and_deletes_nothing(run, pacer):
    """It may be stopped, and not know it, while its workers train on."""
    ranks = Ranks(run, pacer, lease="mine")
    write_lease(run, "mine")
    ranks.save(10, 4.5)
    ranks.all(lambda saver: saver.settle(60))
    write_lease(run, "theirs")
    theirs = made(run, 20, 4.0)
    if storage.is_remote(run):
        storage.publish(theirs, keep=False)
    for _ in range(2):
        ranks.save(20)
        ranks.all(lambda saver: saver.settle(60))
    told = "process 7 on node-b took this run for abandoned, and goes on with it"
    assert any(told in warning for warning in ray.get(pacer.warnings.remote()))
    storage.fetch(theirs)
    manifest = json.loads((theirs / "manifest.json").read_text())
    assert not checkpoint.damaged(theirs, manifest["files"])
    with pytest.raises(SavingError, match=told):
        ranks.finish()


def write_lease(run, token):
    holder = {"token": token, "machine": "m", "host": "node-b", "pid": 7, "started": 0.0, "beat": time.time()}
    checkpoint.write_json(run / "lease.json", holder)
    storage.publish(run / "lease.json", keep=False)


BREAKING = """
import sys
from pathlib import Path
import ray
from saving_ranks import Ranks
from orchestration.pacer import start_pacer

ray.init("local", num_cpus=1, include_dashboard=False, logging_level="ERROR")
ranks = Ranks(Path(sys.argv[1]), start_pacer("pacer"), 2, keep=100)
for step in range(10, 210, 10):
    ranks.save(step, 1.0 / step)
ranks.finish()
print([saver.saves for saver in ranks.savers], ray.get(ranks.pacer.generation.remote()))
"""


@pytest.mark.soak
def test_connections_that_break_cost_no_save_and_no_two_ranks_differ(tmp_path):
    """Ray's own injection of failures: of the calls to actors every fourth loses its answer, every eighth itself."""
    lost = {"num_failures": 60, "req_failure_prob": 12, "resp_failure_prob": 25, "in_flight_failure_prob": 0}
    settings = {"RAY_testing_rpc_failure": json.dumps({"CoreWorkerService.grpc_client.PushTask": lost})}
    path = os.pathsep.join((os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")))
    done = subprocess.run(
        [sys.executable, "-c", BREAKING, str(tmp_path / "run")], env={**os.environ, **settings, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "so the task will be retried" in done.stderr + done.stdout, "nothing was lost: the test tests nothing"
    assert "[20, 20]" in done.stdout
    assert checkpoint.newest(tmp_path / "run", OWNER)[::2] == (200, [])
    assert len(list((tmp_path / "run").rglob("manifest.json"))) == 20
