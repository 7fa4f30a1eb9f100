"""One rank of a pretraining run: read this page first, it is what the product does.

    shard of the stream -> micro-batches -> objective in a ZeRO engine -> steps -> metrics, checkpoints -> HF folder

Ray Train calls `pretrain_worker` in every worker of the group, again after a failure. All it needs is in its Job; rows
come through `get_dataset_shard` and nowhere else. Nothing that is called below knows Ray.
"""

import math
import socket
import time
from dataclasses import asdict
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch.distributed as dist

from data.retries import be_patient
from data.storage import fetch, is_remote, publish
from model.activations import recompute_activations
from model.export import export_objective
from model.objectives.catalogue import build_objective
from orchestration import checkpoint, metrics, spot
from orchestration.bad_steps import hint
from orchestration.beacon import Beacon, faults_of, poison
from orchestration.budget import in_words, told
from orchestration.cause import is_broken
from orchestration.clock import Clock
from orchestration.device import precision_of, share_cores
from orchestration.engine import DeepSpeedEngine
from orchestration.feed import Feed
from orchestration.gate import Gate
from orchestration.gauges import WorkerGauges, group_peak
from orchestration.group import leaving, worker_device
from orchestration.job import Job
from orchestration.journal import Journal
from orchestration.ledger import open_ledger
from orchestration.plan import step_plan
from orchestration.policies import OTHERS, Moved
from orchestration.resuming import agree, load
from orchestration.saving import Saver, SavingError
from orchestration.schedule import learning_rate, rate_of_share
from orchestration.steps import evaluate, train_steps
from orchestration.stream import parts_of
from orchestration.watchdog import Watchdog
from orchestration.weights import fetch_weights

# Of an evaluation's scores: what the model card shows in its own words, or not at all.
KNOWN = ("loss", "targets")
# A rank whose peer died knows nothing of the cause: Ray hears of the dead one first.
SPEAKS_LAST_SECONDS = 3
SETTLE_SECONDS = 30  # for the save that is on its way when training ends with an error
MOVE_SECONDS = 100  # and when the workers must leave: clouds give 30 to 120 s
GROW_SECONDS = 1200  # and when nothing is urgent: storage is tried again for 480 s


def pretrain_worker(job: Job) -> None:
    """Train from the stream's cursor to the last step, then export. An error names the rank and the step."""
    config, run, began = job.config, Path(job.run), time.monotonic()
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
    precision = precision_of(pretrain.precision, device)

    phases, total_steps = job.phases, pretrain.total_steps
    accumulation = [step_plan(config, dist.get_world_size(), n).accumulation for n in range(len(phases))]
    fetch_weights(config)
    objective = build_objective(config.objective, config.encoder, job.tokenizer, config.seed)[0]
    if config.zero.activation_checkpointing:
        recompute_activations(objective)
    if rank == 0:
        ray.get(job.pacer.tell.remote({"parameters": sum(p.numel() for p in objective.parameters())}))
    engine = DeepSpeedEngine(
        objective,
        stage=config.zero.stage,
        micro_batch=phases[0].micro_batch,
        accumulation=accumulation[0],
        weight_decay=pretrain.weight_decay,
        gradient_clipping=pretrain.gradient_clipping,
        persistence_threshold=config.zero.persistence_threshold,
        device=device,
        precision=precision,
        offload=config.zero.offload,
    )

    owner = checkpoint.owner_of(config, job.tokenizer["fingerprint"], job.data)
    beacon.at("starting")  # each of the next three may take its time
    beginning = agree(run, owner, lambda text: job.pacer.warn.remote(text), job.pacer)
    shard = ray.train.get_dataset_shard("rows")  # of the stream that begins where the ranks agreed to begin
    start = beginning.step
    ledger = open_ledger(run, beginning.manifest, start, config, job.pacer, began)
    generation: Any = ray.get(job.pacer.generation.remote())
    beacon.strike = dict(enumerate(faults_of(job.fault), start=1)).get(generation)
    poison(engine.module, beacon, job.fault)
    beacon.at("starting", start)
    load(engine, run, beginning)
    beacon.at("starting")
    journal = Journal(run, start, job.epoch_of, dist.get_world_size(), job.pacer) if rank == 0 else None
    gate = Gate(pretrain.max_bad_steps, journal.write_bad if journal else lambda record: None, partial(hint, run))
    gauges = WorkerGauges(
        config.name,
        rank,
        restarts=ray.get(job.pacer.restarts.remote()),
        flops=objective.flops,
        peak=group_peak(device, precision != "fp32", config.scaling.gpus_per_worker),
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
        group=generation,
        lease=job.lease,
        beginning=beginning,
        owner=owner,
        made_by={"zero_stage": config.zero.stage, "precision": precision},
        carry=journal.carry if journal else None,
        passes=beacon.passes,
    )
    feeds = [
        Feed(rank, config.seed, phase.micro_batch, count, job.tokenizer["pad_id"], dump_folder)
        for phase, count in zip(phases, accumulation, strict=True)
    ]
    line = {"peak": pretrain.learning_rate, "warmup_ratio": pretrain.warmup_ratio, "schedule": pretrain.schedule}

    def rate(step: int) -> float:
        if total_steps is None:
            return rate_of_share(*ledger.shares(), **line)
        return learning_rate(step, total_steps, **line)

    clock = Clock()

    def asked_to_stop() -> bool:
        return journal is not None and journal.wish().stop

    def why_move() -> str | None:
        return leaving() or ("another number of workers fits" if journal and journal.wish().move else None)

    step, scores = start, {}
    is_end = False
    try:
        # What the stream brought ahead of a budget's end is passed over here, up to an evaluation: all are the same.
        parts_in_turn = clock.waiting(beacon.reading(parts_of(shard, rank)))
        for (number, is_evaluation), parts in groupby(parts_in_turn, key=job.kind_of):
            feed, phase = feeds[number], phases[number]
            if is_evaluation:
                beacon.step = step
                scores = evaluate(engine, feed.evaluation(parts), beacon.at)
                if journal:
                    journal.write_evaluation(step, scores, {"rows_length": phase.length} if len(phases) > 1 else {})
                gauges.evaluation(scores)
                clock.lap()
                # Losses over rows of different lengths do not compare: the best is one of the last phase.
                comparable = scores["loss"] if number == len(phases) - 1 else math.nan
                beacon.at("saving", step)
                if saver.evaluated(step, comparable, asdict(ledger.spent), is_end):
                    gauges.checkpoint(clock.lap()[0])
                if ledger.is_spent:
                    break
                continue
            if ledger.is_spent:
                continue
            if step == start:
                ledger.begin(engine.gather(ledger.clock())[0])
            engine.accumulate(accumulation[number])
            steps = feed.steps(parts, step, gauges.read, beacon.at)
            asked = asked_to_stop, beacon.at, lambda: why_move() is not None, ledger.clock, gate, ledger.count
            for record in train_steps(engine, steps, rate, *asked):
                step, lap = record.step + 1, clock.lap()
                if journal:
                    journal.write_step(record, *lap, None if total_steps else ledger.share())
                gauges.step(record, *lap, ledger.share())
                is_end = step == total_steps or ledger.is_spent
                # A state that is evaluated is saved after that, with its loss.
                leaves = record.is_last or (record.moves and not is_end)
                if leaves or (saver.is_due(step, is_end) and not job.evaluates_before(step)):
                    beacon.at("saving", step)
                    saver.save(step, None, asdict(ledger.spent))
                    gauges.checkpoint(clock.lap()[0])
                if record.is_last:
                    saver.finish()
                    ledger.finish()
                    ray.get(job.pacer.stopped.remote(step))
                    return
                if leaves:
                    # A save that fails costs the steps since the one before, not the run.
                    is_saved = saver.settle(MOVE_SECONDS if leaving() else GROW_SECONDS)
                    ledger.finish()
                    raise Moved(f"{'' if is_saved else 'not '}saved at step {step}: {why_move() or OTHERS}")
                if ledger.is_spent:
                    if journal:
                        ray.get(job.pacer.finish.remote())
                    break
        beacon.at("saving")
        saver.finish()
    except (FloatingPointError, SavingError) as error:  # on all ranks alike, and the same again after a restart
        if journal and gate.last:
            journal.write_last_step(gate.last, *clock.lap(), None if total_steps else ledger.share())
        beacon.at("saving")
        saver.settle(GROW_SECONDS)  # all ranks live: a save that is on its way counts
        ray.get(job.pacer.fail.remote(str(error)))
        return
    except Moved:
        raise
    except Exception as error:
        saver.settle(SETTLE_SECONDS)
        if is_broken(error):
            time.sleep(SPEAKS_LAST_SECONDS)
        raise RuntimeError(f"rank {rank}, step {step}: {type(error).__name__}: {error}") from error

    if step != total_steps and not ledger.is_spent:
        raise RuntimeError(f"rank {rank}, step {step}: the stream of rows ended before the run did")
    if rank == 0:
        ray.get(job.pacer.tell.remote(saver.told()))
    beacon.at("exporting")
    state = engine.full_state()  # every rank takes part in gathering
    if journal:
        fetch(Path(job.tokenizer_folder))
        spent = told(ledger.finish(), config.cluster.price_per_worker_hour)
        ray.get(job.pacer.tell.remote({"spent": spent}))
        export_objective(objective, state, job.tokenizer_folder, run / "export", card(job, scores, step, spent))
        publish(run / "export", last="config.json")
        journal.finish()
    dist.barrier()
    watchdog.stop()


def card(job: Job, scores: dict[str, float], steps: int, spent: dict[str, Any]) -> dict[str, Any]:
    """Title, facts and recipe of the export's model card."""
    config = job.config
    phases = job.phases
    parts = [f"{steps:,}" if len(phases) == 1 else f"{phase.end_step - phase.first_step:,}" for phase in phases]
    sources = [source.path for source in config.corpus.sources]
    facts: dict[str, Any] = {
        "title": f"{config.name}: a {config.encoder.family} encoder pretrained with Cloze",
        "objective": config.objective.name,
        "corpus": ", ".join(sources[:10]) + (f" and {len(sources) - 10} more" if len(sources) > 10 else ""),
        "data fingerprint": job.data,
        "tokenizer fingerprint": job.tokenizer["fingerprint"],
        "steps": ", then ".join(parts),
        "rows per step": config.pretrain.global_batch,
        "tokens per row": ", then ".join(str(length) for length in config.rows.lengths),
        "tokens trained on": f"{spent['tokens']:,}",
        "spent": in_words(spent),
        "seed": config.seed,
        "recipe": job.recipe,
    }
    if scores:
        facts["held-out loss"] = scores["loss"]
        facts |= {f"held-out {name.replace('_', ' ')}": value for name, value in scores.items() if name not in KNOWN}
    return facts
