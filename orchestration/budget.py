"""What a run has spent, what it may spend, and the ledger in which its workers keep count.

In: a config, the newest checkpoint's manifest, the steps of a worker group. Out: the share of the budget that is spent,
equal on all ranks, and `spent.json` in the run's folder. Knows neither Ray nor torch.

Tokens are counted by steps, from the checkpoint on: what a fault made the run repeat counts once, and the same steps
give the same count, whatever the number of workers. Time is counted by the clock of rank 0, while the worker group
exists: repeated steps, evaluations and saves count, waiting for workers does not. It reaches the other ranks in the
all-reduce of each step; the ledger's file, written every LEDGER_SECONDS, keeps what was spent since the checkpoint when
a driver is killed.
"""

import json
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from data.storage import fetch, is_remote, publish
from orchestration.checkpoint import write_json
from orchestration.config import Config
from orchestration.progress import duration

logger = logging.getLogger(__name__)

LEDGER = "spent.json"
LEDGER_SECONDS, BUCKET_SECONDS = 10.0, 30.0  # a bucket's as often as metrics are carried there


@dataclass(frozen=True)
class Spent:
    """What a run has spent so far."""

    tokens: int = 0
    """Trained on, padding left out, in steps that count."""
    seconds: float = 0.0
    """Of worker groups."""
    worker_seconds: float = 0.0
    """The same times the number of workers."""

    def money(self, price: float) -> float:
        """At a price per worker-hour."""
        return self.worker_seconds / 3600 * price


def spent_of(facts: Mapping[str, Any]) -> Spent:
    """What a manifest, a ledger or a summary says was spent."""
    return Spent(int(facts["tokens"]), float(facts["seconds"]), float(facts["worker_seconds"]))


def told(spent: Spent, price: float | None) -> dict[str, Any]:
    """What was spent as a summary holds it; money where a price is known."""
    money = {} if price is None else {"money": round(spent.money(price), 4)}
    return {**asdict(spent), **money}


def in_words(facts: Mapping[str, Any]) -> str:
    """Time and money of `told`: 2 h 07 min, 4.23 worker-hours, 8.47 in money."""
    money = f", {facts['money']:,.4g} in money" if "money" in facts else ""
    hours = f"{facts['worker_seconds'] / 3600:,.4g} worker-hours"
    return f"{duration(facts['seconds'])}, {hours}{money}"


@dataclass(frozen=True)
class Limit:
    """What a run may spend."""

    unit: str
    amount: float
    price: float | None

    def share(self, spent: Spent) -> float:
        """Of the budget that is spent, 0 to 1."""
        counted = {"tokens": spent.tokens, "hours": spent.seconds / 3600, "money": spent.money(self.price or 0.0)}
        return min(1.0, counted[self.unit] / self.amount)

    @property
    def text(self) -> str:
        """The budget in words."""
        amount = f"{self.amount:,.0f}" if self.unit == "tokens" else f"{self.amount:,g}"
        return f"{amount} in money" if self.unit == "money" else f"{amount} {self.unit}"


def limit_of(config: Config) -> Limit | None:
    """The budget of a run; None where its steps end it."""
    budget = config.pretrain.budget
    if budget is None:
        return None
    return Limit(budget.unit, getattr(budget, budget.unit), config.cluster.price_per_worker_hour)


def has_more(limit: Limit | None, summary: Mapping[str, Any]) -> bool:
    """Whether a run that ended with `summary` goes on: its budget was raised."""
    return limit is not None and limit.share(spent_of(summary["spent"])) < 1


def spent_before(run: Path, manifest: Mapping[str, Any] | None) -> Spent:
    """What a run has spent that goes on from the checkpoint of `manifest` (None: from step 0).

    Its tokens are the checkpoint's. Its time is the ledger's, which knows of steps that will be repeated.
    """
    saved = Spent() if manifest is None else spent_of(manifest["spent"])
    fetch(run / LEDGER, delete=False)
    try:
        ledger = spent_of(json.loads((run / LEDGER).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return saved
    except (ValueError, KeyError, TypeError) as error:
        logger.warning("%s is damaged (%s): time is counted from the checkpoint on", run / LEDGER, error)
        return saved
    seconds = max(saved.seconds, ledger.seconds), max(saved.worker_seconds, ledger.worker_seconds)
    return Spent(saved.tokens, *seconds)


class Ledger:
    """One worker's count of what the run has spent: the same on all ranks after each step."""

    def __init__(
        self, before: Spent, start: int, workers: int, limit: Limit | None, steps: int | None, path: Path | None
    ) -> None:
        """`before`: spent when this group began, at step `start`. `steps` end the run where `limit` is None. `path`: of
        rank 0's file."""
        self._before, self._workers = before, workers
        self._limit, self._steps = limit, steps
        self._begun = time.monotonic()
        self._stop = threading.Event()
        self._path = path
        self._done = start
        self.spent = before
        self._thread = threading.Thread(target=self._keep, daemon=True, name="cloze-ledger")
        self._thread.start()

    def clock(self) -> float:
        """What this rank adds to the time that all ranks agree on: rank 0 the seconds of this group, others nothing."""
        return 0.0 if self._path is None else time.monotonic() - self._begun

    def count(self, step: int, tokens: float, seconds: float) -> None:
        """A step was done: its tokens over all ranks, and the agreed time, as its all-reduce told them."""
        self.spent = replace(self._after(seconds), tokens=self.spent.tokens + round(tokens))
        self._done = step + 1

    def share(self) -> float:
        """How far the run is, 0 to 1."""
        if self._limit is not None:
            return self._limit.share(self.spent)
        assert self._steps is not None
        return min(1.0, self._done / self._steps)

    @property
    def is_spent(self) -> bool:
        """Whether a budget ends the run here; never before its first step."""
        return self._limit is not None and self._done > 0 and self.share() >= 1

    def finish(self) -> Spent:
        """The group ends: write the ledger for the last time and return what was spent, by this rank's clock."""
        self._stop.set()
        self._thread.join()
        self.spent = replace(self._after(time.monotonic() - self._begun), tokens=self.spent.tokens)
        self._write()
        return self.spent

    def _after(self, seconds: float) -> Spent:
        before = self._before
        return Spent(before.tokens, before.seconds + seconds, before.worker_seconds + seconds * self._workers)

    def _keep(self) -> None:
        seconds = BUCKET_SECONDS if self._path is not None and is_remote(self._path) else LEDGER_SECONDS
        while not self._stop.wait(seconds):
            self._write()

    def _write(self) -> None:
        """Write the ledger down. A disk that is full does not end the run."""
        if self._path is None:
            return
        try:
            write_json(self._path, asdict(replace(self._after(self.clock()), tokens=self.spent.tokens)))
            publish(self._path)
        except OSError as error:
            logger.warning("%s could not be written: %s", LEDGER, error)
