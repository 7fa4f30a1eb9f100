"""Where the points of a search come from, on one encoder at one number of training examples.

In: a space, scores of the points before. Out: more points. grid and random know theirs beforehand; Optuna chooses them
in waves, so that what it is told, and in which order, does not depend on who ended first. Pure: no Ray, no files.
"""

from collections.abc import Callable, Sequence
from typing import Any

from data.config import UserError
from orchestration.config import Config
from tuning.scores import METRICS
from tuning.space import Axis, Point, Range, choose_point, points

WAVE = 8  # points that optuna chooses at once: the first so many at random, as no result is there to choose by
ASKED = 5 * WAVE  # optuna repeats itself in a small space; one that has no more new points is through


class Known:
    """Points that are known beforehand, all at once."""

    def __init__(self, found: Sequence[Point]) -> None:
        self._points = list(found)

    @property
    def left(self) -> int:
        """How many points are still to come."""
        return len(self._points)

    def more(self, score_of: Callable[[str], float | None]) -> list[Point]:
        """The next points, none once there are no more; `score_of`: the score of one before, by its id."""
        found, self._points = self._points, []
        return found


class Suggested:
    """Points that Optuna chooses by the scores of those before, WAVE by WAVE.

    Source: tree-structured Parzen estimator, Bergstra et al. 2011 (NeurIPS), as optuna.samplers.TPESampler has it.
    """

    def __init__(self, config: Config, higher_is_better: bool) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler = optuna.samplers.TPESampler(seed=config.seed, n_startup_trials=WAVE)
        self._study = optuna.create_study(sampler=sampler, direction="maximize" if higher_is_better else "minimize")
        self._config = config
        self._known = set[str]()
        self._asked: list[tuple[Any, str]] = []
        self._is_spent = False

    @property
    def left(self) -> int:
        """As of Known; at most."""
        return 0 if self._is_spent else self._config.sweep.points - len(self._known)

    def more(self, score_of: Callable[[str], float | None]) -> list[Point]:
        """As of Known. A point without a score is told as worse than all others."""
        from optuna.trial import TrialState

        for trial, point in self._asked:
            if (score := score_of(point)) is None:
                self._study.tell(trial, state=TrialState.PRUNED)
            else:
                self._study.tell(trial, score)
        self._asked, wave = [], list[Point]()
        for _ in range(ASKED):
            if len(self._known) == self._config.sweep.points or len(wave) == WAVE:
                break
            trial = self._study.ask()
            try:
                point = choose_point(self._config, lambda name, axis, trial=trial: _suggested(trial, name, axis))
            except UserError:  # values that do not go together, in a space too large to be checked whole
                self._study.tell(trial, state=TrialState.PRUNED)
                continue
            self._asked.append((trial, point.id))
            if point.id not in self._known:
                self._known.add(point.id)
                wave.append(point)
        self._is_spent = not wave
        return wave


def _suggested(trial: Any, name: str, axis: Axis) -> Any:
    """One value of an axis as Optuna chooses it."""
    if not isinstance(axis, Range):
        return axis[trial.suggest_categorical(name, range(len(axis)))]
    suggest = trial.suggest_int if axis.whole else trial.suggest_float
    return axis.written(suggest(name, axis.low, axis.high, log=axis.log))


def searcher(config: Config, metric: str) -> Known | Suggested:
    """The searcher that the sweep names; `metric`: what its points are judged by."""
    if config.sweep.search == "optuna":
        return Suggested(config, METRICS[metric].higher_is_better)
    return Known(points(config))
