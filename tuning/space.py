"""The space of a sweep -> its points: flat dicts of dotted keys, each with the validated Config it makes.

In: a Config whose sweep.space holds `dotted.key: value`, `: [values]` or `: {mode: value or values}`. Out: the grid.
Pure: starts nothing, so that a wrong space dies before Ray starts. Knows no Ray and no torch.
"""

import hashlib
import itertools
import json
from dataclasses import dataclass
from typing import Any, get_args

from data.config import UserError
from orchestration.config import Config
from orchestration.recipe import build_config
from tuning.config import Finetune

MODE = "finetune.mode"
MODES = get_args(Finetune.model_fields["mode"].annotation)
SECTIONS = ("finetune", "head")
FIXED = ("head.kind", "head.loss")  # they decide what the task's targets are


@dataclass(frozen=True)
class Point:
    """One setting of a sweep."""

    id: str
    """8 hexadecimal digits of a hash of everything that the point decides, however the space wrote it down."""
    values: dict[str, Any]
    """The space's dotted keys and this point's values."""
    config: Config
    """The whole config with the values set."""


def points(config: Config) -> list[Point]:
    """All points of the grid, in the order of the space's keys and values; a point that stands twice counts once.

    Raises UserError, one line per fault: unknown keys, keys of other sections, empty lists, values of a wrong type,
    modes that a {mode: values} leaves out.
    """
    space = config.sweep.space
    faults = [fault for key, values in space.items() if (fault := _fault(key, values))]
    for key in [] if faults else space:
        section, field = key.split(".", 1)
        fields = type(getattr(config, section)).model_fields
        given = getattr(getattr(config, section), field, None)
        if field in fields and given != fields[field].default:  # or it would be ignored in silence
            faults.append(f"{key}={given!r}: sweep.space sets it too; give sweep.space.{key}={given!r} instead")
    if faults:
        raise UserError("\n".join(faults))
    modes = _listed(space[MODE]) if MODE in space else [config.finetune.mode]
    found: dict[str, Point] = {}
    errors: dict[str, None] = {}
    for mode in modes:
        axes: dict[str, list[Any]] = {}
        for key, values in space.items():
            if isinstance(values, dict):
                if mode not in values:
                    errors[f"sweep.space.{key}={values!r}: no values for mode {mode}; add {mode}: [...]"] = None
                    continue
                values = values[mode]
            axes[key] = [mode] if key == MODE else _listed(values)
        for combination in itertools.product(*axes.values()):
            values = dict(zip(axes, combination, strict=True))
            try:
                point = _point(config, values)
            except UserError as error:
                errors.update(dict.fromkeys(f"sweep.space: {line}" for line in str(error).splitlines()))
                continue
            found.setdefault(point.id, point)
    if errors:
        raise UserError("\n".join(errors))
    return list(found.values())


def _point(config: Config, values: dict[str, Any]) -> Point:
    whole = build_config(config.model_dump(mode="json"), values)
    decided = {section: getattr(whole, section).model_dump(mode="json") for section in SECTIONS}
    digest = hashlib.sha256(json.dumps(decided, sort_keys=True).encode()).hexdigest()
    return Point(digest[:8], values, whole)


def _fault(key: str, values: Any) -> str | None:
    """What is wrong with one axis before its values are looked at."""
    if key.split(".")[0] not in SECTIONS or "." not in key:
        return f"sweep.space.{key}: not a key of {' or '.join(SECTIONS)}; only finetune.* and head.* can be swept"
    if key in FIXED:
        return f"sweep.space.{key}: decides how the task is read, so a sweep has one; give {key}=... beside the space"
    if key == MODE and isinstance(values, dict):
        return f"sweep.space.{key}={values!r}: modes cannot depend on the mode; give a list"
    lists = [values] if not isinstance(values, dict) else list(values.values())
    if not lists or any(isinstance(one, list | tuple) and not one for one in lists):
        return f"sweep.space.{key}={values!r}: no values; give at least one"
    if isinstance(values, dict) and (unknown := [str(mode) for mode in values if mode not in MODES]):
        return f"sweep.space.{key}: no such mode: {', '.join(unknown)}; allowed: {', '.join(MODES)}"
    if any(isinstance(value, dict | list) for one in lists for value in _listed(one)):
        return f"sweep.space.{key}={values!r}: nested too deep; give values, a list, or {{mode: values}}"
    return None


def _listed(values: Any) -> list[Any]:
    return list(values) if isinstance(values, list | tuple) else [values]
