"""Storage: what is carried to a bucket is what another node fetches; in a folder there is nothing to carry."""

import os
import shutil
import threading
import time
import uuid

import numpy as np
import pytest

from data import storage
from data.config import UserError
from data.rows import Row
from data.store import fresh_folder, write_shard
from orchestration import metrics


@pytest.fixture
def folder(s3, monkeypatch):
    """The mirror of a new folder of the test server's bucket."""
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    path = storage.place(f"s3://cloze-test/{uuid.uuid4().hex[:8]}")
    path.mkdir(parents=True)
    yield path
    shutil.rmtree(path, ignore_errors=True)


def other_node(folder):
    """As a node that has nothing of it: the mirror is empty."""
    shutil.rmtree(folder)
    assert not folder.exists()


def test_a_folder_is_itself_and_nothing_is_carried(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert storage.place("runs") == tmp_path / "runs"
    (tmp_path / "x").write_text("1")
    storage.publish(tmp_path / "x", keep=False)
    storage.fetch(tmp_path / "x")
    storage.forget(tmp_path / "x")
    assert (tmp_path / "x").read_text() == "1"
    assert storage.shown(tmp_path / "x") == str(tmp_path / "x")
    assert storage.children(tmp_path) == ["x"] and storage.sizes(tmp_path) == {"x": 1}


@pytest.mark.parametrize("uri", ["http://h/x", "s3://", "s3:///", "s3://bucket/x?endpoint_override=h", "hdfs://x/y",
                                 "s3://bucket/a b", "s3://bucket/x/../y", "s3://bucket/ä"])  # fmt: skip
def test_another_uri_is_refused(uri):
    with pytest.raises(UserError, match="neither a folder nor a bucket"):
        storage.place(uri)


def test_what_is_published_is_fetched_elsewhere(folder):
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "one").write_bytes(bytes(range(256)) * 1000)
    (folder / "a" / "two").write_text("2")
    (folder / "a" / "half.part").write_text("not to be carried")
    storage.publish(folder / "a", last="two")
    other_node(folder)
    assert storage.sizes(folder) == {"a/b/one": 256_000, "a/two": 1}
    assert storage.children(folder / "a") == ["b", "two"]
    storage.fetch(folder / "a")
    assert (folder / "a" / "b" / "one").read_bytes() == bytes(range(256)) * 1000
    assert storage.shown(folder / "a").startswith("s3://cloze-test/")

    before = (folder / "a" / "b" / "one").stat().st_ino
    storage.fetch(folder / "a")
    assert (folder / "a" / "b" / "one").stat().st_ino == before, "what is the same is not fetched again"


def test_who_only_looks_removes_nothing(folder):
    """As `cloze report` does beside a sweep whose trial has written, and not yet published, its weights."""
    (folder / "trials").mkdir()
    (folder / "trials" / "mine").write_text("not yet published")
    storage.fetch(folder / "trials", delete=False)
    assert (folder / "trials" / "mine").exists()
    with pytest.raises(FileNotFoundError, match="nothing of it is on this node"):
        storage.publish(folder / "never written")


def test_one_process_of_a_node_fills_a_folder_at_a_time(folder):
    order = []

    def fill(name):
        with storage.alone(folder / "store"):
            order.append(name)
            time.sleep(0.2)
            order.append(name)

    threads = [threading.Thread(target=fill, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert order[0::2] == order[1::2]


def test_the_bucket_is_the_truth(folder):
    (folder / "x").write_text("mine, never carried")
    storage.fetch(folder / "x")
    assert not (folder / "x").exists()
    (folder / "y").write_text("1")
    storage.publish(folder / "y")
    storage.remove(folder / "y")
    assert storage.sizes(folder) == {} and not (folder / "y").exists()
    storage.remove(folder / "never there")
    assert storage.children(folder / "never there") == []


def test_metrics_survive_their_node(folder):
    path = folder / "metrics.jsonl"
    writer = metrics.Writer(path, 0)
    for step in range(5):
        writer.write({"step": step, "loss": 1.0})
        if step in (1, 3):
            writer.carry()
    other_node(folder)  # step 4 was not carried
    writer = metrics.Writer(path, 3)
    assert [line["step"] for line in metrics.read(path)] == [0, 1, 2]
    for step in range(3, 6):
        writer.write({"step": step, "loss": 2.0})
    writer.carry()
    writer.write({"step": 6, "loss": 2.0})
    metrics.bring(path)
    assert [line["step"] for line in metrics.read(path)][-1] == 6, "who writes the file is ahead of the bucket"
    other_node(folder)
    metrics.bring(path)
    assert [(line["step"], line["loss"]) for line in metrics.read(path)] == [
        (0, 1.0), (1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0), (5, 2.0),
    ]  # fmt: skip
    writer = metrics.Writer(path, 6)
    writer.finish()
    other_node(folder)
    assert storage.children(folder) == ["metrics.jsonl"]
    metrics.bring(path)
    assert len(list(metrics.read(path))) == 6


def test_shards_are_read_where_they_lie(folder):
    from data.store import MANIFEST, Shards

    with fresh_folder(folder / "store") as part:
        rows = [Row(np.arange(n, n + 3, dtype=np.int32), np.ones(3, bool)) for n in range(600)]
        write_shard(part / "train" / "shard-0.parquet", rows)
        (part / MANIFEST).write_text("{}")
    assert not (folder / "store" / "train" / "shard-0.parquet").exists(), "a node keeps no copy"
    other_node(folder)
    shards = Shards(folder / "store" / "train", ("shard-0.parquet",), np.array([600]), np.array([0]), 4, 0)
    rows = shards.read(np.array([599, 0]))
    assert rows.input_ids.tolist() == [[599, 600, 601, 0], [0, 1, 2, 0]] and rows.lengths.tolist() == [3, 3]
    assert not (folder / "store" / "train").exists() or not os.listdir(folder / "store" / "train")
