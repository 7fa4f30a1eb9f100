"""Leaderboards of several tasks -> one table, tasks x encoders, the way GLUE's looks; suite.json and suite.csv.

In: the entries of each task, and why a task as a whole came to nothing. Out: rows, a line for each task and encoder.
Pure, files aside.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tuning.leaderboard import Entry, judged, write_rows
from tuning.wording import names_of, short, with_interval

Row = dict[str, Any]
Grid = tuple[list[str], list[list[str]]]
"""Names of columns, and lines of as many cells."""
SCORES = ("score_mean", "score_std", "score_ci95")
COLUMNS = (
    "task", "encoder", "mode", "learning_rate", "train_size", *SCORES, "metric", "seeds", "test_score", "recommended",
    "worker_seconds", "trained_parameters", "status", "error",
)  # fmt: skip


def make_rows(boards: Mapping[str, Sequence[Entry]], failed: Mapping[str, str]) -> list[Row]:
    """The best entry of each encoder on each task, on the most training examples; tasks in the order of `boards`, then
    those that failed, by their reason; the encoders of a task best first.

    An encoder's best is the recommended entry where that is of this encoder, else the first of it. test_score: of the
    task's winner alone.
    """
    rows: list[Row] = []
    for task, entries in boards.items():
        of_size = judged(entries)
        best: dict[str, Entry] = {}
        for entry in sorted(of_size, key=lambda one: not one["recommended"]):
            best.setdefault(entry["encoder"], entry)
        order = dict.fromkeys(entry["encoder"] for entry in of_size)
        rows += [{"task": task, **{column: best[encoder][column] for column in COLUMNS[1:]}} for encoder in order]
    lost = {"status": "failed", "recommended": False, "seeds": 0}
    return rows + [{**dict.fromkeys(COLUMNS), "task": task, **lost, "error": why} for task, why in failed.items()]


def write_suite(rows: Sequence[Row], run: Path) -> None:
    """Write suite.json and suite.csv under `run`, each whole or not at all."""
    write_rows(rows, COLUMNS, run / "suite")


def read_suite(run: Path) -> list[Row]:
    """The rows that lie in `run`; none where it is no suite."""
    path = run / "suite.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []


def grid(rows: Sequence[Row]) -> Grid:
    """A line for each task, a column for each encoder: score and mode of its best; behind them the winner's test score.

    The last line has each encoder's mean over the tasks, where it has a score of all of them (their metrics differ, as
    they do in GLUE: it ranks encoders, and means nothing else).
    """
    encoders = list(dict.fromkeys(row["encoder"] for row in rows if row["encoder"] is not None))
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    found = {(row["task"], row["encoder"]): row for row in rows}
    lines: list[list[str]] = []
    for task in tasks:
        of_task = [row for row in rows if row["task"] == task]
        tested = next((row["test_score"] for row in of_task if row["test_score"] is not None), None)
        cells = [_cell(found.get((task, encoder))) for encoder in encoders]
        if of_task[0]["encoder"] is None:
            cells = ["failed"] * len(encoders)
        lines.append([task, of_task[0]["metric"] or "–", *cells, "" if tested is None else f"{tested:.3f}"])
    if len(tasks) > 1:
        means = [_mean([found.get((task, encoder)) for task in tasks]) for encoder in encoders]
        lines.append(["mean", "", *means, ""])
    return ["task", "metric", *names_of(encoders).values(), "test"], lines


def _cell(row: Row | None) -> str:
    if row is None or row["score_mean"] is None:
        return "–" if row is None else row["status"]
    return f"{with_interval(row['score_mean'], row['score_ci95'])} ({row['mode']} {short(row['learning_rate'])})"


def _mean(rows: Sequence[Row | None]) -> str:
    scores = [row["score_mean"] for row in rows if row is not None and row["score_mean"] is not None]
    return f"{statistics.fmean(scores):.3f}" if len(scores) == len(rows) else "–"
