"""The driver of a sweep: points x seeds x encoders as trials -> leaderboard, and the winner as a folder.

In: a Config, its run folder, a Ray that is already there. Out: entries, best first; run/leaderboard.{json,csv},
run/trials/<id>/result.json, run/best/ (Hugging Face folder). The same call again runs only what has no result yet.
`sweep` reads top to bottom: check, load, cache, run, judge, hand over.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from data.corpus import DOCSTRINGS
from data.examples import TaskData
from data.storage import fetch, remove, shown, sizes
from model.config import Head
from orchestration.cluster import Node
from orchestration.config import Config, to_yaml
from orchestration.progress import Update
from orchestration.run import cache_of
from tuning.config import Finetune
from tuning.features import Request, cache_features, encoder_fingerprint, readings
from tuning.finetune import Goal, Part
from tuning.inputs import (
    check_resources,
    find_encoders,
    goal_of,
    load_task,
    nodes_of_ray,
    random_encoder,
    read_part,
    resolved,
    task_fingerprint,
)
from tuning.leaderboard import Entry, best_trial, make_entries, write_leaderboard
from tuning.scores import baseline
from tuning.space import Point, points
from tuning.standing import Standing
from tuning.trials import Result, Trial, hand_over, prune_weights, read_results
from tuning.tuner import Inputs, run_trials

Parts = dict[str, Part]
Key = tuple[Any, ...]  # what decides the tokens, or the cached features: Trial.reading, Trial.pooled


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
        notes += task.notes
    find_encoders(config)
    return tuple(notes)


def sweep(
    config: Config,
    run: Path,
    progress: Update,
    task: TaskData | None = None,
    tell: Callable[[str], None] = lambda note: None,
) -> list[Entry]:
    """Run the sweep of `config` in `run` on the running Ray; returns the leaderboard, best first.

    `task`: examples already loaded; None: those that config.task names. `tell` gets what is to be said of them.

    Raises UserError, before anything runs, for an encoder, a space, a task or resources that cannot be; RuntimeError
    where no trial finished, with the cause.
    """
    import ray

    config = resolved(config, tell)
    run = run.absolute()  # not resolved: the mirror of a bucket is known by its path
    for name in ("trials", "leaderboard.json", "best"):
        fetch(run / name)
    cache = run.parent / ".cache"
    sources = {name: folder.absolute() for name, folder in find_encoders(config).items()}
    check_resources(config, nodes_of_ray())
    asked = {"num_cpus": config.sweep.cpus_per_trial, "num_gpus": config.sweep.gpus_per_trial}

    progress("reading the task", None)
    task = task or load_task(config, cache, progress)
    goal = goal_of(config, task)
    for note in task.notes:
        tell(note)

    progress("preparing encoders", None)
    encoders = dict(sources)
    if "random" in sources:
        encoders["random"] = random_encoder(sources["random"], config.seed, cache, asked)
    trials = _trials(config, encoders, goal)
    parts = _tokenise(trials, task, goal, sources)
    trials = _marked(trials, parts, goal, encoders)
    results = read_results(trials, run / "trials")
    standing = Standing(run.name, trials, results)
    todo = [trial for trial in trials if trial.id not in results]
    if not todo and (entries := _finished(run, trials)):
        progress(f"finished before; {_outcome(trials, entries[0])}", 1.0, **standing.facts())
        return entries

    features = _features(todo, encoders, parts, run, asked, progress)
    inputs = Inputs(goal, parts, features, run / "trials", **asked)
    wanted = {(trial.encoder, trial.point): config.sweep.seeds for trial in trials}

    def ended(result: Result) -> None:
        results[result["trial"]] = result
        prune_weights(list(results.values()), wanted, run / "trials")

    if todo:
        progress(f"0 of {len(todo)} trials", 0.0, **standing.facts())
        with standing.told():
            results |= run_trials(todo, inputs, run, progress, ended, standing)

    constant = baseline(goal.metric, task.kind, task.train.targets or [], task.validation.targets or [])
    entries = make_entries({**results[trial.id], "majority_baseline": constant} for trial in trials)
    if entries[0]["score_mean"] is None:
        write_leaderboard(entries, run)
        raise RuntimeError(
            f"no trial finished ({entries[0]['status']}): {entries[0]['error']}; "
            f"delete {shown(run / 'trials')} to run them again"
        )

    winner = next(trial for trial in trials if trial.id == best_trial(entries[0]))
    if "weights.safetensors" not in sizes(run / "trials" / winner.id):
        # Pruned when another point led; with more seeds this one does. The same trial again gives the same weights.
        features = _features([winner], encoders, parts, run, asked, progress)
        again = Inputs(goal, parts, features, run / "trials", **asked)
        run_trials([winner], again, run, progress, lambda _: None, standing)
    progress("exporting the winner", None)
    test = None
    if task.test is not None:
        settings = Finetune(**winner.finetune), Head(**winner.head)
        test = read_part(task.test, task, goal, sources[winner.encoder], *settings)
    entries[0]["test_score"] = ray.get(
        ray.remote(hand_over).options(**asked).remote(
            winner, goal, test, run / "trials", str(sources[winner.encoder]), run / "best",
            _card(config, entries[0], winner.inputs), asked["num_gpus"],
        )
    )  # fmt: skip
    write_leaderboard(entries, run)
    for name in sizes(run / "trials"):
        if name.endswith("/weights.safetensors"):
            remove(run / "trials" / name)
    progress(_outcome(trials, entries[0]), 1.0, **standing.facts())
    return entries


def _tokenise(trials: Sequence[Trial], task: TaskData, goal: Goal, sources: Mapping[str, Path]) -> dict[Key, Parts]:
    """What trials read of the training and validation examples, made once for each tokenizer and way of reading."""
    made: dict[tuple[Any, ...], Parts] = {}
    parts: dict[Key, Parts] = {}
    for trial in trials:
        folder = sources[trial.encoder]
        key = (folder, *trial.reading[1:])
        if key not in made:
            settings = Finetune(**trial.finetune), Head(**trial.head)
            made[key] = {
                split: read_part(getattr(task, split), task, goal, folder, *settings)
                for split in ("train", "validation")
            }
        parts[trial.reading] = made[key]
    return parts


def _trials(config: Config, encoders: Mapping[str, Path], goal: Goal) -> list[Trial]:
    """Every trial of the sweep; seeds are seed, seed + 1, ... in every point and encoder."""

    def trial(name: str, point: Point, seed: int) -> Trial:
        return Trial(
            id=f"{_slug(name)}-{point.id}-s{seed}",
            encoder=name,
            folder=str(encoders[name]),
            point=point.id,
            values=point.values,
            finetune=point.config.finetune.model_dump(mode="json"),
            head=point.config.head.model_dump(mode="json"),
            seed=seed,
            metric=goal.metric,
            inputs="",
        )

    seeds = range(config.seed, config.seed + config.sweep.seeds)
    whole = [trial(name, point, seed) for point in points(config) for name in encoders for seed in seeds]
    # Full trials first: they are the long ones, and short ones then fill the cluster to the end.
    return sorted(whole, key=lambda one: one.finetune["mode"] == "frozen")


def _marked(
    trials: Sequence[Trial], parts: Mapping[Key, Parts], goal: Goal, encoders: Mapping[str, Path]
) -> list[Trial]:
    """The trials with the fingerprints of what they read."""
    prints = {name: encoder_fingerprint(folder) for name, folder in encoders.items()}
    tasks = {id(part): task_fingerprint(part, goal) for part in parts.values()}
    return [
        replace(trial, inputs=f"{prints[trial.encoder]}-{tasks[id(parts[trial.reading])]}-{goal.metric}")
        for trial in trials
    ]


def _slug(encoder: str) -> str:
    """A short name for folders: pretrained, random, or the folder's own name and a hash of its path."""
    if encoder in ("pretrained", "random"):
        return encoder
    name = re.sub(r"[^A-Za-z0-9]+", "-", Path(encoder).name).strip("-")[:24]
    return f"{name}-{hashlib.sha256(encoder.encode()).hexdigest()[:6]}"


def _finished(run: Path, trials: Sequence[Trial]) -> list[Entry] | None:
    """The leaderboard that lies in `run`, if it is of exactly these trials and its winner was handed over."""
    path = run / "leaderboard.json"
    if not path.is_file() or not (run / "best" / "config.json").is_file():
        return None
    entries = json.loads(path.read_text(encoding="utf-8"))
    same = {trial for entry in entries for trial in entry["trials"]} == {trial.id for trial in trials}
    return entries if same else None


def _features(
    todo: Sequence[Trial],
    encoders: Mapping[str, Path],
    parts: Mapping[Key, Parts],
    run: Path,
    asked: Mapping[str, float],
    progress: Update,
) -> dict[Key, str | None]:
    """Folders of cached features by `pooled`, for every frozen trial in `todo`: a request for each reading, with all
    poolings that its trials want of it."""
    wanted: dict[Key, dict[str, None]] = {}
    first: dict[Key, Trial] = {}
    for trial in todo:
        if trial.pooled is not None:
            wanted.setdefault(trial.reading, {})[trial.pooled[1]] = None
            first.setdefault(trial.reading, trial)
    requests = [
        Request(
            encoders[trial.encoder], encoder_fingerprint(encoders[trial.encoder]), readings(parts[reading]),
            tuple(wanted[reading]),
        )
        for reading, trial in first.items()
    ]  # fmt: skip
    found = cache_features(requests, run.parent / ".cache", asked["num_cpus"], asked["num_gpus"], progress, run.name)
    return {
        (reading, pooling): str(folders[pooling]) if pooling in folders else None
        for (reading, poolings), folders in zip(wanted.items(), found, strict=True)
        for pooling in poolings
    }


def _outcome(trials: Sequence[Trial], best: Entry) -> str:
    """The sweep in one line."""
    test = "" if best["test_score"] is None else f", test {best['test_score']:.3f}"
    return (
        f"{len(trials)} trials; best: {best['encoder']} {best['mode']} {best['learning_rate']:g}, "
        f"{best['metric']} {best['score_mean']:.3f}{test}"
    )


def _card(config: Config, entry: Entry, data: str) -> dict[str, Any]:
    """What the winner's model card says."""
    seeds = entry["seeds"]
    spread = "" if entry["score_std"] is None else f" ± {entry['score_std']:.4f}"
    return {
        "title": f"{config.name}: {config.head.kind} with Cloze",
        "encoder": entry["encoder"],
        "trained": entry["mode"],
        "learning rate": entry["learning_rate"],
        "epochs": entry["epochs"],
        f"validation {entry['metric']}": f"{entry['score_mean']:.4f}{spread} ({seeds} seed{'s' * (seeds != 1)})",
        **({} if entry["majority_baseline"] is None else {"majority baseline": entry["majority_baseline"]}),
        "data fingerprint": data,
        "recipe": to_yaml(config),
    }
