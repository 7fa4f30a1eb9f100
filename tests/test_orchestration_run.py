"""A run's folder is held by one driver, keeps its identity, and is not left behind by a mistake."""

import errno
import json
import multiprocessing
import os
import socket
import time

import pytest

from data import storage
from data.config import UserError
from orchestration.identity import PRETRAIN_SECTIONS
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


@pytest.mark.parametrize("beat_age, refused", [(5, True), (100, False)])
def test_a_holder_on_another_machine_is_judged_by_its_heartbeat(config, beat_age, refused):
    run = folder_of(config)
    run.mkdir(parents=True)
    holder = {"host": socket.gethostname() + "-other", "pid": os.getpid(), "started": 0, "beat": time.time() - beat_age}
    (run / "lease.json").write_text(json.dumps(holder))
    if refused:
        with pytest.raises(UserError, match="is held by"), held(run, config):
            pass
    else:
        with held(run, config):
            pass


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
