"""The winner's errors (winner.json) -> the part of a report that shows them: which labels, which examples. HTML.

In: what tuning/analysis.py found. Out: parts for tuning/page.py. Knows no files.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tuning import winner_charts
from tuning.page import facts, figure, folded, heading, paragraph, table

SHOWN_LABELS = 12  # those with the lowest F1; the others unfold


def winner_section(found: Mapping[str, Any]) -> list[str]:
    """Heading, key figures, confusion matrix or dots, scores by label, the hardest errors."""
    several = found["num_examples"]
    wrong = found["num_wrong"]
    figures = {
        "validation examples": f"{several:,}",
        "wrong": None if wrong is None else f"{wrong:,} ({wrong / max(1, several):.1%})",
        "longer than what is read": f"{found['num_cut']:,}" if found["num_cut"] else None,
    }
    parts = [heading("Where the winner is wrong"), facts(figures)]
    if found["confusion"]:
        parts.append(figure(winner_charts.confusion_matrix(found["confusion"]), "Validation examples by right label "
                            "(rows) and predicted label; the darker, the larger the share of the row."))  # fmt: skip
    if found["dots"]:
        parts.append(figure(winner_charts.numbers(found["dots"]), "Predicted numbers against the right ones; on the "
                            "dotted line they are equal."))  # fmt: skip
    return [*parts, _labels(found["per_label"]), _errors(found["hardest"])]


def _labels(labels: Sequence[Mapping[str, Any]]) -> str:
    """Scores by label, the lowest F1 first."""
    worst = sorted(labels, key=lambda one: (one["f1"], -one["support"]))
    lines = [
        [one["label"], *(f"{one[key]:.3f}" for key in ("precision", "recall", "f1")), f"{one['support']:,}"]
        for one in worst
    ]
    columns = {"label": "word", "precision": "n", "recall": "n", "F1": "n", "examples": "n"}
    few = table(columns, lines[:SHOWN_LABELS], caption="By label, the lowest F1 first")
    return few + folded(f"{len(lines) - SHOWN_LABELS} more labels", table(columns, lines[SHOWN_LABELS:]))


def _errors(errors: Sequence[Mapping[str, Any]]) -> str:
    """The hardest errors, with the second text where there is one."""
    has_pair = any(one["pair"] is not None for one in errors)
    has_probability = any(one["probability"] is not None for one in errors)
    columns = {"where": "long", "text": "long"} | ({"second text": "long"} if has_pair else {})
    columns |= {"right": "long", "predicted": "long"} | ({"probability": "n"} if has_probability else {})
    lines: list[list[str]] = []
    for one in errors:
        pair = [one["pair"] or ""] if has_pair else []
        sure = ["–" if one["probability"] is None else f"{one['probability']:.3f}"] if has_probability else []
        sides = _shown(one["target"]), _shown(one["prediction"])
        lines.append([Path(one["place"]).name, one["text"], *pair, *sides, *sure])
    title = heading("The hardest errors") if lines else ""
    note = "Validation examples that are wrong, the hardest first: mistakes of the model, and sometimes of the labels."
    return title + (paragraph(note, "note") if lines else "") + table(columns, lines)


def _shown(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
