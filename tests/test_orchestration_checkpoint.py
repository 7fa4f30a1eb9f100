"""Checkpoints are complete or absent; metrics hold no step twice."""

import json

import pytest

from orchestration import checkpoint, metrics


def save(run, step, keep=2):
    def write(folder):
        for rank in range(2):
            (folder / f"rank{rank}.bin").write_bytes(bytes(100 + rank))

    return checkpoint.save(run, step, write, lambda: None, True, True, {"world_size": 2}, keep)


def test_the_newest_complete_one_counts(tmp_path):
    assert checkpoint.newest(tmp_path) == (0, None, [])
    for step in (8, 9, 10):
        save(tmp_path, step, keep=3)
    step, manifest, complaints = checkpoint.newest(tmp_path)
    assert (step, manifest["world_size"], complaints) == (10, 2, [])


@pytest.mark.parametrize(
    "damage, word",
    [
        (lambda folder: (folder / "rank1.bin").write_bytes(b"cut"), "rank1.bin has 3 bytes, the manifest says 101"),
        (lambda folder: (folder / "rank0.bin").unlink(), "rank0.bin is missing"),
        (lambda folder: (folder / "manifest.json").unlink(), "the save was not finished"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "manifest is not readable"),
        (lambda folder: (folder / "manifest.json").write_text("[]"), "manifest is not one of ours"),
    ],
)
def test_a_damaged_one_is_passed_over_and_named(tmp_path, damage, word):
    save(tmp_path, 5)
    damage(save(tmp_path, 6))
    (tmp_path / "checkpoints" / "step-99999999").mkdir()
    step, _, complaints = checkpoint.newest(tmp_path)
    assert step == 5
    assert any("step-00000006" in line and word in line for line in complaints)
    assert any("step-99999999" in line for line in complaints)


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_are_kept_in_numeric_order(tmp_path, keep):
    for step in range(97, 103):
        save(tmp_path, step, keep)
    kept = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert kept == [f"step-{step:08d}" for step in range(103 - keep, 103)]


def test_a_leftover_of_the_same_step_is_wiped(tmp_path):
    folder = checkpoint.folder_of(tmp_path, 4)
    folder.mkdir(parents=True)
    (folder / "stranger").write_text("x")
    save(tmp_path, 4)
    assert not (folder / "stranger").exists()


def test_metrics_are_cut_at_the_step_that_begins_again(tmp_path):
    path = tmp_path / "metrics.jsonl"
    writer = metrics.Writer(path, 0)
    for step in range(6):
        writer.write({"step": step, "loss": 1.0})
    with path.open("a") as file:
        file.write('{"step": 6, "lo')  # a kill in the middle of a line
    writer = metrics.Writer(path, 4)
    writer.write({"step": 4, "loss": 2.0})
    assert [(r["step"], r["loss"]) for r in metrics.read(path)] == [(s, 1.0) for s in range(4)] + [(4, 2.0)]
    assert all(json.loads(line) for line in path.read_text().splitlines())
