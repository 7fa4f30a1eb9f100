"""What a sweep keeps of itself beside its trials: how long it has run, and what its searcher was told of each point.

In: the run's folder, a budget. Out: run/search.json. So a budget of hours counts all runs together, and a searcher goes
on as it began, also where seeds came later. Knows no results.
"""

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from data.storage import fetch
from tuning.config import Budget
from tuning.leaderboard import write_text
from tuning.search import Search

NAME = "search.json"
EVERY_SECONDS = 30  # a run that is killed forgets as much of its time


class Record:
    """Of one sweep."""

    def __init__(self, run: Path, budget: Budget) -> None:
        self._path, self._budget = run / NAME, budget
        fetch(self._path)
        kept: dict[str, Any] = {}
        if self._path.is_file():
            kept = json.loads(self._path.read_text(encoding="utf-8"))
        self.told: dict[str, dict[str, Any]] = kept.get("told", {})
        """Search.told of the runs before."""
        self._before: float = kept.get("seconds", 0.0)
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def seconds(self) -> float:
        """Of the clock, of this run and those before."""
        return self._before + time.monotonic() - self._began

    def until(self) -> float | None:
        """Seconds since the epoch at which the hours are used up; None: never."""
        hours = self._budget.hours
        return None if hours is None else time.time() + hours * 3600 - self.seconds()

    def write(self, told: Mapping[str, Any]) -> None:
        """Write both, whole or not at all."""
        with self._lock:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            kept = {"seconds": round(self.seconds(), 1), "told": dict(told)}
            write_text(self._path, json.dumps(kept, indent=1) + "\n")

    @contextmanager
    def kept(self, plan: Search) -> Iterator[None]:
        """Write from time to time while the block runs, and at its end."""
        done = threading.Event()

        def keep() -> None:
            while not done.wait(EVERY_SECONDS):
                self.write(plan.told)

        thread = threading.Thread(target=keep, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
            self.write(plan.told)
