"""What a sweep starts from: encoder folders, the task's examples as tokens, resources that the cluster really has.

In: a Config. Out: checked inputs, or a UserError in one line before any trial starts. Knows no Tune.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from data import tasks
from data.alignment import encode_examples
from data.config import UserError
from data.examples import Examples, TaskData
from data.kinds import find_kind
from data.labelled import columns_of
from data.retrieval import search_space
from data.storage import fetch, place, publish, shown
from data.store import part_of
from model.config import Head
from model.encoder import check_folder
from model.families import longest_row, reads_segments
from model.freezing import layers_a_group
from model.heads.losses import weigh_classes
from model.opening import check_tokenizer, check_weights
from orchestration.config import Config
from orchestration.recipe import build_config
from orchestration.run import folder_of
from tuning.config import Finetune
from tuning.finetune import Goal, Part, counted
from tuning.scores import RANKED, choose_metric
from tuning.space import points

Progress = Callable[[str, float | None], None]


def find_encoders(config: Config) -> dict[str, Path]:
    """Folder of every encoder that the sweep names; for "random" the folder whose shape and tokenizer it takes.

    Raises UserError for a folder that is no encoder, or one with too few positions for finetune.length or layers for
    finetune.top_k; and where a mode leaves nothing to train.
    """
    export = folder_of(config) / "export"
    folders: dict[str, Path] = {}
    for name in dict.fromkeys(config.sweep.encoders):
        if name == "random":
            continue
        folder = export if name == "pretrained" else place(name)
        fetch(folder)
        if (folder / "config.json").is_file():
            try:
                check_folder(folder)
                check_weights(folder)
                check_tokenizer(folder)
            except ValueError as error:
                raise UserError(f"sweep.encoders={name}: {error}") from None
        else:
            own = "run cloze pretrain first"
            remedy = own if name == "pretrained" else 'give a Hugging Face folder, "pretrained" or "random"'
            raise UserError(f"sweep.encoders={name}: no encoder in {shown(folder)}; {remedy}")
        folders[name] = folder
    if "random" in config.sweep.encoders:
        like = next(iter(folders.values()), export)
        fetch(like)
        if not (like / "config.json").is_file():
            raise UserError(
                "sweep.encoders=random: no encoder whose shape to copy; "
                'add "pretrained" (after cloze pretrain) or a folder'
            )
        folders["random"] = like
    tried = points(config)
    if any(one.config.finetune.mode == "frozen" and not one.config.head.has_weights for one in tried):
        raise UserError(
            f"finetune.mode=frozen: a head of kind {config.head.kind} without layers has nothing to train on a frozen "
            f"encoder; give head.layers=linear (for frozen alone: sweep.space.head.layers="
            f"'{{frozen: linear, full: null}}'), or leave frozen out of finetune.mode"
        )
    settings = [point.config.finetune for point in tried]
    longest = max(finetune.length for finetune in settings)
    for name, folder in folders.items():
        shape = check_folder(folder)
        most = longest_row(shape)
        if longest > most:
            raise UserError(
                f"finetune.length={longest}: encoder {name} reads at most {most} tokens; give finetune.length<={most}"
            )
        for top_k in sorted({finetune.top_k for finetune in settings if finetune.mode == "top_k"}):
            try:
                layers_a_group(shape, top_k)
            except ValueError as error:
                raise UserError(f"sweep.encoders={name}: finetune.{error}") from None
    return {name: folders[name] for name in dict.fromkeys(config.sweep.encoders)}


def random_encoder(like: Path, seed: int, cache: Path, resources: Mapping[str, float]) -> Path:
    """Folder of a randomly initialised encoder of the same shape, written once into the cache by a Ray task."""
    import ray

    shape = hashlib.sha256((like / "config.json").read_bytes() + str(seed).encode()).hexdigest()[:16]
    folder = cache / f"random-{shape}"
    fetch(folder)
    if not (folder / "config.json").is_file():
        ray.get(ray.remote(_write_random).options(**resources).remote(like, seed, folder))
        fetch(folder)
    return folder


def _write_random(like: Path, seed: int, folder: Path) -> None:
    """In a task, for torch: the folder appears whole."""
    from model.encoder import write_random_encoder

    fetch(like)
    part = part_of(folder)
    write_random_encoder(like, seed, part)
    try:
        part.rename(folder)
    except OSError:  # another sweep was quicker
        shutil.rmtree(part)
    publish(folder, last="config.json")


def task_fingerprint(parts: Mapping[str, Part], goal: Goal) -> str:
    """Hash of what trials read of a task: tokens and targets of every split, names of labels, the metric."""
    digest = hashlib.sha256(json.dumps([goal.labels, goal.metric, goal.scheme]).encode())
    for name, part in sorted(parts.items()):
        digest.update(f"{name} {json.dumps(part.examples.targets)}".encode())
        for encoded in (part.encoded, part.passages):
            arrays = () if encoded is None else (encoded.input_ids, encoded.lengths, encoded.segments, encoded.labels)
            for array in (array for array in arrays if array is not None):
                digest.update(f"{array.shape} {array.dtype}".encode() + array.tobytes())
    return digest.hexdigest()[:16]


def resolved(config: Config, tell: Callable[[str], None] = lambda note: None) -> Config:
    """The config with head.kind told, and with it the columns of the texts; found from the files where they are open.

    `tell` gets what was found. Raises UserError where nothing can be, or what was found does not fit the rest.
    """
    if config.head.kind is not None:
        return config
    found = find_kind(config.task, config.head.implied_kind)
    changes = {"head.kind": found.kind, "task.text": found.text, "task.text_pair": found.text_pair}
    try:
        told = build_config(config.model_dump(mode="json"), changes)
        _choose_metric(told)
    except UserError as error:
        raise UserError("\n".join(f"{line} ({found.note})" for line in str(error).splitlines())) from None
    if found.note:
        tell(found.note)
    return told


def _choose_metric(config: Config) -> None:
    """Raise UserError for a metric that does not fit as far as the config tells: tags may turn out to mark entities."""
    scheme = config.task.scheme or "bio"
    choose_metric(config.task.metric, _kind(config), scheme, config.head.loss)


def _kind(config: Config) -> str:
    """The kind of a resolved config."""
    if config.head.kind is None:
        raise ValueError("head.kind is open: the config was not resolved")
    return config.head.kind


def load_task(config: Config, cache: Path, progress: Progress) -> TaskData:
    """The examples that config.task names, of a resolved config. Raises UserError for what is wrong with the files."""
    _choose_metric(config)
    return tasks.load_task(
        config.task, _kind(config), config.seed, cache, progress, f"{config.name}-sweep", config.head.loss
    )


def goal_of(config: Config, task: TaskData) -> Goal:
    """What trials must know of the task. Raises UserError where the metric or weights of labels do not fit it."""
    for weights in (point.config.head.class_weights for point in points(config)):
        if isinstance(weights, Mapping):
            try:
                weigh_classes(weights, task.labels, None)
            except ValueError as error:
                raise UserError(f"head.{error}") from None
    goal = Goal(
        labels=tuple(task.labels),
        metric=choose_metric(config.task.metric, task.kind, task.scheme, config.head.loss),
        scheme=task.scheme,
        num_choices=len(task.train.choices[0]) if task.train.choices else None,
        columns=_columns(config, task.kind),
    )
    return counted(goal, task.train)


def _columns(config: Config, kind: str) -> tuple[str, ...]:
    """The columns that a user of the head will have too; none where SQuAD's or CoNLL's shape names them."""
    own = {"answering": (".json",), "tagging": (".conll", ".conllu")}
    if config.task.train.endswith(own.get(kind, ())) or config.task.format == "conll":
        return ()
    named = columns_of(config.task, kind, config.head.loss)
    return tuple(column for use, column in named.items() if use != "label")


def read_part(examples: Examples, task: TaskData, goal: Goal, folder: Path, finetune: Finetune, head: Head) -> Part:
    """A split as the encoder in `folder` reads it; of retrieval also the passages to search."""
    segments = reads_segments(check_folder(folder))
    settings = finetune.length, finetune.stride, segments
    encoded = encode_examples(
        examples, task.labels, folder, *settings, query_prefix=head.query_prefix, passage_prefix=head.passage_prefix,
        ignore_unseen=task.counts_unseen,
    )  # fmt: skip
    if goal.metric not in RANKED:
        return Part(examples, encoded)
    texts, right = search_space(examples, task.passages)
    passages = encode_examples(
        Examples("embedding", texts), task.labels, folder, *settings, query_prefix=head.passage_prefix
    )
    return Part(examples, encoded, passages, right)
