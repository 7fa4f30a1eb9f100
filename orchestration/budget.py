"""What a run has spent and what it may spend.

In: a config, a checkpoint's manifest, the ledger's file in the run's folder (orchestration/ledger.py writes it). Out:
what was spent in tokens, time and money, the share of the budget that this is, and both in words. Knows neither Ray nor
torch.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from data.storage import fetch
from orchestration.config import Config
from orchestration.progress import duration

logger = logging.getLogger(__name__)

LEDGER = "spent.json"


@dataclass(frozen=True)
class Spent:
    """What a run has spent so far."""

    tokens: int = 0
    """Trained on, padding left out, in steps that count."""
    seconds: float = 0.0
    """Of worker groups."""
    worker_seconds: float = 0.0
    """The same times the number of workers."""
    seconds_before_steps: float = 0.0
    """Of them, what was spent when the first step began: loading, the first evaluation, groups that saved nothing."""
    worker_seconds_before_steps: float = 0.0
    """The same times the number of workers."""

    def money(self, price: float) -> float:
        """At a price per worker-hour."""
        return self.worker_seconds / 3600 * price


def spent_of(facts: Mapping[str, Any]) -> Spent:
    """What a manifest, a ledger or a summary says was spent."""
    before_steps = (float(facts.get(f"{name}_before_steps", 0.0)) for name in ("seconds", "worker_seconds"))
    return Spent(int(facts["tokens"]), float(facts["seconds"]), float(facts["worker_seconds"]), *before_steps)


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
        return min(1.0, self._counted(spent) / self.amount)

    def share_of_steps(self, spent: Spent) -> float:
        """Of what the first step found of the budget, 0 to 1: the schedule goes by it, so that what was spent before
        anything was trained skips no warm-up."""
        before = self._counted(Spent(0, spent.seconds_before_steps, spent.worker_seconds_before_steps))
        of_steps = self._counted(spent) - before
        return min(1.0, of_steps / (self.amount - before)) if before < self.amount else float(of_steps > 0)

    def _counted(self, spent: Spent) -> float:
        """In the budget's own unit."""
        if self.unit == "tokens":
            return spent.tokens
        return spent.seconds / 3600 if self.unit == "hours" else spent.money(self.price or 0.0)

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

    Its tokens are the checkpoint's, and so is what was spent before its first step. Its time is the ledger's, which
    knows of steps that will be repeated.
    """
    saved = spent_of(manifest["spent"]) if manifest is not None and manifest.get("spent") else Spent()
    fetch(run / LEDGER, delete=False)
    try:
        ledger = spent_of(json.loads((run / LEDGER).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return saved
    except (ValueError, KeyError, TypeError) as error:
        logger.warning("%s is damaged (%s): time is counted from the checkpoint on", run / LEDGER, error)
        return saved
    seconds = max(saved.seconds, ledger.seconds), max(saved.worker_seconds, ledger.worker_seconds)
    return replace(saved, seconds=seconds[0], worker_seconds=seconds[1])
