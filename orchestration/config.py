"""The config tree: one frozen pydantic root over the sections of all rooms.

In: plain mappings, through orchestration/recipe.py. Out: a validated Config, what of it is a run's identity, and YAML.
Nothing is changed after loading; derived numbers are computed where they are used.
"""

import re
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, Field, model_validator

from data.config import Corpus, Masking, Rows, Section, Task, Tokenizer
from model.config import Encoder, Head, Objective
from tuning.config import Finetune, Gpus, Sweep

Size = Annotated[int, Field(ge=1)]


class Budget(Section):
    """What a run may spend, in one of three units; the schedule follows it."""

    tokens: Annotated[float, Field(gt=0)] | None = None
    """Tokens trained on that are not padding."""
    hours: Annotated[float, Field(gt=0)] | None = None
    """Hours of the worker group, restarts included."""
    money: Annotated[float, Field(gt=0)] | None = None
    """In the currency of cluster.price_per_worker_hour."""


class Pretrain(Section):
    """How long and how hard the encoder is pretrained."""

    steps: Size = 2000
    """Optimizer steps."""
    global_batch: Size = 16
    """Rows per optimizer step, over all workers."""
    micro_batch: Size = 8
    """Rows that one worker holds on its device at once."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """Peak learning rate of AdamW."""
    schedule: Literal["linear", "constant"] = "linear"
    """After the warm-up: linear decay to 0, or constant."""
    warmup_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.06
    """Share of the steps over which the learning rate rises linearly from 0."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """AdamW's decay, not applied to biases and LayerNorm."""
    gradient_clipping: Annotated[float, Field(gt=0)] | None = 1.0
    """Largest norm of a step's gradient; None: no clipping."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """auto: bf16 on GPUs that have it, else fp32. fp16, with loss scaling, on GPUs only."""
    eval_every_steps: Size | None = 500
    """Steps between evaluations on held-out rows; None: only before and after."""
    max_bad_steps: Size = 10
    """Steps in a row whose loss or gradient is no finite number, before the run gives up; each is skipped."""
    budget: Budget | None = None
    """What the run may spend, in place of steps."""


class Zero(Section):
    """How DeepSpeed shards the training state. Source: ZeRO, arXiv:1910.02054 section 5."""

    stage: Annotated[int, Field(ge=0, le=3)] = 1
    """0: nothing; 1: optimizer state; 2: and gradients; 3: and parameters are sharded over the workers."""
    persistence_threshold: Annotated[int, Field(ge=0)] = 100_000
    """Stage 3 keeps parameters smaller than this many elements whole on every worker."""
    offload: Literal["optimizer"] | None = None
    """optimizer: its state lives in the memory of the CPU, which also updates the weights (stages 1 to 3)."""
    activation_checkpointing: bool = False
    """Compute the activations of a layer again in the backward pass instead of keeping them."""


class Scaling(Section):
    """Workers and what each asks of Ray."""

    workers: Size | tuple[Size, Size] = 2
    """Ray Train workers; [min, max]: as many of them as the cluster has room for, also while it trains."""
    cpus_per_worker: Annotated[float, Field(gt=0)] = 0.5
    """CPUs a worker asks of Ray. Keep some for Ray Data: workers that take every CPU starve the reader."""
    gpus_per_worker: Gpus = 0
    """GPUs a worker asks of Ray."""
    max_restarts: Annotated[int, Field(ge=0)] = 3
    """How often in a row, with no new checkpoint between, a broken worker group is started again from the newest one.
    Lost and drained nodes do not count."""
    stuck_seconds: Annotated[float, Field(gt=0)] = 600
    """A worker that stays in one stage of a step for longer is named and started again."""

    @model_validator(mode="after")
    def _fewest_first(self) -> "Scaling":
        if self.min_workers > self.max_workers:
            raise ValueError(
                f"workers=[{self.min_workers}, {self.max_workers}]: the fewest come first; give "
                f"[{self.max_workers}, {self.min_workers}]"
            )
        return self

    @property
    def told_workers(self) -> str:
        """As the recipe has it."""
        return str(self.workers if isinstance(self.workers, int) else list(self.workers))

    @property
    def min_workers(self) -> int:
        """The fewest that train."""
        return self.workers if isinstance(self.workers, int) else self.workers[0]

    @property
    def max_workers(self) -> int:
        """The most that train."""
        return self.workers if isinstance(self.workers, int) else self.workers[1]


class Checkpoints(Section):
    """When the training state is saved and how many saves are kept. An evaluation that is the best so far is saved too,
    and so are the end, and a run that is told to stop."""

    every_steps: Size = 500
    """Optimizer steps between two saves. Training waits for the write to a disk of the node; hashing and uploading go
    on beside it. A save that fails is said, and the next one tried; three in a row end the run."""
    keep: Size = 2
    """The newest ones that are kept, beside the one with the lowest held-out loss, which is never deleted. On a full
    disk all but the newest and the best are given up."""


class Cluster(Section):
    """Which Ray cluster runs the job."""

    address: str | None = None
    """Address of a Ray cluster; None: RAY_ADDRESS if it is set, else a private Ray on this machine."""
    requirements: str | None = "pinned"
    """What a submitted job installs where a node lacks it: "pinned" (the versions that are installed here), a
    requirements file, or None: nothing."""
    image: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$")] | None = None
    """Container image that a submitted job runs in; it holds Cloze, since Ray ships no files into one."""
    autoscales: bool = False
    """The cluster starts nodes when they are asked for: what it lacks now is waited for, not refused."""
    price_per_worker_hour: Annotated[float, Field(gt=0)] | None = None
    """What one worker costs in an hour, in any currency: for pretrain.budget.money and the report."""


class Config(Section):
    """One whole run, its sections in the order of the road."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$")]
    """Names the run's folder; the same name again resumes."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Decides data order, masks, initial weights and dropout."""
    storage: str = "runs"
    """Folder of all runs, reachable from every node."""
    corpus: Corpus = Corpus()
    tokenizer: Tokenizer = Tokenizer()
    rows: Rows = Rows()
    masking: Masking = Masking()
    encoder: Encoder = Encoder()
    objective: Objective = Objective()
    pretrain: Pretrain = Pretrain()
    zero: Zero = Zero()
    scaling: Scaling = Scaling()
    checkpoints: Checkpoints = Checkpoints()
    cluster: Cluster = Cluster()
    task: Task = Task()
    head: Head = Head()
    finetune: Finetune = Finetune()
    sweep: Sweep = Sweep()

    @model_validator(mode="after")
    def _rooms_fit(self) -> "Config":
        """Check what only the whole tree shows: lengths against positions."""
        positions = self.encoder.max_position_embeddings
        if self.rows.length > positions:
            raise ValueError(
                f"rows.length={self.rows.length} is more than encoder.max_position_embeddings={positions}; "
                f"give rows.length<={positions} or a longer encoder"
            )
        if self.name.endswith("-sweep"):
            raise ValueError(f"name={self.name}: that is the folder of a sweep; give a name without -sweep at its end")
        if self.encoder.init is not None and self.tokenizer.path is None:
            raise ValueError(
                f"encoder.init={self.encoder.init} brings a vocabulary; give tokenizer.path={self.encoder.init} too"
            )
        return self


# What is read as a number: 1e-3 too, which YAML 1.1 takes for a text.
FLOAT = re.compile(
    r"^[-+]?(\d[\d_]*)(\.\d*)?[eE][-+]?\d+$|^[-+]?\d[\d_]*\.\d*$|^[-+]?\.\d+$"
    r"|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$"
)
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
    "sweep.space",
    "sweep.seeds",
    "sweep.cpus_per_trial",
    "sweep.gpus_per_trial",
    "sweep.must_beat_random",
)
# Sections that a pretraining run reads; a sweep reads the others too, and the encoder comes as weights.
PRETRAIN_SECTIONS = ("seed", "corpus", "tokenizer", "rows", "masking", "encoder", "objective", "pretrain")
SWEEP_SECTIONS = ("seed", "task", "head", "finetune", "sweep")


def flatten(section: BaseModel) -> dict[str, Any]:
    """All values by dotted key, as plain data; a sweep's space stays one value."""
    flat: dict[str, Any] = {}

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, dict) and prefix != "sweep.space":
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


class _Dumper(yaml.SafeDumper):
    """SafeDumper that quotes a text which FLOAT would read as a number."""


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+0123456789."))


def to_yaml(config: Config) -> str:
    """The effective config as YAML that load_config reads back to an equal Config."""
    return yaml.dump(config.model_dump(mode="json"), Dumper=_Dumper, sort_keys=False, allow_unicode=True)
