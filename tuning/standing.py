"""Where a sweep stands: its trials by state, the leaderboard so far, each trial's newest score.

In: what Tune tells of trials, results as they come. Out: facts for `cloze status`, and the same for Prometheus.
Knows no ray.tune and writes no file.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from orchestration.gauges import Metrics
from tuning.leaderboard import make_entries
from tuning.trials import Result, Trial

STATES = ("waiting", "running", "done", "failed", "nan")
SHOWN_ENTRIES = 10
KEPT = ("train_size", "encoder", "mode", "learning_rate", "epochs", "score_mean", "score_ci95", "seeds", "status")


class Standing:
    """Of a sweep's trials, with the results that lay there before."""

    def __init__(self, run: str, trials: Sequence[Trial], results: dict[str, Result]) -> None:
        self.metrics = Metrics(run)
        self._states = {trial.id: "waiting" for trial in trials}
        self._results = dict[str, Result]()
        self._leaderboard: list[dict[str, Any]] = []
        for result in results.values():
            self.end(result["trial"], result)

    def begin(self, trial: str) -> None:
        """A trial runs."""
        self._states[trial] = "running"

    def score(self, trial: str, score: float) -> None:
        """A trial's score after an epoch."""
        self.metrics.set("cloze_trial_score", score, trial=trial)

    def end(self, trial: str, result: Result | None) -> None:
        """A trial ended; None: its process died."""
        self._states[trial] = result["status"] if result else "failed"
        if result:
            self._results[trial] = result
            entries = make_entries(self._results.values())[:SHOWN_ENTRIES]
            self._leaderboard = [{key: entry[key] for key in KEPT} for entry in entries]

    def facts(self) -> dict[str, Any]:
        """For `update(text, fraction, **facts)`; Prometheus is told on the way."""
        counts = Counter(self._states.values())
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
