"""Several tasks in one command: each a whole sweep in a folder of its own, and one table above them.

In: a Config whose sweep.tasks names tasks and their own keys. Out: run/<task>/ as tuning/sweep.py makes it,
run/suite.{json,csv}, the entries of each task. A task that fails as a whole is named in the table and ends no other.
"""

import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from data.config import UserError
from orchestration.config import Config
from orchestration.identity import SWEEP_SECTIONS
from orchestration.progress import Update
from orchestration.recipe import build_config
from orchestration.run import check_identity, held
from tuning.leaderboard import Entry
from tuning.sweep import sweep
from tuning.table import make_rows, write_suite

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
TAKEN = ("trials", "best", "log")  # what lies in a sweep's folder: a task's name is one too

logger = logging.getLogger(__name__)


def configs(config: Config) -> dict[str, Config]:
    """The whole config of each task, by name, in the order given.

    Raises UserError, one line per fault, with the task's key before it.
    """
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


def suite(
    config: Config, run: Path, progress: Update, tell: Callable[[str], None] = lambda note: None
) -> dict[str, list[Entry]]:
    """Run the sweep of each task in run/<task>/, one after the other on the running Ray; returns their leaderboards.

    Raises UserError for what is wrong with sweep.tasks; RuntimeError where no task came to anything.
    """
    tasks = configs(config)
    boards: dict[str, list[Entry]] = {}
    failed: dict[str, str] = {}
    for place, (name, own) in enumerate(tasks.items()):
        folder = run / name
        try:
            check_identity(folder, own, SWEEP_SECTIONS)
            with held(folder, own):
                update, told = _within(progress, name, place, len(tasks)), _of(tell, name)
                boards[name] = sweep(own, folder, update, tell=told, title=f"{run.name}-{name}")
        except Exception as error:  # any fault of one task is that task's line in the table
            logger.exception("task %s", name)
            failed[name] = " ".join(str(error).split())[:500] or type(error).__name__
        write_suite(make_rows(boards, failed), run)
    if not boards:
        first = next(iter(failed))
        raise RuntimeError(f"no task came to anything; {first}: {failed[first]}")
    return boards


def _within(progress: Update, name: str, place: int, total: int) -> Update:
    """The progress of one of `total` tasks as that of the suite."""

    def update(text: str, fraction: float | None = None, **facts: Any) -> None:
        progress(f"{name}: {text}", None if fraction is None else (place + fraction) / total, **facts)

    return update


def _of(tell: Callable[[str], None], name: str) -> Callable[[str], None]:
    return lambda note: tell(f"{name}: {note}")
