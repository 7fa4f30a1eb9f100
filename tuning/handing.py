"""The winner of a sweep -> best/, a Hugging Face folder, and winner.json: where it is right and wrong.

In: the winning trial with its kept weights, the task. Out: encoder and head joined, scored once on the test split. With
sweep.retrain the point is trained once more, on training and validation examples together, for as many epochs as were
best: best/ then holds that, and the validation score is still the winner's own. Knows no points and no other trial.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from data.examples import Examples, TaskData
from data.storage import fetch, publish, remove, sizes
from model.config import Head
from orchestration.config import Config, to_yaml
from orchestration.progress import Update
from tuning.config import Finetune
from tuning.inputs import read_part
from tuning.leaderboard import Entry, write_text
from tuning.room import LOOK_SECONDS, Patience
from tuning.trials import WEIGHTS, Result, Trial, device_of, read_results

WINNER = "winner.json"
Parts = dict[str, Any]  # "train" and "validation", as a trial reads them
Train = Callable[[Trial, Parts], None]


def hand_over(
    config: Config, winner: Trial, entry: Entry, goal: Any, task: TaskData, parts: Parts, subset: np.ndarray | None,
    tokenizer_folder: Path, run: Path, train: Train, progress: Update,
) -> tuple[float | None, dict[str, Any]]:
    """Write best/ on the cluster, like a trial; returns the score on the test split (None without one), and what
    `conclude` writes.

    `entry`: the winner's; `parts`: what it read; `subset`: numbers of its training examples (None: all); `train` runs a
    trial on the cluster. Raises RuntimeError where a trial that has to run once more fails, or no node has room.
    """
    import ray

    settings = Finetune(**winner.finetune), Head(**winner.head)
    trials = run / "trials"
    if WEIGHTS not in sizes(trials / winner.id):
        # Pruned when another point led; with more seeds this one does. The same trial again gives the same weights.
        train(winner, parts)
        _ended(winner, trials)
    again, facts = None, _card(config, entry, winner.inputs)
    if config.sweep.retrain:
        best_epoch = _ended(winner, trials)["best_epoch"]
        again = replace(winner, id=f"{winner.id}-again", last_epoch=best_epoch, train_size=None)
        examples = joined(task.train if subset is None else task.train.take(subset.tolist()), task.validation)
        train(again, {**parts, "train": read_part(examples, task, goal, tokenizer_folder, *settings)})
        _ended(again, trials)
        facts["trained again"] = (
            f"on training and validation examples together ({len(examples):,}), for {best_epoch} epochs, the best "
            f"number on training examples alone; the validation score is from there"
        )
    test = None if task.test is None else read_part(task.test, task, goal, tokenizer_folder, *settings)
    _, cpus, gpus = config.sweep.asked(winner.finetune["mode"])
    export_there: Any = ray.remote(export).options(num_cpus=cpus, num_gpus=gpus)
    exported = export_there.remote(
        winner, (again or winner).id, goal, parts["validation"], test, run, tokenizer_folder, facts, gpus
    )
    patience = Patience(config, progress)
    while not ray.wait([exported], timeout=LOOK_SECONDS)[0]:
        patience.look(is_running=False)
    found: Any = ray.get(exported)
    if again:
        remove(trials / again.id)
    return found


def conclude(told: Mapping[str, Any], task: TaskData, run: Path) -> None:
    """Write winner.json, the last file of a sweep: it says that all others are there."""
    told = {**told, "test_examples": _test_examples(task)}
    write_text(run / WINNER, json.dumps(told, indent=1, allow_nan=False) + "\n")


def is_handed_over(config: Config, task: TaskData, run: Path) -> bool:
    """Whether the sweep in `run` was concluded, with a winner that was trained again or not as the config wants it and
    scored on the test examples of today."""
    if not (run / WINNER).is_file() or not (run / "best" / "config.json").is_file():
        return False
    told = json.loads((run / WINNER).read_text(encoding="utf-8"))
    return (told["retrained"], told.get("test_examples")) == (config.sweep.retrain, _test_examples(task))


def _test_examples(task: TaskData) -> str | None:
    """Hash of the test split; training and validation examples are in the identity of every trial."""
    if task.test is None:
        return None
    return hashlib.sha256(json.dumps([vars(task.test), task.passages]).encode()).hexdigest()[:16]


def export(
    winner: Trial, weights: str, goal: Any, validation: Any, test: Any, run: Path, tokenizer_folder: Path,
    card: Mapping[str, Any], gpus: float,
) -> tuple[float | None, dict[str, Any]]:
    """Write best/ of the weights of the trial `weights`; returns their score on the test split, if there is one, and
    where the winner's own weights are wrong about validation examples.

    Raises RuntimeError where kept weights are not those that the trial trained.
    """
    from model.heads.description import Description
    from model.heads.exporting import export_head
    from tuning.analysis import analyse
    from tuning.finetune import make_head, predicted
    from tuning.scores import score

    for path in (Path(winner.folder), tokenizer_folder, run / "trials" / winner.id, run / "trials" / weights):
        fetch(path)
    settings, head = Finetune(**winner.finetune), Head(**winner.head)
    module = make_head(settings, head, goal, winner.folder, winner.seed).eval()
    device = device_of(gpus)
    _load(module, winner, run / "trials" / winner.id / WEIGHTS)
    predictions = predicted(module.to(device), goal, validation, device)
    found = analyse(head.kind, goal.labels, validation.examples, predictions)
    _load(module, winner, run / "trials" / weights / WEIGHTS)
    scored = None
    if test is not None:
        scored = score(winner.metric, head.kind, test.examples.targets, predicted(module, goal, test, device))
        card = {**card, f"test {winner.metric}": scored}
    description = Description(
        kind=head.kind, labels=goal.labels, length=settings.length, head=head, scheme=goal.scheme,
        stride=settings.stride, num_choices=goal.num_choices, columns=goal.columns,
    )  # fmt: skip
    export_head(module.to("cpu"), str(tokenizer_folder), run / "best", card, description)
    publish(run / "best", last="config.json")
    about = {"trial": winner.id, "encoder": winner.encoder, "mode": settings.mode, "retrained": weights != winner.id}
    return scored, about | found


def joined(first: Examples, second: Examples) -> Examples:
    """The examples of two splits of one task, one behind the other."""
    lists = [f.name for f in fields(first) if isinstance(getattr(first, f.name), list)]
    both = {name: (getattr(first, name), getattr(second, name)) for name in lists}
    # Groups are read of a split that is divided, and of no other.
    return replace(first, **{name: None if more is None else values + more for name, (values, more) in both.items()})


def _ended(trial: Trial, folder: Path) -> Result:
    """The result of a trial that ended well. Raises RuntimeError."""
    fetch(folder / trial.id)
    result = read_results([trial], folder).get(trial.id)
    if result is None or result["status"] != "done":
        cause = "its process died" if result is None else f"{result['status']}: {result['error']}"
        raise RuntimeError(f"{trial.id}: the winner was trained again and failed ({cause}); the same command retries")
    return result


def _load(module: Any, trial: Trial, weights: Path) -> None:
    """Put the weights that a trial kept into its module."""
    from safetensors.torch import load_file

    trained = {name: parameter for name, parameter in module.model.named_parameters() if parameter.requires_grad}
    kept = load_file(str(weights))
    if kept.keys() != trained.keys():
        raise RuntimeError(f"{weights.parent.name}: the kept weights are not those of mode {trial.finetune['mode']}")
    for name, tensor in kept.items():
        trained[name].data.copy_(tensor)


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
