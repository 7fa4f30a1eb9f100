"""A plan of trials -> Ray Tune -> their results. The only file, with tuning/races.py, that knows ray.tune.

One Tune trial per trial of ours, processes reused from trial to trial (importing torch and transformers takes 6 s).
Tune's own bookkeeping goes to run/log/tune, under the sweep's name, and is thrown away by the next call: the truth is
trials/<id>/result.json, which each trial writes itself, and this process where a trial was stopped early. Chooses
nothing and knows no points.
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from data.storage import fetch, remove, shown
from orchestration.config import Config
from orchestration.progress import Update
from tuning.room import Patience
from tuning.search import Plan, Turn
from tuning.standing import Standing
from tuning.trials import Result, Trial, execute, read_results, stopped_result, write_result


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
    config: Config
    """Of the sweep: what trials ask for, how workers share one."""
    subsets: Mapping[int, np.ndarray] = field(default_factory=dict)
    """A trial's train_size -> numbers of its training examples, ascending."""


def run_trials(
    plan: Plan,
    inputs: Inputs,
    run: Path,
    progress: Update,
    ended: Callable[[Result], None],
    standing: Standing | None = None,
    until: float | None = None,
) -> None:
    """Run the plan's trials on the cluster, as many at once as it holds; their results are then in the plan.

    `ended` is called after each trial. A trial whose process died has status "failed" and leaves no result.json:
    the same command tries it again. `until`: seconds since the epoch at which trials begin no more.
    """
    # Read by Tune when it starts: the old console (silent at verbose=0), no CSV and TensorBoard files beside our own
    # results, and Ctrl-C ends the sweep at once instead of being swallowed.
    os.environ.update(RAY_AIR_NEW_OUTPUT="0", TUNE_DISABLE_AUTO_CALLBACK_LOGGERS="1", TUNE_DISABLE_SIGINT_HANDLER="1")
    import ray
    from ray import tune

    from tuning.races import Races

    # A process that has ended a trial is kept for one that waits: as many wait as may end at once.
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(max(8, int(ray.cluster_resources().get("CPU", 0))))
    standing = standing or Standing(run.name, plan)
    folder = run / "log" / "tune"
    remove(folder)
    sweep, metric = inputs.config.sweep, inputs.goal.metric
    earlier = [(plan.trials[name], result) for name, result in plan.results.items()]
    races = Races(sweep, inputs.config.seed, metric, plan.is_over, earlier)
    trainable: Any = tune.with_parameters(_trainable, inputs=inputs, until=until)
    trainable.__name__ = f"{standing.title}-trial"  # shown of its process on the dashboard
    trainable = tune.with_resources(trainable, lambda config: _placement(sweep.asked, config["trial"]))
    patience = Patience(inputs.config, progress)
    watch = _watch(plan, races, inputs.trials_folder, progress, ended, standing, patience)
    tuner = tune.Tuner(
        trainable,
        tune_config=tune.TuneConfig(
            search_alg=_searcher(plan), scheduler=races, num_samples=-1, reuse_actors=True,
            trial_name_creator=_name, trial_dirname_creator=_name,
        ),
        run_config=tune.RunConfig(
            name=standing.title, storage_path=shown(folder), verbose=0,
            failure_config=tune.FailureConfig(max_failures=1),  # of its process: its own faults are results
            callbacks=[watch],
        ),
    )  # fmt: skip
    tuner.fit()
    fetch(inputs.trials_folder)


def _placement(asked: Callable[[str], tuple[int, float, float]], trial: Trial) -> Any:
    """What a trial asks of Ray."""
    from tuning.groups import bundles

    _, cpus, gpus = asked(trial.finetune["mode"])
    return bundles(trial.workers, cpus, gpus)


def _name(trial: Any) -> str:
    """A trial's name and folder at Tune: our short id. Tune's own spells out every value: OSError: name too long."""
    return trial.config["trial"].id


def _trainable(config: dict[str, Any], inputs: Inputs, until: float | None) -> None:
    """What Tune runs in a trial's process. Whatever is reported may be the trial's end: the process is then stopped in
    the middle of the call."""
    import torch
    from ray import tune

    from tuning.races import WHOLE, share_of

    trial: Trial = config["trial"]
    _, cpus, gpus = inputs.config.sweep.asked(trial.finetune["mode"])
    if until is not None and time.time() >= until:
        tune.report({"epoch": 0, "share": 0, "score": None})
    torch.set_num_threads(max(1, int(cpus)))

    def report(record: dict[str, Any]) -> None:
        share = share_of(record["epoch"], trial.finetune["epochs"])
        tune.report({"epoch": record["epoch"], "share": share, "score": record["score"], "told": record})

    result = execute(
        trial, inputs.goal, inputs.parts[trial.reading], inputs.features.get(trial.pooled) if trial.pooled else None,
        inputs.trials_folder, gpus, report, cpus=cpus,
        subset=None if trial.train_size is None else inputs.subsets[trial.train_size], zero=inputs.config.zero,
        checkpoint_seconds=inputs.config.sweep.checkpoint_seconds,
    )  # fmt: skip
    tune.report({"epoch": trial.finetune["epochs"], "share": WHOLE, "score": result["score"]})


def _searcher(plan: Plan) -> Any:
    """Tune's searcher over the plan, which is told of ends by _watch."""
    from ray.tune.search import Searcher

    class Planned(Searcher):
        def __reduce__(self) -> tuple[Any, ...]:
            return Searcher, ()  # Tune pickles it beside the results, to restore a sweep; ours is restored by the plan

        def suggest(self, trial_id: str) -> Any:
            turn = plan.next()
            return {"trial": turn} if isinstance(turn, Trial) else None if turn is Turn.WAIT else Searcher.FINISHED

        def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
            pass

        def save_to_dir(self, checkpoint_dir: str, session_str: str) -> None:
            pass

        def save(self, checkpoint_path: str) -> None:
            pass

        def restore(self, checkpoint_path: str) -> None:
            pass

    return Planned()


def _watch(
    plan: Plan, races: Any, folder: Path, progress: Update, ended: Callable[[Result], None], standing: Standing,
    patience: Patience,
) -> Any:
    """A Tune callback that tells the plan of ends and turns reports into one line of progress: the share of all trials,
    by epochs."""
    from ray import tune

    shares: dict[str, float] = {}
    told: dict[str, dict[int, dict[str, Any]]] = {}

    def finish(trial: Trial, error: str = "its process died") -> None:
        fetch(folder / trial.id / "result.json")
        result = read_results([trial], folder).get(trial.id)
        if result is None and trial.id in races.cut:
            plan.returned(trial.id)
            standing.cut(trial.id)
            return
        if result is None and trial.id in races.stopped:
            reports = told[trial.id]
            result = stopped_result(trial, [reports[epoch] for epoch in sorted(reports)])
            write_result(result, folder)
        shares[trial.id] = 1.0
        plan.ended(trial.id, result, error)
        standing.end(trial.id)
        if result is not None:
            ended(result)
        show(trial, result["score"] if result else None)

    def show(trial: Trial, score: float | None) -> None:
        done = sum(share == 1.0 for share in shares.values())
        total = max(plan.expected, 1)
        what = f"{trial.encoder} {trial.finetune['mode']} {trial.finetune['learning_rate']:g}"
        shown = "" if score is None else f" {trial.metric} {score:.3f}"
        progress(f"{done} of {total} trials; {what}{shown}", sum(shares.values()) / total, **standing.facts())

    class Watch(tune.Callback):
        def __reduce__(self) -> tuple[Any, ...]:
            # Tune pickles its callbacks beside the results, to restore a sweep; ours holds the user's terminal.
            return tune.Callback, ()

        def on_step_begin(self, iteration: int, trials: Any, **_: Any) -> None:
            patience.look(standing.is_running)

        def on_trial_start(self, iteration: int, trials: Any, trial: Any, **_: Any) -> None:
            standing.begin(_name(trial))

        def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **_: Any) -> None:
            ours: Trial = trial.config["trial"]
            # 0.99: the last report comes before the end, which makes it whole.
            shares[ours.id] = max(shares.get(ours.id, 0.0), 0.99 * result["share"] / 100)
            if "told" in result:
                told.setdefault(ours.id, {})[result["epoch"]] = result["told"]
            if result["score"] is not None:
                standing.score(ours.id, result["score"])
            show(ours, result["score"])

        def on_trial_recover(self, iteration: int, trials: Any, trial: Any, **_: Any) -> None:
            standing.cut(_name(trial))  # it lost its process and waits to be started again

        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **_: Any) -> None:
            finish(trial.config["trial"])

        def on_trial_error(self, iteration: int, trials: Any, trial: Any, **_: Any) -> None:
            lines = str(trial.get_error() or "its process died").strip().splitlines()
            finish(trial.config["trial"], lines[-1][:500])

    return Watch()
