"""Records of metrics.jsonl -> the chart of a pretraining run: the masked loss, in training and held out.

Knows no files, and of drawing only tuning/drawing.py.
"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from tuning.drawing import SERIES, draw

Record = dict[str, Any]
LARGEST_POINTS = 1200  # of one curve: twice the width in pixels, and 40 kB


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Centred moving mean (N,) -> (N,); at the ends over what is there."""
    kernel = np.ones(min(window, len(values)))
    return np.convolve(values, kernel, "same") / np.convolve(np.ones(len(values)), kernel, "same")


def thin(values: np.ndarray, points: int = LARGEST_POINTS) -> np.ndarray:
    """Means of stretches of equal length, the last one perhaps shorter: (N,) -> (at most `points`,)."""
    starts = np.arange(0, len(values), max(1, math.ceil(len(values) / points)))
    return np.add.reduceat(values, starts) / np.diff(np.append(starts, len(values)))


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
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value == int(value) else "")
        axes.legend(loc="upper right")

    return draw("loss", "Masked loss against the optimizer step", plot)
