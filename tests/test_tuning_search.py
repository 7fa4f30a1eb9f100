"""The plan of a sweep without a cluster: which trials come, in any order of ends, after restarts, with more of each."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from orchestration.config import Config
from orchestration.recipe import build_config
from tuning.search import Plan, Search, Turn
from tuning.searchers import WAVE
from tuning.space import Point
from tuning.trials import Result, Trial, make_result

RATES = {"finetune.learning_rate": {"log_uniform": [1e-5, 1e-1]}}
MODES = {"finetune.mode": ["frozen", "full"], "finetune.learning_rate": {"frozen": {"log_uniform": [1e-4, 1e-1]},
         "full": {"log_uniform": [1e-6, 1e-3]}}, "finetune.epochs": {"frozen": 30, "full": [2, 3]}}  # fmt: skip
GRID = {"finetune.learning_rate": [1e-4, 1e-3, 1e-2]}


def configure(space: dict[str, Any], **changes: Any) -> Config:
    sweep = {f"sweep.{key.replace('__', '.')}": value for key, value in changes.items() if key != "seed"}
    return build_config({"name": "x"}, {"sweep.space": space, **sweep, "seed": changes.get("seed", 0)})


def make(encoder: str, size: int | None, point: Point, seed: int) -> Trial:
    finetune, head = (getattr(point.config, name).model_dump(mode="json") for name in ("finetune", "head"))
    name = f"{encoder}-{point.id}{'' if size is None else f'-n{size}'}-s{seed}"
    return Trial(name, encoder, "", point.id, point.values, finetune, head, seed, "accuracy", "inputs", size)


def plan(config: Config, encoders: tuple[str, ...] = ("a",), sizes: tuple[int | None, ...] = (None,), **more) -> Search:
    return Search(config, encoders, sizes, "accuracy", make, **more)


def judge(trial: Trial) -> Result:
    """A score that is best at a learning rate of 0.003, with a little of the seed in it."""
    score = 1 / (1 + abs(trial.finetune["learning_rate"] - 3e-3) * 100) + 0.001 * (trial.seed % 7)
    return make_result(trial, {"status": "done", "score": score})


def run(
    search: Plan, at_once: int = 1, order: int = 0, judge: Callable[[Trial], Result | None] = judge, most: int = 10**6
) -> list[Trial]:
    """All trials that are started, `at_once` of them running, ending in an order drawn by `order`."""
    draw, running, started = random.Random(order), list[Trial](), list[Trial]()
    while len(started) < most:
        turn = search.next()
        if isinstance(turn, Trial):
            started.append(turn)
            running.append(turn)
        if not isinstance(turn, Trial) or len(running) >= at_once:
            if not running:
                assert turn is Turn.DONE
                break
            ended = running.pop(draw.randrange(len(running)))
            search.ended(ended.id, judge(ended))
    return started


def results_of(search: Plan) -> Callable[[Trial], Result | None]:
    found = dict(search.results)
    return lambda trial: found.get(trial.id)


def test_a_grid_gives_each_trial_once_the_long_ones_first() -> None:
    space = {"finetune.mode": ["frozen", "full"], "finetune.learning_rate": [1e-3, 1e-2]}
    search = plan(configure(space, seeds=2), ("a", "b"), (None, 10))
    assert search.expected == 2 * 2 * 2 * 2 * 2
    started = run(search, at_once=3)
    assert len({trial.id for trial in started}) == len(started) == 32 and search.is_complete
    order = [(trial.finetune["mode"] == "frozen", -(trial.train_size or 10**12)) for trial in started]
    assert order == sorted(order)
    assert search.next() is Turn.DONE and search.expected == 32 and search.num_whole == 16


@pytest.mark.parametrize("name", ["random", "optuna"])
def test_the_same_seed_gives_the_same_points_whoever_ends_first(name: str) -> None:
    config = configure(MODES, search=name, points=20, seeds=2, seed=5)
    alone = {trial.id for trial in run(plan(config))}
    assert len(alone) == 40
    for at_once, order in ((4, 1), (40, 3)):
        assert {trial.id for trial in run(plan(config), at_once, order)} == alone
    other = configure(MODES, search=name, points=20, seeds=2, seed=6)
    assert not {trial.point for trial in run(plan(other))} & {trial.point for trial in run(plan(config))}


def test_optuna_looks_where_scores_were_good_and_random_does_not() -> None:
    def near(name: str) -> float:
        rates = [t.finetune["learning_rate"] for t in run(plan(configure(RATES, search=name, points=40, seeds=1)))]
        later = rates[WAVE:]
        return sum(1e-3 < rate < 1e-2 for rate in later) / len(later)

    assert near("optuna") > 0.4 > near("random")  # a quarter of the space


def test_values_that_do_not_go_together_in_a_space_too_large_to_check_are_passed_over() -> None:
    """A crf takes no label smoothing; of 2 x 2 x 10 x 10 x 2 combinations half of those with a crf cannot be."""
    space = {
        "head.crf": [False, True], "head.label_smoothing": [0.1, 0.0], "finetune.epochs": list(range(1, 11)),
        "finetune.weight_decay": [number / 100 for number in range(10)], "finetune.warmup_ratio": [0.0, 0.1],
    }  # fmt: skip
    sweep = {"sweep.space": space, "sweep.search": "optuna", "sweep.points": 40, "sweep.seeds": 1}
    trials = run(plan(build_config({"name": "x"}, {**sweep, "head.kind": "tagging"})))
    assert len(trials) == 40 and {trial.head["crf"] for trial in trials} == {True, False}
    assert not any(trial.head["crf"] and trial.head["label_smoothing"] for trial in trials)


@pytest.mark.parametrize("name", ["random", "optuna"])
def test_a_search_that_was_cut_anywhere_replays_to_the_same_points(name: str) -> None:
    config = configure(RATES, search=name, points=18, seeds=2)
    whole = [trial.id for trial in run(plan(config))]
    for cut in (1, 7, 17, 30):
        first = plan(config)
        run(first, at_once=3, order=cut, most=cut)
        second = plan(config, earlier=results_of(first), told=first.told)
        rest = {trial.id for trial in run(second, at_once=2)}
        assert not rest & first.results.keys() and rest | first.results.keys() == set(whole)


@pytest.mark.parametrize("name", ["random", "optuna"])
def test_more_points_begin_with_the_same(name: str) -> None:
    few = plan(configure(RATES, search=name, points=8, seeds=2))
    before = run(few)
    more = plan(configure(RATES, search=name, points=12, seeds=2), earlier=results_of(few), told=few.told)
    added = run(more)
    assert len(before) == 16 and len(added) == 8 and not {t.point for t in before} & {t.point for t in added}
    fresh = run(plan(configure(RATES, search=name, points=12, seeds=2)))
    assert {trial.id for trial in fresh} == {trial.id for trial in (*before, *added)}


@pytest.mark.parametrize("name", ["grid", "random", "optuna"])
def test_more_seeds_run_the_new_seed_alone(name: str) -> None:
    space = GRID if name == "grid" else RATES
    two = plan(configure(space, search=name, points=20, seeds=2, seed=3))
    before = run(two)
    three = plan(configure(space, search=name, points=20, seeds=3, seed=3), earlier=results_of(two), told=two.told)
    added = run(three)
    assert {trial.seed for trial in before} == {3, 4} and {trial.seed for trial in added} == {5}
    assert {trial.point for trial in added} == {trial.point for trial in before} and 2 * len(added) == len(before)


def test_a_small_space_ends_when_it_has_no_more_points() -> None:
    for name in ("random", "optuna"):
        search = plan(configure(GRID, search=name, points=50, seeds=1))
        assert {trial.values["finetune.learning_rate"] for trial in run(search)} == {1e-4, 1e-3, 1e-2}
        assert search.is_complete and search.expected == 3


def test_points_race_on_their_first_seed_and_survivors_get_the_others() -> None:
    def stopped(trial: Trial) -> Result:
        status = "stopped" if trial.finetune["learning_rate"] == 1e-2 else "done"
        return make_result(trial, {"status": status, "score": 0.5})

    search = plan(configure(GRID, scheduler="asha", seeds=3, seed=1))
    assert search.expected == 9
    started = run(search, judge=stopped)
    assert [trial.seed for trial in started] == [1, 1, 1, 2, 3, 2, 3]
    assert {trial.values["finetune.learning_rate"] for trial in started[3:]} == {1e-4, 1e-3}
    assert search.is_complete and search.expected == 7 and search.num_whole == 3
    again = plan(configure(GRID, scheduler="asha", seeds=3, seed=1), earlier=results_of(search))
    assert run(again) == [] and again.is_complete and again.results == search.results


def test_what_optuna_is_told_of_points() -> None:
    def judged(trial: Trial) -> Result | None:
        rate = trial.finetune["learning_rate"]
        if rate > 1e-2:
            return make_result(trial, {"status": "nan"})
        if rate > 1e-3:
            return make_result(trial, {"status": "stopped", "score": 0.25})
        return None if rate < 1e-4 else make_result(trial, {"status": "done", "score": 0.5 + 0.25 * trial.seed})

    search = plan(configure(RATES, search="optuna", points=WAVE + 1, seeds=2))
    run(search, judge=judged)
    told = {search.trials[name].finetune["learning_rate"]: entry["score"] for name, entry in search.told.items()}
    assert len(told) == WAVE + 1 and len(set(told.values())) > 2
    for rate, score in told.items():
        expected = None if rate > 1e-2 or rate < 1e-4 else 0.25 if rate > 1e-3 else 0.625
        assert score == expected


def test_a_trial_that_left_no_result_failed_and_is_due_again_in_the_next_call() -> None:
    config = configure(GRID, seeds=1)
    search = plan(config)
    started = run(search, judge=lambda trial: None)
    assert len(started) == 3 and search.is_complete and search.lost == set(search.results)
    assert {result["status"] for result in search.results.values()} == {"failed"}
    assert run(plan(config)) == started


def test_a_budget_of_trials_starts_no_more_and_the_next_call_goes_on() -> None:
    config = configure(GRID, seeds=2, budget__trials=4)
    search = plan(config)
    assert search.expected == 4
    started = run(search, at_once=3)
    assert len(started) == 4 == len(search.results) and not search.is_complete and search.next() is Turn.DONE
    assert search.num_whole == 2
    same = plan(config, earlier=results_of(search))
    assert run(same) == [] and same.expected == 0
    more = plan(configure(GRID, seeds=2, budget__trials=9), earlier=results_of(search))
    assert len(run(more)) == 2 and more.is_complete


def test_a_budget_of_hours_ends_what_runs_and_keeps_it_for_another_time() -> None:
    spent = 0.0
    search = plan(configure(GRID, seeds=1, budget__hours=0.5), seconds=lambda: spent)
    first = search.next()
    assert isinstance(first, Trial) and not search.is_over()
    spent = 1800.0
    assert search.is_over() and search.next() is Turn.DONE
    search.returned(first.id)
    assert not search.running and not search.results and not search.is_complete


def test_a_plan_of_given_trials_keeps_their_order() -> None:
    trials = run(plan(configure(GRID, seeds=1)))[::-1]
    given = Plan(trials)
    assert run(given, at_once=2) == trials and given.results.keys() == {trial.id for trial in trials}
