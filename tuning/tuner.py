"""Trials to run -> Ray Tune -> their results. The only file that knows ray.tune.

One Tune trial per trial of ours, processes reused from trial to trial (importing torch and transformers takes 6 s).
Tune's own bookkeeping goes to run/log/tune, under the sweep's name, and is thrown away by the next call: the truth is
trials/<id>/result.json, which each trial writes itself. Chooses nothing and knows no points.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.storage import fetch, remove, shown
from orchestration.progress import Update
from tuning.standing import Standing
from tuning.trials import Result, Trial, execute, make_result, read_results


@dataclass(frozen=True)
class Inputs:
    """What trials share; it travels once, through Ray's object store."""

    goal: Any
    """tuning.finetune.Goal."""
    parts: Mapping[tuple[Any, ...], Mapping[str, Any]]
    """A trial's `reading` -> "train" and "validation"."""
    features: Mapping[tuple[Any, ...], str | None]
    """A trial's `pooled` -> folder of cached features; None or absent: run the encoder."""
    trials_folder: Path
    num_cpus: float
    num_gpus: float


def run_trials(
    todo: Sequence[Trial],
    inputs: Inputs,
    run: Path,
    progress: Update,
    ended: Callable[[Result], None],
    standing: Standing | None = None,
) -> dict[str, Result]:
    """Run `todo` on the cluster, as many at once as it holds, in this order; returns results by trial id.

    `ended` is called after each trial. A trial whose process died has status "failed" and leaves no result.json:
    the same command tries it again. `standing`: of the whole sweep, these trials among others; None: of these alone.
    """
    # Read by Tune when it starts: the old console (silent at verbose=0), no CSV and TensorBoard files beside our own
    # results, and Ctrl-C ends the sweep at once instead of being swallowed.
    os.environ.update(RAY_AIR_NEW_OUTPUT="0", TUNE_DISABLE_AUTO_CALLBACK_LOGGERS="1", TUNE_DISABLE_SIGINT_HANDLER="1")
    from ray import tune

    folder = run / "log" / "tune"
    remove(folder)
    trainable: Any = tune.with_parameters(_trainable, trials={trial.id: trial for trial in todo}, inputs=inputs)
    trainable.__name__ = f"{run.name}-trial"  # shown of its process on the dashboard
    trainable = tune.with_resources(trainable, {"cpu": inputs.num_cpus, "gpu": inputs.num_gpus})
    tuner = tune.Tuner(
        trainable,
        param_space={"trial": tune.grid_search([trial.id for trial in todo])},
        tune_config=tune.TuneConfig(
            reuse_actors=True, trial_name_creator=_name, trial_dirname_creator=_name, max_concurrent_trials=None
        ),
        run_config=tune.RunConfig(
            name=run.name, storage_path=shown(folder), verbose=0,
            failure_config=tune.FailureConfig(max_failures=1),  # of its process: its own faults are results
            callbacks=[_watch(todo, inputs.trials_folder, progress, ended, standing or Standing(run.name, todo, {}))],
        ),
    )  # fmt: skip
    errors = {one.config["trial"]: one.error for one in tuner.fit() if one.config}
    fetch(inputs.trials_folder)
    results = read_results(todo, inputs.trials_folder)
    for trial in todo:
        if trial.id not in results:
            lines = str(errors.get(trial.id) or "its process died").strip().splitlines()
            results[trial.id] = make_result(trial, {"error": lines[-1][:500]})
    return results


def _name(trial: Any) -> str:
    """A trial's name and folder at Tune: our short id. Tune's own spells out every value: OSError: name too long."""
    return trial.config["trial"]


def _trainable(config: dict[str, Any], trials: Mapping[str, Trial], inputs: Inputs) -> None:
    """What Tune runs in a trial's process."""
    import torch
    from ray import tune

    trial = trials[config["trial"]]
    torch.set_num_threads(max(1, int(inputs.num_cpus)))
    features = inputs.features.get(trial.pooled) if trial.pooled else None

    def report(record: dict[str, Any]) -> None:
        tune.report({"status": "running", **record})

    parts = inputs.parts[trial.reading]
    result = execute(trial, inputs.goal, parts, features, inputs.trials_folder, inputs.num_gpus, report)
    tune.report({"status": result["status"], "epoch": trial.finetune["epochs"], "score": result["score"]})


def _watch(
    todo: Sequence[Trial], folder: Path, progress: Update, ended: Callable[[Result], None], standing: Standing
) -> Any:
    """A Tune callback that turns reports into one line of progress: share of all trials, by epochs."""
    from ray import tune

    by_id = {trial.id: trial for trial in todo}
    shares: dict[str, float] = {}

    def finish(trial: Trial) -> None:
        shares[trial.id] = 1.0
        fetch(folder / trial.id / "result.json")
        result = read_results([trial], folder).get(trial.id)
        standing.end(trial.id, result)
        if result is not None:
            ended(result)
        show(trial, result["score"] if result else None)

    def show(trial: Trial, score: float | None) -> None:
        done = sum(share == 1.0 for share in shares.values())
        what = f"{trial.encoder} {trial.finetune['mode']} {trial.finetune['learning_rate']:g}"
        shown = "" if score is None else f" {trial.metric} {score:.3f}"
        text = f"{done} of {len(todo)} trials; {what}{shown}"
        progress(text, sum(shares.values()) / len(todo), **standing.facts())

    class Watch(tune.Callback):
        def __reduce__(self) -> tuple[Any, ...]:
            # Tune pickles its callbacks beside the results, to restore a sweep; ours holds the user's terminal.
            return tune.Callback, ()

        def on_trial_start(self, iteration: int, trials: Any, trial: Any, **_: Any) -> None:
            standing.begin(trial.config["trial"])

        def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **_: Any) -> None:
            ours = by_id[trial.config["trial"]]
            # 0.99: the last report comes before the end, which makes it whole.
            shares[ours.id] = 0.99 * result.get("epoch", 0) / ours.finetune["epochs"]
            if result.get("score") is not None:
                standing.score(ours.id, result["score"])
            show(ours, result.get("score"))

        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **_: Any) -> None:
            finish(by_id[trial.config["trial"]])

        def on_trial_error(self, iteration: int, trials: Any, trial: Any, **_: Any) -> None:
            finish(by_id[trial.config["trial"]])

    return Watch()
