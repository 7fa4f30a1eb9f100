"""One rank of a pretraining run: read this page first, it is what the product does.

    shard of the stream -> micro-batches -> objective in a ZeRO engine -> steps -> metrics, checkpoints -> HF folder

Ray Train calls `pretrain_worker` in every worker of the group, again after a failure. All it needs is in its Job; rows
come through `get_dataset_shard` and nowhere else. Nothing that is called below knows Ray.
"""

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
import torch.distributed as dist

from data.retries import be_patient
from data.storage import fetch, is_remote, publish
from model.export import export_objective
from model.objectives.catalogue import build_objective
from orchestration import checkpoint, metrics, spot
from orchestration.beacon import Beacon, faults_of
from orchestration.cause import is_broken
from orchestration.clock import Clock
from orchestration.config import Config
from orchestration.engine import DeepSpeedEngine
from orchestration.feed import Feed
from orchestration.gauges import WorkerGauges, group_peak
from orchestration.group import leaving, worker_device
from orchestration.journal import Journal
from orchestration.plan import step_plan
from orchestration.policies import OTHERS, Moved
from orchestration.resuming import agree, load
from orchestration.saving import Saver, SavingError
from orchestration.schedule import learning_rate
from orchestration.steps import evaluate, train_steps
from orchestration.stream import parts_of
from orchestration.watchdog import Watchdog
from orchestration.weights import fetch_weights

# Of an evaluation's scores: what the model card shows in its own words, or not at all.
KNOWN = ("loss", "targets")
# A rank whose peer died knows nothing of the cause: Ray hears of the dead one first.
SPEAKS_LAST_SECONDS = 3
SETTLE_SECONDS = 30  # for the save that is on its way when training ends with an error


@dataclass(frozen=True)
class Job:
    """What a worker is told. Paths are absolute and the same on every node."""

    config: Config
    run: str
    tokenizer_folder: str
    tokenizer: dict[str, Any]
    """What it is: vocab_size, pad_id, cls_id, ..."""
    data: str
    """Fingerprint of the prepared rows."""
    recipe: str
    """The run's config.yaml, for the model card."""
    steps_per_epoch: int
    evaluates_before: Callable[[int], bool]
    """Whether held-out rows are evaluated before a step is trained, or behind the last one."""
    dump_batches: str | None
    fault: str | None
    pacer: Any


def pretrain_worker(job: Job) -> None:
    """Train from the stream's cursor to the last step, then export. An error names the rank and the step."""
    config, run = job.config, Path(job.run)
    pretrain, rank = config.pretrain, dist.get_rank()
    if not is_remote(run) and not (run / "config.yaml").exists():
        raise RuntimeError(
            f"rank {rank} on {socket.gethostname()}: {run} is not there; storage must be a folder that every node "
            f"mounts, or a bucket (storage=s3://BUCKET/FOLDER)"
        )
    beacon = Beacon(rank)
    watchdog = Watchdog(beacon, dist.get_world_size(), config.scaling.stuck_seconds, job.pacer).start()
    spot.watch_node()
    be_patient(tell=lambda text: job.pacer.warn.remote(f"rank {rank}: {text}"))
    device = worker_device()
    share_cores(ray.train.get_context().get_local_world_size(), device)
    bf16 = uses_bf16(pretrain.precision, device)

    accumulation = step_plan(config, dist.get_world_size()).accumulation
    fetch_weights(config)
    objective = build_objective(config.objective, config.encoder, job.tokenizer, config.seed)[0]
    if rank == 0:
        ray.get(job.pacer.tell.remote({"parameters": sum(p.numel() for p in objective.parameters())}))
    engine = DeepSpeedEngine(
        objective,
        stage=config.zero.stage,
        micro_batch=pretrain.micro_batch,
        accumulation=accumulation,
        weight_decay=pretrain.weight_decay,
        gradient_clipping=pretrain.gradient_clipping,
        bf16=bf16,
        persistence_threshold=config.zero.persistence_threshold,
        device=device,
    )

    owner = checkpoint.owner_of(config, job.tokenizer["fingerprint"], job.data)
    beginning = agree(run, owner, lambda text: job.pacer.warn.remote(text), job.pacer)
    shard = ray.train.get_dataset_shard("rows")  # of the stream that begins where the ranks agreed to begin
    start = beginning.step
    generation: Any = ray.get(job.pacer.generation.remote())
    beacon.strike = dict(enumerate(faults_of(job.fault or ""), start=1)).get(generation)
    load(engine, run, beginning)
    journal = Journal(run, start, job.steps_per_epoch, dist.get_world_size(), job.pacer) if rank == 0 else None
    gauges = WorkerGauges(
        config.name,
        rank,
        pretrain.steps,
        restarts=ray.get(job.pacer.restarts.remote()),
        flops=objective.flops,
        peak=group_peak(device, bf16, config.scaling.gpus_per_worker),
        device=device,
    )
    dump_folder = Path(job.dump_batches) if job.dump_batches else None
    if dump_folder:
        metrics.cut(dump_folder / f"rank{rank}.jsonl", start)
    saver = Saver(
        run,
        config.checkpoints,
        engine,
        rank=rank,
        ranks=dist.get_world_size(),
        pacer=job.pacer,
        beginning=beginning,
        owner=owner,
        made_by={"zero_stage": config.zero.stage, "precision": "bf16" if bf16 else "fp32"},
        carry=journal.carry if journal else None,
        passes=beacon.passes,
    )
    feed = Feed(rank, config.seed, pretrain.micro_batch, accumulation, job.tokenizer["pad_id"], dump_folder)
    rate = partial(
        learning_rate,
        steps=pretrain.steps,
        peak=pretrain.learning_rate,
        warmup_ratio=pretrain.warmup_ratio,
        schedule=pretrain.schedule,
    )
    clock = Clock()

    def asked_to_stop() -> bool:
        return journal is not None and journal.wish().stop

    def why_move() -> str | None:
        return leaving() or ("another number of workers fits" if journal and journal.wish().move else None)

    step, scores = start, {}
    is_end, spent = False, dict[str, float]()
    try:
        parts_in_turn = clock.waiting(beacon.reading(parts_of(shard, rank)))
        for is_evaluation, parts in groupby(parts_in_turn, key=lambda part: part.evaluation):
            if is_evaluation:
                beacon.step = step
                scores = evaluate(engine, feed.evaluation(parts), beacon.at)
                if journal:
                    journal.write_evaluation(step, scores)
                gauges.evaluation(scores)
                clock.lap()
                beacon.at("saving", step)
                if saver.evaluated(step, scores["loss"], spent, is_end):
                    gauges.checkpoint(clock.lap()[0])
                continue
            steps = feed.steps(parts, step, gauges.read, beacon.at)
            for record in train_steps(engine, steps, rate, asked_to_stop, beacon.at, lambda: why_move() is not None):
                step, lap = record.step + 1, clock.lap()
                if journal:
                    journal.write_step(record, *lap)
                gauges.step(record, *lap)
                is_end = step == pretrain.steps
                # A state that is evaluated is saved after that, with its loss.
                leaves = record.is_last or (record.moves and not is_end)
                if leaves or (saver.is_due(step, is_end) and not job.evaluates_before(step)):
                    beacon.at("saving", step)
                    saver.save(step, None, spent)
                    gauges.checkpoint(clock.lap()[0])
                if record.is_last:
                    saver.finish()
                    ray.get(job.pacer.stopped.remote(step))
                    return
                if record.moves and not is_end:
                    saver.finish()
                    raise Moved(f"saved at step {step}: {why_move() or OTHERS}")
        beacon.at("saving")
        saver.finish()
    except (FloatingPointError, SavingError) as error:  # on all ranks alike, and the same again after a restart
        saver.settle(SETTLE_SECONDS)
        ray.get(job.pacer.fail.remote(str(error)))
        return
    except Moved:
        raise
    except Exception as error:
        saver.settle(SETTLE_SECONDS)
        if is_broken(error):
            time.sleep(SPEAKS_LAST_SECONDS)
        raise RuntimeError(f"rank {rank}, step {step}: {type(error).__name__}: {error}") from error

    if rank == 0:
        ray.get(job.pacer.tell.remote(saver.told()))
    beacon.at("exporting")
    state = engine.full_state()  # every rank takes part in gathering
    if journal:
        fetch(Path(job.tokenizer_folder))
        export_objective(objective, state, job.tokenizer_folder, run / "export", card(job, scores))
        publish(run / "export", last="config.json")
        journal.finish()
    dist.barrier()
    watchdog.stop()


def share_cores(workers_on_node: int, device: torch.device) -> None:
    """Threads x workers <= cores: Ray would leave one thread to each, torch would take all cores for each."""
    if device.type == "cpu":
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // workers_on_node))


def uses_bf16(precision: str, device: torch.device) -> bool:
    """Whether the engine computes in bf16: on CPUs without AMX it is slower than fp32, so "auto" asks for a GPU."""
    return precision == "bf16" or (precision == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported())


def card(job: Job, scores: dict[str, float]) -> dict[str, Any]:
    """Title, facts and recipe of the export's model card."""
    config = job.config
    sources = [source.path for source in config.corpus.sources]
    facts: dict[str, Any] = {
        "title": f"{config.name}: a {config.encoder.family} encoder pretrained with Cloze",
        "objective": config.objective.name,
        "corpus": ", ".join(sources[:10]) + (f" and {len(sources) - 10} more" if len(sources) > 10 else ""),
        "data fingerprint": job.data,
        "tokenizer fingerprint": job.tokenizer["fingerprint"],
        "steps": config.pretrain.steps,
        "rows per step": config.pretrain.global_batch,
        "tokens per row": config.rows.length,
        "seed": config.seed,
        "recipe": job.recipe,
    }
    if scores:
        facts["held-out loss"] = scores["loss"]
        facts |= {f"held-out {name.replace('_', ' ')}": value for name, value in scores.items() if name not in KNOWN}
    return facts
