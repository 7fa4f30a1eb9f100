"""Checkpoints are complete or absent, of this run, and the best one stays; metrics hold no step twice."""

import json
import shutil
import threading

import pytest
from saving_ranks import OWNER, made

from orchestration import checkpoint, metrics
from orchestration.recipe import load_config


def test_the_newest_complete_one_counts(tmp_path):
    assert checkpoint.newest(tmp_path) == (0, None, [])
    for step in (8, 9, 10, 99_999_999, 100_000_000):
        made(tmp_path, step)
        assert checkpoint.newest(tmp_path, OWNER)[0] == step, "as numbers, not as names"


def rewrite(folder, **changes):
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, **changes}))


OTHER_CONFIG = {"config": {"seed": 2, "pretrain.steps": 100}}


@pytest.mark.parametrize(
    "damage, word",
    [
        (lambda f: (f / "state/rank1.bin").write_bytes(b"cut"), "rank1.bin has 3 bytes, the manifest says 101"),
        (lambda f: (f / "state/rank0.bin").unlink(), "state/rank0.bin is missing"),
        (lambda f: (f / "manifest.json").unlink(), "the save was not finished"),
        (lambda f: (f / "manifest.json").write_text("{"), "manifest is not readable"),
        (lambda f: (f / "manifest.json").write_text("[]"), "manifest is not one of ours"),
        (lambda f: rewrite(f, files={"rank0.bin": 100}), "manifest is not one of ours"),
        (lambda f: rewrite(f, **OTHER_CONFIG), "of another run: seed is 2 there, 1 here"),
        (lambda f: rewrite(f, tokenizer="x"), "of another run: its tokenizer are x, here t"),
        (lambda f: rewrite(f, data="x"), "of another run: its prepared rows are x, here d"),
    ],
)
def test_a_damaged_one_is_passed_over_and_named(tmp_path, damage, word):
    made(tmp_path, 5)
    damage(made(tmp_path, 6))
    (tmp_path / "checkpoints" / "step-99999999").mkdir()
    step, _, complaints = checkpoint.newest(tmp_path, OWNER)
    assert step == 5
    assert any("step-00000006" in line and word in line for line in complaints)
    assert any("step-99999999" in line for line in complaints)


def test_a_flipped_bit_is_found_by_its_hash_and_counts_no_more(tmp_path):
    made(tmp_path, 5)
    folder = made(tmp_path, 6)
    manifest = checkpoint.read_manifest(folder, OWNER)
    assert isinstance(manifest, dict) and checkpoint.damaged(folder, manifest["files"]) == []
    content = bytearray((folder / "state/rank1.bin").read_bytes())
    content[50] ^= 1
    (folder / "state/rank1.bin").write_bytes(content)
    assert checkpoint.newest(tmp_path, OWNER)[0] == 6, "sizes alone do not show it"
    assert checkpoint.damaged(folder, manifest["files"]) == ["state/rank1.bin holds other bytes than were saved"]
    checkpoint.set_aside(folder)
    step, _, complaints = checkpoint.newest(tmp_path, OWNER)
    assert (step, complaints) == (5, ["step-00000006: its files were found damaged before"])


def test_a_setting_that_came_with_another_version_makes_no_stranger(tmp_path):
    made(tmp_path, 5)
    newer = {**OWNER, "config": {**OWNER["config"], "pretrain.new_key": 7}}
    assert checkpoint.newest(tmp_path, newer)[0] == 5


def test_the_owner_is_what_a_run_must_keep():
    config = load_config("demo", ["name=r", "scaling.workers=1"])
    other = load_config("demo", ["name=r", "scaling.workers=4"])
    assert checkpoint.owner_of(config, "t", "d") == checkpoint.owner_of(other, "t", "d")
    assert checkpoint.owner_of(config, "t", "d") != checkpoint.owner_of(load_config("demo", ["seed=9"]), "t", "d")
    json.dumps(checkpoint.owner_of(config, "t", "d"))


def steps_of(run):
    return sorted(int(path.name.removeprefix("step-")) for path in (run / "checkpoints").iterdir())


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_and_the_best_are_kept(tmp_path, keep):
    losses = {8: 1.0, 9: 3.0, 10: None, 11: 2.0, 12: 2.5}
    for step, loss in losses.items():
        made(tmp_path, step, loss)
        checkpoint.retain(tmp_path, step, keep, OWNER)
    assert steps_of(tmp_path) == sorted({8, *range(13 - keep, 13)})
    best = checkpoint.best(tmp_path, OWNER)
    assert best is not None and (best["step"], best["eval_loss"]) == (8, 1.0)


def test_what_was_not_evaluated_or_is_no_number_is_never_the_best(tmp_path):
    for step, loss in enumerate([None, float("nan"), 4.0, float("-inf"), 4.0, 5.0]):
        made(tmp_path, step, loss)
    best = checkpoint.best(tmp_path, OWNER)
    assert best is not None and best["step"] == 4, "of equals the newest"
    assert checkpoint.best(tmp_path / "none", OWNER) is None


def test_another_runs_checkpoints_are_neither_taken_nor_deleted(tmp_path):
    stranger = {**OWNER, **OTHER_CONFIG}
    for step in (3, 1000):
        made(tmp_path, step, 0.1, stranger)
    for step in (10, 20, 30):
        made(tmp_path, step, 5.0)
        checkpoint.retain(tmp_path, step, 1, OWNER)
    assert steps_of(tmp_path) == [3, 30, 1000]
    step, _, complaints = checkpoint.newest(tmp_path, OWNER)
    assert step == 30 and complaints == ["step-00001000: of another run: seed is 2 there, 1 here"]
    best = checkpoint.best(tmp_path, OWNER)
    assert best is not None and best["step"] == 30


def test_what_kills_left_half_goes_with_the_next_save(tmp_path):
    (made(tmp_path, 5) / "manifest.json").unlink()
    made(tmp_path, 4)
    made(tmp_path, 6)
    gone = checkpoint.retain(tmp_path, 6, 2, OWNER)
    assert [folder.name for folder in gone] == ["step-00000005"] and steps_of(tmp_path) == [4, 6]


def test_the_one_just_saved_stays_though_a_listing_lacks_a_file_of_it(tmp_path):
    made(tmp_path, 4)
    late = made(tmp_path, 5)
    next(path for path in sorted(late.rglob("*")) if path.is_file() and path.name != "manifest.json").unlink()
    assert checkpoint.retain(tmp_path, 5, 1, OWNER) == [] and steps_of(tmp_path) == [4, 5]


def test_shares_hold_every_file_once_and_about_the_same_bytes():
    files = {f"f{n}": {"bytes": size} for n, size in enumerate([100, 60, 50, 40, 30, 20, 10])}
    parts = checkpoint.shares(files, 3)
    assert sorted(name for part in parts for name in part) == sorted(files)
    assert max(sum(files[name]["bytes"] for name in part) for part in parts) <= 110
    assert checkpoint.shares(files, 3) == parts and sum(map(len, checkpoint.shares({}, 2))) == 0


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


@pytest.mark.parametrize("again", [True, False])
def test_the_evaluation_of_the_weights_that_training_starts_with_stays_and_stands_once(tmp_path, again):
    """Of a finished run whose budget is raised it was the last one, and where evaluations are due it comes again."""
    path = tmp_path / "metrics.jsonl"
    evaluation = {"step": 3, "eval_loss": 0.5}
    writer = metrics.Writer(path, 0)
    steps = [{"step": step, "loss": 1.0} for step in range(5)]
    for line in [*steps[:3], evaluation, *steps[3:], {"step": 5, "eval_loss": 0.4}]:
        writer.write(line)
    writer = metrics.Writer(path, 3)
    for line in [evaluation] * again + [*steps[3:], {"step": 5, "eval_loss": 0.4}]:
        writer.write(line)
    assert list(metrics.read(path)) == [*steps[:3], evaluation, *steps[3:], {"step": 5, "eval_loss": 0.4}]


def test_no_line_is_lost_between_the_thread_that_writes_and_the_one_that_carries(tmp_path):
    writer = metrics.Writer(tmp_path / "metrics.jsonl", 0)
    done = threading.Event()

    def carry():
        while not done.is_set():
            writer.carry()

    thread = threading.Thread(target=carry)
    thread.start()
    for step in range(500):
        writer.write({"step": step})
    done.set()
    thread.join()
    assert [line["step"] for line in metrics.read(tmp_path / "metrics.jsonl")] == list(range(500))


def test_a_folder_that_was_renamed_or_copied_does_not_count(tmp_path):
    made(tmp_path, 10)
    shutil.copytree(made(tmp_path, 20), tmp_path / "checkpoints" / "step-99999999")
    step, _, complaints = checkpoint.newest(tmp_path)
    assert step == 20 and complaints == ["step-99999999: of another run: its manifest is of step 20"]
    assert not checkpoint.lost(complaints)


def test_checkpoints_that_once_counted_are_told_from_saves_that_never_did(tmp_path):
    rewrite(made(tmp_path, 10), files={"state/a.pt": 3})
    (tmp_path / "checkpoints" / "step-00000020").mkdir()
    step, manifest, complaints = checkpoint.newest(tmp_path)
    assert (step, manifest) == (0, None)
    assert checkpoint.lost(complaints) == ["step-00000010: its manifest is not one of ours"]
