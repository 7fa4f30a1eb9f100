"""Who is stopped in a race, asked as Tune asks, without a cluster."""

from dataclasses import replace
from types import SimpleNamespace

from test_tuning_search import configure, plan, run

from tuning.races import Races, share_of
from tuning.trials import Trial, make_result

SPACE = {
    "finetune.mode": ["frozen", "full"], "finetune.epochs": {"frozen": 30, "full": 3},
    "finetune.learning_rate": [1e-4, 1e-3, 1e-2],
}  # fmt: skip
GO, STOP = "CONTINUE", "STOP"


def trials(mode: str, encoder: str = "a", seed: int = 0) -> list[Trial]:
    found = run(plan(configure(SPACE, scheduler="asha", seeds=1, seed=seed), (encoder,)))
    return [trial for trial in found if trial.finetune["mode"] == mode]


def races(seed: int = 0, scheduler: str = "asha", over: bool = False, earlier=()) -> Races:
    return Races(configure(SPACE, scheduler=scheduler).sweep, seed, "accuracy", lambda: over, earlier)


def ask(race: Races, trial: Trial, epoch: int, score: float | None) -> str:
    result = {"share": share_of(epoch, trial.finetune["epochs"]), "score": score}
    return race.on_trial_result(None, SimpleNamespace(config={"trial": trial}), result)


def test_who_falls_behind_at_a_rung_is_stopped_and_the_leader_is_not() -> None:
    race, (low, middle, high) = races(), trials("frozen")
    for epoch in (1, 2, 3):  # before the first rung nobody is
        assert [ask(race, trial, epoch, 0.1) for trial in (low, middle, high)] == [GO, GO, GO]
    assert ask(race, middle, 4, 0.9) == GO
    assert ask(race, high, 4, 0.2) == STOP and race.stopped == {high.id}
    assert [ask(race, middle, epoch, 0.9) for epoch in range(5, 31)] == [GO] * 26
    assert ask(race, low, 4, 0.5) == STOP and not race.cut


def test_the_best_epoch_so_far_counts() -> None:
    race, (low, middle, _) = races(), trials("frozen")
    ask(race, low, 4, 0.5)
    ask(race, middle, 3, 0.9)
    assert ask(race, middle, 4, 0.1) == GO


def test_a_score_that_is_no_number_is_behind() -> None:
    race, (low, middle, _) = races(), trials("frozen")
    assert ask(race, low, 4, 0.5) == GO and ask(race, middle, 4, None) == STOP


def test_modes_encoders_sizes_and_later_seeds_do_not_race_each_other() -> None:
    race = races()
    low, middle, _ = trials("frozen")
    ask(race, low, 10, 0.9)
    assert ask(race, trials("full")[0], 1, 0.1) == GO
    assert ask(race, trials("frozen", "b")[0], 10, 0.1) == GO
    assert ask(race, replace(middle, id="later", seed=1), 10, 0.1) == GO
    assert ask(race, replace(middle, id="few", train_size=50), 10, 0.1) == GO
    assert ask(race, middle, 10, 0.1) == STOP
    race = races(scheduler="none")
    assert ask(race, low, 10, 0.9) == GO and ask(race, middle, 10, 0.1) == GO


def test_three_epochs_and_thirty_are_asked_at_the_same_share() -> None:
    for mode, epochs in (("full", [1]), ("frozen", [4, 10])):
        race, (low, middle, _) = races(), trials(mode)
        for epoch in range(1, low.finetune["epochs"] + 1):
            assert ask(race, low, epoch, 0.5) == GO
        stops = [e for e in range(1, low.finetune["epochs"] + 1) if ask(race, middle, e, 0.4) == STOP]
        assert stops == epochs


def test_results_of_earlier_runs_race_too() -> None:
    leader, behind, _ = trials("frozen")
    records = [{"epoch": epoch, "score": 0.9} for epoch in range(1, 31)]
    earlier = [(leader, make_result(leader, {"status": "done", "epochs": records}))]
    assert ask(races(earlier=earlier), behind, 4, 0.5) == STOP
    assert ask(races(), behind, 4, 0.5) == GO


def test_the_end_of_the_budget_cuts_what_is_not_at_its_end() -> None:
    race, (low, middle, _) = races(over=True), trials("frozen")
    assert ask(race, low, 29, 0.9) == STOP and ask(race, middle, 30, 0.9) == GO
    assert race.cut == {low.id} and not race.stopped
