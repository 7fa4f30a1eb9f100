"""What tuning/analysis.py found of the winner -> charts: the confusion matrix, predicted against right numbers.

Knows no files, and of drawing only tuning/drawing.py.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tuning.drawing import INK, MUTED, SERIES, draw

LONGEST_NAME = 18  # characters of a label beside the matrix
WIDTH, MIDDLE = 0.96, 0.48  # of a cell, with a gap behind it
DARKEST = 0.62  # of the colour: ink on it can still be read


def confusion_matrix(confusion: Mapping[str, Any]) -> str:
    """A heat map: a row for each right label, shaded by its share; diagonal: right ones."""
    names: Sequence[str] = [_short(name) for name in confusion["labels"]]
    counts: Sequence[Sequence[int]] = confusion["counts"]
    number = len(names)
    cell = min(0.62, 5.2 / number)  # inches

    def plot(axes: Any) -> None:
        axes.grid(False)
        cells = [(row, column) for row in range(number) for column in range(number) if counts[row][column]]
        shades = [
            f"{SERIES[row != column]}{round(255 * DARKEST * counts[row][column] / sum(counts[row])):02x}"
            for row, column in cells
        ]
        rows, columns = [row for row, _ in cells], [column + MIDDLE for _, column in cells]
        axes.bar(columns, [WIDTH] * len(cells), WIDTH, rows, color=shades, linewidth=0)
        for row, column in cells:
            text = axes.text(column + MIDDLE, row + MIDDLE, f"{counts[row][column]:,}", ha="center", va="center",
                             color=INK, fontsize=9 if number <= 12 else 7)  # fmt: skip
            text.set_in_layout(False)  # 400 texts would be measured several times
        axes.set(xlim=(0, number), ylim=(number, 0), aspect="equal", xlabel="predicted", ylabel="right", anchor="W")
        slanted = number > 6 or max(map(len, names)) > 8
        axes.set_xticks([i + MIDDLE for i in range(number)], names, rotation=45 if slanted else 0,
                        ha="right" if slanted else "center", rotation_mode="anchor")  # fmt: skip
        axes.set_yticks([i + MIDDLE for i in range(number)], names)
        axes.tick_params(labelsize=9 if number <= 12 else 8)
        axes.spines["bottom"].set_visible(False)

    return draw("confusion", "Right labels against predicted ones", plot, 1.3 + cell * number)


def numbers(dots: Sequence[Sequence[float]]) -> str:
    """Predictions against what is right, a dot for each example; the line is where they are equal."""

    def plot(axes: Any) -> None:
        right, found = zip(*dots, strict=True)
        ends = [min(*right, *found), max(*right, *found)]
        axes.plot(ends, ends, color=MUTED, linewidth=1, linestyle=(0, (1, 3)))
        axes.plot(right, found, "o", color=SERIES[0], markersize=3.5, alpha=0.5, markeredgewidth=0)
        axes.set(xlabel="right", ylabel="predicted")

    return draw("numbers", "Predicted numbers against the right ones", plot, 3.8)


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"
