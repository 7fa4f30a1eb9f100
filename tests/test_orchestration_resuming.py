"""All ranks agree on a checkpoint whose every byte is right before any of them loads it; a full disk stops no rank."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ray
from training_ranks import OWNER, Group, files_of_rank, flip, in_ranks

from orchestration import checkpoint
from orchestration.pacer import Pacer
from orchestration.resuming import Beginning

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def pacer(ray_4_cpus):
    """The address of the Ray that has it."""
    actor = Pacer.options(name="pacer-of-tests", namespace="tests").remote()
    ray.get(actor.open.remote(0))
    yield ray_4_cpus
    ray.kill(actor)
    time.sleep(0.5)  # its name is free again


def rank_resumes(pacer, run: str) -> dict:
    """Undisturbed losses; then, for each damage that rank 0 does to the newest, where the ranks go on and how."""
    import torch.distributed as dist

    folder, told = Path(run), []
    undisturbed = Group(folder / "other", pacer, told).train(6, save=False)
    ray.get(pacer.open.remote(0))
    dist.barrier()
    first = Group(folder, pacer, told)
    seen = {"undisturbed": undisturbed, "first": first.train(6), "fresh": first.beginning.step, "damages": []}
    newest = checkpoint.folder_of(folder, 6)
    for damage in (
        lambda: flip(files_of_rank(newest, 1)[0]),
        lambda: os.truncate(files_of_rank(checkpoint.folder_of(folder, 4), 1)[0], 50),
    ):
        dist.barrier()
        if dist.get_rank() == 0:
            damage()
            ray.get(pacer.open.remote(0))
        dist.barrier()
        told.clear()
        group = Group(folder, pacer, told)
        seen["damages"].append((group.beginning.step, group.train(6, save=False), list(told)))
        seen["resumes_at"] = ray.get(pacer.resumes_at.remote())
        dist.barrier()
    return seen


def test_a_checkpoint_that_one_rank_cannot_trust_is_passed_over_by_all(tmp_path, pacer):
    answers = in_ranks(rank_resumes, str(tmp_path), address=pacer, seconds=150)
    for rank, seen in enumerate(answers):
        losses = seen["undisturbed"]
        assert seen["fresh"] == 0 and seen["first"] == losses
        (step, after_flip, told_of_flip), (second, after_cut, told_of_cut) = seen["damages"]
        assert (step, second, seen["resumes_at"]) == (4, 2, 2)
        assert after_flip == losses[4:] and after_cut == losses[2:], "bit for bit"
        if rank == 0:
            (line,) = told_of_flip
            assert line.startswith("checkpoint passed over: step-00000006: state/") and "_rank_1_" in line
            assert line.endswith("holds other bytes than were saved")
            assert ["step-00000006: its files were found damaged before" in line for line in told_of_cut][0]
            assert "step-00000004: state/" in told_of_cut[1] and "has 50 bytes, the manifest says" in told_of_cut[1]
        else:
            assert told_of_flip == told_of_cut == []


def rank_fills_the_disk(pacer, folder: str) -> dict:
    """Train on a small disk: until it is full, on it, and when there is room again."""
    import torch.distributed as dist

    run, ballast = Path(folder) / "run", Path(folder) / "ballast"
    group = Group(run, pacer, [])
    group.train(2)
    if dist.get_rank() == 0:
        free = os.statvfs(folder)
        ballast.write_bytes(bytes(max(free.f_bavail * free.f_frsize - 20_000, 0)))
    dist.barrier()
    group.beginning = Beginning(2, None, float("inf"))  # it goes on from here
    fault = None
    try:
        group.train(4)
    except RuntimeError as error:
        fault = str(error)
    kept = [manifest["step"] for _, manifest in checkpoint.find(run, OWNER)]
    dist.barrier()
    if dist.get_rank() == 0:
        ballast.unlink()
    dist.barrier()
    group.beginning = Beginning(4, None, float("inf"))
    group.train(6)
    return {"fault": fault, "kept": kept, "after": [m["step"] for _, m in checkpoint.find(run, OWNER)]}


def on_a_small_disk(folder: str, address: str) -> None:
    """The other process of the test below: it sees the disk, no one else does."""
    answers = in_ranks(rank_fills_the_disk, folder, address=address, seconds=120)
    assert answers[0]["fault"] == answers[1]["fault"], answers
    fault = answers[0]["fault"]
    assert fault is not None and ", step 4: " in fault and "the disk is full" in fault, fault
    assert "MB free on" in fault and folder in fault and "\n" not in fault, fault
    assert all(answer["kept"] == [2] and answer["after"] == [6, 2] for answer in answers), answers


@pytest.mark.soak
def test_a_full_disk_is_one_line_on_all_ranks_and_what_was_saved_stays(tmp_path, pacer):
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        message = "no right to make a mount namespace"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    program = f"from test_orchestration_resuming import on_a_small_disk as go; go({str(tmp_path)!r}, {pacer!r})"
    guarded = f"if __name__ == '__main__':\n    {program}"
    (tmp_path.parent / "small_disk.py").write_text(guarded)
    mount = f"mount -t tmpfs -o size=3m tmpfs {tmp_path} && exec \"$@\""
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", mount, "sh", sys.executable, str(tmp_path.parent / "small_disk.py")],
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
