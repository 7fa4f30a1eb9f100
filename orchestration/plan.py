"""The arithmetic of a run, before anything starts: its phases, and what one step is made of.

In: a config. Out: numbers, and the lines that `--dry-run` prints. Pure, but for counting parameters on the meta
device. Knows neither Ray nor files.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from orchestration.budget import limit_of
from orchestration.config import Config

# A run whose budget ends it has no last step, and its stream one that it never reaches: 32 years at a step a second.
ENDLESS_STEPS = 10**9


@dataclass(frozen=True)
class Phase:
    """Steps of a run whose rows have one length."""

    first_step: int
    end_step: int
    """The step behind its last one."""
    length: int
    """Most tokens of a row."""
    micro_batch: int


def phases_of(config: Config) -> tuple[Phase, ...]:
    """The phases of a run in order; their steps are numbered through."""
    pretrain, lengths = config.pretrain, config.rows.lengths
    steps = pretrain.steps if isinstance(pretrain.steps, tuple) else (pretrain.steps or ENDLESS_STEPS,)
    micro = pretrain.micro_batch if isinstance(pretrain.micro_batch, tuple) else (pretrain.micro_batch,) * len(steps)
    ends = [sum(steps[: number + 1]) for number in range(len(steps))]
    return tuple(map(Phase, [0, *ends[:-1]], ends, lengths, micro))


def number_of_phase(phases: Sequence[Phase], step: int) -> int:
    """Which phase `step` is of; the step behind the last one is of the last phase."""
    return next((number for number, phase in enumerate(phases) if step < phase.end_step), len(phases) - 1)


@dataclass(frozen=True)
class StepPlan:
    """How a global batch is dealt to workers."""

    accumulation: int
    """Micro-batches per step and worker."""
    filler_rows: int
    """Rows of weight zero per step, so that every worker does the same number of micro-batches."""


def step_plan(config: Config, workers: int, phase: int = 0) -> StepPlan:
    """accumulation = ceil(global batch / (workers x micro-batch)); any numbers work."""
    slots = workers * phases_of(config)[phase].micro_batch
    accumulation = -(-config.pretrain.global_batch // slots)
    return StepPlan(accumulation, accumulation * slots - config.pretrain.global_batch)


def describe(config: Config, vocab_size: int | None = None) -> list[tuple[str, str]]:
    """What `--dry-run` prints, as (name, value) lines."""
    from data.families import SPECIALS
    from model.objectives.catalogue import parameters_of

    pretrain, scaling, phases = config.pretrain, config.scaling, phases_of(config)
    tokenizer = {
        "vocab_size": vocab_size or config.tokenizer.vocab_size,
        "pad_id": list(SPECIALS[config.tokenizer.kind]).index("pad"),
    }
    numbers = sorted({scaling.min_workers, scaling.max_workers})
    workers = " to ".join(map(str, numbers))
    resources = f"{workers} x ({scaling.cpus_per_worker:g} CPU, {scaling.gpus_per_worker:g} GPU)"
    every = f"every {pretrain.eval_every_steps} steps" if pretrain.eval_every_steps else "before and after"
    lines = [("parameters", f"{parameters_of(config.objective, config.encoder, tokenizer):,}")]
    for number, phase in enumerate(phases):
        of_phase = f" of phase {number + 1}" if len(phases) > 1 else ""
        lines += [("rows per step", _rows(config, count, number) + of_phase) for count in numbers]
        lines.append(("tokens per step", f"at most {pretrain.global_batch * phase.length:,}{of_phase}"))
    return [
        *lines,
        *_end(config),
        ("workers", f"{resources}, ZeRO stage {config.zero.stage}"),
        ("evaluation", every if len(phases) == 1 else f"{every}, on held-out rows of the phase, and where one begins"),
        ("checkpoints", f"every {config.checkpoints.every_steps} steps, {config.checkpoints.keep} kept"),
    ]


def _rows(config: Config, workers: int, phase: int) -> str:
    """How the rows of a step are dealt."""
    plan, rows = step_plan(config, workers, phase), config.pretrain.global_batch
    filler = f" + {plan.filler_rows} filler" if plan.filler_rows else ""
    return f"{rows}{filler} = {workers} workers x {plan.accumulation} x {phases_of(config)[phase].micro_batch}"


def _end(config: Config) -> list[tuple[str, str]]:
    """What ends the run, and what it costs."""
    phases, price, scaling = phases_of(config), config.cluster.price_per_worker_hour, config.scaling
    lines: list[tuple[str, str]] = []
    if (limit := limit_of(config)) is None:
        total = f"{phases[-1].end_step:,}"
        parts = [f"{p.end_step - p.first_step:,} with rows of {p.length}" for p in phases]
        lines.append(("steps", f"{total} = {' + '.join(parts)}" if len(phases) > 1 else total))
    else:
        lines.append(("budget", limit.text))
    if price is not None:
        numbers = sorted({scaling.min_workers, scaling.max_workers})
        lines.append(("price", f"{' to '.join(f'{price * count:g}' for count in numbers)} an hour"))
        if limit is not None and limit.unit == "money":
            hours = [f"{limit.amount / price / count:.3g}" for count in reversed(numbers)]
            lines.append(("time", f"{' to '.join(hours)} hours"))
        if limit is not None and limit.unit == "hours":
            money = [f"{limit.amount * price * count:.4g}" for count in numbers]
            lines.append(("cost", f"{' to '.join(money)}"))
    return lines
