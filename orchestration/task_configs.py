"""The sweep.tasks of a config, each as a whole config of its own.

In: a Config. Out: one Config per task, whose own keys stand above those that all have in common.
"""

import re
from collections.abc import Mapping
from typing import Any

from data.config import UserError
from orchestration.config import Config
from orchestration.identity import SWEEP_SECTIONS
from orchestration.recipe import build_config

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
TAKEN = ("trials", "best", "log")  # what lies in a sweep's folder: a task's name is one too


def task_configs(config: Config) -> dict[str, Config]:
    """The whole config of each task, by name, in the order given; {"": config} where it names none.

    Raises UserError, one line per fault, with the task's key before it.
    """
    if not config.sweep.tasks:
        return {"": config}
    found: dict[str, Config] = {}
    faults: list[str] = []
    for name, keys in config.sweep.tasks.items():
        if not NAME.fullmatch(name) or name in TAKEN:
            faults.append(
                f"sweep.tasks.{name}: no name of a folder; give letters, digits, dots, - and _, at most 64, and not "
                f"{', '.join(TAKEN)}"
            )
            continue
        changes = {dotted: value for key, value in keys.items() for dotted, value in _dotted(key, value)}
        allowed = [key for key in changes if key.split(".")[0] in SWEEP_SECTIONS and not key.startswith("sweep.tasks")]
        if strange := [key for key in changes if key not in allowed]:
            sections = ", ".join(SWEEP_SECTIONS)
            faults.append(
                f"sweep.tasks.{name}.{strange[0]}: all tasks have it in common; of a task's own are only {sections} "
                f"(without sweep.tasks); give {strange[0]}=... beside the tasks"
            )
            continue
        try:
            found[name] = build_config(config.model_dump(mode="json"), {"sweep.tasks": {}, **changes})
        except UserError as error:
            faults += [f"sweep.tasks.{name}: {line}" for line in str(error).splitlines()]
    if faults:
        raise UserError("\n".join(faults))
    return found


def _dotted(key: str, value: Any) -> list[tuple[str, Any]]:
    """{task: {train: a.tsv}} is task.train: a.tsv; what is deeper is a value."""
    if key in SWEEP_SECTIONS and isinstance(value, Mapping):
        return [(f"{key}.{inner}", child) for inner, child in value.items()]
    return [(key, value)]
