"""The driver of a pretraining run: checks, prepared rows, a Ray Train worker group, a summary.

In: a config. Out: `<storage>/<name>/` with metrics, checkpoints, the exported folder and summary.json; or a UserError
before anything starts. Knows Ray Train; what a worker does is orchestration/worker.py.
"""

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

from data.config import UserError
from data.phases import longest, prepare_phases
from data.retries import be_patient
from data.storage import fetch, fetch_once, publish, shown
from data.store import Store
from data.tally import TOLD
from orchestration import checkpoint, metrics
from orchestration.budget import limit_of, spent_before
from orchestration.cause import cause_of
from orchestration.checkpoint import write_json
from orchestration.config import Config, to_yaml
from orchestration.following import following, step_text, told_loss
from orchestration.job import Job, run_worker
from orchestration.lease import token_of
from orchestration.plan import phases_of
from orchestration.progress import Update
from orchestration.run import cache_of
from orchestration.switches import fault
from orchestration.weights import located

logger = logging.getLogger(__name__)

def prepare_rows(config: Config, run: Path, update: Update) -> list[Store]:
    """The prepared corpus of each phase, from the cache or made now; the run keeps its tokenizer and its counts (those
    of the longest rows).

    Raises UserError where a run that has begun would go on with other rows.
    """
    wanted = config.corpus, config.tokenizer, config.rows, cache_of(config)
    stores = prepare_phases(*wanted, update, run=config.name, autoscales=config.cluster.autoscales)
    store = longest(stores)
    facts = run / "corpus.json"
    fetch(facts)
    old = _read(facts) if facts.exists() else {"store": str(store.path), **store.manifest}
    if Path(old["store"]).name != store.path.name and checkpoint.newest(run)[1] is not None:
        before, now = (manifest["tokenizer"]["fingerprint"] for manifest in (old, store.manifest))
        if config.tokenizer.path is not None and before != now:
            raise UserError(
                f"tokenizer.path={config.tokenizer.path}: run {run.name} was trained with tokenizer {before}, the "
                f"folder now holds {now}; restore it, or give another name=NAME"
            )
        raise UserError(
            f"corpus.sources: run {run.name} was trained on rows {Path(old['store']).name}, the files now give "
            f"{store.path.name}; restore the files, or give another name=NAME"
        )
    update(f"rows: {store.train.num_rows + store.held_out.num_rows:,} of {config.rows.longest} tokens", 1.0)
    write_json(facts, {"store": str(store.path), **store.manifest})
    shutil.copytree(store.tokenizer_folder, run / "tokenizer", dirs_exist_ok=True)
    quarantine = fetch_once(store.path / "quarantine.jsonl")
    if quarantine.exists():
        shutil.copyfile(quarantine, run / "quarantine.jsonl")
        publish(run / "quarantine.jsonl")
    publish(facts)
    publish(run / "tokenizer")
    return stores


def pretrain(
    config: Config, run: Path, stores: list[Store], dump_batches: str | None, update: Update
) -> dict[str, Any]:
    """Train on the store of each phase and write the export and summary.json, which is returned. Ray must be joined.

    Raises RuntimeError naming rank and step where the worker group fails for good.
    """
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.v2.api.exceptions import TrainingFailedError

    from orchestration.group import RESIZE_SECONDS, Collectives, WorkerGroup
    from orchestration.pacer import start_pacer
    from orchestration.segments import Plan, PlanPhase, order_of
    from orchestration.stream import Stream

    _check_beginning(config, run, stores)
    weights, batch = config.corpus.weights, config.pretrain.global_batch
    plan = Plan(
        run=str(run),
        phases=tuple(
            PlanPhase(**vars(phase), store=str(store.path))
            for store, phase in zip(stores, phases_of(config), strict=True)
        ),
        seed=config.seed,
        global_batch=batch,
        eval_every_steps=config.pretrain.eval_every_steps,
        masking=config.masking,
        weights=weights,
        needs_draws=config.objective.needs_draws,
    )
    start = f"{config.name}-{os.getpid()}-{os.urandom(3).hex()}"
    pacer = start_pacer(f"{start}-pacer")
    job = Job(
        config=located(config),
        run=str(run),
        tokenizer_folder=str(run / "tokenizer"),
        tokenizer=longest(stores).manifest["tokenizer"],
        data=longest(stores).path.name,
        recipe=to_yaml(config),
        phases=phases_of(config),
        steps_per_epoch=tuple(order_of(store, weights, config.seed, batch).steps_per_epoch for store in stores),
        evaluates_before=plan.evaluates_before if all(store.held_out.num_rows for store in stores) else never,
        dump_batches=str(Path(dump_batches).absolute()) if dump_batches else None,
        fault=fault(),
        lease=token_of(run),
        pacer=pacer,
    )
    scaling = config.scaling
    gpus = scaling.gpus_per_worker
    trainer = WorkerGroup(
        lambda: run_worker(job),
        pacer=pacer,
        stuck_seconds=scaling.stuck_seconds,
        # Longer than the watchdog waits: it names the rank that is missing, gloo and NCCL do not.
        torch_config=Collectives(timeout_s=max(1800, round(4 * scaling.stuck_seconds))),
        scaling_config=ScalingConfig(
            num_workers=scaling.workers,
            elastic_resize_monitor_interval_s=RESIZE_SECONDS,
            use_gpu=gpus > 0,
            resources_per_worker={"CPU": scaling.cpus_per_worker, **({"GPU": gpus} if gpus else {})},
        ),
        run_config=RunConfig(
            # The dashboard lists the run by its name. Ray's own record of a start is of no use to the next one (our
            # checkpoints are the truth), and under the same path it would be taken up again.
            name=config.name,
            storage_path=shown(run / "log" / "train" / start),
            failure_config=FailureConfig(max_failures=scaling.max_restarts),
        ),
        datasets={"rows": ray.data.range(1)},  # a placeholder: Stream builds the dataset at the cursor
        dataset_config=Stream(plan, pacer),
    )
    with following(pacer, config, update):
        try:
            trainer.fit()
        except TrainingFailedError as error:
            logger.exception("the worker group failed")
            news: Any = ray.get(pacer.news.remote())
            if not ray.get(pacer.is_over.remote()):
                raise RuntimeError(news["lost"] or cause_of(error)) from error
    step: Any = ray.get(pacer.stopped_at.remote())
    if step is not None:
        total = config.pretrain.total_steps
        update(step_text(config, step), None if total is None else step / total, step=step)
        raise KeyboardInterrupt(f"stopped and saved at step {step:,}; the same command goes on from there")
    if failure := ray.get(pacer.failure.remote()):
        raise RuntimeError(failure)
    facts: Any = ray.get(pacer.facts.remote())
    be_patient()
    metrics.bring(run / "metrics.jsonl")
    warnings: Any = ray.get(pacer.warnings.remote())
    summary = {**summarise(config, run, stores), **facts, **({"warnings": warnings} if warnings else {})}
    write_json(run / "summary.json", summary)
    publish(run / "summary.json")
    be_patient(0)
    last = {"step": summary["steps"], "loss": summary["loss"], "tokens_per_second": summary["tokens_per_second"]}
    last |= {"eval_loss": summary["eval_loss_after"]}
    loss, speed = told_loss(last["loss"]), f"{last['tokens_per_second']:,.0f} tokens/s"
    update(f"{step_text(config, last['step'])}  loss {loss}  {speed}", 1.0, **last)
    return summary


def _check_beginning(config: Config, run: Path, stores: list[Store]) -> None:
    """Raise UserError where a run would begin at step 0 though it was saved, or has nothing left to spend."""
    limit = limit_of(config)
    _, manifest, complaints = checkpoint.newest(run, _owner(config, stores))
    if manifest is not None:
        return
    if gone := checkpoint.lost(complaints):
        raise UserError(
            f"run {run.name} was saved, and none of its checkpoints can be used: {'; '.join(gone)}; restore one, or "
            f"give another name=NAME for a new run"
        )
    if limit is not None and limit.share(spent_before(run, None)) >= 1:
        raise UserError(
            f"pretrain.budget.{limit.unit}={limit.amount:g}: spent before the first checkpoint of run {run.name}; give "
            f"more, or save more often: checkpoints.every_steps below {config.checkpoints.every_steps}"
        )


def _owner(config: Config, stores: list[Store]) -> dict[str, Any]:
    """What the manifests of this run's checkpoints say that they are of."""
    store = longest(stores)
    return checkpoint.owner_of(config, store.manifest["tokenizer"]["fingerprint"], store.path.name)


def never(step: int) -> bool:
    """Without held-out rows nothing is evaluated."""
    return False


def summarise(config: Config, run: Path, stores: list[Store]) -> dict[str, Any]:
    """summary.json: from metrics.jsonl, which restarts do not falsify, the checkpoints, and the counts of the stores:
    where there are several, rows and held-out rows are those of the last phase."""
    store, phases, limit = stores[-1], phases_of(config), limit_of(config)
    best = checkpoint.best(run, _owner(config, stores))
    lines = list(metrics.read(run / "metrics.jsonl"))
    steps = [line for line in lines if "loss" in line]
    evaluations = [line for line in lines if "eval_loss" in line]
    first, last = (evaluations[0], evaluations[-1]) if evaluations else ({}, {})
    tokens = sum(line["tokens"] for line in steps)
    seconds = sum(line["tokens"] / line["tokens_per_second"] for line in steps)
    return {
        "name": config.name,
        "steps": len(steps),
        "tokens": tokens,
        "targets": sum(line["targets"] for line in steps),
        "seconds": round(seconds, 2),
        "tokens_per_second": round(tokens / seconds, 1),
        "data_wait_fraction": sum(x["data_wait_fraction"] for x in steps) / len(steps),
        "skipped_steps": sum(x.get("skipped", False) for x in steps),
        "loss": next((x["loss"] for x in reversed(steps) if not x.get("skipped")), None),
        "eval_loss_before": None,
        "eval_loss_after": None,
        **{f"{key}_before": value for key, value in first.items() if key not in ("step", "eval_targets")},
        **{f"{key}_after": value for key, value in last.items() if key not in ("step", "eval_targets")},
        "workers": steps[-1]["workers"],
        "changes": changes(steps),
        "zero_stage": config.zero.stage,
        "rows": store.train.num_rows,
        "held_out_rows": store.held_out.num_rows,
        **{name: store.manifest[name] for name in TOLD},
        **({"rows_length": list(config.rows.lengths)} if len(phases) > 1 else {}),
        **({"budget": {limit.unit: limit.amount}} if limit is not None else {}),
        "best_checkpoint": best and {
            "path": shown(checkpoint.folder_of(run, best["step"])), "step": best["step"], "loss": best["eval_loss"],
        },
        "export": shown(run / "export"),
    }


def changes(steps: list[dict[str, Any]]) -> list[dict[str, int]]:
    """The first step of each number of workers that the run was trained with."""
    before = [None, *(line["workers"] for line in steps)]
    return [
        {"step": line["step"], "workers": line["workers"]}
        for line, workers in zip(steps, before, strict=False)
        if line["workers"] != workers
    ]


def _read(path: Path) -> dict[str, Any]:
    """A JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))
