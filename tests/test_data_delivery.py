"""Files come to their place whole or not at all, by rename, by copy, or into a bucket."""

import os
import shutil
import threading
import uuid
from pathlib import Path

import pytest

from data import storage
from data.delivery import deliver, desk_of, lies_behind_a_network

MOUNTS = """/dev/sda1 / ext4 rw 0 0
tmpfs /dev/shm tmpfs rw 0 0
server:/export /nfs nfs4 rw,vers=4.2 0 0
/dev/sdb1 /nfs/scratch xfs rw 0 0
fs-1:/ /my\\040runs lustre rw 0 0
bucket /mnt/s3 fuse.mountpoint-s3 rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "network"),
    [("/home/x", False), ("/nfs/runs", True), ("/nfs/scratch/runs", False), ("/my runs/a", True), ("/mnt/s3/a", True)],
)
def test_a_networks_folder_is_known_by_its_mount(tmp_path, path, network):
    (tmp_path / "mounts").write_text(MOUNTS)
    assert lies_behind_a_network(Path(path), tmp_path / "mounts") is network
    assert not lies_behind_a_network(Path(path), tmp_path / "none")


def test_the_desk_of_a_folder_on_a_disk_is_beside_it(tmp_path, s3):
    assert desk_of(tmp_path, "rank-0001") == tmp_path / ".saving" / "rank-0001"
    mirror = storage.place("s3://cloze-test/run")
    assert desk_of(mirror, "a") == mirror / ".saving" / "a"


@pytest.fixture(params=["renamed", "copied"])
def desk(request, tmp_path):
    """A folder on the same file system as tmp_path, or on another."""
    if request.param == "renamed":
        (tmp_path / "desk").mkdir()
        yield tmp_path / "desk"
        return
    folder = Path("/dev/shm") / f"cloze-{uuid.uuid4().hex[:8]}"
    if not os.access("/dev/shm", os.W_OK) or os.stat("/dev/shm").st_dev == os.stat(tmp_path).st_dev:
        pytest.skip("no second file system")
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


def test_a_reader_finds_the_old_file_or_the_whole_new_one(desk, tmp_path):
    target = tmp_path / "run" / "state" / "file"
    sizes, done = set(), threading.Event()

    def look():
        while not done.is_set():
            if target.exists():
                sizes.add(target.stat().st_size)
        sizes.add(target.stat().st_size)

    reader = threading.Thread(target=look)
    reader.start()
    for size in (10, 20_000_000):
        (desk / "file").write_bytes(bytes(size))
        deliver(desk / "file", target)
        assert target.stat().st_size == size and not (desk / "file").exists()
    done.set()
    reader.join()
    assert sizes and sizes <= {10, 20_000_000}
    assert [path.name for path in target.parent.iterdir()] == ["file"]


def test_into_a_bucket(s3, monkeypatch, tmp_path):
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    folder = storage.place(f"s3://cloze-test/{uuid.uuid4().hex[:8]}")
    (tmp_path / "file").write_text("1")
    deliver(tmp_path / "file", folder / "a" / "b")
    assert storage.sizes(folder) == {"a/b": 1} and not (folder / "a" / "b").exists()
    assert not (tmp_path / "file").exists()


def test_what_cannot_be_placed_stays_on_the_desk(desk, tmp_path):
    (tmp_path / "run").write_text("a file where a folder should be")
    (desk / "file").write_text("1")
    with pytest.raises(OSError):
        deliver(desk / "file", tmp_path / "run" / "file")
    assert (desk / "file").read_text() == "1"
