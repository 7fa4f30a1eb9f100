"""The files of a run, a sweep or a suite of tasks -> report.html: one page to send to a colleague.

In: a run's folder (metrics.jsonl, summary.json, leaderboard.json, winner.json, suite.json, trials/*/result.json,
config.yaml; of a sweep also the pretraining run beside it). Out: one file that loads nothing from elsewhere and runs no
script; what stands in the run's files (labels, paths, errors) is escaped. Reads files only, so it can be written again
at any time.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from data.config import UserError
from orchestration import metrics
from orchestration.budget import in_words
from orchestration.progress import duration
from tuning import charts, curve
from tuning.leaderboard import CONTROL, Entry, judged, make_entries, read_leaderboard, verdict, winner, write_text
from tuning.loss_chart import loss_curve
from tuning.page import Link, facts, figure, folded, heading, page, paragraph, table
from tuning.recommendation import recommendation
from tuning.table import Row, grid, read_suite
from tuning.winner_section import winner_section
from tuning.wording import names_of, short, size_text, time_text, with_interval

SUFFIX = "-sweep"
# Keys of the space that have a column of their own.
SHOWN_KEYS = ("finetune.mode", "finetune.learning_rate", "finetune.epochs")
SHOWN_ENTRIES = 20


def write_report(run: Path) -> Path:
    """Write report.html of a pretraining run, of a sweep (killed or finished) or of a suite; returns its path.

    Of a suite the reports of its tasks are written too. Raises UserError where there is no such run or nothing to show.
    """
    if not run.is_dir():
        raise UserError(f"{run}: no such run; give the name of a run or sweep, or its folder")
    rows = read_suite(run)
    results = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(run.glob("trials/*/result.json"))]
    leaderboard = read_leaderboard(run)
    entries = make_entries(results) if leaderboard is None else leaderboard
    pretraining = run.with_name(run.name.removesuffix(SUFFIX))
    records = list(metrics.read(pretraining / "metrics.jsonl"))
    if not entries and not rows and (run != pretraining or not records):
        raise UserError(f"{run}: nothing to report yet: it holds neither metrics.jsonl nor results of trials")

    if rows:
        parts = _suite(rows, run)
    elif entries:
        parts = _sweep(entries, results, leaderboard is not None, _read(run / "winner.json"))
    else:
        parts = [paragraph("Pretraining with masked language modelling.", "lead")]
    if records:
        parts += [
            heading("Pretraining"),
            _facts(_read(pretraining / "summary.json") or {}, records),
            figure(loss_curve(records), "Loss at the masked positions. Held-out documents are never trained on, and "
                   "their masks are always the same."),
        ]  # fmt: skip
    config = run / "config.yaml"
    if config.is_file():
        parts.append(folded("Config", f"<pre>{escape(config.read_text(encoding='utf-8'))}</pre>"))
    target = run / "report.html"
    write_text(target, page(run.name, [f"<h1>{escape(run.name)}</h1>", *parts]))
    return target


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def _sweep(entries: list[Entry], results: Sequence[Any], finished: bool, found: Mapping[str, Any] | None) -> list[str]:
    """A sweep's part of the page, the recommendation on top."""
    board, best = judged(entries), winner(entries)
    interval = (
        "Bars are 95 % intervals of the mean over seeds (Student's t), small dots the seeds; where a bar leaves the "
        "chart, it goes on."
    )
    constant = next((b for entry in board if (b := entry["majority_baseline"]) is not None), None)
    always = "" if constant is None else f" Always giving the most frequent answer scores {constant:.3f}."
    parts = [
        *_lead(entries, finished),
        figure(charts.score_by_learning_rate(board), "Score on the validation examples against the learning rate. "
               + interval + (" Crosses were stopped by the race." if _of(board, "stopped") else "") + always),
        heading("Leaderboard"),
        *_leaderboard(entries),
        figure(charts.score_by_cost(board), "The same scores against what they cost: seconds of training and "
               "validation times the processes that shared a trial, over all seeds. The pass that caches the outputs "
               "of a frozen encoder is made once for all and not in it. Nothing on or under the thin line is cheaper "
               "and better."),
    ]  # fmt: skip
    if svg := charts.score_by_train_size(entries):
        names, lines = curve.grid(entries)
        parts += [
            heading("How much data"), paragraph(curve.sentence(entries)),
            figure(svg, f"The best learning rate of each mode on each number of training examples. {interval}"),
            table({name: "word" if i == 0 else "n" for i, name in enumerate(names)}, lines),
        ]  # fmt: skip
    parts.append(figure(charts.score_by_epoch(board, results), "The best point of each line, epoch by epoch; one line "
                        "per seed. The best epoch counts."))  # fmt: skip
    if found is not None and best is not None and found["trial"] in best["trials"]:
        parts += winner_section(found)
    return parts


def _of(entries: Sequence[Entry], status: str) -> list[Entry]:
    return [entry for entry in entries if entry["status"] == status]


def _lead(entries: list[Entry], finished: bool) -> list[str]:
    """What came out, in a sentence or two, and how it was found."""
    best = winner(entries)
    so_far = "" if finished else "The sweep has not finished; so far: "
    parts = [paragraph(so_far + recommendation(entries), "lead")]
    if best is not None and best["test_score"] is not None:
        parts.append(paragraph(f"On the test examples, scored once: {best['metric']} {best['test_score']:.3f}."))
    if {CONTROL} < {entry["encoder"] for entry in entries if entry["score_mean"] is not None}:
        reason, paid = verdict(entries)
        answer = "" if reason.startswith("No comparison") else f"Pretraining {'paid' if paid else 'did not pay'}: "
        parts.append(paragraph(answer + reason))
    return parts


COLUMNS: dict[str, Callable[[Entry], str]] = {
    "encoder": lambda e: e["encoder"],
    "mode": lambda e: e["mode"],
    "learning rate": lambda e: short(e["learning_rate"]),
    "epochs": lambda e: f"{e['epochs']:,}",
    "validation": lambda e: with_interval(e["score_mean"], e["score_ci95"]),
    "against the best": lambda e: "" if e["difference_mean"] is None else with_interval(
        e["difference_mean"], e["difference_ci95"], "+"),
    "test": lambda e: "" if e["test_score"] is None else f"{e['test_score']:.3f}",
    "seeds": lambda e: str(e["seeds"]),
    "worker time": lambda e: time_text(e["worker_seconds"]),
    "trained parameters": lambda e: "–" if e["trained_parameters"] is None else f"{e['trained_parameters']:,}",
    "status": lambda e: _status(e),
}  # fmt: skip


def _status(entry: Entry) -> str:
    if entry["error"]:
        return f"{entry['status']}: {entry['error']}"
    tied = "tied" if entry["tied"] and entry["rank"] != 1 else ""
    return ("recommended" if entry["recommended"] else tied) if entry["status"] == "done" else entry["status"]


def _leaderboard(entries: Sequence[Entry]) -> list[str]:
    """The table of the train_size that decides, best first; what a race stopped, and the other sizes, unfold."""
    board = judged(entries)
    shown = [entry for entry in board if entry["status"] != "stopped"]
    stopped, rest = _of(board, "stopped"), shown[SHOWN_ENTRIES:]
    others = [entry for entry in entries if entry["train_size"] != board[0]["train_size"]]
    size = size_text(board[0]["train_size"]) if others else ""
    note = (
        "Means over seeds ± 95 % interval. Recommended is the cheapest of those that cannot be told apart from the "
        f"best: the interval of their differences on the same seeds holds 0{_of_few_seeds(shown)}."
    )
    few = [*shown[:SHOWN_ENTRIES], *(entry for entry in rest if entry["status"] != "done" or entry["recommended"])]
    return [
        paragraph(note, "note"),
        _entries(few, f"On {size}" if size else ""),
        folded(f"{len(rest)} more", _entries(rest)) if rest else "",
        folded(f"{len(stopped)} stopped by the race, at the score they had by then", _entries(stopped)),
        *(
            folded(f"On {size_text(of)}", _entries([entry for entry in others if entry["train_size"] == of]))
            for of in dict.fromkeys(entry["train_size"] for entry in others)
        ),
    ]


def _of_few_seeds(entries: Sequence[Entry]) -> str:
    most = max((entry["seeds"] for entry in entries), default=0)
    return {1: " (one seed has none, so the best it is)", 2: ", and of two seeds not both are behind"}.get(most, "")


def _entries(entries: Sequence[Entry], caption: str = "") -> str:
    """Entries as a table; keys of the space without a column of their own get one each, empty columns go."""
    columns = dict(COLUMNS)
    names = names_of(entry["encoder"] for entry in entries)
    columns["encoder"] = lambda e: names[e["encoder"]]
    for key in sorted({key for entry in entries for key in entry["values"] if key not in SHOWN_KEYS}):
        columns[key.removeprefix("finetune.")] = lambda e, key=key: str(e["values"].get(key, "–"))
    lines = [[show(entry) for show in columns.values()] for entry in entries]
    kept = [i for i, name in enumerate(columns) if name not in ("test", "status", "against the best") or any(
        line[i] for line in lines)]  # fmt: skip
    kinds = {name: "word" if name in ("encoder", "mode") else "long" if name == "status" else "n" for name in columns}
    best = [number for number, entry in enumerate(entries) if entry["recommended"]]
    return table(
        {name: kinds[name] for i, name in enumerate(columns) if i in kept},
        [[line[i] for i in kept] for line in lines], best, caption,
    )  # fmt: skip


def _suite(rows: Sequence[Row], run: Path) -> list[str]:
    """A suite's page: the table, and what each task's own sweep recommends, with links to their reports."""
    tasks = {row["task"]: row for row in rows}
    links: dict[str, str | Link] = {}
    answers: list[list[str | Link]] = []
    for task, row in tasks.items():
        if row["encoder"] is not None:
            write_report(run / task)
        links[task] = Link(task, f"{task}/report.html") if row["encoder"] is not None else task
        entries = read_leaderboard(run / task) or []
        answers.append([links[task], recommendation(entries) if entries else f"failed: {row['error']}"])
    names, lines = grid(rows)
    kinds = {name: "word" if i < 2 else "n" for i, name in enumerate(names)}
    return [
        paragraph(f"{len(tasks)} tasks, each a sweep of its own, scored on its validation examples; test: the score of "
                  "the task's winner.", "lead"),
        table(kinds, [[links.get(line[0], line[0]), *line[1:]] for line in lines]),
        paragraph("Mean over seeds ± 95 % interval, the mode and learning rate of each encoder's best.", "note"),
        heading("What to do"),
        table({"task": "word", "recommendation": "long"}, answers),
    ]  # fmt: skip


def _facts(summary: dict[str, Any], records: Sequence[dict[str, Any]]) -> str:
    """Key figures of the pretraining run; of one still running what its metrics tell."""
    evaluations = [r for r in records if "eval_loss" in r]
    steps = [r for r in records if "loss" in r]
    before, after = (evaluations[0], evaluations[-1]) if evaluations else ({}, {})
    known = {
        "eval_loss_before": before.get("eval_loss"), "eval_loss_after": after.get("eval_loss"),
        "eval_accuracy_before": before.get("eval_accuracy"), "eval_accuracy_after": after.get("eval_accuracy"),
        "steps": len(steps), "tokens": sum(r["tokens"] for r in steps), **summary,
    }  # fmt: skip

    def show(form: Callable[..., str], *keys: str) -> str | None:
        values = [known.get(key) for key in keys]
        return None if None in values else form(*values)

    return facts({
        "held-out masked loss": show(lambda a, b: f"{a:.2f} → {b:.2f}", "eval_loss_before", "eval_loss_after"),
        "masked tokens guessed": show(lambda a, b: f"{a:.1%} → {b:.1%}", "eval_accuracy_before", "eval_accuracy_after"),
        "steps": show("{:,}".format, "steps"),
        "tokens": show("{:,}".format, "tokens"),
        "tokens per second": show("{:,.0f}".format, "tokens_per_second"),
        "time": show(duration, "seconds"),
        "spent": show(in_words, "spent"),
        "workers": show(lambda n, stage: f"{n}, ZeRO stage {stage}", "workers", "zero_stage"),
        "documents": show(lambda n, kept: f"{n:,} read, {kept:,} kept", "documents_read", "documents_kept"),
    })  # fmt: skip
