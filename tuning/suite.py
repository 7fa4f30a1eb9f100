"""Several tasks in one command: each a whole sweep in a folder of its own, and one table above them.

In: a Config whose sweep.tasks names tasks and their own keys. Out: run/<task>/ as tuning/sweep.py makes it,
run/suite.{json,csv}, the entries of each task. A task that fails as a whole is named in the table and ends no other.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestration.config import Config
from orchestration.identity import SWEEP_SECTIONS
from orchestration.progress import Update
from orchestration.run import check_identity, held
from orchestration.task_configs import task_configs
from tuning.leaderboard import Entry
from tuning.sweep import sweep
from tuning.table import make_rows, write_suite

logger = logging.getLogger(__name__)


def suite(
    config: Config, run: Path, progress: Update, tell: Callable[[str], None] = lambda note: None
) -> dict[str, list[Entry]]:
    """Run the sweep of each task in run/<task>/, one after the other on the running Ray; returns their leaderboards.

    Raises UserError for what is wrong with sweep.tasks; RuntimeError where no task came to anything.
    """
    tasks = task_configs(config)
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
