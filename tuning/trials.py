"""A trial on disk and on the cluster: its description, what runs in its process, its result, its kept weights.

In: one encoder, one point, one seed. Out: trials/<id>/result.json, written whole by the trial itself once it ended, and
trials/<id>/weights.safetensors, the trained weights of its best epoch. A result there means: not to be run again.
Knows torch only inside the functions that run on the cluster.
"""

import json
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from data.storage import fetch, publish, remove
from model.config import Head
from tuning.leaderboard import best_trial, make_entries, write_text

Result = dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """One seed of one point on one encoder."""

    id: str
    """<encoder>-<point>[-n<train_size>]-s<seed>: a folder's name, short however many keys the space has."""
    encoder: str
    """As the sweep names it: "pretrained", "random" or a folder."""
    folder: str
    """Hugging Face folder of the encoder."""
    point: str
    values: dict[str, Any]
    """The space's keys and this point's values."""
    finetune: dict[str, Any]
    """The whole finetune section."""
    head: dict[str, Any]
    """The whole head section."""
    seed: int
    metric: str
    inputs: str
    """Fingerprint of the encoder's weights and of the task: a result of other inputs does not count."""
    train_size: int | None = None
    """Training examples, the first so many of the sweep's shuffle; None: all."""
    workers: int = 1
    """Processes that share it."""

    @property
    def reading(self) -> tuple[Any, ...]:
        """What decides its tokens, which are made of all training examples: trials that agree in it share them."""
        settings = self.finetune["length"], self.finetune["stride"]
        return (self.encoder, *settings, self.head["query_prefix"], self.head["passage_prefix"])

    @property
    def pooled(self) -> tuple[tuple[Any, ...], str] | None:
        """What decides its cached features: its reading and what becomes of it (a pooling, or "tokens"); None where it
        runs the encoder itself."""
        pooling = Head(**self.head).reads_features
        return (self.reading, pooling) if self.finetune["mode"] == "frozen" and pooling else None


LEFT_OUT = ("id", "folder", "finetune", "head")  # of a result: told in other words, or by `values`


def read_results(trials: Sequence[Trial], folder: Path) -> dict[str, Result]:
    """Results that lie in `folder` (trials/) and belong to these trials and inputs, by trial id."""
    results: dict[str, Result] = {}
    for trial in trials:
        path = folder / trial.id / "result.json"
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # not there, or damaged: the trial runs
            continue
        if isinstance(result, dict) and result.get("inputs") == trial.inputs:
            results[trial.id] = result
    return results


def make_result(trial: Trial, outcome: Mapping[str, Any]) -> Result:
    """A result from what came out; fields that are not there are None."""
    empty = {
        "status": "failed", "score": None, "best_epoch": None, "epochs": [], "seconds": 0.0, "trained_parameters": None,
        "total_parameters": None, "error": None,
    }  # fmt: skip
    about = {key: value for key, value in asdict(trial).items() if key not in LEFT_OUT}
    return {
        "trial": trial.id,
        **about,
        "mode": trial.finetune["mode"],
        "learning_rate": trial.finetune["learning_rate"],
        "num_epochs": trial.finetune["epochs"],
        **empty,
        **outcome,
    }


def execute(
    trial: Trial,
    goal: Any,
    parts: Mapping[str, Any],
    features: str | None,
    folder: Path,
    gpus: float,
    report: Callable[[dict[str, Any]], None],
) -> Result:
    """Run a trial in this process and write its result and weights under folder/<id>/.

    `parts`: "train" and "validation"; `features`: the folder of their cached features, for frozen trials.
    An exception becomes a result of status "failed": it must not end the sweep, and the process serves the next trial.
    """
    own = folder / trial.id
    own.mkdir(parents=True, exist_ok=True)
    remove(own / "weights.safetensors")
    fetch(Path(trial.folder))  # storage that fails is no fault of the trial: no result, and it is tried again
    started = time.monotonic()
    weights = None
    try:
        from tuning.config import Finetune
        from tuning.features import with_features
        from tuning.finetune import run_trial

        if features is not None and trial.pooled is not None:
            parts = with_features(parts, Path(features), trial.pooled[1])
        outcome, weights = run_trial(
            Finetune(**trial.finetune), Head(**trial.head), trial.folder, goal, parts["train"].encoded,
            parts["validation"], trial.seed, report, device_of(gpus),
        )  # fmt: skip
        outcome = {**outcome, "cached_features": features is not None}
    except Exception as error:  # any fault of one trial is that trial's result
        write_text(own / "error.txt", traceback.format_exc())
        text = " ".join(f"{type(error).__name__}: {error}".split())
        outcome = {"status": "failed", "error": text[:500], "seconds": round(time.monotonic() - started, 3)}
    if weights:
        from safetensors.torch import save_file

        save_file(weights, str(own / "weights.safetensors"))
        publish(own / "weights.safetensors")
    result = make_result(trial, outcome)
    write_text(own / "result.json", json.dumps(result, indent=1, allow_nan=False) + "\n")
    return result


def prune_weights(results: Sequence[Result], wanted: Mapping[tuple[str, str], int], folder: Path) -> None:
    """Delete the weights of trials that cannot win any more.

    `wanted`: trials of each (encoder, point). Of a point whose trials all ended only its best trial can win, and only
    if no other such point leads it. So a sweep holds the leader's weights and those of the points still running.
    """
    ended: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        ended.setdefault((result["encoder"], result["point"]), []).append(result)
    whole = [r for key, group in ended.items() if len(group) >= wanted[key] for r in group]
    if not whole:
        return
    leader = make_entries(whole)[0]
    keep = best_trial(leader) if leader["score_mean"] is not None else None
    for result in whole:
        if result["trial"] != keep:
            remove(folder / result["trial"] / "weights.safetensors")


def device_of(gpus: float) -> str:
    """Where a trial that was given so many GPUs computes."""
    import torch

    return "cuda" if gpus and torch.cuda.is_available() else "cpu"


def hand_over(
    trial: Trial,
    goal: Any,
    test: Any,
    trials_folder: Path,
    tokenizer_folder: str,
    best: Path,
    card: Mapping[str, Any],
    gpus: float,
) -> float | None:
    """Join the winner's encoder and head, export them to `best`, score the test split once (None without one).

    Runs on the cluster, like a trial. Raises RuntimeError where the kept weights are not those that the trial trained.
    """
    from safetensors.torch import load_file

    from model.heads.description import Description
    from model.heads.exporting import export_head
    from tuning.config import Finetune
    from tuning.finetune import make_head, predicted
    from tuning.scores import score

    weights = trials_folder / trial.id / "weights.safetensors"
    for path in (Path(trial.folder), Path(tokenizer_folder), weights):
        fetch(path)
    settings, head = Finetune(**trial.finetune), Head(**trial.head)
    module = make_head(settings, head, goal, trial.folder, trial.seed).eval()
    trained = {name: parameter for name, parameter in module.model.named_parameters() if parameter.requires_grad}
    kept = load_file(str(weights))
    if kept.keys() != trained.keys():
        raise RuntimeError(f"{trial.id}: the kept weights are not those of mode {trial.finetune['mode']}")
    for name, tensor in kept.items():
        trained[name].data.copy_(tensor)
    found = None
    if test is not None:
        device = device_of(gpus)
        predictions = predicted(module.to(device), goal, test, device)
        found = score(trial.metric, head.kind, test.examples.targets, predictions)
        module.to("cpu")
    facts = {**card, **({} if found is None else {f"test {trial.metric}": found})}
    about = Description(
        kind=head.kind, labels=goal.labels, length=settings.length, head=head, scheme=goal.scheme,
        stride=settings.stride, num_choices=goal.num_choices, columns=goal.columns,
    )  # fmt: skip
    export_head(module, tokenizer_folder, best, facts, about)
    publish(best, last="config.json")
    return found
