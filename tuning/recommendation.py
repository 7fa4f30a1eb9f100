"""A leaderboard -> the sentence that answers the question: train how much, at which learning rate, and why that.

In: entries of tuning/leaderboard.py. Out: text for the terminal, the report and whoever is asked "so what?". Pure.
"""

import statistics
from collections.abc import Mapping, Sequence

from tuning.intervals import half_width, may_be_equal
from tuning.leaderboard import CONTROL, Entry, difference, judged, winner
from tuning.scores import METRICS
from tuning.wording import names_of, short, size_text, with_interval

NAMED = 3  # entries that came to nothing, of each status; more are counted
CAUSE_CHARACTERS = 120
FATES = {"nan": "diverged", "failed": "failed"}


def recommendation(entries: Sequence[Entry]) -> str:
    """What to do, in one sentence, and after it what came to nothing, with the reason.

    The winner (see leaderboard.winner) stands against the best entry that trains otherwise (another mode; where there
    is one mode, another point), the random control left out: scores, paired difference, cost.
    """
    best = winner(entries)
    if best is None:
        return f"No trial has a score.{_fates(entries)}"
    others = [e for e in judged(entries) if e["rank"] is not None and e is not best]
    others = [e for e in others if e["encoder"] != CONTROL or best["encoder"] == CONTROL]
    names = _names([best, *others])
    score = f"{best['metric']} {with_interval(best['score_mean'], best['score_ci95'])}"
    sentence = f"{names[best['encoder']]}{best['mode']} at {short(best['learning_rate'])}: {score}"
    rival = next((e for e in others if e["mode"] != best["mode"]), others[0] if others else None)
    if best["rank"] is None:
        sentence += f", the mean of {len([s for s in best['scores'] if s is not None])} of its {best['seeds']} seeds"
    elif rival is not None:
        sentence += f", {_comparison(best, rival, names)}"
    return f"{sentence}.{_baseline(best)}{_fates(entries)}"


def _names(entries: Sequence[Entry]) -> dict[str, str]:
    """What stands before an entry's mode: its encoder, where there are several."""
    names = names_of(entry["encoder"] for entry in entries)
    return {encoder: f"{name} " if len(names) > 1 else "" for encoder, name in names.items()}


def _comparison(best: Entry, rival: Entry, names: Mapping[str, str]) -> str:
    """How the winner stands to its rival, with the paired difference, and what each costs."""
    name = f"{names[rival['encoder']]}{rival['mode']}"
    if (rival["mode"], rival["encoder"]) == (best["mode"], best["encoder"]):
        name = f"{name} at {short(rival['learning_rate'])}"
    differences = difference(best, rival)
    numbers = f"{rival['score_mean']:.3f}"
    half = half_width(differences)
    if differences:
        numbers += f", difference {with_interval(statistics.fmean(differences), half, '+')}"
    upwards = METRICS[best["metric"]].higher_is_better
    lead = statistics.fmean(differences) * (1 if upwards else -1) if differences else 0.0
    before, behind = _relation(lead, half, len(differences), best["tied"] and rival["tied"])
    ratios = [
        _ratio(best[key], rival[key], words)
        for key, words in (("trained_parameters", "the trained parameters"), ("worker_seconds", "the worker-seconds"))
    ]
    cost = " and ".join(ratio for ratio in ratios if ratio)
    return f"{before} {name} ({numbers}){behind}" + (f", with {cost}" if cost else "")


def _relation(lead: float, half: float | None, seeds: int, tied: bool) -> tuple[str, str]:
    """Words before and behind the rival's name; `tied`: both with the leader."""
    if half is None:
        return "beside", ", which one seed does not compare"
    if abs(lead) > half:
        return ("better than" if lead > 0 else "worse than"), ""
    if tied:
        return "not told apart from", ""
    return ("ahead of" if lead > 0 else "behind"), f", which {seeds} seeds do not prove"


def _ratio(ours: float | None, theirs: float | None, what: str) -> str:
    """'1/80 of ...' or '80 times ...'; '' where they are about the same or not known."""
    if not ours or not theirs or 2 / 3 < ours / theirs < 1.5:
        return ""
    number, form = (theirs / ours, "1/{} of") if ours < theirs else (ours / theirs, "{} times")
    digits = f"{number:.1f}".removesuffix(".0") if number < 5 else f"{float(f'{number:.2g}'):,.0f}"
    return f"{form.format(digits)} {what}"


def _baseline(best: Entry) -> str:
    """A warning where a constant answer does as well."""
    constant = best["majority_baseline"]
    if constant is None:
        return ""
    sign = 1 if METRICS[best["metric"]].higher_is_better else -1
    leads = [sign * (score - constant) for score in best["scores"] if score is not None]
    if statistics.fmean(leads) > 0 and not may_be_equal(leads):
        return ""
    return f" That is not told apart from always giving the most frequent answer ({constant:.3f})."


def _fates(entries: Sequence[Entry]) -> str:
    """Sentences that name what diverged and what failed, with the first reason of each."""
    encoders = _names(entries)
    sizes = len({entry["train_size"] for entry in entries}) > 1
    found = ""
    for status, word in FATES.items():
        lost = [entry for entry in entries if entry["status"] == status]
        names = [f"{encoders[e['encoder']]}{e['mode']} at {short(e['learning_rate'])}" for e in lost[:NAMED]]
        if sizes:
            names = [f"{name} on {size_text(e['train_size'])}" for name, e in zip(names, lost, strict=False)]
        if lost:
            more = f" and {len(lost) - NAMED} more" if len(lost) > NAMED else ""
            found += f" {word.capitalize()}: {', '.join(names)}{more} ({_cut(lost[0]['error'] or 'no reason given')})."
    return found


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= CAUSE_CHARACTERS else text[: CAUSE_CHARACTERS - 1] + "…"
