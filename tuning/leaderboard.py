"""Results of trials -> entries, best first; which one wins; the leaderboard's files; whether pretraining paid.

In: one result per trial (a dict, see tuning/trials.py). Out: one entry per (training examples, encoder, point). Pure,
files aside.
"""

import csv
import io
import json
import math
import os
import re
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from data.storage import publish
from tuning.intervals import half_width, may_be_equal, paired
from tuning.scores import METRICS

Entry = dict[str, Any]
CONTROL = "random"  # the encoder that others are compared with, and that nobody wants where another does as well
# The order of the columns of leaderboard.csv.
COLUMNS = (
    "train_size", "rank", "encoder", "mode", "learning_rate", "epochs", "score_mean", "score_std", "score_ci95",
    "metric", "difference_mean", "difference_ci95", "tied", "recommended", "test_score", "seeds", "scores",
    "best_epochs", "seconds", "worker_seconds", "encoder_rows", "trained_parameters", "total_parameters",
    "majority_baseline", "status", "error", "point", "trials", "values",
)  # fmt: skip
# An entry has the first of these that one of its trials has.
STATUSES = ("failed", "nan", "stopped", "done")


def make_entries(results: Iterable[dict[str, Any]]) -> list[Entry]:
    """One entry per (train_size, encoder, point): the largest train_size first, inside it best first.

    Whole entries stand by their mean over seeds; behind them, unranked: those that lack a seed which others have or
    whose seed failed, those that a race stopped, those that diverged, those of which nothing came.

    score_std, score_ci95: sample deviation, and half-width of the 95 % interval of the mean; None for one score.
    rank: 1, 2, ... among whole entries of a train_size. difference_mean, difference_ci95: this entry minus the one of
    rank 1, over the seeds of both. tied: the two cannot be told apart (tuning/intervals.py). recommended: one of each
    train_size, of those tied the one that trains the fewest parameters, then the better one; the random encoder only
    where no other is tied.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        groups.setdefault(_without_seed(result["trial"]), []).append(result)
    sizes = _train_sizes(groups)
    entries: list[Entry] = []
    for size in sorted(set(sizes.values()), key=_descending):
        of_size = [sorted(group, key=lambda one: one["seed"]) for name, group in groups.items() if sizes[name] == size]
        entries += _compared([_entry(size, group) for group in of_size])
    return entries


def _without_seed(trial: str) -> str:
    return trial.rpartition("-s")[0]


def _train_sizes(groups: dict[str, list[dict[str, Any]]]) -> dict[str, int | None]:
    """Training examples of each group. One whose trials all died before they could tell has as many as its id says,
    or, where it says none and so has all of them, as many as others that do; None: no other tells either."""
    told = {name: next((n for one in group if (n := one.get("train_size"))), None) for name, group in groups.items()}
    asked = {name: re.search(r"-n(\d+)$", name) for name in groups}
    every = next((size for name, size in told.items() if size is not None and asked[name] is None), None)
    return {name: size or (int(match[1]) if (match := asked[name]) else every) for name, size in told.items()}


def _descending(size: int | None) -> float:
    return -math.inf if size is None else -size


def _entry(train_size: int | None, group: list[dict[str, Any]]) -> Entry:
    first = group[0]
    scores = [one["score"] for one in group]
    finished = [score for score in scores if score is not None]
    statuses = {one["status"] for one in group}
    return {
        "train_size": train_size,
        "rank": None,
        "encoder": first["encoder"],
        "mode": first["mode"],
        "learning_rate": first["learning_rate"],
        "epochs": first["num_epochs"],
        "score_mean": statistics.fmean(finished) if finished else None,
        "score_std": statistics.stdev(finished) if len(finished) > 1 else None,
        "score_ci95": half_width(finished),
        "metric": first["metric"],
        "difference_mean": None,
        "difference_ci95": None,
        "tied": False,
        "recommended": False,
        "test_score": None,
        "seeds": len(group),
        "scores": scores,
        "best_epochs": [one["best_epoch"] for one in group],
        "seconds": round(sum(one["seconds"] for one in group), 3),
        "worker_seconds": round(sum(one.get("worker_seconds", one["seconds"]) for one in group), 3),
        "encoder_rows": _sum(one.get("encoder_rows") for one in group),
        "trained_parameters": next((one["trained_parameters"] for one in group if one["trained_parameters"]), None),
        "total_parameters": next((one["total_parameters"] for one in group if one["total_parameters"]), None),
        "majority_baseline": next((b for one in group if (b := one.get("majority_baseline")) is not None), None),
        "status": next(status for status in STATUSES if status in statuses),
        "error": next((one["error"] for one in group if one["error"]), None),
        "point": first["point"],
        "trials": [one["trial"] for one in group],
        "values": first["values"],
    }


def _sum(numbers: Iterable[int | None]) -> int | None:
    """None where one is not known."""
    known = list(numbers)
    return None if None in known else sum(number for number in known if number is not None)


def _compared(entries: list[Entry]) -> list[Entry]:
    """The entries of one train_size in order, with their ranks, differences and the recommended one."""
    most = max((entry["seeds"] for entry in entries if entry["status"] == "done"), default=0)

    def place(entry: Entry) -> int:
        by_status = {"done": 0 if entry["seeds"] == most else 1, "stopped": 3, "nan": 4}
        return by_status.get(entry["status"], 2 if entry["score_mean"] is not None else 5)

    def order(entry: Entry) -> tuple[Any, ...]:
        score = METRICS[entry["metric"]].rank_key(entry["score_mean"])
        return place(entry), score, entry["trained_parameters"] or math.inf, entry["encoder"], entry["point"]

    entries = sorted(entries, key=order)
    whole = [entry for entry in entries if place(entry) == 0]
    for rank, entry in enumerate(whole, 1):
        entry["rank"] = rank
        differences = difference(entry, whole[0])
        if rank > 1 and differences:
            entry["difference_mean"], entry["difference_ci95"] = statistics.fmean(differences), half_width(differences)
        entry["tied"] = rank == 1 or may_be_equal(_lags(entry, whole[0]))
    # Where the best is uncertain much is tied with it, also what another one beats beyond doubt.
    tied = sorted(
        (entry for entry in whole if entry["tied"] and not any(_is_behind(entry, other) for other in whole)),
        key=lambda e: (e["encoder"] == CONTROL, e["trained_parameters"] or math.inf, e["rank"]),
    )
    # Where nothing is whole, the first that lacks a seed: what its others trained is there.
    for entry in [*tied, *(entry for entry in entries if place(entry) in (1, 2))][:1]:
        entry["recommended"] = True
    return entries


def _lags(entry: Entry, other: Entry) -> list[float]:
    """By how much an entry is behind another on each seed."""
    upwards = METRICS[entry["metric"]].higher_is_better
    return [-lead if upwards else lead for lead in difference(entry, other)]


def _is_behind(entry: Entry, other: Entry) -> bool:
    """Whether the seeds tell that another entry is better."""
    lags = _lags(entry, other)
    return len(lags) > 1 and statistics.fmean(lags) > 0 and not may_be_equal(lags)


def difference(entry: Entry, other: Entry) -> list[float]:
    """Scores of an entry minus those of another, for each seed that has both."""

    def by_seed(of: Entry) -> dict[str, float]:
        pairs = zip(of["trials"], of["scores"], strict=True)
        return {trial.rpartition("-s")[2]: score for trial, score in pairs if score is not None}

    return paired(by_seed(entry), by_seed(other))


def winner(entries: Sequence[Entry]) -> Entry | None:
    """The recommended entry of the largest train_size that has one: what best/ holds, and what is tested, once.

    None where no trial came to an end with a score.
    """
    return next((entry for entry in entries if entry["recommended"]), None)


def judged(entries: Sequence[Entry]) -> list[Entry]:
    """The entries of the train_size that decides: that of the winner; where there is none, the largest."""
    best = winner(entries) or next(iter(entries), None)
    return [entry for entry in entries if best is not None and entry["train_size"] == best["train_size"]]


def best_trial(entry: Entry) -> str:
    """The entry's trial with the best validation score. Raises ValueError where no trial has one."""
    metric = METRICS[entry["metric"]]
    pairs = zip(entry["trials"], entry["scores"], strict=True)
    scored = [(trial, score) for trial, score in pairs if score is not None]
    if not scored:
        raise ValueError(f"{entry['encoder']} {entry['point']}: no trial has a score")
    return min(scored, key=lambda pair: metric.rank_key(pair[1]))[0]


def verdict(entries: list[Entry]) -> tuple[str, bool]:
    """Did pretraining pay? Its best entry must beat the best random one by more than the larger seed deviation, on the
    most training examples that were judged.

    Returns a sentence for the user and the answer; where there is nothing to compare, the answer is no.
    """
    if all(entry["encoder"] != CONTROL for entry in entries):
        return "No random encoder to compare with: sweep.encoders names none.", False
    whole = [entry for entry in judged(entries) if entry["rank"] is not None]
    trained = next((entry for entry in whole if entry["encoder"] != CONTROL), None)
    control = next((entry for entry in whole if entry["encoder"] == CONTROL), None)
    if trained is None or control is None:
        side = "pretrained" if trained is None else "random"
        return f"No comparison: no entry with a {side} encoder finished.", False
    lead = trained["score_mean"] - control["score_mean"]
    if not METRICS[trained["metric"]].higher_is_better:
        lead = -lead
    if trained["score_std"] is None or control["score_std"] is None:
        one = f"a lead of {lead:+.3f}; with one seed its deviation is not known: give sweep.seeds=2 or more."
        return f"{trained['encoder']} {trained['metric']} {trained['score_mean']:.3f} against random "\
            f"{control['score_mean']:.3f}: {one}", False
    spread = max(trained["score_std"], control["score_std"])
    paid = lead > spread
    sentence = (
        f"{trained['encoder']} {trained['metric']} {trained['score_mean']:.3f} against random "
        f"{control['score_mean']:.3f}: a lead of {lead:+.3f}, "
        f"{'more' if paid else 'not more'} than the seeds' deviation of {spread:.3f}."
    )
    return sentence, paid


def read_leaderboard(run: Path) -> list[Entry] | None:
    """The entries that lie in `run`; None where there are none, or an earlier version wrote them without our keys."""
    path = run / "leaderboard.json"
    entries = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    return entries if entries and all(set(COLUMNS) <= entry.keys() for entry in entries) else None


def write_leaderboard(entries: list[Entry], run: Path) -> None:
    """Write leaderboard.json and leaderboard.csv under `run`, each whole or not at all."""
    write_rows(entries, COLUMNS, run / "leaderboard")


def write_rows(rows: Sequence[Entry], columns: Sequence[str], stem: Path) -> None:
    """Write rows to stem.json and stem.csv; lists and dicts stand in the CSV as JSON."""
    write_text(stem.with_suffix(".json"), json.dumps(rows, indent=2, allow_nan=False) + "\n")
    text = io.StringIO()
    table: csv.DictWriter[str] = csv.DictWriter(text, columns, lineterminator="\n")
    table.writeheader()
    for row in rows:
        table.writerow({k: json.dumps(v) if isinstance(v, dict | list) else v for k, v in row.items()})
    write_text(stem.with_suffix(".csv"), text.getvalue())


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all, also to a bucket."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)
    publish(path)
