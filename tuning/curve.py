"""A leaderboard of several numbers of training examples -> the learning curve: frozen or full, by amount of data. Pure.

In: entries of tuning/leaderboard.py. Out: the best entry of each line of the curve, a table, a sentence.
"""

import statistics
from collections.abc import Sequence
from itertools import groupby

from tuning.intervals import half_width, may_be_equal
from tuning.leaderboard import CONTROL, Entry, difference
from tuning.scores import METRICS
from tuning.table import Grid
from tuning.wording import names_of, short, with_interval

Line = tuple[str, str]  # encoder, mode
TIED = "{} and {} are not told apart"
BETTER = "{} is better than {} by {by}"
AHEAD = "{} is ahead of {} by {by}, unproven with {seeds}"


def best_by_size(entries: Sequence[Entry]) -> dict[Line, dict[int, Entry]]:
    """(encoder, mode) -> number of training examples, ascending -> its best whole entry.

    Empty where fewer than two numbers of examples have one: that is no curve. Lines stand by their place with the most
    examples.
    """
    found: dict[Line, dict[int, Entry]] = {}
    for entry in entries:  # of a size best first, sizes descending
        if entry["rank"] is not None and entry["train_size"] is not None:
            found.setdefault((entry["encoder"], entry["mode"]), {}).setdefault(entry["train_size"], entry)
    if len({size for line in found.values() for size in line}) < 2:
        return {}
    return {line: dict(sorted(of.items())) for line, of in found.items()}


def grid(entries: Sequence[Entry]) -> Grid:
    """A line for each number of examples, fewest first, a column for each encoder and mode; ([], []) for no curve."""
    best = best_by_size(entries)
    if not best:
        return [], []
    names = names_of(encoder for encoder, _ in best)
    sizes = sorted({size for of in best.values() for size in of})
    lines = [[f"{size:,}", *(_cell(of.get(size)) for of in best.values())] for size in sizes]
    return ["examples", *(f"{names[of]} {mode}" if len(names) > 1 else mode for of, mode in best)], lines


def _cell(entry: Entry | None) -> str:
    if entry is None:
        return "–"
    return f"{with_interval(entry['score_mean'], entry['score_ci95'])} ({short(entry['learning_rate'])})"


def sentence(entries: Sequence[Entry]) -> str:
    """Which mode wins with how many training examples, the random control left out; "" where that says nothing."""
    modes: dict[int, dict[str, Entry]] = {}
    best = best_by_size(entries)
    for (encoder, mode), of in best.items():
        for size, entry in of.items():
            if encoder != CONTROL or all(name == CONTROL for name, _ in best):
                known = modes.setdefault(size, {}).get(mode)
                modes[size][mode] = min((one for one in (known, entry) if one), key=lambda one: one["rank"])
    judged = [(size, _judge(list(of.values()))) for size, of in sorted(modes.items()) if len(of) > 1]
    parts: list[str] = []
    for (words, *pair), group in groupby(judged, key=lambda one: one[1][0]):
        stretch = list(group)
        leads = [lead for _, (_, lead, _) in stretch]
        by = f"{min(leads):.3f}" + (f" to {max(leads):.3f}" if len(leads) > 1 else "")
        seeds = stretch[0][1][2]
        text = words.format(*pair, by=by, seeds=f"{seeds} seed{'s' * (seeds != 1)}")
        parts.append(f"with {_sizes([size for size, _ in stretch])} {text}")
    return (text := "; ".join(parts))[:1].upper() + text[1:] + "." * bool(parts)


def _judge(entries: Sequence[Entry]) -> tuple[tuple[str, str, str], float, int]:
    """(words, the best mode, the next one); the lead of the best on the seeds of both; how many these are."""
    first, second = sorted(entries, key=lambda entry: entry["rank"])[:2]
    upwards = METRICS[first["metric"]].higher_is_better
    leads = [lead if upwards else -lead for lead in difference(first, second)]
    lead = statistics.fmean(leads) if leads else 0.0
    half = half_width(leads)
    pair = first["mode"], second["mode"]
    if may_be_equal(leads) or lead <= 0:
        return (TIED, min(pair), max(pair)), lead, len(leads)
    return (BETTER if half is not None and lead > half else AHEAD, *pair), lead, len(leads)


def _sizes(sizes: Sequence[int]) -> str:
    return f"{sizes[0]:,}" + (f" to {sizes[-1]:,}" if len(sizes) > 1 else "") + " examples"
