"""A run's folder is held by one driver, keeps its identity, and is not left behind by a mistake."""

import errno
import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from data import storage
from data.config import UserError
from orchestration import lease
from orchestration.checkpoint import write_json
from orchestration.identity import PRETRAIN_SECTIONS
from orchestration.lease import is_held
from orchestration.recipe import load_config
from orchestration.run import check_identity, check_storage, folder_of, held


@pytest.fixture
def config(tmp_path):
    return load_config("demo", [f"storage={tmp_path}/runs", "name=r"])


def hold(config, ready, stop):
    with held(folder_of(config), config):
        ready.set()
        stop.wait(60)


def start_holder(config):
    context = multiprocessing.get_context("spawn")
    ready, stop = context.Event(), context.Event()
    process = context.Process(target=hold, args=(config, ready, stop))
    process.start()
    assert ready.wait(60)
    return process, stop


def test_a_second_driver_is_refused_while_the_first_lives(config):
    process, stop = start_holder(config)
    with pytest.raises(UserError, match=f"run r is held by process {process.pid} on"), held(folder_of(config), config):
        pass
    stop.set()
    process.join()
    with held(folder_of(config), config) as run:
        assert (run / "config.yaml").exists()
    assert not (run / "lease.json").exists()


def test_a_killed_driver_holds_nothing(config):
    process, _ = start_holder(config)
    process.kill()
    process.join()
    assert (folder_of(config) / "lease.json").exists()
    with held(folder_of(config), config):
        pass


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
def test_a_folder_without_hard_links_is_held_too(config, monkeypatch, number):
    """As mounted buckets and Windows shares are."""

    def link(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", link)
    run = folder_of(config)
    with held(run, config):
        mine = json.loads((run / "lease.json").read_text())
        assert mine["pid"] == os.getpid()
        with pytest.raises(UserError, match=f"run r is held by process {os.getpid()}"), held(run, config):
            pass
    assert not (run / "lease.json").exists()


@pytest.mark.parametrize("beat_age, refused", [(5, True), (480, True), (700, False)])
def test_a_holder_on_another_machine_is_judged_by_its_heartbeat(config, beat_age, refused, monkeypatch):
    """Patience with storage that is away, 480 s, ends before a lease does."""
    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 0.2)
    run = folder_of(config)
    run.mkdir(parents=True)
    (run / "lease.json").write_text(json.dumps(elsewhere(beat_age)))
    if refused:
        with pytest.raises(UserError) as fault, held(run, config):
            pass
        assert re.sub(r"\d+ s ago", "SECONDS s ago", str(fault.value)) == (
            f"run r is held by process 7 on node-b, which gave a sign of life SECONDS s ago; wait for it, stop it, "
            f"or give another name=NAME; after 600 s without a sign the same command goes on, at once if you know that "
            f"it is gone and delete {run}/lease.json"
        )
        assert is_held(run)
    else:
        assert not is_held(run)
        with held(run, config):
            assert is_held(run)


def elsewhere(beat_age: float) -> dict[str, object]:
    """A lease of another machine, or of another container of this one, where the same numbers mean other processes."""
    return {
        "token": "theirs", "machine": "another", "host": "node-b", "pid": 7, "started": 0.0,
        "beat": time.time() - beat_age,
    }  # fmt: skip


HOLD = """
import sys, time
from pathlib import Path
from orchestration import lease
from orchestration.progress import run_log
lease.HEARTBEAT_SECONDS, lease.STALE_SECONDS = 0.1, float(sys.argv[2])
with lease.leased(Path(sys.argv[1])), run_log(Path(sys.argv[1])) as terminal:
    terminal.out.write("held\\n")
    time.sleep(60)
"""


def holding(run, stale=600.0):
    run.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-c", HOLD, str(run), str(stale)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_a_driver_whose_run_another_took_ends_before_it_writes_anything_more(config):
    """One that was suspended, or cut off from the storage, and comes back."""
    run = folder_of(config)
    process = holding(run)
    (run / "theirs").write_text(json.dumps(elsewhere(0)))
    (run / "theirs").replace(run / "lease.json")
    _, complaint = process.communicate(timeout=30)
    assert process.returncode == 1
    told = f"{run}/lease.json: process 7 on node-b took this run for abandoned; this process ends, and writes nothing"
    assert told in complaint
    assert json.loads((run / "lease.json").read_text())["token"] == "theirs"


def test_a_driver_that_slept_while_another_took_its_run_and_ended_it_ends(config):
    """Also while its log, which lies in the run's folder, cannot be written."""
    run = folder_of(config)
    process = holding(run, stale=0.5)
    process.send_signal(signal.SIGSTOP)
    (run / "lease.json").unlink()
    (run / "log").rename(run / "another's log")
    time.sleep(1)
    process.send_signal(signal.SIGCONT)
    _, complaint = process.communicate(timeout=30)
    assert process.returncode == 1 and "another process may have taken this run for abandoned, and ended" in complaint
    assert not (run / "lease.json").exists()


def test_a_holder_whose_clock_is_wrong_is_not_taken_for_gone(config, monkeypatch):
    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 2)
    run = folder_of(config)
    run.mkdir(parents=True)
    ended = threading.Event()

    def beat() -> None:
        number = 0
        while not ended.wait(0.1):
            number += 1
            write_json(run / "lease.json", elsewhere(5000 - number))

    (run / "lease.json").write_text(json.dumps(elsewhere(5000)))
    heart = threading.Thread(target=beat)
    heart.start()
    try:
        with pytest.raises(UserError, match="is held by process 7 on node-b"), held(run, config):
            pass
    finally:
        ended.set()
        heart.join()
    with held(run, config):
        assert lease.token_of(run) != "theirs"


def test_a_job_waits_for_a_holder_elsewhere_that_may_be_gone(config, monkeypatch):
    """Its cluster started it again, as the node with the driver was lost; nobody else would."""
    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 0.2)
    run = folder_of(config)
    run.mkdir(parents=True)
    (run / "lease.json").write_text(json.dumps(elsewhere(0.5)))
    with pytest.raises(UserError, match="is held by process 7 on node-b"), held(run, config):
        pass
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    monkeypatch.setattr(lease, "STALE_SECONDS", 2)
    theirs = elsewhere(0)
    (run / "lease.json").write_text(json.dumps(theirs))
    with held(run, config):
        assert time.time() >= float(str(theirs["beat"])) + 2 and lease.token_of(run) != "theirs"


def test_workers_hear_whose_run_it_is(config):
    run = folder_of(config)
    with held(run, config):
        mine = lease.token_of(run)
        assert mine is not None and lease.taken_by(run, mine) is None
        assert lease.taken_by(run, "theirs") == f"process {os.getpid()} on {socket.gethostname()}"
    assert lease.taken_by(run, mine) is None and lease.token_of(run) is None


def test_storage_that_is_away_for_a_moment_costs_no_lease(config):
    run = folder_of(config)
    process = holding(run)
    run.rename(run.with_name("away"))
    time.sleep(0.5)
    run.with_name("away").rename(run)
    before = json.loads((run / "lease.json").read_text())
    until = time.monotonic() + 30
    while json.loads((run / "lease.json").read_text())["beat"] == before["beat"] and time.monotonic() < until:
        time.sleep(0.05)
    after = json.loads((run / "lease.json").read_text())
    assert process.poll() is None and after["beat"] > before["beat"] and after["token"] == before["token"]
    process.kill()
    process.communicate()


@pytest.mark.parametrize("text", ["{", "{}", "[]", ""])
def test_a_cut_lease_holds_nothing(config, text):
    run = folder_of(config)
    run.mkdir(parents=True)
    (run / "lease.json").write_text(text)
    with held(run, config):
        pass


def test_a_mistake_leaves_no_new_folder_but_an_old_one_stays(config):
    run = folder_of(config)
    with pytest.raises(UserError), held(run, config):
        raise UserError("no")
    assert not run.exists()
    with held(run, config):
        pass
    with pytest.raises(UserError), held(run, config):
        raise UserError("no")
    assert run.exists()
    with pytest.raises(RuntimeError), held(run, config):
        raise RuntimeError("ours")
    assert run.exists()


def test_a_broken_config_and_a_run_that_is_a_file_are_mistakes(config):
    run = folder_of(config)
    run.parent.mkdir(parents=True)
    run.write_text("a file")
    with pytest.raises(UserError, match="cannot be made"), held(run, config):
        pass
    run.unlink()
    run.mkdir()
    (run / "config.yaml").write_text("name: [")
    with pytest.raises(UserError, match="config.yaml: cannot be read"):
        check_identity(run, config, PRETRAIN_SECTIONS)


def test_a_changed_identity_is_refused_with_the_keys(config):
    with held(folder_of(config), config):
        pass
    changed = config.model_copy(update={"seed": 9})
    with pytest.raises(UserError) as fault:
        check_identity(folder_of(config), changed, PRETRAIN_SECTIONS)
    assert str(fault.value).splitlines()[0] == "seed: run r was started with 0, now 9"
    one = config.scaling.model_copy(update={"workers": 1})
    free = config.model_copy(update={"storage": "elsewhere", "scaling": one})
    check_identity(folder_of(config), free, PRETRAIN_SECTIONS)


def test_storage_that_cannot_be_written_is_said_before_work_starts(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="cannot be written .*; give storage=FOLDER"):
        check_storage(load_config("demo", [f"storage={tmp_path}/file/runs"]))
    with pytest.raises(UserError, match="neither a folder nor a bucket"):
        folder_of(load_config("demo", ["storage=http://bucket/runs"]))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / ".cache").write_text("no folder")  # which stands for one that may not be written
    with pytest.raises(UserError, match="runs/.cache cannot be written"):
        check_storage(load_config("demo", [f"storage={tmp_path}/runs"]))


def test_a_bucket_that_cannot_be_written_is_said_before_work_starts(s3, monkeypatch):
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    storage._filesystem.cache_clear()
    with pytest.raises(UserError, match="storage=s3://no-such-bucket/runs: cannot be written .*; give a bucket that"):
        check_storage(load_config("demo", ["storage=s3://no-such-bucket/runs"]))
    config = load_config("demo", ["storage=s3://cloze-test/held", "name=r"])
    check_storage(config)
    with held(folder_of(config), config):
        assert storage.children(folder_of(config)) == ["config.yaml", "lease.json"]
        (folder_of(config) / "lease.json").unlink()  # as on another machine
        with pytest.raises(UserError, match="is held by process"), held(folder_of(config), config):
            pass
    assert storage.children(folder_of(config)) == ["config.yaml"]
