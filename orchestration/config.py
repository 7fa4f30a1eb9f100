"""The config tree: one frozen pydantic root over the sections of all rooms.

In: plain mappings, through orchestration/recipe.py. Out: a validated Config, and YAML.
Nothing is changed after loading; derived numbers are computed where they are used.
"""

import re
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from data.config import Corpus, Masking, Rows, Section, Task, Tokenizer, form_of
from model.config import AskedHead, Encoder, Objective
from tuning.config import Finetune, Gpus, Sweep

Size = Annotated[int, Field(ge=1)]
Sizes = Annotated[
    Annotated[Size, Tag("number")] | Annotated[tuple[Size, ...], Field(min_length=1), Tag("list")],
    Discriminator(form_of),
]
UNITS = ("tokens", "hours", "money")


class Budget(Section):
    """What a run may spend, in one of three units. The learning rate follows the share that is spent of what the first
    step finds; of a budget that is raised for a run that has begun, the share of the new one."""

    tokens: Annotated[float, Field(gt=0)] | None = None
    """Tokens trained on that are not padding; steps that a fault made the run repeat count once."""
    hours: Annotated[float, Field(gt=0)] | None = None
    """Hours that the worker group existed: loading, repeated steps, evaluations and saves count."""
    money: Annotated[float, Field(gt=0)] | None = None
    """Worker-hours x cluster.price_per_worker_hour."""

    @model_validator(mode="after")
    def _one_unit(self) -> "Budget":
        given = [unit for unit in UNITS if getattr(self, unit) is not None]
        if len(given) != 1:
            what = f"both {' and '.join(given)}" if given else "nothing"
            raise ValueError(f"{what} given; give exactly one of {', '.join(UNITS)} (the others null)")
        return self

    @property
    def unit(self) -> str:
        """Which of UNITS is given."""
        return next(unit for unit in UNITS if getattr(self, unit) is not None)


class Pretrain(Section):
    """How long and how hard the encoder is pretrained."""

    steps: Sizes | None = 2000
    """Optimizer steps; a list: of each phase, with rows of rows.length; null where a budget ends the run."""
    global_batch: Size = 16
    """Rows per optimizer step, over all workers."""
    micro_batch: Sizes = 8
    """Rows that one worker holds on its device at once; a list: in each phase."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """Peak learning rate of AdamW."""
    schedule: Literal["linear", "constant"] = "linear"
    """After the warm-up: linear decay to 0, or constant."""
    warmup_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.06
    """Share of the steps, or of the budget, over which the learning rate rises linearly from 0."""
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

    @model_validator(mode="before")
    @classmethod
    def _budget_is_in_place_of_steps(cls, values: object) -> object:
        """The default number of steps does not count where a budget is given."""
        if isinstance(values, dict) and values.get("budget") is not None:
            return {"steps": None, **values}
        return values

    @model_validator(mode="after")
    def _one_end(self) -> "Pretrain":
        if self.budget is not None and self.steps is not None:
            raise ValueError(
                f"steps={_plain(self.steps)} and a budget in {self.budget.unit}: a run ends by one of them; give "
                f"pretrain.steps=null or pretrain.budget=null"
            )
        if self.budget is None and self.steps is None:
            raise ValueError("steps=null and no budget: nothing ends the run; give one of them")
        return self

    @property
    def total_steps(self) -> int | None:
        """Of all phases; None where a budget ends the run."""
        return sum(self.steps) if isinstance(self.steps, tuple) else self.steps


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

    @model_validator(mode="after")
    def _offloads_what_is_sharded(self) -> "Zero":
        if self.offload is not None and self.stage == 0:
            raise ValueError(f"offload={self.offload}: stage=0 keeps the optimizer as it is; give zero.stage=1, 2 or 3")
        return self


def _workers(value: object) -> object:
    """Refuse what is neither a number of workers nor the fewest and the most of them."""
    numbers: Any = value if isinstance(value, list | tuple) else (value, value)
    if len(numbers) != 2 or not all(type(number) is int and number > 0 for number in numbers):
        raise PydanticCustomError("workers", "neither a number of workers from 1 on nor two, [FEWEST, MOST]")
    if numbers[0] > numbers[1]:
        ordered = {"fewest": numbers[1], "most": numbers[0]}
        raise PydanticCustomError("workers", "the fewest come first: [{fewest}, {most}]", ordered)
    return value


class Scaling(Section):
    """Workers and what each asks of Ray."""

    workers: Annotated[Size | tuple[Size, Size], BeforeValidator(_workers)] = 2
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
    head: AskedHead = AskedHead()
    finetune: Finetune = Finetune()
    sweep: Sweep = Sweep()

    @model_validator(mode="after")
    def _rooms_fit(self) -> "Config":
        """Check what only the whole tree shows: lengths against positions."""
        positions = self.encoder.max_position_embeddings
        if self.rows.longest > positions:
            raise ValueError(
                f"rows.length={self.rows.longest} is more than encoder.max_position_embeddings={positions}; "
                f"give rows.length<={positions} or a longer encoder"
            )
        self._check_phases()
        self._check_budget()
        if self.name.endswith("-sweep"):
            raise ValueError(f"name={self.name}: that is the folder of a sweep; give a name without -sweep at its end")
        if self.encoder.init is not None and self.tokenizer.path is None:
            raise ValueError(
                f"encoder.init={self.encoder.init} brings a vocabulary; give tokenizer.path={self.encoder.init} too"
            )
        return self

    def _check_phases(self) -> None:
        """Raise ValueError where the phases of rows and steps are not the same ones."""
        lengths, steps, micro = self.rows.length, self.pretrain.steps, self.pretrain.micro_batch
        if self.pretrain.budget is not None:
            if isinstance(lengths, tuple) or isinstance(micro, tuple):
                raise ValueError(
                    f"pretrain.budget.{self.pretrain.budget.unit} with rows.length={_plain(lengths)} and "
                    f"pretrain.micro_batch={_plain(micro)}: phases end by steps, not by a budget; give numbers, or "
                    f"pretrain.budget=null and the steps of each phase"
                )
            return
        if _count(lengths) != _count(steps):
            raise ValueError(
                f"rows.length={_plain(lengths)} and pretrain.steps={_plain(steps)}: give two numbers, or two lists "
                f"with a number for each phase"
            )
        if isinstance(micro, tuple) and _count(micro) != _count(steps):
            raise ValueError(
                f"pretrain.micro_batch={_plain(micro)} and pretrain.steps={_plain(steps)}: give a number, or one for "
                f"each phase"
            )

    def _check_budget(self) -> None:
        """Raise ValueError where a budget cannot be counted, or what goes by steps has none to go by."""
        budget = self.pretrain.budget
        if budget is None:
            return
        if budget.money is not None and self.cluster.price_per_worker_hour is None:
            raise ValueError(f"pretrain.budget.money={budget.money:g}: give cluster.price_per_worker_hour=PRICE too")
        if self.masking.final_mlm_probability is not None:
            raise ValueError(
                f"masking.final_mlm_probability={self.masking.final_mlm_probability:g}: it is reached at the last "
                f"step, and with pretrain.budget.{budget.unit} nobody knows which that is (masks are made ahead of "
                f"training); give null, or pretrain.steps instead of the budget"
            )


def _count(value: int | tuple[int, ...] | None) -> int | None:
    """How many phases a list is for; None for a number."""
    return len(value) if isinstance(value, tuple) else None


def _plain(value: int | tuple[int, ...] | None) -> int | list[int] | None:
    """A list as its user wrote it."""
    return list(value) if isinstance(value, tuple) else value


# What is read as a number: 1e-3 too, which YAML 1.1 takes for a text.
FLOAT = re.compile(
    r"^[-+]?(\d[\d_]*)(\.\d*)?[eE][-+]?\d+$|^[-+]?\d[\d_]*\.\d*$|^[-+]?\.\d+$"
    r"|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$"
)


class _Dumper(yaml.SafeDumper):
    """SafeDumper that quotes a text which FLOAT would read as a number."""


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+0123456789."))


def to_yaml(config: Config) -> str:
    """The effective config as YAML that load_config reads back to an equal Config."""
    return yaml.dump(config.model_dump(mode="json"), Dumper=_Dumper, sort_keys=False, allow_unicode=True)
