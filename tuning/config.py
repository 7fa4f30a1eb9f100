"""What the tuning room may be told: finetune and sweep sections of the config tree.

In: plain mappings. Out: frozen, validated sections. Knows pydantic only, so that reading a config starts nothing.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator


class Section(BaseModel):
    """A frozen section of the config tree that refuses keys it does not own."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, coerce_numbers_to_str=True, allow_inf_nan=False
    )


def _whole_above_one(gpus: float) -> float:
    """Ray's rule: a fraction shares one GPU, more than one are whole."""
    if gpus > 1 and not gpus.is_integer():
        raise ValueError(f"{gpus:g} GPUs: a share of one, or a whole number; give {int(gpus)} or {int(gpus) + 1}")
    return gpus


Size = Annotated[int, Field(ge=1)]
Gpus = Annotated[float, Field(ge=0), AfterValidator(_whole_above_one)]


class Finetune(Section):
    """How a head (and the encoder under it) is trained on a task."""

    mode: Literal["frozen", "top_k", "lora", "full"] = "full"
    """frozen: the head only, on the encoder's cached outputs; top_k: the encoder's last layers too; lora: small
    matrices beside those of all layers (arXiv:2106.09685); full: every weight."""
    top_k: Size = 2
    """top_k: how many layers train."""
    lora_rank: Size = 8
    """lora: rank of the matrices that are added."""
    lora_alpha: Annotated[float, Field(gt=0)] = 16
    """lora: what is added is scaled by lora_alpha / lora_rank."""
    layerwise_lr_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The learning rate of a layer as a share of that above it; 1: the same in all (ELECTRA, arXiv:2003.10555
    appendix B)."""
    learning_rate: Annotated[float, Field(gt=0)] = 3e-4
    """Peak learning rate of AdamW."""
    epochs: Size = 3
    """Passes over the training examples; the best one by validation counts."""
    length: Annotated[int, Field(ge=4)] = 64
    """Most tokens of an example, special tokens included; what is longer is cut, or read in windows."""
    stride: Size | None = None
    """Tokens that neighbouring windows of a longer text share; None: it is cut (answering always has windows, which
    share a quarter of `length`: what is cut has no answer)."""
    global_batch: Size = 32
    """Examples per optimizer step."""
    warmup_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of the steps over which the learning rate rises."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """AdamW's decay, not applied to biases and LayerNorm."""
    gradient_clipping: Annotated[float, Field(gt=0)] | None = 1.0
    """Largest norm of a step's gradient; None: no clipping."""


    @model_validator(mode="after")
    def _windows_go_on(self) -> "Finetune":
        if self.stride is not None and self.stride >= self.length:
            raise ValueError(
                f"stride={self.stride}: neighbouring windows of length={self.length} tokens cannot share so many; give "
                f"less"
            )
        return self


class Budget(Section):
    """Where a sweep ends although points are left; what it holds by then is judged. None: no limit."""

    hours: Annotated[float, Field(gt=0)] | None = None
    """Of the clock, of this sweep's runs together."""
    trials: Size | None = None
    """Trials that ended, those of earlier runs among them."""


class Sweep(Section):
    """Which points are tried, on which encoders, how often."""

    encoders: Annotated[tuple[str, ...], Field(min_length=1)] = ("pretrained", "random")
    """"pretrained": the export of the pretraining run of this name; "random": the same shape with random weights,
    the control; anything else: a Hugging Face folder."""
    tasks: dict[str, dict[str, Any]] = {}
    """Several tasks, each with its name and its own keys: {sst2: {task.train: a.tsv, head.kind: classification}}; each
    is a sweep in a folder of its own, and a table of all stands above. Empty: the one task of the config."""
    space: dict[str, Any] = {
        "finetune.mode": ["frozen", "full"],
        "finetune.learning_rate": {"frozen": [3e-3, 1e-2], "full": [1e-4, 3e-4]},
        "finetune.epochs": {"frozen": [30], "full": [3]},
    }
    """Dotted key -> values, or -> {mode: values}. Values: one, a list, or {log_uniform: [low, high]} or {uniform: [low,
    high]}, which random and optuna draw from."""
    search: Literal["grid", "random", "optuna"] = "grid"
    """grid: every combination; random: `points` of them drawn by `seed`; optuna: drawn where earlier points did well
    (TPE; optuna)."""
    points: Size = 16
    """random, optuna: points of each encoder and number of training examples."""
    scheduler: Literal["none", "asha"] = "none"
    """asha: points race on their first seed, those of one mode against each other; who falls behind is stopped (Ray
    Tune's asynchronous successive halving, arXiv:1810.05934)."""
    asha_reduction: Annotated[int, Field(ge=2)] = 3
    """asha: one point in so many goes on at each rung."""
    seeds: Size = 3
    """Trials of each point, with seeds seed, seed + 1, ..."""
    train_sizes: tuple[Size | Literal["all"], ...] = ()
    """Learning curve: every point is trained on the first n training examples (of a shuffle by `seed`, alike for all)
    for each n. Empty: on all of task.train_size."""
    budget: Budget = Budget()
    """When to end although points are left."""
    retrain: bool = False
    """Train the winner again on training and validation examples together, for best/."""
    workers_per_trial: Size | dict[str, Size] = 1
    """Processes that share a trial under DeepSpeed ZeRO (zero.stage), a number or {mode: number}; each asks for
    cpus_per_trial and gpus_per_trial. Trials on cached features have one."""
    cpus_per_trial: Annotated[float, Field(gt=0)] | dict[str, Annotated[float, Field(gt=0)]] = 1.0
    """CPUs that a trial asks of Ray, a number or {mode: number}."""
    gpus_per_trial: Gpus | dict[str, Gpus] = 0.0
    """GPUs that a trial asks of Ray, a number or {mode: number}; fractions share one."""
    checkpoint_seconds: Annotated[float, Field(ge=0)] = 60
    """A trial saves where it is after the first epoch that ends so many seconds after its last save; a sweep that was
    killed goes on there."""
    must_beat_random: bool = False
    """Exit with 1 unless the best pretrained entry beats the best random one by more than both seed deviations."""

    def asked(self, mode: str) -> tuple[int, float, float]:
        """What a trial of this mode asks for: workers, and CPUs and GPUs of each."""
        each = self.workers_per_trial, self.cpus_per_trial, self.gpus_per_trial
        workers, cpus, gpus = (one.get(mode, default) if isinstance(one, dict) else one
                               for one, default in zip(each, (1, 1, 0), strict=True))  # fmt: skip
        return int(workers), float(cpus), float(gpus)

    @field_validator("encoders", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: object) -> object:
        """Let a single encoder stand for a list of one."""
        return (value,) if isinstance(value, str) else value
