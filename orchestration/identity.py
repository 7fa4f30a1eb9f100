"""What of a config is a run's identity: the values that it must keep when it is resumed.

In: a config. Out: its values by dotted key. Knows no files.
"""

from typing import Any

from data.config import Section
from orchestration.config import Config

# Keys that may differ when a run is resumed; all others are its identity.
FREE = (
    "storage",
    "corpus.max_bad_fraction",
    "pretrain.micro_batch",
    "pretrain.eval_every_steps",
    "pretrain.max_bad_steps",
    "pretrain.budget",
    "zero",
    "scaling",
    "checkpoints",
    "cluster",
    "sweep.tasks",  # each has a folder of its own
    "sweep.space",
    "sweep.points",
    "sweep.seeds",
    "sweep.train_sizes",
    "sweep.budget",
    "sweep.retrain",
    "sweep.checkpoint_seconds",
    "sweep.workers_per_trial",
    "sweep.cpus_per_trial",
    "sweep.gpus_per_trial",
    "sweep.must_beat_random",
)
# Sections that a pretraining run reads; a sweep reads the others too, and the encoder comes as weights.
PRETRAIN_SECTIONS = ("seed", "corpus", "tokenizer", "rows", "masking", "encoder", "objective", "pretrain")
SWEEP_SECTIONS = ("seed", "task", "head", "finetune", "sweep")
WHOLE = ("sweep.space", "sweep.tasks")  # one value each: their keys are the user's


def flatten(section: Section) -> dict[str, Any]:
    """All values by dotted key, as plain data."""
    flat: dict[str, Any] = {}

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, dict) and prefix not in WHOLE:
            for key, child in value.items():
                walk(f"{prefix}.{key}" if prefix else key, child)
        else:
            flat[prefix] = value

    walk("", section.model_dump(mode="json"))
    return flat


def identity(config: Config, sections: tuple[str, ...]) -> dict[str, Any]:
    """The values that a run of this name must keep: those of `sections` that are not FREE."""

    def is_free(key: str) -> bool:
        return any(key == free or key.startswith(free + ".") for free in FREE)

    return {k: v for k, v in flatten(config).items() if k.split(".")[0] in sections and not is_free(k)}
