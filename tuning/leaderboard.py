"""Results of trials -> entries, best first; the leaderboard's files; whether pretraining paid.

In: one result per trial (a dict, see tuning/trials.py). Out: one entry per (encoder, point). Pure, files aside.
"""

import csv
import io
import json
import os
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from data.storage import publish
from tuning.scores import METRICS

Entry = dict[str, Any]
# The order of the columns of leaderboard.csv.
COLUMNS = (
    "encoder", "mode", "learning_rate", "epochs", "score_mean", "score_std", "metric", "test_score", "seeds", "scores",
    "best_epochs", "seconds", "trained_parameters", "total_parameters", "majority_baseline", "status", "error", "point",
    "trials", "values",
)  # fmt: skip


def make_entries(results: Iterable[dict[str, Any]]) -> list[Entry]:
    """One entry per (encoder, point), best first by the mean validation score over seeds.

    An entry with a failed or diverged seed keeps the scores of the others but stands behind all whole ones; one
    without any score stands last. `score_std` is the sample deviation, None for fewer than two scores.
    """
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for result in results:
        groups.setdefault((result["encoder"], result["point"]), []).append(result)
    entries = [_entry(sorted(group, key=lambda one: one["seed"])) for group in groups.values()]
    return sorted(
        entries, key=lambda e: (e["status"] != "done", METRICS[e["metric"]].rank_key(e["score_mean"]), e["point"])
    )


def _entry(group: list[dict[str, Any]]) -> Entry:
    first = group[0]
    scores = [one["score"] for one in group]
    finished = [score for score in scores if score is not None]
    statuses = {one["status"] for one in group}
    return {
        "encoder": first["encoder"],
        "mode": first["mode"],
        "learning_rate": first["learning_rate"],
        "epochs": first["num_epochs"],
        "score_mean": statistics.fmean(finished) if finished else None,
        "score_std": statistics.stdev(finished) if len(finished) > 1 else None,
        "metric": first["metric"],
        "test_score": None,
        "seeds": len(group),
        "scores": scores,
        "best_epochs": [one["best_epoch"] for one in group],
        "seconds": round(sum(one["seconds"] for one in group), 3),
        "trained_parameters": next((one["trained_parameters"] for one in group if one["trained_parameters"]), None),
        "total_parameters": next((one["total_parameters"] for one in group if one["total_parameters"]), None),
        "majority_baseline": next((b for one in group if (b := one.get("majority_baseline")) is not None), None),
        "status": next(status for status in ("failed", "nan", "done") if status in statuses),
        "error": next((one["error"] for one in group if one["error"]), None),
        "point": first["point"],
        "trials": [one["trial"] for one in group],
        "values": first["values"],
    }


def best_trial(entry: Entry) -> str:
    """The entry's trial with the best validation score. Raises ValueError where no trial has one."""
    metric = METRICS[entry["metric"]]
    pairs = zip(entry["trials"], entry["scores"], strict=True)
    scored = [(trial, score) for trial, score in pairs if score is not None]
    if not scored:
        raise ValueError(f"{entry['encoder']} {entry['point']}: no trial has a score")
    return min(scored, key=lambda pair: metric.rank_key(pair[1]))[0]


def verdict(entries: list[Entry]) -> tuple[str, bool]:
    """Did pretraining pay? Its best entry must beat the best random one by more than the larger seed deviation.

    Returns a sentence for the user and the answer; where there is nothing to compare, the answer is no.
    """
    if all(entry["encoder"] != "random" for entry in entries):
        return "No random encoder to compare with: sweep.encoders names none.", False
    whole = [entry for entry in entries if entry["status"] == "done"]
    trained = next((entry for entry in whole if entry["encoder"] != "random"), None)
    control = next((entry for entry in whole if entry["encoder"] == "random"), None)
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


def write_leaderboard(entries: list[Entry], run: Path) -> None:
    """Write leaderboard.json and leaderboard.csv under `run`, each whole or not at all."""
    write_text(run / "leaderboard.json", json.dumps(entries, indent=2, allow_nan=False) + "\n")
    text = io.StringIO()
    table: csv.DictWriter[str] = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    table.writeheader()
    for entry in entries:
        table.writerow({k: json.dumps(v) if isinstance(v, dict | list) else v for k, v in entry.items()})
    write_text(run / "leaderboard.csv", text.getvalue())


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all, also to a bucket."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)
    publish(path)
