"""A trial on disk and on the cluster: its description, what runs in its process, its result, its kept weights.

In: one encoder, one point, one seed. Out: trials/<id>/result.json, written whole by the trial itself once it ended, and
trials/<id>/weights.safetensors, the trained weights of its best epoch. A result there means: not to be run again. While
there is none, trials/<id>/state.pt says where to go on (tuning/halfway.py). Knows torch only inside the functions that
run on the cluster.
"""

import json
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from data.storage import fetch, publish, remove, sizes
from model.config import Head
from orchestration.config import Zero
from tuning.leaderboard import Entry, best_trial, make_entries, write_text
from tuning.scores import METRICS

Result = dict[str, Any]
WEIGHTS = "weights.safetensors"
RECORD = ("epoch", "train_loss", "loss", "score")  # of an epoch, in result.json


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
    last_epoch: int | None = None
    """Of a winner that is trained again, on validation examples too: where it ends. None: a trial of the sweep."""

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


LEFT_OUT = ("id", "folder", "finetune", "head", "last_epoch")  # of a result: told in other words, or by `values`


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
        "status": "failed", "score": None, "best_epoch": None, "epochs": [], "seconds": 0.0, "encoder_rows": None,
        "trained_parameters": None, "total_parameters": None, "error": None, "log": [],
    }  # fmt: skip
    about = {key: value for key, value in asdict(trial).items() if key not in LEFT_OUT}
    result = {
        "trial": trial.id,
        **about,
        "mode": trial.finetune["mode"],
        "learning_rate": trial.finetune["learning_rate"],
        "num_epochs": trial.finetune["epochs"],
        **empty,
        **outcome,
    }
    return {**result, "worker_seconds": round(result["seconds"] * trial.workers, 3)}


def stopped_result(trial: Trial, reports: Sequence[Mapping[str, Any]]) -> Result:
    """The result of a trial that its race stopped after these reports, one at least: the best of them, all it cost."""
    metric = METRICS[trial.metric]
    best = min(reports, key=lambda one: metric.rank_key(one["score"]))  # of equals the first, as the trial itself
    costs = ("train_size", "seconds", "encoder_rows", "trained_parameters", "total_parameters", "cached_features")
    return make_result(
        trial,
        {
            "status": "stopped",
            "score": best["score"],
            "best_epoch": None if best["score"] is None else best["epoch"],
            "epochs": [{key: one[key] for key in RECORD} for one in reports],
            **{key: reports[-1][key] for key in costs},
        },
    )


def write_result(result: Result, folder: Path) -> None:
    """Write a trial's result under `folder` (trials/), whole or not at all; its half-way state is not needed then."""
    from tuning.halfway import clear

    own = folder / result["trial"]
    own.mkdir(parents=True, exist_ok=True)
    write_text(own / "result.json", json.dumps(result, indent=1, allow_nan=False) + "\n")
    clear(own)


def execute(
    trial: Trial,
    goal: Any,
    parts: Mapping[str, Any],
    features: str | None,
    folder: Path,
    gpus: float,
    report: Callable[[dict[str, Any]], None],
    *,
    cpus: float = 1,
    subset: Any = None,
    zero: Zero | None = None,
    checkpoint_seconds: float = 60,
) -> Result:
    """Run a trial and write its result and weights under folder/<id>/: in this process, or where trial.workers > 1 in
    as many others, in this one's placement group (tuning/groups.py).

    `parts`: "train" and "validation", which is not looked at where trial.last_epoch is given; `features`: the folder of
    their cached features, for frozen trials; `subset`: numbers of the training examples to take (None: all); `cpus`,
    `gpus`: of each worker; `zero`: how they share. `report` gets each epoch's record, what it cost so far, train_size.
    An exception becomes a result of status "failed": it must not end the sweep, and the process serves the next trial.
    A process that was lost is none of the trial's: RankLost is raised, nothing written, and the trial tried again.
    """
    own = folder / trial.id
    own.mkdir(parents=True, exist_ok=True)
    remove(own / WEIGHTS)
    fetch(Path(trial.folder))  # storage that fails is no fault of the trial: no result, and it is tried again
    from tuning.groups import RankLost, Share, train_group

    started = time.monotonic()
    weights, about = None, {}
    try:
        from tuning.config import Finetune
        from tuning.features import with_features
        from tuning.finetune import Work, counted, run_trial
        from tuning.halfway import Halfway

        if features is not None and trial.pooled is not None:
            parts = with_features(parts, Path(features), trial.pooled[1])
        train = parts["train"] if subset is None else parts["train"].take(subset)
        about = {"train_size": len(train.examples), "cached_features": features is not None}
        work = Work(
            Finetune(**trial.finetune), Head(**trial.head), trial.folder, counted(goal, train.examples), train.encoded,
            parts["validation"] if trial.last_epoch is None else None, trial.seed,
        )  # fmt: skip

        def tell(record: dict[str, Any]) -> None:
            report({**record, **about})

        if trial.workers > 1:
            share = Share(trial.workers, cpus, gpus, zero or Zero())
            saves = own, owner_of(trial) | share.facts(), checkpoint_seconds
            outcome, weights = train_group(trial.id, work, saves, tell, share, trial.last_epoch)
        else:
            halfway = Halfway(own, owner_of(trial), checkpoint_seconds)
            more = {"halfway": halfway, "last_epoch": trial.last_epoch}
            outcome, weights = run_trial(work, tell, device_of(gpus), **more)
        outcome = {**outcome, **about}
    except RankLost:
        raise
    except Exception as error:  # any fault of one trial is that trial's result
        write_text(own / "error.txt", traceback.format_exc())
        text = " ".join(f"{type(error).__name__}: {error}".split())
        seconds = round(time.monotonic() - started, 3)
        outcome = {"status": "failed", "error": text[:500], "seconds": seconds, **about}
    if weights:
        from safetensors.torch import save_file

        save_file(weights, str(own / WEIGHTS))
        publish(own / WEIGHTS)
    result = make_result(trial, outcome)
    write_result(result, folder)
    return result


def owner_of(trial: Trial) -> dict[str, Any]:
    """What must be equal for a trial to go on where another run left it."""
    keys = ("inputs", "point", "seed", "train_size", "last_epoch", "finetune", "head")
    return {key: getattr(trial, key) for key in keys}


def prune_weights(
    results: Sequence[Result], seeds: int | None, folder: Path, lost: Collection[str] = (),
    known: Collection[str] | None = None,
) -> None:
    """Delete from `folder` (trials/) what ended trials do not need any more: where they were half-way, and weights.

    Trials that were `lost` with their process keep where they were, as they are tried again. `known`: all trials of a
    search that is through; of others in the folder (the space was another) the result alone stays.

    Weights stay of the largest number of training examples that there are results of: of each mode the best trial of
    the entry that would win, else of the leading one; and, while the sweep runs (`seeds`: trials of each point), of
    each point that still lacks seeds its best one so far. So during a sweep one set of weights for each mode and one
    for each point whose seeds are running; at its end (`seeds` None) one for each mode. Where a point that wins in the
    end has lost its weights, the same trial again gives the same.
    """
    entries = make_entries(results)
    if not entries:
        return
    entries = [entry for entry in entries if entry["train_size"] == entries[0]["train_size"]]
    scored = [entry for entry in entries if entry["score_mean"] is not None and entry["status"] != "stopped"]
    kept: dict[str, Entry] = {}
    for entry in sorted(scored, key=lambda entry: not entry["recommended"]):  # stable: else in their order
        kept.setdefault(entry["mode"], entry)
    running = [entry for entry in scored if seeds is not None and entry["seeds"] < seeds]
    wanted = {best_trial(entry) for entry in (*kept.values(), *running)}
    ended = {result["trial"] for result in results} - set(lost)
    for name in sizes(folder):
        trial, _, file = name.partition("/")
        is_through = trial in ended or known is not None and trial not in known
        if is_through and (file.startswith("state") or (file == WEIGHTS and trial not in wanted)):
            remove(folder / name)


def device_of(gpus: float) -> str:
    """Where a trial that was given so many GPUs computes."""
    import torch

    return "cuda" if gpus and torch.cuda.is_available() else "cpu"
