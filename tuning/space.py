"""The space of a sweep -> its points: flat dicts of dotted keys, each with the validated Config it makes.

In: a Config whose sweep.space holds `dotted.key: values` or `: {mode: values}`; values are one, a list, or a range.
Out: the points of a grid or of random draws, and one point as a searcher chooses its values.
Pure: starts nothing, so that a wrong space dies before Ray starts. Knows no Ray and no torch, and no results.
"""

import hashlib
import itertools
import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from data.config import UserError
from orchestration.config import Config
from orchestration.recipe import build_config
from tuning.config import Finetune

MODE = "finetune.mode"
MODES = get_args(Finetune.model_fields["mode"].annotation)
SECTIONS = ("finetune", "head")
FIXED = ("head.kind", "head.loss")  # they decide what the task's targets are
# They decide how texts are read and which features are kept, which happens once, before the first trial.
READ_BY = ("finetune.length", "finetune.stride", "head.query_prefix", "head.passage_prefix", "head.pooling")
RANGES = ("log_uniform", "uniform")
MOST_COVERING = 256  # points that are made only to be checked: 2 s
TRIES = 50  # draws for each point that is wanted: in a small space most draws stand there already


@dataclass(frozen=True)
class Point:
    """One setting of a sweep."""

    id: str
    """8 hexadecimal digits of a hash of everything that the point decides, however the space wrote it down."""
    values: dict[str, Any]
    """The space's dotted keys and this point's values."""
    config: Config
    """The whole config with the values set."""


@dataclass(frozen=True)
class Range:
    """Numbers between two ends, both included."""

    low: float
    high: float
    log: bool
    """Drawn evenly by their logarithms."""
    whole: bool
    """Whole numbers only."""

    def at(self, share: float) -> float:
        """The number at `share` of the way, 0 <= share < 1."""
        high = self.high + 1 if self.whole else self.high
        number = self.low * (high / self.low) ** share if self.log else self.low + share * (high - self.low)
        return self.written(math.floor(number) if self.whole else number)

    def written(self, number: float) -> float:
        """The number as a point holds it: four digits say all, and are the same on paper and in the trial."""
        return int(number) if self.whole else min(self.high, max(self.low, float(f"{number:.4g}")))


Axis = list[Any] | Range
Choose = Callable[[str, Axis], Any]  # (name, axis of two values and more) -> one of its values


def points(config: Config) -> list[Point]:
    """The points of the space that are known beforehand; a point that stands twice counts once.

    grid: all of them, in the order of the space's keys and values. random: sweep.points drawn by seed, modes by turns;
    more of them begin with the same. optuna, whose points follow from results: none of those, but points that hold
    every value that may be chosen, both ends of ranges too, and every way to read a text.

    Raises UserError, one line per fault: unknown keys, keys of other sections, empty lists, values of a wrong type,
    modes that a {mode: values} leaves out, ranges that are none or stand in a grid.
    """
    axes = _axes(config)
    if config.sweep.search == "grid":
        return _made(config, (values for mode in axes for values in _product(axes[mode])))
    covering = _made(config, (values for mode in axes for values in _covering(axes[mode])))
    return covering if config.sweep.search == "optuna" else _made(config, _drawn(config, axes))


def count_points(config: Config) -> int:
    """How many points a sweep tries on each encoder; of optuna the most."""
    return config.sweep.points if config.sweep.search == "optuna" else len(points(config))


def choose_point(config: Config, choose: Choose) -> Point:
    """The point whose values `choose` picks: the mode first, then what there is to choose in it.

    Names are those of the space, and "KEY in MODE" where values depend on the mode. Raises UserError where the values
    do not go together.
    """
    axes = _axes(config)
    mode = next(iter(axes)) if len(axes) == 1 else choose(MODE, list(axes))
    return _point(config, _chosen(config, mode, axes[mode], choose))


def _axes(config: Config) -> dict[str, dict[str, Axis]]:
    """The axes of each mode. Raises UserError for whatever is wrong with them before a value is looked at."""
    space = config.sweep.space
    faults = [fault for key, values in space.items() if (fault := _fault(config, key, values))]
    for key in [] if faults else space:
        section, field = key.split(".", 1)
        fields = type(getattr(config, section)).model_fields
        given = getattr(getattr(config, section), field, None)
        if field in fields and given != fields[field].default:  # or it would be ignored in silence
            faults.append(f"{key}={given!r}: sweep.space sets it too; give sweep.space.{key}={given!r} instead")
    modes = _listed(space[MODE]) if MODE in space and not faults else [config.finetune.mode]
    axes: dict[str, dict[str, Axis]] = {}
    for mode in [] if faults else modes:
        axes[mode] = own = {}
        for key, values in space.items():
            if _by_mode(values):
                if mode not in values:
                    faults.append(f"sweep.space.{key}={values!r}: no values for mode {mode}; add {mode}: [...]")
                    continue
                values = values[mode]
            own[key] = [mode] if key == MODE else _axis(key, values)
    if faults:
        raise UserError("\n".join(dict.fromkeys(faults)))
    return axes


def _axis(key: str, values: Any) -> Axis:
    if not isinstance(values, dict):
        return _listed(values)
    ((name, (low, high)),) = values.items()
    return Range(low, high, name == "log_uniform", _is_whole(key))


def _product(axes: Mapping[str, Axis]) -> Iterator[dict[str, Any]]:
    """Every combination, of ranges with their ends."""
    lists = [[axis.low, axis.high] if isinstance(axis, Range) else axis for axis in axes.values()]
    return (dict(zip(axes, combination, strict=True)) for combination in itertools.product(*lists))


def _covering(axes: Mapping[str, Axis]) -> Iterator[dict[str, Any]]:
    """Every combination, or, where they are too many, every one of READ_BY and every value of the others."""
    every: dict[str, list[Any]] = {k: [a.low, a.high] if isinstance(a, Range) else a for k, a in axes.items()}
    if math.prod(map(len, every.values())) <= MOST_COVERING:
        yield from _product(axes)
        return
    read = list(_product({key: axis for key, axis in every.items() if key in READ_BY}))
    for number in range(max(len(read), *map(len, every.values()))):
        turns = {key: values[number % len(values)] for key, values in every.items()}
        yield turns | read[number % len(read)]


def _drawn(config: Config, axes: Mapping[str, Mapping[str, Axis]]) -> Iterator[dict[str, Any]]:
    """sweep.points different draws, or fewer where the space has no more. What is drawn for a key depends on seed,
    number of the draw and name: not on the other keys."""
    modes, seen = list(axes), set[str]()
    for number in range(config.sweep.points * TRIES):
        mode = modes[number % len(modes)]

        def choose(name: str, axis: Axis, number: int = number) -> Any:
            share = np.random.default_rng((config.seed, number, zlib.crc32(name.encode()))).random()
            return axis.at(share) if isinstance(axis, Range) else axis[int(share * len(axis))]

        values = _chosen(config, mode, axes[mode], choose)
        if (key := json.dumps(values, sort_keys=True)) not in seen:
            seen.add(key)
            yield values
        if len(seen) == config.sweep.points:
            return


def _chosen(config: Config, mode: str, axes: Mapping[str, Axis], choose: Choose) -> dict[str, Any]:
    """A value of each axis; asked for by name, so that the order in which the space is written decides nothing."""
    values: dict[str, Any] = {}
    for key in sorted(axes):
        axis = axes[key]
        name = f"{key} in {mode}" if _by_mode(config.sweep.space[key]) else key
        values[key] = axis[0] if isinstance(axis, list) and len(axis) == 1 else choose(name, axis)
    return {key: values[key] for key in axes}


def _made(config: Config, settings: Iterator[dict[str, Any]]) -> list[Point]:
    found: dict[str, Point] = {}
    errors: dict[str, None] = {}
    for values in settings:
        try:
            point = _point(config, values)
        except UserError as error:
            errors.update(dict.fromkeys(str(error).splitlines()))
            continue
        found.setdefault(point.id, point)
    if errors:
        raise UserError("\n".join(errors))
    return list(found.values())


def _point(config: Config, values: dict[str, Any]) -> Point:
    try:
        whole = build_config(config.model_dump(mode="json"), values)
    except UserError as error:
        raise UserError("\n".join(f"sweep.space: {line}" for line in str(error).splitlines())) from None
    decided = {section: getattr(whole, section).model_dump(mode="json") for section in SECTIONS}
    digest = hashlib.sha256(json.dumps(decided, sort_keys=True).encode()).hexdigest()
    return Point(digest[:8], values, whole)


def _fault(config: Config, key: str, values: Any) -> str | None:
    """What is wrong with one axis before its values are looked at."""
    if key.split(".")[0] not in SECTIONS or "." not in key:
        return f"sweep.space.{key}: not a key of {' or '.join(SECTIONS)}; only finetune.* and head.* can be swept"
    if key in FIXED:
        return f"sweep.space.{key}: decides how the task is read, so a sweep has one; give {key}=... beside the space"
    if key == MODE and isinstance(values, dict):
        return f"sweep.space.{key}={values!r}: modes cannot depend on the mode; give a list"
    each = list(values.values()) if _by_mode(values) else [values]
    if not each or any(isinstance(one, dict | list | tuple) and not one for one in each):
        return f"sweep.space.{key}={values!r}: no values; give at least one"
    if _by_mode(values) and (unknown := [str(mode) for mode in values if mode not in MODES]):
        allowed = f"{', '.join(MODES)}, or a range: {' or '.join(RANGES)}"
        return f"sweep.space.{key}: no such mode: {', '.join(unknown)}; allowed: {allowed}"
    if any(isinstance(value, list) for one in each for value in _listed(one)):
        return f"sweep.space.{key}={values!r}: nested too deep; give values, a list, or {{mode: values}}"
    ranges = (one for one in each if isinstance(one, dict))
    return next((fault for one in ranges if (fault := _range_fault(config, key, one))), None)


def _range_fault(config: Config, key: str, given: Mapping[str, Any]) -> str | None:
    about = f"sweep.space.{key}={given!r}"
    if len(given) != 1 or not set(given) <= set(RANGES):
        return f"{about}: nested too deep; give values, a list, {{mode: values}}, or {{{RANGES[0]}: [low, high]}}"
    ((name, ends),) = given.items()
    numbers = ends if isinstance(ends, Sequence) and not isinstance(ends, str) else ()
    if len(numbers) != 2 or any(isinstance(end, bool) or not isinstance(end, int | float) for end in numbers):
        return f"{about}: {name} has two ends, both numbers; give {{{name}: [low, high]}}"
    low, high = numbers
    if not low < high or not math.isfinite(high - low):
        return f"{about}: the first end is not below the second; give {{{name}: [low, high]}}"
    if name == "log_uniform" and low <= 0:
        return f"{about}: log_uniform begins above 0; give a larger low end, or uniform"
    if _is_whole(key) and not (float(low).is_integer() and float(high).is_integer()):
        return f"{about}: {key} is a whole number; give whole ends"
    if key in READ_BY:
        return f"{about}: texts are read once for each {key}, before the first trial; give a list"
    if config.sweep.search == "grid":
        return f"{about}: a grid takes lists; give a list, or sweep.search=random or optuna, which draw from a range"
    return None


def _by_mode(values: Any) -> bool:
    """Whether values are {mode: values}; a range is a dict too."""
    return isinstance(values, dict) and not any(name in RANGES for name in values)


def _is_whole(key: str) -> bool:
    section, _, field = key.partition(".")
    fields = Config.model_fields[section].annotation.model_fields  # pyright: ignore
    return field in fields and fields[field].annotation is int


def _listed(values: Any) -> list[Any]:
    return list(values) if isinstance(values, list | tuple) else [values]
