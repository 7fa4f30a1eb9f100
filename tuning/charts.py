"""Numbers of a run -> charts as SVG that stands inside a page: text stays text, colours are the page's.

In: records of metrics.jsonl, entries of a leaderboard, results of trials. Out: strings "<svg ...>" without an address,
a script or a font of their own. Colours are CSS variables (--ink --muted --line --series-1 ...), so that a page can be
light or dark. Knows matplotlib, imported when the first chart is drawn, and no files.
"""

import io
import math
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

import numpy as np

Record = dict[str, Any]
# Colours that matplotlib writes into the SVG, each standing for a variable of the page.
INK, MUTED, LINE = "#000001", "#000002", "#000003"
SERIES = ("#000011", "#000012", "#000013", "#000014", "#000015")
VARIABLES = {INK: "--ink", MUTED: "--muted", LINE: "--line"} | {c: f"--series-{i}" for i, c in enumerate(SERIES, 1)}
LARGEST_POINTS = 1200  # of one curve: twice the width in pixels, and 40 kB
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none", "text.parse_math": False, "font.size": 10, "axes.labelsize": 10, "axes.titlesize": 10,
    "text.color": INK, "axes.labelcolor": MUTED, "xtick.color": MUTED, "ytick.color": MUTED, "axes.edgecolor": LINE,
    "grid.color": LINE, "grid.linewidth": 0.8, "axes.grid": True, "axes.axisbelow": True, "axes.spines.top": False,
    "axes.spines.right": False, "axes.spines.left": False, "xtick.major.size": 0, "ytick.major.size": 0,
    "legend.frameon": False, "legend.labelcolor": INK, "lines.linewidth": 1.8, "lines.solid_capstyle": "round",
}  # fmt: skip


def _draw(name: str, description: str, plot: Callable[[Any], None], height: float = 3.4) -> str:
    """An SVG of 7.2 x `height` inches (scaled to the page); `plot` gets the axes."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # glyphs that matplotlib's font lacks: the page's font draws them
        figure = Figure(figsize=(7.2, height), layout="constrained")
        plot(figure.add_subplot())
        file = io.StringIO()
        empty = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=empty)
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :].rstrip()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' (xmlns(:\w+)?|version|width|height)="[^"]*"', "", svg[: svg.index(">")]) + svg[svg.index(">") :]
    svg = svg.replace("xlink:href", "href")
    svg = re.sub(r"font-family:[^;\"]*;? ?", "", svg)  # the page's
    for colour, variable in VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(description)}"', 1)


def short(number: float) -> str:
    """A learning rate as people write it.

    >>> [short(x) for x in (3e-4, 1e-2, 2.5e-5, 1.0)]
    ['3e-4', '1e-2', '2.5e-5', '1']
    """
    if number == 0 or 0.1 <= abs(number) < 1000:
        return f"{number:g}"
    mantissa, exponent = f"{number:.3e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Centred moving mean (N,) -> (N,); at the ends over what is there."""
    kernel = np.ones(min(window, len(values)))
    return np.convolve(values, kernel, "same") / np.convolve(np.ones(len(values)), kernel, "same")


def thin(values: np.ndarray, points: int = LARGEST_POINTS) -> np.ndarray:
    """Means of stretches of equal length, the last one perhaps shorter: (N,) -> (at most `points`,)."""
    starts = np.arange(0, len(values), max(1, math.ceil(len(values) / points)))
    return np.add.reduceat(values, starts) / np.diff(np.append(starts, len(values)))


def _thousands(axis: Any) -> None:
    axis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value == int(value) else "")


def _number(value: float | None) -> float:
    """NaN where there is none: metrics have null for a loss that is no number."""
    return math.nan if value is None else value


def loss_curve(records: Iterable[Record]) -> str | None:
    """Training loss (faint), its moving mean, and the held-out loss; None where there is nothing to draw."""
    records = list(records)
    steps = [r for r in records if math.isfinite(_number(r.get("loss")))]
    evaluations = [r for r in records if math.isfinite(_number(r.get("eval_loss")))]
    if not steps and not evaluations:
        return None

    def plot(axes: Any) -> None:
        if steps:
            x, y = (np.array([r[key] for r in steps], float) for key in ("step", "loss"))
            window = max(1, len(y) // 50)
            axes.plot(thin(x), thin(y), color=SERIES[0], alpha=0.22, linewidth=0.7)
            axes.plot(thin(x), thin(smooth(y, window)), color=SERIES[0], label=f"training, mean of {window} steps")
        if evaluations:
            x, y = ([r[key] for r in evaluations] for key in ("step", "eval_loss"))
            axes.plot(x, y, color=SERIES[1], marker="o", markersize=5, label="held-out")
            axes.annotate(
                f"{y[-1]:.2f}", (x[-1], y[-1]), (0, 8), textcoords="offset points", ha="right", color=SERIES[1]
            )
        axes.set_xlabel("step")
        axes.set_ylabel("masked loss (nats)")
        _thousands(axes.xaxis)
        axes.legend(loc="upper right")

    return _draw("loss", "Masked loss against the optimizer step", plot)


def series_of(entries: Sequence[Record]) -> dict[tuple[str, str], dict[str, Any]]:
    """(encoder, mode) -> how its line looks: encoders by colour (the random control grey), modes by dash."""
    encoders = [e for e in dict.fromkeys(entry["encoder"] for entry in entries) if e != "random"]
    colours = {e: SERIES[i % len(SERIES)] for i, e in enumerate(encoders)} | {"random": MUTED}
    modes = sorted({entry["mode"] for entry in entries}, key=lambda mode: (mode != "full", mode))
    looks: dict[tuple[str, str], dict[str, Any]] = {}
    for entry in sorted(entries, key=lambda e: (e["encoder"] == "random", e["encoder"], modes.index(e["mode"]))):
        number = modes.index(entry["mode"])
        looks[entry["encoder"], entry["mode"]] = {
            "color": colours[entry["encoder"]],
            "linestyle": ("-", (0, (4, 2.5)), (0, (1, 1.6)), "-.")[number % 4],
            "marker": "osD^"[number % 4],
            "markersize": 6,
            "markerfacecolor": colours[entry["encoder"]] if number == 0 else "none",
            "label": f"{entry['encoder']}, {entry['mode']}",
        }
    return looks


def score_by_learning_rate(entries: Sequence[Record]) -> str | None:
    """One line per encoder and mode, over the best entry of each learning rate; bars are deviations between seeds."""
    scored = [entry for entry in entries if entry.get("score_mean") is not None and entry["learning_rate"] > 0]
    if not scored:
        return None

    def plot(axes: Any) -> None:
        for (encoder, mode), look in series_of(scored).items():
            best: dict[float, Record] = {}  # entries come best first
            for entry in scored:
                if (entry["encoder"], entry["mode"]) == (encoder, mode):
                    best.setdefault(entry["learning_rate"], entry)
            rates = sorted(best)
            means = [best[rate]["score_mean"] for rate in rates]
            deviations = [best[rate]["score_std"] or 0.0 for rate in rates]
            axes.errorbar(rates, means, deviations, elinewidth=1.2, capsize=3, **look)
        baseline = next((b for e in scored if (b := e.get("majority_baseline")) is not None), None)
        if baseline is not None:
            axes.axhline(baseline, color=MUTED, linewidth=1, linestyle=(0, (1, 3)))
            axes.annotate("most frequent label", (1, baseline), (0, 3), xycoords=("axes fraction", "data"),
                          textcoords="offset points", ha="right", color=MUTED, fontsize=9)  # fmt: skip
        _log_rates(axes, [entry["learning_rate"] for entry in scored])
        axes.set_xlabel("learning rate")
        axes.set_ylabel(f"validation {scored[0]['metric']}")
        axes.margins(x=0.08)
        _legend_above(axes)

    return _draw("rates", "Validation score against the learning rate", plot, 3.8)


def score_by_epoch(entries: Sequence[Record], results: Sequence[Record]) -> str | None:
    """How the best point of each encoder and mode came to its score: one thin line per seed."""
    trials = {result["trial"]: result for result in results}
    chosen: dict[tuple[str, str], Record] = {}
    for entry in entries:
        if entry.get("score_mean") is not None:
            chosen.setdefault((entry["encoder"], entry["mode"]), entry)
    curves = {
        key: [trials[t]["epochs"] for t in entry.get("trials", []) if len(trials.get(t, {}).get("epochs") or []) > 1]
        for key, entry in chosen.items()
    }
    if not any(curves.values()):
        return None

    def plot(axes: Any) -> None:
        for key, look in series_of(list(chosen.values())).items():
            for number, epochs in enumerate(curves[key]):
                label = f"{look['label']}, {short(chosen[key]['learning_rate'])}" if number == 0 else None
                line = {**look, "marker": None, "linewidth": 1.3, "label": label}
                axes.plot([e["epoch"] for e in epochs], [e["score"] for e in epochs], **line)
        axes.set_xscale("log")  # full training takes 3 epochs where frozen heads take 30
        longest = max(e["epoch"] for group in curves.values() for epochs in group for e in epochs)
        ticks = [n for n in (1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 500, 1000) if n <= longest]
        axes.set_xticks(ticks, [str(n) for n in ticks])
        axes.set_xticks([], minor=True)
        axes.set_xlabel("epoch")
        axes.set_ylabel(f"validation {entries[0]['metric']}")
        _legend_above(axes)

    return _draw("epochs", "Validation score against the epoch", plot, 3.8)


def _log_rates(axes: Any, rates: list[float]) -> None:
    """A log axis whose ticks are the learning rates tried, or decades where those are many."""
    axes.set_xscale("log")
    ticks = sorted(set(rates))
    if len(ticks) > 8:
        low, high = math.floor(math.log10(ticks[0])), math.ceil(math.log10(ticks[-1]))
        ticks = [10.0**power for power in range(low, high + 1)]
    axes.set_xticks(ticks, [short(rate) for rate in ticks])
    axes.set_xticks([], minor=True)


def _legend_above(axes: Any) -> None:
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, handlelength=2.6, borderaxespad=0.2)
