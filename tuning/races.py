"""Which trials of a sweep are stopped early: points race on their first seed, and all end when the budget does.

In: every evaluation, as Tune hears of it. Out: go on or stop. A race is the points of one mode on one encoder at one
number of training examples; each has Ray Tune's asynchronous successive halving (arXiv:1810.05934) to itself, by the
share of its epochs that a trial has behind it: 3 epochs and 30 are then compared at the same part of their schedules.
Writes nothing and knows no results but scores.
"""

from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler

from tuning.config import Sweep
from tuning.scores import METRICS
from tuning.trials import Result, Trial

WHOLE = 100  # percent of a trial's epochs
LAST_RUNG = 75  # beyond it stopping saves little
LOWEST = -1e9  # what a score that is no number counts as: below all, and still a number for a percentile


def share_of(epoch: int, epochs: int) -> int:
    """Percent of a trial's epochs that are behind it, whole only after the last."""
    return WHOLE * epoch // epochs


class Races(FIFOScheduler):
    """Tune's scheduler of a sweep; trials carry ours as config["trial"]."""

    def __init__(
        self, sweep: Sweep, seed: int, metric: str, is_over: Callable[[], bool], earlier: Iterable[tuple[Trial, Result]]
    ) -> None:
        """`seed`: the first of the sweep; `is_over`: whether the budget is used up; `earlier`: trials that ended before
        this run, which race too."""
        super().__init__()
        self.stopped = set[str]()
        """Trials that fell behind."""
        self.cut = set[str]()
        """Trials that the end of the budget cut short."""
        self._sweep, self._seed, self._is_over = sweep, seed, is_over
        self._upwards = METRICS[metric].higher_is_better  # Tune has a meaning of its own for _metric
        self._races: dict[tuple[Any, ...], _Race] = {}
        for trial, result in earlier:
            for record in result["epochs"]:
                self._goes_on(trial, share_of(record["epoch"], trial.finetune["epochs"]), record["score"])

    def __reduce__(self) -> tuple[Any, ...]:
        return FIFOScheduler, ()  # Tune pickles it beside the results, to restore a sweep; ours comes from results

    def on_trial_result(self, tune_controller: Any, trial: Any, result: Mapping[str, Any]) -> str:
        """Tune's question at every evaluation."""
        ours: Trial = trial.config["trial"]
        if result["share"] >= WHOLE:
            return TrialScheduler.CONTINUE
        if self._is_over():
            self.cut.add(ours.id)
            return TrialScheduler.STOP
        if self._goes_on(ours, result["share"], result["score"]):
            return TrialScheduler.CONTINUE
        self.stopped.add(ours.id)
        return TrialScheduler.STOP

    def _goes_on(self, trial: Trial, share: int, score: float | None) -> bool:
        if self._sweep.scheduler == "none" or trial.seed != self._seed:
            return True
        key = (trial.train_size, trial.encoder, trial.finetune["mode"])
        sign = 1 if self._upwards else -1
        race = self._races.setdefault(key, _Race(self._sweep.asha_reduction))
        return race.goes_on(trial.id, share, LOWEST if score is None else sign * score)


class _Race:
    """One halving, by the best score so far: a trial's best epoch is what will count."""

    def __init__(self, reduction: int) -> None:
        first = max(1, WHOLE // reduction**2)
        rungs = (first * reduction**k for k in range(8))
        self._rungs = [rung for rung in rungs if rung <= LAST_RUNG]
        self._halving: Any = ASHAScheduler(
            time_attr="share", metric="score", mode="max", max_t=WHOLE, grace_period=first, reduction_factor=reduction,
            stop_last_trials=False,
        )  # fmt: skip
        self._best: dict[str, float] = {}
        self._reached: dict[str, int] = {}

    def goes_on(self, name: str, share: int, score: float) -> bool:
        """Whether a trial may go on beyond `share`; asked at every evaluation, decided where a new rung is reached.

        Tune's own would fill a rung that an epoch jumped over with a later score: only the highest one is told.
        """
        stand_in: Any = SimpleNamespace(trial_id=name)
        if name not in self._best:
            self._halving.on_trial_add(None, stand_in)
        self._best[name] = max(score, self._best.get(name, score))
        reached = sum(rung <= share for rung in self._rungs)
        if reached <= self._reached.get(name, 0):
            return True
        self._reached[name] = reached
        told = {"share": self._rungs[reached - 1], "score": self._best[name]}
        return self._halving.on_trial_result(None, stand_in, told) != TrialScheduler.STOP
