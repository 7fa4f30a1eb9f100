"""The driver of a sweep: points x seeds x encoders as trials -> leaderboard, and the winner as a folder.

In: a Config, its run folder, a Ray that is already there. Out: entries, best first; run/leaderboard.{json,csv},
run/trials/<id>/result.json, run/best/ (Hugging Face folder). The same call again runs only what has no result yet.
`sweep` reads top to bottom: check, load, plan, cache, run, judge, hand over.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from data.corpus import DOCSTRINGS
from data.examples import TaskData
from data.storage import fetch, remove, shown
from orchestration.cluster import Node
from orchestration.config import Config
from orchestration.progress import Update
from orchestration.run import cache_of
from tuning.handing import WINNER, conclude, hand_over, is_handed_over
from tuning.inputs import find_encoders, goal_of, load_task, random_encoder, resolved
from tuning.leaderboard import Entry, best_trial, make_entries, read_leaderboard, winner, write_leaderboard
from tuning.reading import Reading, subsets, train_sizes
from tuning.record import Record
from tuning.room import check_resources, nodes_of_ray
from tuning.scores import baseline
from tuning.search import Plan, Search
from tuning.space import points
from tuning.standing import Standing
from tuning.trials import Result, Trial, prune_weights, read_results
from tuning.tuner import Inputs, run_trials


def check(config: Config, nodes: Sequence[Node]) -> tuple[str, ...]:
    """Raise UserError for whatever can be found wrong without starting anything, one line per fault; returns what is
    to be told of the task.

    `nodes`: what the cluster offers. The built-in task is not read: that takes a minute.
    """
    notes: list[str] = []
    config = resolved(config, notes.append)
    points(config)
    check_resources(config, nodes)
    if config.task.train != DOCSTRINGS or config.head.kind != "classification":
        task = load_task(config, cache_of(config), lambda text, fraction: None)
        goal_of(config, task)
        train_sizes(config, len(task.train))
        notes += task.notes
    find_encoders(config)
    return tuple(notes)


def sweep(
    config: Config,
    run: Path,
    progress: Update,
    task: TaskData | None = None,
    tell: Callable[[str], None] = lambda note: None,
    title: str | None = None,
) -> list[Entry]:
    """Run the sweep of `config` in `run` on the running Ray; returns the leaderboard, best first.

    `task`: examples already loaded; None: those that config.task names. `tell` gets what is to be said of them, and of
    a budget that is used up. `title`: what Ray's pages and Prometheus call it; None: as its folder is called.

    Raises UserError, before anything runs, for an encoder, a space, a task or resources that cannot be; RuntimeError
    where no trial finished, with the cause.
    """
    config = resolved(config, tell)
    run = run.absolute()  # not resolved: the mirror of a bucket is known by its path
    for name in ("trials", "leaderboard.json", WINNER, "best"):
        fetch(run / name)
    cache = cache_of(config).absolute()
    record = Record(run, config.sweep.budget)
    sources = {name: folder.absolute() for name, folder in find_encoders(config).items()}
    check_resources(config, nodes_of_ray())

    progress("reading the task", None)
    task = task or load_task(config, cache, progress)
    goal = goal_of(config, task)
    numbers = train_sizes(config, len(task.train))
    for note in task.notes:
        tell(note)

    progress("preparing encoders", None)
    encoders = dict(sources)
    if "random" in sources:
        _, cpus, gpus = config.sweep.asked(points(config)[0].config.finetune.mode)
        like, place = sources["random"], {"num_cpus": cpus, "num_gpus": gpus}
        encoders["random"] = random_encoder(like, config.seed, cache, place)
    reading = Reading(config, task, goal, encoders, sources)

    def earlier(trial: Trial) -> Result | None:
        return read_results([trial], run / "trials").get(trial.id)

    plan = Search(config, list(encoders), numbers, goal.metric, reading.trial, earlier, record.told, record.seconds)
    standing = Standing(title or run.name, plan)
    if not plan.to_come and is_handed_over(config, task, run) and (entries := _finished(run, plan)):
        progress(f"finished before; {_outcome(plan, entries)}", 1.0, **standing.facts())
        return _told(config, plan, entries, tell)
    remove(run / WINNER)  # that of fewer trials, or of other examples: a kill from here on must not leave it

    def inputs(trials: Sequence[Trial]) -> Inputs:
        features = reading.features(trials, cache, progress, standing.title)
        drawn = subsets(numbers, len(task.train), config.seed)
        return Inputs(goal, reading.parts, features, run / "trials", config, drawn)

    def ended(result: Result) -> None:
        prune_weights(list(plan.results.values()), config.sweep.seeds, run / "trials", plan.lost)
        record.write(plan.told)

    if plan.to_come:
        unknown = config.sweep.search == "optuna"  # which points come then follows from results
        ready = inputs([*plan.waiting, *(reading.possible() if unknown else ())])
        progress(f"0 of {plan.expected} trials", 0.0, **standing.facts())
        with standing.told(), record.kept(plan):
            run_trials(plan, ready, run, progress, ended, standing, record.until())

    constant = baseline(goal.metric, task.kind, task.train.targets or [], task.validation.targets or [])
    entries = make_entries({**result, "majority_baseline": constant} for result in plan.results.values())
    best = winner(entries)
    if entries:
        write_leaderboard(entries, run)
    if best is None:
        raise RuntimeError(_why_no_winner(config, entries, run))

    trial = plan.trials[best_trial(best)]

    def train(one: Trial, parts: dict[str, Any]) -> None:
        reading.parts[one.reading] = parts
        run_trials(Plan([one]), inputs([one]), run, progress, lambda _: None)

    progress("handing over the winner", None)
    drawn = subsets([trial.train_size], len(task.train), config.seed).get(trial.train_size or 0)
    best["test_score"], told = hand_over(
        config, trial, best, goal, task, reading.parts[trial.reading], drawn, sources[trial.encoder], run, train,
        progress,
    )
    write_leaderboard(entries, run)
    conclude(told, task, run)
    known = plan.trials if plan.is_complete else None
    prune_weights(list(plan.results.values()), None, run / "trials", plan.lost, known)
    progress(_outcome(plan, entries), 1.0, **standing.facts())
    return _told(config, plan, entries, tell)


def _finished(run: Path, plan: Search) -> list[Entry] | None:
    """The leaderboard that lies in `run`, if it is of exactly these trials."""
    entries = read_leaderboard(run) or []
    same = {trial for entry in entries for trial in entry["trials"]} == plan.results.keys()
    return entries if same else None


def _told(config: Config, plan: Search, entries: list[Entry], tell: Callable[[str], None]) -> list[Entry]:
    """The entries; where a budget left something to do, that is said."""
    if not plan.is_complete:
        tell(
            f"{_budget(config)} is used up: {len(plan.results)} trials ended, {plan.num_whole} of {plan.num_points} "
            f"points have all of theirs; the same command with more goes on"
        )
    return entries


def _budget(config: Config) -> str:
    return ", ".join(f"sweep.budget.{name}={most:g}" for name, most in config.sweep.budget if most is not None)


def _why_no_winner(config: Config, entries: Sequence[Entry], run: Path) -> str:
    """What is to be told where no trial came to its end with a score."""
    first = next((entry for entry in entries if entry["status"] != "stopped"), None)
    if first is None:  # those of a race that were ahead are half-way
        return f"{_budget(config)} is used up, and no trial is at its end; the same command with more goes on"
    remedy = f"delete {shown(run / 'trials')} to run them again"
    return f"no trial finished ({first['status']}): {first['error']}; {remedy}"


def _outcome(plan: Plan, entries: Sequence[Entry]) -> str:
    """The sweep in one line."""
    best = winner(entries)
    if best is None:
        return f"{len(plan.results)} trials; no winner"
    test = "" if best["test_score"] is None else f", test {best['test_score']:.3f}"
    return (
        f"{len(plan.results)} trials; best: {best['encoder']} {best['mode']} {best['learning_rate']:g}, "
        f"{best['metric']} {best['score_mean']:.3f}{test}"
    )
