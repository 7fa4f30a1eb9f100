"""Where a sweep stands: its trials by state, the leaderboard so far, each trial's newest score.

In: the plan of its trials, what Tune tells of them. Out: facts for `cloze status`, and the same for Prometheus.
Knows no ray.tune and writes no file.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from orchestration.gauges import Metrics
from tuning.leaderboard import make_entries
from tuning.search import Plan

STATES = ("waiting", "running", "done", "stopped", "failed", "nan")
SHOWN_ENTRIES = 10
KEPT = ("train_size", "encoder", "mode", "learning_rate", "epochs", "score_mean", "score_ci95", "seeds", "status")


class Standing:
    """Of a plan's trials, with the results that lay there before."""

    def __init__(self, title: str, plan: Plan) -> None:
        self.title = title
        """What the sweep is called on pages of others."""
        self.metrics = Metrics(title)
        self._plan = plan
        self._running = set[str]()
        self._leaderboard: list[dict[str, Any]] = []
        self._judge()

    @property
    def is_running(self) -> bool:
        """Whether any trial runs."""
        return bool(self._running)

    def begin(self, trial: str) -> None:
        """A trial runs."""
        self._running.add(trial)

    def score(self, trial: str, score: float) -> None:
        """A trial's score after an epoch."""
        self.metrics.set("cloze_trial_score", score, trial=trial)

    def cut(self, trial: str) -> None:
        """A trial runs no more, and is to go on another time."""
        self._running.discard(trial)

    def end(self, trial: str) -> None:
        """A trial ended; the plan has its result."""
        self._running.discard(trial)
        self._judge()

    def _judge(self) -> None:
        if results := list(self._plan.results.values()):
            self._leaderboard = [{key: e[key] for key in KEPT} for e in make_entries(results)[:SHOWN_ENTRIES]]

    def facts(self) -> dict[str, Any]:
        """For `update(text, fraction, **facts)`; Prometheus is told on the way."""
        counts = Counter(result["status"] for result in self._plan.results.values())
        counts["running"] = len(self._running)
        counts["waiting"] = self._plan.to_come - len(self._running)
        trials = {state: counts[state] for state in STATES}
        for state, count in trials.items():
            self.metrics.set("cloze_trials", count, state=state)
        if self._leaderboard and (best := self._leaderboard[0]["score_mean"]) is not None:
            self.metrics.set("cloze_best_score", best)
        return {"trials": trials, "leaderboard": self._leaderboard}

    @contextmanager
    def told(self) -> Iterator[None]:
        """Tell Prometheus while the block runs."""
        self.facts()
        self.metrics.start()
        try:
            yield
        finally:
            self.metrics.stop()
