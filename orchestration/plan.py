"""The arithmetic of a run, before anything starts: what one step is made of.

In: a config. Out: numbers, and the lines that `--dry-run` prints. Pure, but for counting parameters on the meta
device. Knows neither Ray nor files.
"""

from dataclasses import dataclass

from orchestration.config import Config


@dataclass(frozen=True)
class StepPlan:
    """How a global batch is dealt to workers."""

    accumulation: int
    """Micro-batches per step and worker."""
    filler_rows: int
    """Rows of weight zero per step, so that every worker does the same number of micro-batches."""


def step_plan(config: Config, workers: int) -> StepPlan:
    """accumulation = ceil(global batch / (workers x micro-batch)); any numbers work."""
    slots = workers * config.pretrain.micro_batch
    accumulation = -(-config.pretrain.global_batch // slots)
    return StepPlan(accumulation, accumulation * slots - config.pretrain.global_batch)


def describe(config: Config, vocab_size: int | None = None) -> list[tuple[str, str]]:
    """What `--dry-run` prints, as (name, value) lines."""
    from data.families import SPECIALS
    from model.objectives.catalogue import parameters_of

    pretrain, scaling, workers = config.pretrain, config.scaling, config.scaling.max_workers
    plan = step_plan(config, workers)
    tokenizer = {
        "vocab_size": vocab_size or config.tokenizer.vocab_size,
        "pad_id": list(SPECIALS[config.tokenizer.kind]).index("pad"),
    }
    filler = f" + {plan.filler_rows} filler" if plan.filler_rows else ""
    rows = f"{pretrain.global_batch}{filler} = {workers} workers x {plan.accumulation} x {pretrain.micro_batch}"
    resources = f"{workers} x ({scaling.cpus_per_worker:g} CPU, {scaling.gpus_per_worker:g} GPU)"
    return [
        ("parameters", f"{parameters_of(config.objective, config.encoder, tokenizer):,}"),
        ("rows per step", rows),
        ("tokens per step", f"at most {pretrain.global_batch * config.rows.length:,}"),
        ("steps", f"{pretrain.steps:,}"),
        ("workers", f"{resources}, ZeRO stage {config.zero.stage}"),
        ("evaluation", f"every {pretrain.eval_every_steps} steps" if pretrain.eval_every_steps else "before and after"),
        ("checkpoints", f"every {config.checkpoints.every_steps} steps, {config.checkpoints.keep} kept"),
    ]
