"""How often a sweep runs the encoder: once over the rows for all its frozen trials, whatever their number."""

import json
from pathlib import Path

from test_tuning_sweep import configure, quiet
from tiny_encoder import make_examples, make_task, write_encoder

from data.examples import Examples, TaskData
from tuning.sweep import sweep


def rows_read(storage: Path) -> int:
    """By the passes over the rows, as their tasks counted them in the encoder."""
    files = (storage / ".cache").glob("features-*/manifest.json")
    return sum(json.loads(file.read_text())["encoder_rows"] for file in files)


def results_of(run: Path) -> list[dict]:
    return [json.loads(file.read_text()) for file in run.glob("trials/*/result.json")]


def test_sixteen_frozen_trials_read_the_rows_once_and_the_next_ones_never(ray_4_cpus, tmp_path) -> None:
    """Two rates, two poolings, two seeds, two encoders; and two full trials, which run theirs in every epoch."""
    write_encoder(tmp_path / "tiny" / "export")
    space = {
        "finetune.mode": ["frozen", "full"],
        "finetune.learning_rate": {"frozen": [3e-3, 1e-2], "full": [3e-3]},
        "head.pooling": {"frozen": ["cls", "mean"], "full": ["cls"]},
        "finetune.epochs": 2,
    }
    config = configure(tmp_path, space, **{"sweep.seeds": 2})
    entries = sweep(config, tmp_path / "tiny-sweep", quiet, make_task(120, 60))
    assert len(entries) == 10 and {entry["status"] for entry in entries} == {"done"}
    results = results_of(tmp_path / "tiny-sweep")
    frozen = [result for result in results if result["mode"] == "frozen"]
    assert len(frozen) == 16 and len(results) == 20
    assert {(result["encoder_rows"], result["cached_features"]) for result in frozen} == {(0, True)}
    full = {result["encoder_rows"] for result in results if result["mode"] == "full"}
    assert full == {2 * (120 + 60)}
    assert rows_read(tmp_path) == 2 * (120 + 60)  # each of the two encoders

    more = configure(tmp_path, {"finetune.mode": "frozen", "finetune.epochs": 2}, **{"finetune.learning_rate": 1e-3})
    assert len(sweep(more, tmp_path / "more-sweep", quiet, make_task(120, 60))) == 2
    assert {result["encoder_rows"] for result in results_of(tmp_path / "more-sweep")} == {0}
    assert rows_read(tmp_path) == 2 * (120 + 60)


def test_a_head_on_tokens_reads_the_states_of_all_tokens_once(ray_4_cpus, tmp_path) -> None:
    """Windows of longer texts are rows of their own."""
    write_encoder(tmp_path / "tiny" / "export")
    splits = []
    for size, seed in ((60, 1), (30, 2)):
        texts = make_examples(size, seed, longest=30).texts
        words = [text.split() for text in texts]
        tags = [["B-N" if len(word) == 2 else "O" for word in some] for some in words]
        splits.append(Examples("tagging", texts, words=words, targets=tags))
    task = TaskData("tagging", ["B-N", "O"], "bio", *splits, None)
    space = {"finetune.learning_rate": [3e-3, 1e-2]}
    config = configure(
        tmp_path, space, **{"finetune.mode": "frozen", "finetune.epochs": 3, "finetune.stride": 4, "sweep.seeds": 1,
                            "head.kind": "tagging", "head.crf": True, "sweep.encoders": ["pretrained"]}
    )  # fmt: skip
    entries = sweep(config, tmp_path / "tiny-sweep", quiet, task)
    assert [entry["status"] for entry in entries] == ["done", "done"]
    assert {(one["encoder_rows"], one["cached_features"]) for one in results_of(tmp_path / "tiny-sweep")} == {(0, True)}
    (file,) = (tmp_path / ".cache").glob("features-*/manifest.json")
    manifest = json.loads(file.read_text())
    assert manifest["encoder_rows"] == sum(manifest["rows"].values()) > 120 and manifest["poolings"] == ["tokens"]
