"""The config tree: one frozen pydantic root over the sections of all rooms, and the one function that changes values.

In: a recipe (YAML), `key.path=value` overrides. Out: a validated Config, or a ValueError whose message has one line
per fault: dotted key, given value, what is allowed, what to do.
Precedence: default < recipe < `key.path=value` < sweep point. Nothing is changed after loading.
"""

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, Field, ValidationError, model_validator

from data.config import Corpus, Masking, Rows, Section, Source, Tokenizer, UserError
from model.config import Encoder, Head, Objective
from tuning.config import Finetune, Sweep

Size = Annotated[int, Field(ge=1)]
RECIPES = Path(__file__).parent / "recipes"


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
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto: bf16 on GPUs that have it, else fp32."""
    eval_every_steps: Size | None = 500
    """Steps between evaluations on held-out rows; None: only before and after."""


class Zero(Section):
    """How DeepSpeed shards the training state. Source: ZeRO, arXiv:1910.02054 section 5."""

    stage: Annotated[int, Field(ge=0, le=3)] = 1
    """0: nothing; 1: optimizer state; 2: and gradients; 3: and parameters are sharded over the workers."""
    persistence_threshold: Annotated[int, Field(ge=0)] = 100_000
    """Stage 3 keeps parameters smaller than this many elements whole on every worker."""


class Scaling(Section):
    """Workers and what each asks of Ray."""

    workers: Size = 2
    """Ray Train workers."""
    cpus_per_worker: Annotated[float, Field(gt=0)] = 0.5
    """CPUs a worker asks of Ray. Keep some for Ray Data: workers that take every CPU starve the reader."""
    gpus_per_worker: Annotated[float, Field(ge=0)] = 0
    max_restarts: Annotated[int, Field(ge=0)] = 3
    """How often a broken worker group is started again from the newest checkpoint."""


class Checkpoints(Section):
    """When the training state is saved and how many saves are kept."""

    every_steps: Size = 500
    keep: Size = 2


class Cluster(Section):
    """Which Ray cluster runs the job."""

    address: str | None = None
    """Address of a Ray cluster; None: RAY_ADDRESS if it is set, else a private Ray on this machine."""


class Task(Section):
    """Labelled examples for a head."""

    train: str = "docstrings"
    """CSV, TSV, JSONL or Parquet file; "docstrings" is the built-in task: which package is this text from?"""
    validation: str | None = None
    """File of the same shape; required unless train is "docstrings"."""
    test: str | None = None
    """File of the same shape; scored once, for the winner."""
    text: str = "text"
    """Column of the text."""
    label: str = "label"
    """Column of the label."""
    metric: Literal["accuracy", "macro_f1", "matthews"] = "accuracy"
    """Score on the validation examples by which the winner is chosen; higher is better."""
    train_size: Size | None = None
    """Use only the first n training examples (of a shuffle by `seed`); None: all."""

    @model_validator(mode="after")
    def _has_validation(self) -> "Task":
        if self.train != "docstrings" and self.validation is None:
            raise ValueError("validation is missing; give task.validation=FILE with examples to choose the winner by")
        return self


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
        if self.finetune.length > positions:
            raise ValueError(
                f"finetune.length={self.finetune.length} is more than encoder.max_position_embeddings={positions}; "
                f"give finetune.length<={positions} or a longer encoder"
            )
        if self.encoder.init is not None and self.tokenizer.path is None:
            raise ValueError(
                f"encoder.init={self.encoder.init} brings a vocabulary; give tokenizer.path={self.encoder.init} too"
            )
        return self


# Keys that may differ when a run is resumed; all others are its identity.
FREE = (
    "storage",
    "corpus.max_bad_fraction",
    "pretrain.micro_batch",
    "pretrain.eval_every_steps",
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


class _Loader(yaml.SafeLoader):
    """SafeLoader that reads 1e-3 as a number (YAML 1.1 wants 1.0e-3) and refuses a key that stands twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]  # pyright: ignore[reportUnknownVariableType]
        twice = sorted({str(key) for key in keys if keys.count(key) > 1})
        if twice:
            cause = f"key stands twice: {', '.join(twice)}"
            raise yaml.constructor.ConstructorError(None, None, cause, node.start_mark)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*)(\.\d*)?[eE][-+]?\d+$|^[-+]?\d[\d_]*\.\d*$|^[-+]?\.\d+$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$"),
    list("-+0123456789."),
)


def parse_yaml(text: str, where: str) -> Any:
    """Parse YAML; a fault is a UserError with `where`, line and cause in one line."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}" if mark else ""
        cause = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UserError(f"{where}{place}: not valid YAML: {cause}; correct the file or the value") from None


def recipe_path(recipe: str) -> Path:
    """Find a recipe by its shipped name or by path; raises UserError naming the shipped ones."""
    shipped = {path.stem: path for path in sorted(RECIPES.glob("*.yaml"))}
    if recipe in shipped:
        return shipped[recipe]
    if Path(recipe).is_file():
        return Path(recipe)
    raise UserError(f"-c {recipe}: no such recipe; give a YAML file or one of: {', '.join(shipped)}")


def load_config(recipe: str | None, overrides: Iterable[str] = ()) -> Config:
    """Read a recipe, apply `key.path=value` overrides (values are YAML), validate.

    Raises UserError, one line per fault.
    """
    values: dict[str, Any] = {}
    if recipe is not None:
        path = recipe_path(recipe)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"-c {recipe}: cannot be read: {error}") from None
        loaded = parse_yaml(text, f"-c {recipe}")
        if not isinstance(loaded, dict):
            raise UserError(f"-c {recipe}: holds {type(loaded).__name__}, not a mapping of config sections")
        values = loaded
    changes: dict[str, Any] = {}
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not key:
            raise UserError(f"{override!r}: not an override; write key.path=value, for example pretrain.steps=500")
        changes[key] = parse_yaml(value, override)
    return build_config(values, changes)


def build_config(values: Mapping[str, Any], changes: Mapping[str, Any]) -> Config:
    """Set dotted `changes` in nested `values` and validate: the one way a Config comes to be.

    Raises UserError, one line per fault.
    """
    tree: dict[str, Any] = yaml.safe_load(yaml.safe_dump(dict(values)))  # a deep copy of plain data
    for dotted, value in changes.items():
        node = tree
        *parents, last = dotted.split(".")
        for parent in parents:
            if not isinstance(node.setdefault(parent, {}), dict):
                raise UserError(f"{dotted}: {parent} is {node[parent]!r}, not a section; remove one of the two")
            node = node[parent]
        node[last] = value
    if tree.get("name") is None:
        raise UserError("name: missing; give name=NAME, the run's folder under storage (the same name resumes it)")
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise UserError("\n".join(_explain(fault) for fault in error.errors())) from None


def _explain(fault: Any) -> str:
    """One line for one pydantic fault: key, given value, what is allowed, what to do."""
    location = [part for part in fault["loc"] if not str(part).startswith("function-")]
    key = ".".join(str(part) for part in location)
    given = repr(fault["input"])
    given = given if len(given) <= 80 else given[:77] + "..."
    if fault["type"] == "extra_forbidden":
        owner: Any = Config
        for part in location[:-1]:
            owner = _section(owner, part)
        allowed = list(owner.model_fields) if owner else []
        close = get_close_matches(str(location[-1]), allowed, n=1)
        hint = f"did you mean {close[0]}?" if close else f"allowed here: {', '.join(allowed)}"
        return f"{key}: unknown key; {hint}"
    if fault["type"] == "value_error":
        message = str(fault["ctx"]["error"])
        return f"{key}: {message}" if key else message
    if fault["type"] == "missing":
        return f"{key}: missing; give {key}=VALUE"
    return f"{key}={given}: {fault['msg'][0].lower()}{fault['msg'][1:]}; change it with {key}=VALUE or in the recipe"


def _section(owner: Any, part: object) -> Any:
    """The section class under `owner.part`, None where there is none."""
    if owner is None or isinstance(part, int):
        return owner
    annotation = owner.model_fields[part].annotation if part in owner.model_fields else None
    if part == "sources":
        return Source
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


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


def to_yaml(config: Config) -> str:
    """The effective config as YAML that load_config reads back to an equal Config."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
