"""What a sweep starts from: encoder folders, the task as token arrays, resources that the cluster really has.

In: a Config. Out: checked inputs, or a UserError in one line before any trial starts. Knows no Tune.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from data import classification as tasks
from data.classification import TaskData
from data.config import UserError
from data.storage import fetch, place, publish, shown
from model.encoder import check_folder
from orchestration.cluster import Node
from orchestration.config import Config
from orchestration.run import folder_of
from tuning.finetune import Split
from tuning.space import points

Progress = Callable[[str, float | None], None]


def find_encoders(config: Config) -> dict[str, Path]:
    """Folder of every encoder that the sweep names; for "random" the folder whose shape and tokenizer it takes.

    Raises UserError for a folder that is no encoder, or too few positions for finetune.length.
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
    longest = max(point.config.finetune.length for point in points(config))
    for name, folder in folders.items():
        shape = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        most = shape.get("max_position_embeddings", longest)
        if longest > most:
            raise UserError(
                f"finetune.length={longest}: encoder {name} reads at most {most} tokens; give finetune.length<={most}"
            )
    return {name: folders[name] for name in dict.fromkeys(config.sweep.encoders)}


def check_resources(config: Config, nodes: Sequence[Node]) -> None:
    """Raise UserError where no node could ever hold one trial: Ray would wait for ever."""
    if config.cluster.autoscales:
        return
    for resource, key in (("CPU", "cpus_per_trial"), ("GPU", "gpus_per_trial")):
        wanted = getattr(config.sweep, key)
        most = max((node.cpus if resource == "CPU" else node.gpus for node in nodes), default=0.0)
        if wanted > most:
            raise UserError(
                f"sweep.{key}={wanted:g}: a trial needs {wanted:g} {resource}s, the largest node has {most:g}; "
                f"give sweep.{key}<={most:g}, a larger node, or, where the cluster starts nodes on demand, "
                f"cluster.autoscales=true"
            )


def nodes_of_ray() -> list[Node]:
    """The living nodes of the Ray that this process joined."""
    import ray

    alive = (node["Resources"] for node in ray.nodes() if node["Alive"])
    return [Node(float(resources.get("CPU", 0)), float(resources.get("GPU", 0))) for resources in alive]


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
    part = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    shutil.rmtree(part, ignore_errors=True)
    write_random_encoder(like, seed, part)
    try:
        part.rename(folder)
    except OSError:  # another sweep was quicker
        shutil.rmtree(part)
    publish(folder, last="config.json")


def task_fingerprint(splits: Mapping[str, Split], labels: Sequence[str]) -> str:
    """Hash of what trials read of a task: tokens and labels of every split, label names."""
    digest = hashlib.sha256(json.dumps(list(labels)).encode())
    for name, split in sorted(splits.items()):
        digest.update(f"{name} {split.input_ids.shape}".encode())
        for array in (split.input_ids, split.lengths, split.labels):
            digest.update(array.astype(np.int64).tobytes())
    return digest.hexdigest()[:16]


def load_task(config: Config, cache: Path, progress: Progress) -> TaskData:
    """The texts and labels that config.task names. Raises UserError for what is wrong with the files."""
    task = config.task
    return tasks.load_task(
        task.train, task.validation, task.test, task.text, task.label, config.seed, task.train_size, cache, progress,
        f"{config.name}-sweep",
    )


def encode(texts: Sequence[str], labels: np.ndarray, tokenizer: Path, length: int) -> Split:
    """Texts and integer labels as token arrays of at most `length` tokens, special tokens included."""
    ids, lengths = tasks.tokenise(texts, tokenizer, length)
    return Split(ids, lengths, np.asarray(labels, np.int64))
