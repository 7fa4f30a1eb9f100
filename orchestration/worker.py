"""One rank of a pretraining run: read this page first, it is what the product does.

    shard of the stream -> micro-batches -> objective in a ZeRO engine -> steps -> metrics, checkpoints -> HF folder

Ray Train calls `pretrain_worker` in every worker of the group, again after a failure. All it needs is in its Job; rows
come through `get_dataset_shard` and nowhere else. Nothing that is called below knows Ray.
"""

import json
import os
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import ray
import ray.train
import torch
import torch.distributed as dist

from data.batches import Part, micro_batches, steps_of
from data.storage import fetch, forget, is_remote, mirror_id, publish
from model.export import export_objective
from model.objectives.catalogue import build_objective
from orchestration import checkpoint, metrics
from orchestration.clock import Clock
from orchestration.config import Config
from orchestration.engine import DeepSpeedEngine
from orchestration.gauges import WorkerGauges, group_peak
from orchestration.group import worker_device
from orchestration.journal import Journal
from orchestration.schedule import learning_rate
from orchestration.steps import Batch, evaluate, train_steps
from orchestration.stream import parts_of
from orchestration.weights import fetch_weights

# Of an evaluation's scores: what the model card shows in its own words, or not at all.
KNOWN = ("loss", "targets")


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
    accumulation: int
    """Micro-batches per step and rank."""
    steps_per_epoch: int
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
    device = worker_device()
    share_cores(ray.train.get_context().get_local_world_size(), device)
    bf16 = uses_bf16(pretrain.precision, device)

    fetch_weights(config)
    objective = build_objective(config.objective, config.encoder, job.tokenizer, config.seed)[0]
    if rank == 0:
        ray.get(job.pacer.tell.remote({"parameters": sum(p.numel() for p in objective.parameters())}))
    engine = DeepSpeedEngine(
        objective,
        stage=config.zero.stage,
        micro_batch=pretrain.micro_batch,
        accumulation=job.accumulation,
        weight_decay=pretrain.weight_decay,
        gradient_clipping=pretrain.gradient_clipping,
        bf16=bf16,
        persistence_threshold=config.zero.persistence_threshold,
        device=device,
    )

    shard = ray.train.get_dataset_shard("rows")
    start: Any = ray.get(job.pacer.start.remote())  # where the stream begins: the only source of that number
    if start:
        load(engine, checkpoint.folder_of(run, start))
    journal = Journal(run, start, job.steps_per_epoch, job.pacer) if rank == 0 else None
    gauges = WorkerGauges(
        config.name,
        rank,
        pretrain.steps,
        restarts=ray.get(job.pacer.restarts.remote()),
        flops=objective.flops,
        peak=group_peak(device, bf16, config.scaling.gpus_per_worker),
        device=device,
    )
    if job.dump_batches:
        metrics.cut(Path(job.dump_batches) / f"rank{rank}.jsonl", start)
    rate = partial(
        learning_rate,
        steps=pretrain.steps,
        peak=pretrain.learning_rate,
        warmup_ratio=pretrain.warmup_ratio,
        schedule=pretrain.schedule,
    )
    clock = Clock()
    step, scores = start, {}
    try:
        for is_evaluation, parts in groupby(clock.waiting(parts_of(shard, rank)), key=lambda part: part.evaluation):
            if is_evaluation:
                scores = evaluate(engine, evaluation_batches(parts, job))
                if journal:
                    journal.write_evaluation(step, scores)
                gauges.evaluation(scores)
                clock.lap()
                continue
            asked_to_stop = journal.asked_to_stop if journal else lambda: False
            for record in train_steps(engine, training_steps(parts, job, step, start, gauges), rate, asked_to_stop):
                step, lap = record.step + 1, clock.lap()
                if journal:
                    journal.write_step(record, *lap)
                gauges.step(record, *lap)
                if step % config.checkpoints.every_steps == 0 or step == pretrain.steps or record.is_last:
                    if journal:
                        journal.carry()  # before the checkpoint: a run that resumes there has all lines
                    save(engine, job, step)
                    gauges.checkpoint(clock.lap()[0])
                if record.is_last:
                    ray.get(job.pacer.stopped.remote(step))
                    return
    except FloatingPointError as error:  # on all ranks alike, and the same again after a restart
        ray.get(job.pacer.fail.remote(str(error)))
        return
    except Exception as error:
        raise RuntimeError(f"rank {rank}, step {step}: {type(error).__name__}: {error}") from error

    state = engine.full_state()  # every rank takes part in gathering
    if journal:
        fetch(Path(job.tokenizer_folder))
        export_objective(objective, state, job.tokenizer_folder, run / "export", card(job, scores))
        publish(run / "export", last="config.json")
        journal.finish()
    dist.barrier()


def training_steps(
    parts: Iterable[Part], job: Job, step: int, start: int, gauges: WorkerGauges
) -> Iterator[tuple[int, list[Batch]]]:
    """Each step's number and this rank's micro-batches. Raises RuntimeError where a step is not the expected one."""
    rank = dist.get_rank()
    for part in parts:
        if part.first_step != step:
            raise RuntimeError(f"the stream brought step {part.first_step} where {step} was due")
        for step, rows in steps_of(part):
            # Dropout is keyed by (seed, step, rank): what a step drops depends on no step before it.
            seed = np.random.SeedSequence([job.config.seed, step, rank]).generate_state(1, np.uint64)
            torch.manual_seed(int(seed[0]))
            size, pad_id = job.config.pretrain.micro_batch, job.tokenizer["pad_id"]
            batches = micro_batches(part, rows, size, job.accumulation, pad_id)
            gauges.read(part.lengths[rows], sum(batch["input_ids"].size for batch in batches))
            if job.dump_batches:
                dump(Path(job.dump_batches), part, rows, job.config.pretrain.micro_batch)
            if job.fault and start == 0:
                strike(job.fault, rank, step)
            yield step, tensors(batches)
        step = part.last_step


def evaluation_batches(parts: Iterable[Part], job: Job) -> Iterator[Batch]:
    """This rank's held-out batches; every rank has the same number."""
    for part in parts:
        for _, rows in steps_of(part):
            yield from tensors(micro_batches(part, rows, job.config.pretrain.micro_batch, 1, job.tokenizer["pad_id"]))


def tensors(batches: list[dict[str, Any]]) -> list[Batch]:
    """Arrays to torch tensors, without a copy."""
    return [{key: torch.from_numpy(array) for key, array in batch.items()} for batch in batches]


def is_first_of_node() -> bool:
    """Whether no lower rank shares this one's mirror. Ray's local ranks go by IP address, which nodes may share."""
    mirrors: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(mirrors, mirror_id())
    return mirrors.index(mirrors[dist.get_rank()]) == dist.get_rank()


def load(engine: DeepSpeedEngine, folder: Path) -> None:
    """Load a checkpoint, all ranks together; out of a bucket the first rank of each node brings it."""
    is_first = is_first_of_node()
    if is_first:
        fetch(folder)
    dist.barrier()
    engine.load(folder)
    dist.barrier()
    if is_first:
        forget(folder)


def save(engine: DeepSpeedEngine, job: Job, step: int) -> None:
    """Save the state before `step`, all ranks together."""
    checkpoint.save(
        Path(job.run),
        step,
        write_state=engine.save,
        barrier=dist.barrier,
        is_first_rank=dist.get_rank() == 0,
        is_first_of_node=is_first_of_node(),
        facts={"world_size": dist.get_world_size(), "zero_stage": job.config.zero.stage},
        keep=job.config.checkpoints.keep,
    )


def dump(folder: Path, part: Part, rows: Any, micro_batch: int) -> None:
    """Append one step's rows as trained: one JSON object a micro-batch, padding and filler rows left out."""
    with (folder / f"rank{part.rank}.jsonl").open("a", encoding="utf-8") as file:
        for begin in range(0, len(rows), micro_batch):
            chosen = rows[begin : begin + micro_batch]
            line = {"step": int(part.step[chosen[0]]), "row_ids": part.row_ids[chosen].tolist()}
            for name, values in (("input_ids", part.input_ids), ("labels", part.labels)):
                line[name] = [values[row, : part.lengths[row]].tolist() for row in chosen]
            file.write(json.dumps(line) + "\n")


def strike(fault: str, rank: int, step: int) -> None:
    """The fault hook of the tests, from CLOZE_FAULT: "kill:RANK:STEP" or "raise:RANK:STEP"."""
    kind, of_rank, at_step = fault.split(":")
    if (rank, step) == (int(of_rank), int(at_step)):
        if kind == "kill":
            os.kill(os.getpid(), 9)
        raise RuntimeError(f"the fault that CLOZE_FAULT={fault} asked for")


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
