"""How charts are drawn: matplotlib's figures as SVG that stands inside a page. Text stays text, colours are the page's.

In: functions that plot on axes. Out: strings "<svg ...>" without an address, a script or a font of their own. Colours
are CSS variables (--ink --muted --line --series-1 ...), so that a page can be light or dark. Knows matplotlib, imported
when the first chart is drawn, and no data.
"""

import io
import math
import re
import warnings
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from tuning.wording import short

# Colours that matplotlib writes into the SVG, each standing for a variable of the page.
INK, MUTED, LINE = "#000001", "#000002", "#000003"
SERIES = ("#000011", "#000012", "#000013", "#000014", "#000015")
VARIABLES = {INK: "--ink", MUTED: "--muted", LINE: "--line"} | {c: f"--series-{i}" for i, c in enumerate(SERIES, 1)}
WIDTH = 7.2  # inches, scaled to the page
MOST_TICKS = 8
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none", "text.parse_math": False, "font.size": 10, "axes.labelsize": 10, "axes.titlesize": 10,
    "text.color": INK, "axes.labelcolor": MUTED, "xtick.color": MUTED, "ytick.color": MUTED, "axes.edgecolor": LINE,
    "grid.color": LINE, "grid.linewidth": 0.8, "axes.grid": True, "axes.axisbelow": True, "axes.spines.top": False,
    "axes.spines.right": False, "axes.spines.left": False, "xtick.major.size": 0, "ytick.major.size": 0,
    "legend.frameon": False, "legend.labelcolor": INK, "lines.linewidth": 1.8, "lines.solid_capstyle": "round",
    "axes.titlelocation": "left", "axes.titlecolor": INK,
}  # fmt: skip


def draw(
    name: str,
    description: str,
    plot: Callable[..., None],
    height: float = 3.4,
    panels: int = 1,
    columns: int = 1,
) -> str:
    """An SVG of `height` inches; `plot` gets the axes, one for each of `panels`, which share both scales."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # glyphs that matplotlib's font lacks: the page's font draws them
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        rows = math.ceil(panels / columns)
        axes = list(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)
        for unused in axes[panels:]:
            unused.remove()
        plot(*axes[:panels])
        file = io.StringIO()
        empty = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=empty)
    return _for_a_page(file.getvalue(), description)


def _for_a_page(svg: str, description: str) -> str:
    svg = svg[svg.index("<svg") :].rstrip()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' (xmlns(:\w+)?|version|width|height)="[^"]*"', "", svg[: svg.index(">")]) + svg[svg.index(">") :]
    svg = svg.replace("xlink:href", "href")
    svg = re.sub(r"font-family:[^;\"]*;? ?", "", svg)  # the page's
    for colour, variable in VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(description)}"', 1)


def log_ticks(axis: Any, values: Sequence[float], form: Callable[[float], str] = short) -> None:
    """Ticks of a logarithmic axis at the values that there are, or at decades where those are many or too near."""
    ticks = sorted(set(values))
    near = any(b / a < 1.3 for a, b in zip(ticks, ticks[1:], strict=False))
    if len(ticks) > MOST_TICKS or near:
        low, high = math.floor(math.log10(ticks[0])), math.ceil(math.log10(ticks[-1]))
        step = max(1, math.ceil((high - low) / MOST_TICKS))
        factors = (1, 2, 5) if high - low <= 2 else (1,)
        ticks = [factor * 10.0**power for power in range(low, high + 1, step) for factor in factors]
        ticks = [tick for tick in ticks if 0.99 * min(values) <= tick <= 1.01 * max(values)] or [min(values)]
    axis.set_ticks(ticks, [form(tick) for tick in ticks])
    axis.set_ticks([], minor=True)


def legend_above(axes: Any, columns: int = 2, handles: Sequence[Any] | None = None) -> None:
    """The legend over the axes, at their left edge; `handles`: of these artists alone."""
    axes.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, handlelength=2.6, borderaxespad=0.2
    )
