"""The files of a run or a sweep -> report.html: one page to send to a colleague.

In: a run's folder (metrics.jsonl, summary.json, leaderboard.json, trials/*/result.json, config.yaml; of a sweep also
the pretraining run beside it). Out: one file that loads nothing from elsewhere and runs no script; what stands in the
run's files (labels, paths, errors) is escaped. Reads files only, so it can be written again at any time.
"""

import json
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from data.config import UserError
from orchestration import metrics
from orchestration.budget import in_words
from orchestration.progress import duration
from tuning import charts
from tuning.leaderboard import make_entries, verdict, write_text

Entry = dict[str, Any]
SUFFIX = "-sweep"
# Keys of the space that have a column of their own.
SHOWN_KEYS = ("finetune.mode", "finetune.learning_rate", "finetune.epochs")


def write_report(run: Path) -> Path:
    """Write report.html of a pretraining run or of a sweep (killed or finished) and return its path.

    Raises UserError where there is no such run or nothing to show yet.
    """
    if not run.is_dir():
        raise UserError(f"{run}: no such run; give the name of a run or sweep, or its folder")
    results = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(run.glob("trials/*/result.json"))]
    leaderboard = _read(run / "leaderboard.json")
    entries: list[Entry] = make_entries(results) if leaderboard is None else leaderboard
    pretraining = run.with_name(run.name.removesuffix(SUFFIX))
    records = list(metrics.read(pretraining / "metrics.jsonl"))
    if not entries and (run != pretraining or not records):
        raise UserError(f"{run}: nothing to report yet: it holds neither metrics.jsonl nor results of trials")

    parts = [f"<header><h1>{escape(run.name)}</h1>", f"<p>{_lead(entries, leaderboard is not None)}</p></header>"]
    if entries:
        parts += [
            _figure(charts.score_by_learning_rate(entries), "Score on the validation examples against the learning "
                    "rate: mean over seeds, bars are one sample deviation."),
            "<h2>Leaderboard</h2>",
            _leaderboard(entries),
            _figure(charts.score_by_epoch(entries, results), "The best point of each line, epoch by epoch; one line "
                    "per seed. The best epoch counts."),
        ]  # fmt: skip
    if records:
        parts += [
            "<h2>Pretraining</h2>",
            _facts(_read(pretraining / "summary.json") or {}, records),
            _figure(charts.loss_curve(records), "Loss at the masked positions. Held-out documents are never trained "
                    "on, and their masks are always the same."),
        ]  # fmt: skip
    config = run / "config.yaml"
    if config.is_file():
        text = escape(config.read_text(encoding="utf-8"))
        parts.append(f"<details><summary>Config</summary><pre>{text}</pre></details>")
    page = PAGE.replace("TITLE", escape(run.name)).replace("STYLE", STYLE).replace("BODY", "\n".join(parts))
    target = run / "report.html"
    write_text(target, page)
    return target


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def _figure(svg: str | None, caption: str) -> str:
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>" if svg else ""


def _lead(entries: Sequence[Entry], finished: bool) -> str:
    """What came out, in a sentence or two."""
    scored = [entry for entry in entries if entry["score_mean"] is not None]
    if not entries:
        return "Pretraining with masked language modelling."
    if not scored:
        return "No trial has a score."
    best = scored[0]
    sentence = (
        f"Best: <strong>{escape(best['encoder'])}, {escape(best['mode'])}</strong>, learning rate "
        f"{charts.short(best['learning_rate'])}: validation {escape(best['metric'])} <strong>{_score(best)}</strong>"
    )
    if best.get("test_score") is not None:
        sentence += f", test {best['test_score']:.3f}"
    sentence += "."
    if {"random"} < {entry["encoder"] for entry in scored}:
        reason, paid = verdict(list(entries))
        answer = "Pretraining paid: " if paid else "Pretraining did not pay: "
        sentence += f" {'' if reason.startswith('No comparison') else answer}{escape(reason)}"
    return sentence if finished else f"The sweep has not finished; so far: {sentence}"


def _score(entry: Entry) -> str:
    if entry["score_mean"] is None:
        return "–"
    spread = "" if entry["score_std"] is None else f" ± {entry['score_std']:.3f}"
    return f"{entry['score_mean']:.3f}{spread}"


def _number(value: Any) -> str:
    return "–" if value is None else f"{value:,}"


COLUMNS: dict[str, Callable[[Entry], str]] = {
    "encoder": lambda e: e["encoder"],
    "mode": lambda e: e["mode"],
    "learning rate": lambda e: charts.short(e["learning_rate"]),
    "epochs": lambda e: _number(e.get("epochs")),
    "validation": _score,
    "test": lambda e: "" if e.get("test_score") is None else f"{e['test_score']:.3f}",
    "seeds": lambda e: str(e["seeds"]),
    "time": lambda e: duration(e["seconds"]),
    "trained parameters": lambda e: _number(e["trained_parameters"]),
    "status": lambda e: e["status"] + (f": {e['error']}" if e.get("error") else ""),
}


def _leaderboard(entries: Sequence[Entry]) -> str:
    """The table, best first; keys of the space without a column of their own get one each."""
    columns = dict(COLUMNS)
    others = sorted({key for entry in entries for key in entry.get("values") or {} if key not in SHOWN_KEYS})
    for key in others:
        columns[key.removeprefix("finetune.")] = lambda e, key=key: str((e.get("values") or {}).get(key, "–"))
    if all(entry["status"] == "done" for entry in entries):
        del columns["status"]
    kinds = {name: "word" if name in ("encoder", "mode", "status") else "n" for name in columns}
    lines = []
    for rank, entry in enumerate(entries):
        cells = [f'<td class="{kinds[name]}">{escape(show(entry))}</td>' for name, show in columns.items()]
        lines.append(f"<tr{' class=best' if rank == 0 else ''}>{''.join(cells)}</tr>")
    head = "".join(f'<th class="{kinds[name]}">{escape(name)}</th>' for name in columns)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


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

    facts = {
        "held-out masked loss": show(lambda a, b: f"{a:.2f} → {b:.2f}", "eval_loss_before", "eval_loss_after"),
        "masked tokens guessed": show(lambda a, b: f"{a:.1%} → {b:.1%}", "eval_accuracy_before", "eval_accuracy_after"),
        "steps": show("{:,}".format, "steps"),
        "tokens": show("{:,}".format, "tokens"),
        "tokens per second": show("{:,.0f}".format, "tokens_per_second"),
        "time": show(duration, "seconds"),
        "spent": show(in_words, "spent"),
        "workers": show(lambda n, stage: f"{n}, ZeRO stage {stage}", "workers", "zero_stage"),
        "documents": show(lambda n, kept: f"{n:,} read, {kept:,} kept", "documents_read", "documents_kept"),
    }
    cells = (f"<div><dt>{name}</dt><dd>{escape(text)}</dd></div>" for name, text in facts.items() if text)
    return f"<dl>{''.join(cells)}</dl>"


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>TITLE</title>
<style>STYLE</style>
</head>
<body>
<main>
BODY
</main>
</body>
</html>
"""
STYLE = """
:root { color-scheme: light dark; --paper: #fdfcf9; --ink: #1d1d1b; --muted: #6f6d66; --line: #e3e0d8; --tint: #f4f1e9;
  --series-1: #1f5fa8; --series-2: #c0561a; --series-3: #2f7d4f; --series-4: #7b4a9e; --series-5: #9a7b12; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #171715; --ink: #e9e6de; --muted: #9c998f; --line: #34332f; --tint: #22211e;
    --series-1: #7fb2ea; --series-2: #ee9a63; --series-3: #7cc598; --series-4: #c29ae0; --series-5: #d9bb56; } }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 46rem; margin: 0 auto; padding: 3.5rem 1.25rem 5rem; }
h1 { font-size: 1.9rem; line-height: 1.2; letter-spacing: -0.015em; margin: 0 0 .6rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 3.2rem 0 .8rem; }
header p { margin: 0; max-width: 40rem; overflow-wrap: anywhere; }
figure { margin: 2.2rem 0 0; }
figure svg { display: block; width: 100%; height: auto; font-family: system-ui, sans-serif; }
figcaption { color: var(--muted); font-size: .875rem; margin-top: .5rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .875rem; }
th { color: var(--muted); font-weight: 500; vertical-align: bottom; line-height: 1.25; }
th, td { padding: .42rem .7rem; border-bottom: 1px solid var(--line); font-variant-numeric: tabular-nums; }
.n { text-align: right; white-space: nowrap; } th.n { white-space: normal; } .word { text-align: left; }
.best td { background: var(--tint); font-weight: 600; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(10.5rem, 1fr)); gap: 1.1rem 1.5rem; margin: 0; }
dt { color: var(--muted); font-size: .8125rem; } dd { margin: 0; font-variant-numeric: tabular-nums; }
details { margin-top: 3.2rem; border-top: 1px solid var(--line); padding-top: 1rem; } summary { cursor: pointer; }
pre { background: var(--tint); padding: 1rem; overflow-x: auto; font: .8125rem/1.5 ui-monospace, monospace; }
"""
