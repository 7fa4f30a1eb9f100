"""Outputs of a frozen encoder, computed once: token ids -> pooled hidden states, as files in the cache.

A frozen encoder in evaluation mode is a fixed function, so every frozen trial (any learning rate, any seed) trains
its head on the same vectors. Ray Data runs the encoder over the cluster, one long execution for all that is missing.
In: encoder folders with the splits of a task. Out: <cache>/features-<fingerprint>/<split>.npy, (U, D) float32, in the
order of the split's units. Knows nothing of trials.
"""

import functools
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from data.examples import Encoded
from data.storage import fetch, fetch_once, publish
from model.encoder import check_folder
from model.families import setting

LARGEST_BYTES = 4 * 2**30  # of one encoder's features; beyond, frozen trials run the encoder instead
BLOCK_ROWS = 256  # rows of one task's batch: a second or so of a BERT-base on one core per block
Progress = Callable[[str, float | None], None]


@dataclass(frozen=True)
class Request:
    """Features wanted of one encoder."""

    encoder: Path
    """Hugging Face folder."""
    fingerprint: str
    """Of the encoder's files."""
    splits: Mapping[str, Encoded]
    pooling: str = "cls"
    """What becomes of a row's hidden states: cls, mean, max."""

    def folder(self, cache: Path) -> Path:
        """Where these features lie: a changed encoder, task, tokenizer or length is another folder."""
        digest = hashlib.sha256(f"{self.pooling} {self.fingerprint}".encode())
        for name, split in sorted(self.splits.items()):
            for array in (split.input_ids, split.lengths, split.segments):
                if array is not None:
                    digest.update(f"{name} {array.shape} {array.dtype}".encode() + array.tobytes())
        return cache / f"features-{digest.hexdigest()[:16]}"

    def width(self) -> int:
        """D."""
        return setting(check_folder(self.encoder), "hidden_size")

    def estimated_bytes(self) -> int:
        """Size of the features, known before they are computed."""
        return sum(len(split) for split in self.splits.values()) * self.width() * 4


def encoder_fingerprint(folder: Path) -> str:
    """Hash of an encoder's config and weights, by content: a retrained encoder under the same path is another one."""
    digest = hashlib.sha256()
    for file in sorted([folder / "config.json", *folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")]):
        with file.open("rb") as stream:
            digest.update(file.name.encode() + hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:16]


def cache_features(
    requests: Sequence[Request], cache: Path, num_cpus: float, num_gpus: float, progress: Progress,
    run: str = "cloze",
) -> list[Path | None]:
    """Make sure that the features of every request lie in `cache`; returns their folders, in order.

    None stands for features that are not there: they would be larger than LARGEST_BYTES, or could not be computed;
    `progress` is told why, and the trials run the encoder themselves. num_cpus, num_gpus: what a task asks of Ray;
    `run` stands before the name of the execution.
    """
    from ray.exceptions import RayError

    folders: list[Path | None] = []
    for request in requests:
        size = request.estimated_bytes()
        if size > LARGEST_BYTES:
            progress(f"features of {request.encoder} would take {size / 2**30:.1f} GiB: frozen trials run it", None)
        folders.append(request.folder(cache) if size <= LARGEST_BYTES else None)
    todo = {folder: r for folder, r in zip(folders, requests, strict=True) if folder and not _complete(folder)}
    try:
        if todo:
            _compute(todo, num_cpus, num_gpus, progress, run)
    except RayError as error:
        # An encoder that does not load is the fault of its own trials, which will say so; others go on.
        cause = str(error).strip().splitlines()[-1]
        progress(f"features could not be computed: frozen trials run the encoder: {cause}", None)
    return [folder if folder and _complete(folder) else None for folder in folders]


def load_features(folder: Path, split: str) -> np.ndarray:
    """(N, D) float32, memory-mapped: trials on one node share the pages."""
    fetch_once(folder / f"{split}.npy")
    return np.load(folder / f"{split}.npy", mmap_mode="r")


def _complete(folder: Path) -> bool:
    fetch(folder / "manifest.json")
    return (folder / "manifest.json").is_file()  # written last


def _compute(todo: Mapping[Path, Request], num_cpus: float, num_gpus: float, progress: Progress, run: str) -> None:
    """Run the encoders over all rows of `todo` in one Ray Data execution and write each folder whole."""
    import ray

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)  # or it tells the user that progress bars are off
    parts = {folder: folder.with_name(f"{folder.name}.{os.getpid()}.part") for folder in todo}
    arrays: dict[tuple[int, str], np.memmap] = {}
    blocks = []
    for k, (folder, request) in enumerate(todo.items()):
        shutil.rmtree(parts[folder], ignore_errors=True)
        parts[folder].mkdir(parents=True)
        for name, split in request.splits.items():
            file, shape = parts[folder] / f"{name}.npy", (len(split), request.width())
            arrays[k, name] = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=shape)
            blocks += _blocks(k, name, split)
    # One item a block, by number: Ray neither cuts nor merges it, and wants a batch size where there are GPUs.
    references = [ray.put(block) for block in blocks]
    items = [{"block": number} for number in range(len(blocks))]
    dataset = ray.data.from_items(items, override_num_blocks=len(items))
    dataset.set_name(f"{run}-features")
    encoders = [(str(request.encoder), request.fingerprint, request.pooling) for request in todo.values()]
    settings = {"blocks": references, "encoders": encoders, "uses_gpu": num_gpus > 0}
    # Tasks with the encoder kept per process, not actors: Ray keeps a task's process, which has imported torch and
    # transformers (6 s), for the next task, while an actor's process ends with it.
    encode: Any = _encode_block
    dataset = dataset.map_batches(
        encode, batch_size=1, fn_kwargs=settings, num_cpus=num_cpus, num_gpus=num_gpus
    )
    total, done = sum(len(array) for array in arrays.values()), 0
    batch: Any
    for batch in dataset.iter_batches(batch_size=None, batch_format="numpy"):
        array = arrays[int(batch["request"][0]), str(batch["split"][0])]
        array[batch["row"]] = batch["features"]  # by index: blocks may come in any order
        done += len(batch["row"])
        progress(f"features: {done} of {total} texts", done / total)
    for array in arrays.values():
        array.flush()
    for folder, request in todo.items():
        manifest = {"encoder": str(request.encoder), "rows": {n: len(s) for n, s in request.splits.items()}}
        (parts[folder] / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        parts[folder].rename(folder)
        publish(folder, last="manifest.json")


def _blocks(request: int, name: str, split: Encoded) -> list[Any]:
    """At most BLOCK_ROWS rows each, rows of similar length together, so that little of them is padding."""
    order = np.argsort(split.lengths, kind="stable")
    pieces = (order[start : start + BLOCK_ROWS] for start in range(0, len(order), BLOCK_ROWS))
    return [(request, name, rows, replace(split, labels=None).batch(rows)) for rows in pieces]


def _encode_block(batch: Any, blocks: list[Any], encoders: list[tuple[str, str, str]], uses_gpu: bool) -> Any:
    """The block that the batch numbers, all of one request: token ids -> features."""
    import ray
    import torch

    request, name, rows, arrays = ray.get(blocks[int(batch["block"][0])])
    device = "cuda" if uses_gpu and torch.cuda.is_available() else "cpu"
    module = _module(*encoders[request], device)
    with torch.no_grad():
        tokens = {key: torch.from_numpy(array).to(device) for key, array in arrays.items()}
        features = module.features(tokens).float().cpu().numpy()
    return {
        "request": np.full(len(rows), request), "split": np.array([name] * len(rows)), "row": rows, "features": features
    }


@functools.lru_cache(maxsize=4)
def _module(encoder: str, fingerprint: str, pooling: str, device: str) -> Any:
    """The encoder under some head (features lie before it), in evaluation mode, kept in this process.

    The fingerprint is part of the key: the folder may hold another encoder tomorrow.
    """
    from model.config import Head
    from model.heads.building import build_head

    fetch(Path(encoder))
    head = Head.model_validate({"pooling": pooling, "layers": "linear"})
    return build_head(encoder, head, ("a", "b"), mode="frozen").eval().to(device)
