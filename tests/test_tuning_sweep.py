"""A whole sweep on Ray: leaderboard, winner, resuming, diverging and failing trials, requests that cannot be."""

import csv
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_model_export import logits_elsewhere
from tiny_encoder import GOAL, make_task, read, write_encoder
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from data.config import UserError
from model.config import Head
from orchestration.cluster import Node
from orchestration.config import Config
from orchestration.recipe import build_config
from tuning.config import Finetune
from tuning.finetune import Work, run_trial
from tuning.inputs import find_encoders
from tuning.leaderboard import winner
from tuning.sweep import check, sweep

SPACE = {
    "finetune.mode": ["frozen", "full"],
    "finetune.learning_rate": {"frozen": [1e-2], "full": [3e-3, 1e30]},
    "finetune.epochs": {"frozen": 4, "full": 6},
}


def quiet(text: str, fraction: float | None = None, **facts: object) -> None:
    """Progress that nobody reads."""


def configure(storage: Path, space: dict, **changes) -> Config:
    values = {
        "storage": str(storage), "sweep.space": space, "finetune.length": 16, "finetune.global_batch": 16, "seed": 3,
        "sweep.seeds": 2,
        "sweep.cpus_per_trial": 1.5,  # two at a time on 4 CPUs, one thread each
    }  # fmt: skip
    return build_config({"name": "tiny"}, {**values, **changes})


def stamps(folder: Path) -> dict[str, int]:
    return {str(file.relative_to(folder)): file.stat().st_mtime_ns for file in folder.glob("trials/*/result.json")}


@pytest.fixture(scope="module")
def finished(ray_4_cpus, tmp_path_factory):
    """A sweep of 3 points x 2 encoders x 2 seeds, one point of which diverges."""
    storage = tmp_path_factory.mktemp("runs")
    write_encoder(storage / "tiny" / "export", width=32)
    config, seen = configure(storage, SPACE), []

    def progress(text: str, fraction: float | None = None, **_: object) -> None:
        seen.append((text, fraction))

    entries = sweep(config, storage / "tiny-sweep", progress, make_task())
    return config, storage / "tiny-sweep", entries, seen


def test_entries_stand_best_first_and_diverged_ones_last(finished) -> None:
    _, run, entries, _ = finished
    assert json.loads((run / "leaderboard.json").read_text()) == entries
    points = sorted((entry["encoder"], entry["mode"], entry["learning_rate"]) for entry in entries)
    assert points == sorted(
        (encoder, mode, rate)
        for encoder in ("pretrained", "random")
        for mode, rate in (("frozen", 1e-2), ("full", 3e-3), ("full", 1e30))
    )
    assert [entry["status"] for entry in entries] == ["done"] * 4 + ["nan"] * 2
    means = [entry["score_mean"] for entry in entries[:4]]
    assert means == sorted(means, reverse=True) and means[0] > 0.8
    for entry in entries[:4]:
        assert entry["seeds"] == 2 and len(entry["scores"]) == 2 and entry["score_std"] >= 0
        assert entry["metric"] == "accuracy" and entry["seconds"] > 0
        head = 32 * 32 + 32 + 3 * 32 + 3
        is_head = entry["trained_parameters"] == head
        assert is_head == (entry["mode"] == "frozen") and entry["total_parameters"] > 2 * head
    best = winner(entries)
    assert best["mode"] == "full" and best["test_score"] > 0.7
    assert [entry["test_score"] for entry in entries if entry is not best] == [None] * 5
    assert all(entry["error"] and entry["score_mean"] is None for entry in entries[4:])
    with (run / "leaderboard.csv").open() as file:
        assert [row["status"] for row in csv.DictReader(file)] == ["done"] * 4 + ["nan"] * 2


def test_results_hold_the_curves_and_one_trial_of_each_mode_keeps_weights(finished) -> None:
    _, run, entries, seen = finished
    results = [json.loads(file.read_text()) for file in run.glob("trials/*/result.json")]
    assert len(results) == 12 and {result["seed"] for result in results} == {3, 4}
    for result in results:
        if result["status"] == "done":
            assert [record["epoch"] for record in result["epochs"]] == list(range(1, result["num_epochs"] + 1))
            assert result["score"] == max(record["score"] for record in result["epochs"])
            assert result["cached_features"] is (result["mode"] == "frozen")
    kept = [file.parent.name for file in run.glob("trials/*/weights.safetensors")]
    assert sorted(result["mode"] for result in results if result["trial"] in kept) == ["frozen", "full"]
    assert [file.parent.name for file in run.rglob("model.safetensors")] == ["best"]
    assert all(len(part) <= 100 for file in run.rglob("*") for part in file.relative_to(run).parts)
    assert seen[-1][0].startswith("12 trials; best: ") and seen[-1][1] == 1.0
    fractions = [fraction for text, fraction in seen if "of 12 trials" in text]
    assert fractions == sorted(fractions) and fractions[-1] == 1.0 and len(fractions) > 12
    assert len(list((run.parent / ".cache").glob("features-*"))) == 2  # one per encoder, whatever the seeds


def test_the_winner_loads_without_cloze_with_equal_logits(finished, tmp_path) -> None:
    _, run, entries, _ = finished
    task = make_task()
    best = AutoModelForSequenceClassification.from_pretrained(str(run / "best")).eval()
    assert best.config.id2label == {0: "first", 1: "second", 2: "third"}
    tokenizer = AutoTokenizer.from_pretrained(str(run / "best"))
    text = task.test.texts[0]
    with torch.no_grad():
        expected = best(**tokenizer(text, return_tensors="pt", return_token_type_ids=False)).logits
        rows = tokenizer(task.test.texts, return_tensors="pt", padding=True, return_token_type_ids=False)
        predictions = best(**rows).logits.argmax(-1).numpy()
    found = [best.config.id2label[number] for number in predictions]
    right = [label == target for label, target in zip(found, task.test.targets, strict=True)]
    assert sum(right) / len(right) == pytest.approx(winner(entries)["test_score"])
    actual = logits_elsewhere(run / "best", "AutoModelForSequenceClassification", text, tmp_path)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)
    assert "validation accuracy" in (run / "best" / "README.md").read_text()


def test_a_trial_run_alone_gives_the_sweeps_result(finished, one_thread) -> None:
    config, run, entries, _ = finished
    task, encoder = make_task(), Path(config.storage) / "tiny" / "export"
    entry = next(e for e in entries if (e["encoder"], e["learning_rate"]) == ("pretrained", 3e-3))
    train, validation = read(task.train, encoder), read(task.validation, encoder)
    settings = Finetune(mode="full", learning_rate=3e-3, epochs=6, length=16, global_batch=16)
    outcome, _ = run_trial(Work(settings, Head(), encoder, GOAL, train.encoded, validation, 3), lambda record: None)
    result = json.loads((run / "trials" / entry["trials"][0] / "result.json").read_text())
    for alone, swept in zip(outcome["epochs"], result["epochs"], strict=True):
        assert alone == pytest.approx(swept, abs=1e-6)


def test_the_same_command_again_does_nothing_and_an_interrupted_one_runs_the_rest(finished, tmp_path) -> None:
    config, run, entries, _ = finished
    before, board = stamps(run), (run / "leaderboard.json").stat().st_mtime_ns
    assert sweep(config, run, quiet, make_task()) == entries
    assert stamps(run) == before and (run / "leaderboard.json").stat().st_mtime_ns == board

    # As if killed before the winner's second trial ended.
    copied = tmp_path / "tiny-sweep"
    shutil.copytree(run, copied)
    before = stamps(copied)
    best = winner(entries)
    lost = best["trials"][1]
    shutil.rmtree(copied / "trials" / lost)
    shutil.rmtree(copied / "best")
    (copied / "leaderboard.json").unlink()
    again = sweep(config, copied, quiet, make_task())
    changed = {name for name, stamp in stamps(copied).items() if stamp != before[name]}
    assert changed <= {f"trials/{name}/result.json" for name in best["trials"]}
    assert stamps(copied).keys() == before.keys()
    for old, new in zip(entries, again, strict=True):
        clocks = ("seconds", "worker_seconds")
        assert [v for k, v in old.items() if k not in clocks] == [v for k, v in new.items() if k not in clocks]
    assert (copied / "best" / "model.safetensors").read_bytes() == (run / "best" / "model.safetensors").read_bytes()


def test_another_encoder_under_the_same_name_does_not_inherit_results(finished, tmp_path) -> None:
    config, run, _, _ = finished
    shutil.copytree(run, tmp_path / "tiny-sweep")
    write_encoder(tmp_path / "tiny" / "export", seed=8, width=32)
    moved = build_config(
        config.model_dump(mode="json"),
        {"storage": str(tmp_path), "sweep.encoders": ["pretrained"], "sweep.space": {"finetune.epochs": 1}},
    )
    before = stamps(tmp_path / "tiny-sweep")
    entries = sweep(moved, tmp_path / "tiny-sweep", quiet, make_task())
    assert len(entries) == 1 and entries[0]["status"] == "done" and entries[0]["epochs"] == 1
    assert len(stamps(tmp_path / "tiny-sweep")) == len(before) + 2


def test_a_failing_trial_is_listed_with_its_cause_and_does_not_end_the_sweep(ray_4_cpus, tmp_path) -> None:
    write_encoder(tmp_path / "tiny" / "export")
    broken = write_encoder(tmp_path / "a folder with a name that is longer than one would like it to be, by far")
    weights = load_file(broken / "model.safetensors")  # a whole file, so that only a trial finds what it lacks
    del weights["bert.encoder.layer.0.output.dense.weight"]
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    space = {"finetune.mode": ["full"], "finetune.epochs": [1]}
    config = configure(tmp_path, space, **{"sweep.encoders": ["pretrained", str(broken)], "sweep.seeds": 1})
    entries = sweep(config, tmp_path / "tiny-sweep", quiet, make_task())
    assert [entry["encoder"] for entry in entries] == ["pretrained", str(broken)]
    assert [entry["status"] for entry in entries] == ["done", "failed"]
    assert "weights missing or misshapen: bert.encoder.layer.0" in entries[1]["error"]
    assert entries[0]["score_std"] is None

    alone = configure(tmp_path, space, **{"sweep.encoders": [str(broken)], "sweep.seeds": 1})
    with pytest.raises(RuntimeError, match="no trial finished.*weights missing"):
        sweep(alone, tmp_path / "broken-sweep", quiet, make_task())
    assert json.loads((tmp_path / "broken-sweep" / "leaderboard.json").read_text())[0]["status"] == "failed"
    assert not (tmp_path / "broken-sweep" / "best").exists()


def test_only_diverging_trials_end_with_the_cause(ray_4_cpus, tmp_path) -> None:
    write_encoder(tmp_path / "tiny" / "export")
    config = configure(tmp_path, {"finetune.mode": "frozen", "finetune.learning_rate": [1e29, 1e30]})
    with pytest.raises(RuntimeError, match=r"no trial finished \(nan\)"):
        sweep(config, tmp_path / "tiny-sweep", quiet, make_task())
    assert not (tmp_path / "tiny-sweep" / "best").exists()


def test_a_check_finds_what_is_wrong_with_files_resources_and_the_space_without_ray(tmp_path) -> None:
    write_encoder(tmp_path / "tiny" / "export")
    bare = write_encoder(tmp_path / "bare")
    for file in bare.glob("tokenizer*"):
        file.unlink()
    train, one_label = tmp_path / "train.tsv", tmp_path / "one.tsv"
    train.write_text("text\tlabel\nw1 w2\ta\nw3\tb\n")
    one_label.write_text("text\tlabel\nw1 w2\ta\nw3\ta\n")
    good = {"task.train": str(train), "task.validation": str(train)}
    check(configure(tmp_path, SPACE, **good), [Node(2, 0)])
    wrong: list[tuple[dict, str]] = [
        ({"task.train": str(one_label)}, "label 'a'"),
        ({"task.text": "words"}, "words"),
        ({"task.validation": "missing.tsv"}, "no such file"),
        ({"sweep.cpus_per_trial": 3}, "needs 3 CPUs, the largest node has 2"),
        ({"sweep.space": {"finetune.epochs": []}}, "no values"),
        ({"sweep.encoders": ["nowhere"]}, "no encoder"),
        ({"sweep.encoders": [str(bare)]}, "it holds no tokenizer"),
        ({"head.kind": "classification", "head.class_weights": {"c": 2}}, "class_weights: no label 'c'; labels are"),
    ]
    for changes, words in wrong:
        with pytest.raises(UserError, match=words):
            check(configure(tmp_path, SPACE, **{**good, **changes}), [Node(2, 0)])
    with pytest.raises(UserError, match="largest node has 3"):  # 4 CPUs, but no place for one trial
        check(configure(tmp_path, SPACE, **good, **{"sweep.cpus_per_trial": 4}), [Node(3, 0), Node(1, 0)])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sweep.cpus_per_trial": 8}, ["sweep.cpus_per_trial=8", "needs 8 CPUs", "has 4"]),
        ({"sweep.gpus_per_trial": 1000}, ["sweep.gpus_per_trial=1000", "needs 1000 GPUs"]),
        ({"sweep.encoders": ["nowhere"]}, ["sweep.encoders=nowhere", "no encoder"]),
        ({"name": "other"}, ["sweep.encoders=pretrained", "run cloze pretrain first"]),
        ({"name": "other", "sweep.encoders": ["random"]}, ["random", "whose shape to copy"]),
        ({"finetune.length": 64}, ["finetune.length=64", "at most 32"]),
        ({"finetune.mode": "frozen", "head.kind": "embedding"}, ["finetune.mode=frozen", "head.layers=linear"]),
        ({"finetune.mode": "top_k", "finetune.top_k": 9}, ["finetune.top_k=9", "has 2 layers", "top_k<=2"]),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(ray_4_cpus, tmp_path, changes: dict, words: list[str]) -> None:
    write_encoder(tmp_path / "tiny" / "export")
    config = configure(tmp_path, {"finetune.epochs": [1]}, **changes)
    with pytest.raises(UserError) as error:
        sweep(config, tmp_path / "sweep", quiet, make_task())
    assert "\n" not in str(error.value) and all(word in str(error.value) for word in words)
    assert not (tmp_path / "sweep").exists()


def test_weights_cut_short_are_refused_before_anything_runs(tmp_path) -> None:
    config = configure(tmp_path, {"finetune.epochs": [1]}, **{"sweep.encoders": [str(tmp_path / "cut")]})
    os.truncate(write_encoder(tmp_path / "cut") / "model.safetensors", 5000)
    with pytest.raises(UserError, match=r"sweep.encoders=.*model.safetensors cannot be loaded: .* bytes; copy"):
        find_encoders(config)
