"""The plan of a sweep: which trial is next, told by how the others ended.

In: a config, a way to make a trial of a point, results of earlier runs, results as they come. Out: trials one by one.
All searchers are one mechanism: a source of points for each encoder and number of training examples, asked for more
once all of its points are through. So the search is a function of the results, in order of the points, and not of who
ended first; a later call with the same results replays it. Pure: knows neither Ray nor files.
"""

import heapq
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from orchestration.config import Config
from tuning.searchers import Known, Suggested, searcher
from tuning.space import Point
from tuning.trials import Result, Trial, make_result


class Turn(Enum):
    """What there is in place of a trial."""

    WAIT = "wait"
    """Nothing to start before another trial ends."""
    DONE = "done"
    """Nothing to start any more."""


class Plan:
    """Trials that are known beforehand, in their order."""

    def __init__(self, trials: Iterable[Trial] = ()) -> None:
        self.trials: dict[str, Trial] = {}
        """All that are known by now, by id."""
        self.results: dict[str, Result] = {}
        """Of those that ended, in this call or before."""
        self.lost = set[str]()
        """Those that ended without a result of their own."""
        self.running = set[str]()
        self._queue: list[tuple[tuple[int, ...], str]] = []
        self._ended_now = 0
        for number, trial in enumerate(trials):
            self._add(trial, (number,))

    def next(self) -> Trial | Turn:
        """The trial to start now."""
        if not self._queue:
            return Turn.WAIT if self.running else Turn.DONE
        _, name = heapq.heappop(self._queue)
        self.running.add(name)
        return self.trials[name]

    def ended(self, name: str, result: Result | None, error: str = "its process died") -> None:
        """A trial is through, with its result or, where it left none, the cause."""
        self.running.discard(name)
        self._ended_now += 1
        if result is None:
            self.lost.add(name)
            result = make_result(self.trials[name], {"error": error})
        self.results[name] = result

    def returned(self, name: str) -> None:
        """A trial was cut short and is to go on another time."""
        self.running.discard(name)
        heapq.heappush(self._queue, ((), name))

    def is_over(self) -> bool:
        """Whether trials that run are to be cut short."""
        return False

    @property
    def expected(self) -> int:
        """How many trials this call has in all, as far as can be told now."""
        return self._ended_now + self.to_come

    @property
    def to_come(self) -> int:
        """How many of them have not ended."""
        return len(self.running) + len(self._queue)

    def _add(self, trial: Trial, order: tuple[int, ...]) -> None:
        self.trials[trial.id] = trial
        heapq.heappush(self._queue, (order, trial.id))


@dataclass
class _Course:
    """A point on its way: one seed of it, or all."""

    point: Point
    number: int
    due: list[Trial] = field(default_factory=list)


@dataclass
class _Line:
    """The points of one encoder at one number of training examples."""

    encoder: str
    size: int | None
    source: Known | Suggested
    courses: dict[str, _Course] = field(default_factory=dict)
    is_done: bool = False


class Search(Plan):
    """The trials of a sweep."""

    def __init__(
        self,
        config: Config,
        encoders: Sequence[str],
        sizes: Sequence[int | None],
        metric: str,
        make: Callable[[str, int | None, Point, int], Trial],
        earlier: Callable[[Trial], Result | None] = lambda trial: None,
        told: Mapping[str, Mapping[str, Any]] | None = None,
        seconds: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`sizes`: numbers of training examples, None for all. `make`: (encoder, size, point, seed) -> its trial;
        `earlier`: its result of an earlier run. `told`: the attribute of this name as an earlier run left it.
        `seconds`: what the sweep has spent."""
        super().__init__()
        self.told = {name: dict(entry) for name, entry in (told or {}).items()}
        """What searchers were told of each point that is through, by its first trial: {"inputs", "score"}. Seeds that
        are added later do not change what was searched for."""
        self._sweep, self._seed = config.sweep, config.seed
        self._make, self._earlier, self._seconds = make, earlier, seconds
        self._lines = [_Line(name, size, searcher(config, metric)) for size in sizes for name in encoders]
        self._advance()

    def next(self) -> Trial | Turn:
        most = self._sweep.budget.trials
        if self.is_over():
            return Turn.DONE
        if most is not None and len(self.results) + len(self.running) >= most:  # none is started only to be cut
            return Turn.WAIT if self.running else Turn.DONE
        return super().next()

    def ended(self, name: str, result: Result | None, error: str = "its process died") -> None:
        super().ended(name, result, error)
        self._advance()

    def is_over(self) -> bool:
        hours = self._sweep.budget.hours
        return hours is not None and self._seconds() >= hours * 3600

    @property
    def to_come(self) -> int:
        further = 0
        for line in self._lines:
            further += line.source.left * self._sweep.seeds
            further += sum(self._sweep.seeds - 1 for course in line.courses.values() if not self._is_raced(course))
        if self.is_over():
            return len(self.running)
        most, to_come = self._sweep.budget.trials, super().to_come + further
        return to_come if most is None else min(to_come, max(most - len(self.results), 0))

    @property
    def is_complete(self) -> bool:
        """Whether every point is through."""
        return not self._queue and not self.running and all(line.is_done for line in self._lines)

    @property
    def num_points(self) -> int:
        """How many points there are, counted on each encoder and number of training examples; of optuna the most."""
        return sum(len(line.courses) + line.source.left for line in self._lines)

    @property
    def num_whole(self) -> int:
        """How many points are through, counted on each encoder and number of training examples."""
        return sum(self._is_through(course) for line in self._lines for course in line.courses.values())

    @property
    def waiting(self) -> list[Trial]:
        """Those that are known and to be started."""
        return [self.trials[name] for _, name in self._queue]

    def _advance(self) -> None:
        """Bring in all trials that are due now; those of which there is a result are through at once."""
        for place, line in enumerate(self._lines):
            while not line.is_done:
                for course in line.courses.values():
                    self._extend(line, place, course)
                if not all(self._is_through(course) for course in line.courses.values()):
                    break
                wave = line.source.more(lambda name, line=line: self._score(line.courses[name]))
                line.is_done = not wave
                for point in wave:
                    line.courses[point.id] = _Course(point, len(line.courses))

    def _extend(self, line: _Line, place: int, course: _Course) -> None:
        """Give a point the seeds that it should have by now."""
        while len(course.due) < (self._sweep.seeds if self._is_raced(course) and self._is_fit(course) else 1):
            seed = self._seed + len(course.due)
            trial = self._make(line.encoder, line.size, course.point, seed)
            course.due.append(trial)
            if (result := self._earlier(trial)) is not None:
                self.trials[trial.id], self.results[trial.id] = trial, result
                continue
            # Full trials first, and those on most examples: they are the long ones, and short ones then fill the
            # cluster to the end. Where points race, first seeds go before others.
            is_short = trial.finetune["mode"] == "frozen"
            is_later = self._sweep.scheduler != "none" and len(course.due) > 1
            self._add(trial, (is_short, -(line.size or 10**12), is_later, course.number, place, seed))

    def _is_raced(self, course: _Course) -> bool:
        """Whether its first seed decided, or need not decide, if it gets the others."""
        return self._sweep.scheduler == "none" or bool(course.due) and course.due[0].id in self.results

    def _is_fit(self, course: _Course) -> bool:
        return self._sweep.scheduler == "none" or self.results[course.due[0].id]["status"] == "done"

    def _is_through(self, course: _Course) -> bool:
        return all(trial.id in self.results for trial in course.due)

    def _score(self, course: _Course) -> float | None:
        """The point's mean; None where a trial of it has no score of its own right."""
        first = course.due[0]
        if self.told.get(first.id, {}).get("inputs") == first.inputs:
            return self.told[first.id]["score"]
        results = [self.results[trial.id] for trial in course.due]
        scores = [one["score"] for one in results if one["status"] in ("done", "stopped") and one["score"] is not None]
        score = statistics.fmean(scores) if len(scores) == len(results) else None
        self.told[first.id] = {"inputs": first.inputs, "score": score}
        return score
