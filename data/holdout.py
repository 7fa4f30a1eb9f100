"""Training examples -> those of them that are held out for validation and test, where no file is given for these. Pure.

In: examples, the share of each split, a seed. Out: numbers of examples. What must stay together goes as one: copies of
a text (data/copies.py), a group of the task's, the questions about one context. Labels keep their shares where each
text has one; whatever its kind, no label leaves training.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from data.copies import copy_keys
from data.examples import NO_ANSWER, Examples

LEAST_SPLIT = 3  # a label of so many examples stands in the validation examples too
ALL = ""  # the stratum of examples that have no single label


@dataclass(frozen=True)
class _Unit:
    """What goes to one split as a whole."""

    numbers: tuple[int, ...]
    strata: Counter[str]
    """Its examples by label, or all under ALL."""
    labels: Counter[str]
    """How many of its examples have each label; ALL for every example."""


def hold_out(
    examples: Examples, shares: Mapping[str, float], seed: int, labelled: bool = False
) -> dict[str, list[int]]:
    """Numbers of the examples of each split in `shares`, ascending; in none of them: those to train on.

    `labelled`: targets are one label each, as those of classification are. A split gets its share of every label,
    the first split at least one example of a label that has LEAST_SPLIT; it is empty where its share is less than half
    an example, or where nothing can go without taking a label from training.
    """
    units = _units(examples, labelled)
    order = [units[i] for i in np.random.default_rng((seed, len(examples))).permutation(len(units))]
    kept, strata = Counter[str](), Counter[str]()
    for unit in units:
        kept.update(unit.labels)
        strata.update(unit.strata)
    quotas = _quotas(strata, shares)
    found: dict[str, list[int]] = {}
    for split, quota in quotas.items():
        chosen = _choose(order, quota, kept)
        taken = set(map(id, chosen))
        order = [unit for unit in order if id(unit) not in taken]
        found[split] = sorted(number for unit in chosen for number in unit.numbers)
    return found


def count_units(examples: Examples) -> int:
    """How many parts there are that cannot be divided."""
    return len(_units(examples, labelled=False))


def _units(examples: Examples, labelled: bool) -> list[_Unit]:
    """What must stay together, in the order of the first example of each."""
    together: list[Iterable[Any]] = [copy_keys(examples)]
    together += [column for column in (examples.groups,) if column is not None]
    together += [examples.pairs] if examples.kind == "answering" and examples.pairs is not None else []
    above = list(range(len(examples)))  # a forest: the example above each, at the root itself

    def root(number: int) -> int:
        while above[number] != number:
            above[number] = above[above[number]]
            number = above[number]
        return number

    for keys in together:
        first: dict[Any, int] = {}
        for number, key in enumerate(keys):
            a, b = sorted((root(first.setdefault(key, number)), root(number)))
            above[b] = a
    members: dict[int, list[int]] = {}
    for number in range(len(examples)):
        members.setdefault(root(number), []).append(number)
    named = [_labels(examples, number) for number in range(len(examples))]
    return [
        _Unit(
            tuple(numbers),
            Counter(named[number][0] if labelled or examples.kind == "answering" else ALL for number in numbers),
            Counter(label for number in numbers for label in (*set(named[number]), ALL)),
        )
        for numbers in members.values()
    ]


def _labels(examples: Examples, number: int) -> tuple[str, ...]:
    """What an example has that training must not lose."""
    target = examples.targets[number] if examples.targets is not None else None
    if examples.kind == "answering":
        return ("answer",) if target else (NO_ANSWER,)
    return (target,) if isinstance(target, str) else tuple(target) if isinstance(target, list | tuple) else ()


def _quotas(counts: Counter[str], shares: Mapping[str, float]) -> dict[str, dict[str, int]]:
    """Of each split the number of examples of each stratum, which add up to its share of all."""
    left = {stratum: count - 1 for stratum, count in counts.items()}
    quotas: dict[str, dict[str, int]] = {}
    for split, share in shares.items():
        quota, exact, given = {}, 0.0, 0
        for stratum in sorted(counts):
            exact += share * counts[stratum]
            number = int(exact + 0.5 + 1e-9) - given
            given += number
            if not quotas and stratum != ALL and counts[stratum] >= LEAST_SPLIT:
                number = max(1, number)
            quota[stratum] = min(number, left[stratum])
            left[stratum] -= quota[stratum]
        quotas[split] = quota
    return quotas


def _choose(order: list[_Unit], quota: Mapping[str, int], kept: Counter[str]) -> list[_Unit]:
    """Units that fill the quota as nearly as they can; what they take is taken from `kept`, which stays above 0."""
    need = Counter(quota)
    chosen: dict[int, _Unit] = {}

    def take(unit: _Unit) -> None:
        chosen[id(unit)] = unit
        need.subtract(unit.strata)
        kept.subtract(unit.labels)

    def can_go(unit: _Unit) -> bool:
        return id(unit) not in chosen and all(kept[label] > number for label, number in unit.labels.items())

    for most_waste in (0.0, 0.5):  # first those that fit, then those of which more is needed than not
        for unit in order:
            gain = sum(min(max(need[stratum], 0), number) for stratum, number in unit.strata.items())
            waste = len(unit.numbers) - gain
            if gain and (not waste or waste < most_waste * len(unit.numbers)) and can_go(unit):
                take(unit)
    for stratum, number in quota.items():  # every unit of it was too large
        if number and need[stratum] == number:
            fitting = [unit for unit in order if unit.strata[stratum] and can_go(unit)]
            if fitting:
                take(min(fitting, key=lambda unit: len(unit.numbers)))
    return list(chosen.values())
