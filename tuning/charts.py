"""A leaderboard -> its charts: score against learning rate, cost, training examples and epochs.

In: entries of tuning/leaderboard.py, results of trials. Out: SVG of tuning/drawing.py; None where there is nothing to
draw. Bars are 95 % intervals of the mean over seeds, small dots the seeds. Encoders have colours and modes dashes; more
lines than can be told apart get a panel for each encoder.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tuning.curve import best_by_size
from tuning.drawing import INK, LINE, MUTED, SERIES, draw, legend_above, log_ticks
from tuning.leaderboard import CONTROL, Entry
from tuning.wording import names_of, short

Look = dict[str, Any]
Key = tuple[str, str]  # encoder, mode
MOST_LINES = 6  # on one panel
MOST_ON_A_LINE = 8  # learning rates that are joined; more were drawn at random, with other values between
BEYOND = 0.35  # of the scores' span: how far an interval may widen the chart; a wider one runs out of it
DASHES = ("-", (0, (4, 2.5)), (0, (1, 1.6)), "-.")
MARKERS = "osD^"


def looks_of(entries: Sequence[Mapping[str, Any]], by_mode: bool = False) -> dict[Key, Look]:
    """(encoder, mode) -> how its line looks: encoders by colour (the random control grey), modes by dash and marker.

    by_mode: modes by colour too, for panels that have one encoder each.
    """
    encoders = [e for e in dict.fromkeys(entry["encoder"] for entry in entries) if e != CONTROL]
    colours = {e: SERIES[i % len(SERIES)] for i, e in enumerate(encoders)} | {CONTROL: MUTED}
    modes = sorted({entry["mode"] for entry in entries}, key=lambda mode: (mode != "full", mode))
    names = names_of(entry["encoder"] for entry in entries)
    looks: dict[Key, Look] = {}
    for entry in sorted(entries, key=lambda e: (e["encoder"] == CONTROL, e["encoder"], modes.index(e["mode"]))):
        number = modes.index(entry["mode"])
        colour = SERIES[number % len(SERIES)] if by_mode else colours[entry["encoder"]]
        looks[entry["encoder"], entry["mode"]] = {
            "color": colour, "linestyle": DASHES[number % 4], "marker": MARKERS[number % 4], "markersize": 6,
            "markerfacecolor": colour if number == 0 else "none",
            "label": entry["mode"] if by_mode else f"{names[entry['encoder']]}, {entry['mode']}",
        }  # fmt: skip
    return looks


def _draw_lines(
    name: str,
    description: str,
    entries: Sequence[Entry],
    line: Callable[[Any, Key, Look], None],
    finish: Callable[[Any], None],
    height: float,
) -> str:
    """A line for each (encoder, mode) of `entries`, on one panel or on one for each encoder."""
    looks = looks_of(entries)
    encoders = list(dict.fromkeys(encoder for encoder, _ in looks))
    if len(looks) <= MOST_LINES or len(encoders) == 1:

        def plot(axes: Any) -> None:
            for key, look in looks.items():
                line(axes, key, look)
            finish(axes)
            legend_above(axes)

        return draw(name, description, plot, height)
    looks, names = looks_of(entries, by_mode=True), names_of(encoders)

    def plot_panels(*panels: Any) -> None:
        for axes, encoder in zip(panels, encoders, strict=True):
            for key, look in looks.items():
                if key[0] == encoder:
                    line(axes, key, look)
            finish(axes)
            axes.set_title(names[encoder])
            axes.label_outer()
        known = {look["label"]: axes.plot([], [], **look)[0] for look in looks.values()}
        panels[0].figure.legend(handles=list(known.values()), loc="outside upper left", ncols=4, handlelength=2.6)

    rows = math.ceil(len(encoders) / 2)
    return draw(name, description, plot_panels, 0.7 + 2.3 * rows, len(encoders), 2)


def _points(axes: Any, entries: Sequence[Entry], places: Sequence[float], look: Look, joined: bool = True) -> None:
    """Means with their intervals at `places`, and the seeds' own scores beside them."""
    means = [entry["score_mean"] for entry in entries]
    halves = [entry["score_ci95"] or 0.0 for entry in entries]
    line = look if joined else {**look, "linestyle": ""}
    axes.errorbar(places, means, halves, elinewidth=1.1, capsize=2.5, **line)
    for entry, place in zip(entries, places, strict=True):
        seeds = [score for score in entry["scores"] if score is not None]
        axes.plot([place] * len(seeds), seeds, ".", color=look["color"], markersize=3.5, alpha=0.55)


def _beside(best: Mapping[Key, Mapping[Any, Entry]]) -> dict[Key, float]:
    """What to multiply the places of each line by, on a logarithmic axis, so that bars at one place stand side by side.

    `best`: of each line its entries by place.
    """
    places = [place for of in best.values() for place in of]
    several = len(places) > len(set(places))
    step = (max(places) / min(places)) ** (0.04 / max(4, len(best))) if several else 1.0
    return {key: step ** (number - (len(best) - 1) / 2) for number, key in enumerate(best)}


def _limit(axes: Any, entries: Sequence[Entry]) -> None:
    """Scores fill the chart: an interval of two seeds, twelve times their spread, would squeeze them into a line."""
    seeds = [score for entry in entries for score in entry["scores"] if score is not None]
    low, high = min(seeds), max(seeds)
    span = (high - low) or 0.1 * abs(high) or 1.0
    ends = [(entry["score_mean"], entry["score_ci95"] or 0.0) for entry in entries]
    low = max(low - BEYOND * span, min(low, *(mean - half for mean, half in ends)))
    high = min(high + BEYOND * span, max(high, *(mean + half for mean, half in ends)))
    if max(seeds) <= 1:  # all scores that there are end at 1
        high = min(high, 1.0)
    axes.set_ylim(low - 0.06 * span, high + 0.06 * span)


def _whole(entries: Sequence[Entry]) -> list[Entry]:
    """Entries to draw: those with a rank; where none has one, what there is."""
    ranked = [entry for entry in entries if entry["rank"] is not None]
    return ranked or [entry for entry in entries if entry["score_mean"] is not None]


def score_by_learning_rate(entries: Sequence[Entry]) -> str | None:
    """One line per encoder and mode, over the best entry of each learning rate; stopped ones as crosses."""
    whole = [entry for entry in _whole(entries) if entry["learning_rate"] > 0]
    stopped = [entry for entry in entries if entry["status"] == "stopped" and entry["score_mean"] is not None]
    if not whole:
        return None
    best: dict[Key, dict[float, Entry]] = {}
    for entry in whole:  # best first
        best.setdefault((entry["encoder"], entry["mode"]), {}).setdefault(entry["learning_rate"], entry)

    beside = _beside(best)

    def line(axes: Any, key: Key, look: Look) -> None:
        rates = sorted(best[key])
        places = [rate * beside[key] for rate in rates]
        _points(axes, [best[key][rate] for rate in rates], places, look, len(rates) <= MOST_ON_A_LINE)
        for entry in stopped:
            if (entry["encoder"], entry["mode"]) == key:
                place = entry["learning_rate"], entry["score_mean"]
                axes.plot(*place, "x", color=look["color"], markersize=4, alpha=0.6)

    def finish(axes: Any) -> None:
        axes.set_xscale("log")
        _limit(axes, [*whole, *stopped])
        baseline = next((b for e in whole if (b := e["majority_baseline"]) is not None), None)
        if baseline is not None and axes.get_ylim()[0] < baseline < axes.get_ylim()[1]:
            axes.axhline(baseline, color=MUTED, linewidth=1, linestyle=(0, (1, 3)))
            axes.annotate("most frequent answer", (1, baseline), (0, 3), xycoords=("axes fraction", "data"),
                          textcoords="offset points", ha="right", color=MUTED, fontsize=9)  # fmt: skip
        log_ticks(axes.xaxis, [entry["learning_rate"] for entry in [*whole, *stopped]])
        axes.set(xlabel="learning rate", ylabel=f"validation {whole[0]['metric']}")
        axes.margins(x=0.08)

    return _draw_lines("rates", "Validation score against the learning rate", whole, line, finish, 3.8)


def score_by_cost(entries: Sequence[Entry]) -> str | None:
    """One mark per entry against its worker-seconds; a thin line joins those that nothing cheaper beats."""
    whole = [entry for entry in _whole(entries) if entry["worker_seconds"] > 0]
    if not whole:
        return None

    looks = looks_of(whole)

    def plot(axes: Any) -> None:
        for key, look in looks.items():
            of_line = [entry for entry in whole if (entry["encoder"], entry["mode"]) == key]
            costs = [entry["worker_seconds"] for entry in of_line]
            halves = [entry["score_ci95"] or 0.0 for entry in of_line]
            means = [entry["score_mean"] for entry in of_line]
            axes.errorbar(costs, means, halves, elinewidth=0.9, alpha=0.3, color=look["color"], linestyle="")
            axes.plot(costs, means, **{**look, "linestyle": ""})
        front: list[Entry] = []
        for entry in sorted(whole, key=lambda one: (one["worker_seconds"], one["rank"] or 0)):
            if not front or (entry["rank"] or 0) < (front[-1]["rank"] or 0):
                front.append(entry)
        steps = [entry["worker_seconds"] for entry in front], [entry["score_mean"] for entry in front]
        axes.plot(*steps, drawstyle="steps-post", color=MUTED, linewidth=0.9, zorder=0)
        for entry in whole:
            if entry["recommended"]:
                place = entry["worker_seconds"], entry["score_mean"]
                axes.plot(*place, "o", markersize=13, markerfacecolor="none", color=INK, markeredgewidth=1)
                axes.annotate("recommended", place, (-7, 7), textcoords="offset points", ha="right", fontsize=9)
        axes.set_xscale("log")
        _limit(axes, whole)
        log_ticks(axes.xaxis, [entry["worker_seconds"] for entry in whole], _seconds)
        axes.set(xlabel="worker-seconds of all seeds", ylabel=f"validation {whole[0]['metric']}")
        axes.margins(x=0.1)
        few = len(looks) <= MOST_LINES
        legend_above(axes, 2 if few else 4, None if few else _two_keys(axes, looks))

    return draw("costs", "Validation score against cost in worker-seconds", plot, 3.8)


def _two_keys(axes: Any, looks: Mapping[Key, Look]) -> list[Any]:
    """Handles for a legend of many lines: what colours say, then what marks say."""
    names = names_of(encoder for encoder, _ in looks)
    both = {names[encoder]: {"color": look["color"], "marker": "o"} for (encoder, _), look in looks.items()}
    for (_, mode), look in looks.items():
        filled = look["markerfacecolor"] != "none"
        both[mode] = {"color": INK, "marker": look["marker"], "markerfacecolor": INK if filled else "none"}
    return [axes.plot([], [], linestyle="", label=name, **look)[0] for name, look in both.items()]


def _seconds(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


def score_by_train_size(entries: Sequence[Entry]) -> str | None:
    """Learning curves: the best entry of each encoder and mode on each number of training examples."""
    best = best_by_size(entries)
    if not best:
        return None
    drawn = [entry for of in best.values() for entry in of.values()]
    beside = _beside(best)

    def line(axes: Any, key: Key, look: Look) -> None:
        _points(axes, list(best[key].values()), [size * beside[key] for size in best[key]], look)

    def finish(axes: Any) -> None:
        axes.set_xscale("log")
        _limit(axes, drawn)
        log_ticks(axes.xaxis, [size for of in best.values() for size in of], "{:,.0f}".format)
        axes.set(xlabel="training examples", ylabel=f"validation {drawn[0]['metric']}")
        axes.margins(x=0.08)

    return _draw_lines("sizes", "Validation score against the number of training examples", drawn, line, finish, 3.8)


def score_by_epoch(entries: Sequence[Entry], results: Sequence[Mapping[str, Any]]) -> str | None:
    """How the best point of each encoder and mode came to its score: one thin line per seed."""
    trials = {result["trial"]: result for result in results}
    chosen: dict[Key, Entry] = {}
    for entry in entries:
        if entry["score_mean"] is not None:
            chosen.setdefault((entry["encoder"], entry["mode"]), entry)
    curves = {
        key: [trials[t]["epochs"] for t in entry["trials"] if len(trials.get(t, {}).get("epochs") or []) > 1]
        for key, entry in chosen.items()
    }
    if not any(curves.values()):
        return None
    longest = max(e["epoch"] for group in curves.values() for epochs in group for e in epochs)

    def line(axes: Any, key: Key, look: Look) -> None:
        for number, epochs in enumerate(curves[key]):
            label = f"{look['label']}, {short(chosen[key]['learning_rate'])}" if number == 0 else None
            style = {**look, "marker": None, "linewidth": 1.3, "label": label}
            axes.plot([e["epoch"] for e in epochs], [e["score"] for e in epochs], **style)

    def finish(axes: Any) -> None:
        axes.set_xscale("log")  # full training takes 3 epochs where frozen heads take 30
        ticks = [n for n in (1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 500, 1000) if n <= longest]
        axes.set_xticks(ticks, [str(n) for n in ticks])
        axes.set_xticks([], minor=True)
        axes.grid(color=LINE)
        axes.set(xlabel="epoch", ylabel=f"validation {entries[0]['metric']}")

    return _draw_lines("epochs", "Validation score against the epoch", list(chosen.values()), line, finish, 3.8)
