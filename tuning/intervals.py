"""Scores over seeds -> 95 % intervals of their mean, and of the difference of two points on the same seeds. Pure.

In: numbers by seed. Out: half-widths. They tell how far other seeds could lead, not how far other examples could: the
validation examples are the same for all.
"""

import math
import statistics
from collections.abc import Mapping, Sequence

CONFIDENCE = 0.95


def half_width(values: Sequence[float]) -> float | None:
    """Half the width of the 95 % interval of the mean; None for fewer than two values, which tell no spread.

    Source: Student 1908, doi:10.1093/biomet/6.1.1: t x deviation / sqrt(n), with n - 1 degrees of freedom.

    >>> round(half_width([0.1, 0.2, 0.3]), 3)  # 4.303 x 0.1 / 1.732
    0.248
    """
    if len(values) < 2:
        return None
    from scipy.special import stdtrit  # scipy.stats has the same, and takes a second to import

    quantile = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2))
    return quantile * statistics.stdev(values) / math.sqrt(len(values))


def paired(ours: Mapping[str, float], theirs: Mapping[str, float]) -> list[float]:
    """Ours minus theirs on each seed that both have. Seeds share data order and initial head, so that what a seed does
    to both is not counted as a difference."""
    return [ours[seed] - theirs[seed] for seed in ours if seed in theirs]


def may_be_equal(lags: Sequence[float]) -> bool:
    """Whether points cannot be told apart: the 95 % interval of the mean of `lags`, by how much one is behind the
    other on each seed, holds 0.

    One seed tells nothing, so the better one stays the better one. Of two the interval is 12.7 standard errors wide and
    would hold almost anything: the better one must also have lost on one of them.
    """
    width = half_width(lags)
    if width is None or (len(lags) == 2 and min(lags) > 0):
        return False
    return abs(statistics.fmean(lags)) <= width
