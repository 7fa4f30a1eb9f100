"""The table of a suite: tasks x encoders, the best of each; the winner's test score; tasks that came to nothing."""

import csv
import json

from made_results import results

from tuning.leaderboard import make_entries
from tuning.table import grid, make_rows, read_suite, write_suite


def boards() -> dict[str, list[dict]]:
    """Two tasks on two encoders; of trec the cheaper mode is tied with the better one."""
    sst2 = make_entries(
        results("full", [0.90, 0.92, 0.91], encoder="minilm")
        + results("frozen", [0.80, 0.80, 0.81], encoder="minilm")
        + results("full", [0.70, 0.72, 0.71], encoder="demo")
    )
    trec = make_entries(
        results("full", [0.90, 0.94, 0.92], encoder="minilm", rate=3e-4, metric="macro_f1")
        + results("frozen", [0.92, 0.91, 0.92], encoder="minilm", rate=1e-2, metric="macro_f1")
        + results("frozen", ["nan", "nan", "nan"], encoder="demo", metric="macro_f1")
    )
    sst2[0]["test_score"], trec[1]["test_score"] = 0.905, 0.93
    return {"sst2": sst2, "trec": trec}


def test_each_encoder_has_its_best_and_the_recommended_one_is_it() -> None:
    rows = make_rows(boards(), {})
    found = [(row["task"], row["encoder"], row["mode"], row["status"], row["test_score"]) for row in rows]
    assert found == [
        ("sst2", "minilm", "full", "done", 0.905),
        ("sst2", "demo", "full", "done", None),
        ("trec", "minilm", "frozen", "done", 0.93),
        ("trec", "demo", "frozen", "nan", None),
    ]
    assert rows[0]["score_ci95"] == boards()["sst2"][0]["score_ci95"] and rows[0]["seeds"] == 3


def test_the_table_shows_tasks_by_encoders() -> None:
    head, lines = grid(make_rows(boards(), {"snips": "task.train=none.csv: no such file"}))
    assert head == ["task", "metric", "minilm", "demo", "test"]
    assert lines == [
        ["sst2", "accuracy", "0.910 ± 0.025 (full 1e-3)", "0.710 ± 0.025 (full 1e-3)", "0.905"],
        ["trec", "macro_f1", "0.917 ± 0.014 (frozen 1e-2)", "nan", "0.930"],
        ["snips", "–", "failed", "failed", ""],
        ["mean", "", "–", "–", ""],
    ]
    lines = grid(make_rows({"a": boards()["sst2"], "b": boards()["sst2"]}, {}))[1]
    assert lines[-1] == ["mean", "", "0.910", "0.710", ""]
    assert len(grid(make_rows({"a": boards()["sst2"]}, {}))[1]) == 1  # of one task the mean says nothing more


def test_only_the_largest_size_stands_in_the_table() -> None:
    sizes = results("full", [0.5, 0.6], size=900) + results("full", [0.9, 0.9], size=100, asked=True)
    (row,) = make_rows({"a": make_entries(sizes)}, {})
    assert row["train_size"] == 900 and row["score_mean"] == 0.55


def test_the_files_hold_the_same_rows(tmp_path) -> None:
    rows = make_rows(boards(), {"snips": "no such file"})
    assert read_suite(tmp_path) == []
    write_suite(rows, tmp_path)
    assert read_suite(tmp_path) == rows == json.loads((tmp_path / "suite.json").read_text())
    with (tmp_path / "suite.csv").open() as file:
        found = [(row["task"], row["encoder"], row["mode"], row["error"]) for row in csv.DictReader(file)]
    assert found[0] == ("sst2", "minilm", "full", "") and found[-1] == ("snips", "", "", "no such file")
