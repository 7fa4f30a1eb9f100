"""Outputs of a frozen encoder, computed once: token ids -> hidden states, pooled or of all tokens, as cached files.

A frozen encoder in evaluation mode is a fixed function, so every frozen trial (any learning rate, any seed) trains
its head on the same vectors. Ray Data runs the encoder over the cluster, one long execution for all that is missing;
one pass over the rows makes every pooling.
In: encoder folders with what trials read of a task. Out: <cache>/features-<fingerprint>/<split>.<pooling>.npy, float32:
(B, D) in the order of the split's rows, of "tokens" (sum of their lengths, D); and manifest.json, which counts the rows
that the encoder read. Knows nothing of trials.
"""

import functools
import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from data.budget import budgeted
from data.examples import Encoded, ranges
from data.storage import fetch, fetch_once, publish
from data.store import part_of
from model.encoder import check_folder
from model.families import setting
from orchestration.inference import MICRO_BATCH_TOKENS
from tuning.finetune import Part

LARGEST_BYTES = 4 * 2**30  # of one encoder's features; beyond, frozen trials run the encoder instead
TOKENS = "tokens"
PASSAGES = "-passages"
Progress = Callable[[str, float | None], None]


@dataclass(frozen=True)
class Request:
    """Features wanted of one encoder."""

    encoder: Path
    """Hugging Face folder."""
    fingerprint: str
    """Of the encoder's files."""
    splits: Mapping[str, Encoded]
    poolings: tuple[str, ...] = ("cls",)
    """What becomes of a row's hidden states: cls, mean, max, or tokens: they are kept, those of attended tokens."""

    def folder(self, cache: Path) -> Path:
        """Where these features lie: a changed encoder, task, tokenizer or length is another folder."""
        digest = hashlib.sha256(f"poolings {self.fingerprint}".encode())
        for name, split in sorted(self.splits.items()):
            for array in (split.input_ids, split.lengths, split.segments):
                if array is not None:
                    digest.update(f"{name} {array.shape} {array.dtype}".encode() + array.tobytes())
        return cache / f"features-{digest.hexdigest()[:16]}"

    def width(self) -> int:
        """D."""
        return setting(check_folder(self.encoder), "hidden_size")

    def estimated_bytes(self, pooling: str) -> int:
        """Size of the features, known before they are computed."""
        return sum(num_vectors(split, pooling) for split in self.splits.values()) * self.width() * 4


def num_vectors(split: Encoded, pooling: str) -> int:
    """Vectors that a pooling makes of a split."""
    return int(split.lengths.sum()) if pooling == TOKENS else len(split.lengths)


def readings(parts: Mapping[str, Part]) -> dict[str, Encoded]:
    """All that an encoder reads for trials on these parts, by a name each: the splits, and the passages to search in
    validation (those of training are never searched)."""
    passages = parts["validation"].passages if "validation" in parts else None
    found = {name: part.encoded for name, part in parts.items()}
    return found if passages is None else {**found, f"validation{PASSAGES}": passages}


def with_features(parts: Mapping[str, Part], folder: Path, pooling: str) -> dict[str, Part]:
    """The parts with their features from `folder`, which were computed of all their examples."""
    ready = {
        name: encoded.with_features(load_features(folder, name, pooling), pooling == TOKENS)
        for name, encoded in readings(parts).items()
    }
    return {
        name: replace(part, encoded=ready[name], passages=ready.get(f"{name}{PASSAGES}", part.passages))
        for name, part in parts.items()
    }


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
) -> list[dict[str, Path]]:
    """Make sure that the features of every request lie in `cache`; returns, in order, the folder of each pooling.

    A pooling is left out where its features are not there: with them an encoder's would be larger than LARGEST_BYTES,
    or they could not be computed; `progress` is told why, and the trials run the encoder themselves. num_cpus,
    num_gpus: what a task asks of Ray; `run` stands before the name of the execution.
    """
    fitting = [_fitting(request, progress) for request in requests]
    todo: dict[Path, Request] = {}
    for request, poolings in zip(requests, fitting, strict=True):
        folder = request.folder(cache)
        if missing := tuple(pooling for pooling in poolings if pooling not in _manifest(folder)["poolings"]):
            before = todo[folder].poolings if folder in todo else ()
            todo[folder] = replace(request, poolings=tuple(dict.fromkeys([*before, *missing])))
    if todo:
        _compute_what_can(todo, num_cpus, num_gpus, progress, run)
    folders = [request.folder(cache) for request in requests]
    there = [_manifest(folder)["poolings"] for folder in folders]
    return [
        {pooling: folder for pooling in poolings if pooling in found}
        for folder, poolings, found in zip(folders, fitting, there, strict=True)
    ]


def load_features(folder: Path, split: str, pooling: str) -> np.ndarray:
    """(B, D) or (tokens, D) float32, memory-mapped: trials on one node share the pages."""
    fetch_once(folder / f"{split}.{pooling}.npy")
    return np.load(folder / f"{split}.{pooling}.npy", mmap_mode="r")


def _fitting(request: Request, progress: Progress) -> tuple[str, ...]:
    """The poolings whose features are not too large, small ones first."""
    kept, room = list[str](), LARGEST_BYTES
    for pooling in sorted(request.poolings, key=lambda one: (request.estimated_bytes(one), one)):
        size = request.estimated_bytes(pooling)
        if size > room:
            what = "of all tokens" if pooling == TOKENS else pooling
            progress(
                f"features of {request.encoder} ({what}) would take {size / 2**30:.1f} GiB: frozen trials run it", None
            )
        else:
            kept.append(pooling)
            room -= size
    return tuple(kept)


def _manifest(folder: Path) -> dict[str, Any]:
    """What lies in a folder, whole: it is written last."""
    fetch(folder / "manifest.json")
    try:
        return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"poolings": [], "encoder_rows": 0}


def _compute_what_can(
    todo: Mapping[Path, Request], num_cpus: float, num_gpus: float, progress: Progress, run: str
) -> None:
    """`_compute` in one execution; where that fails, one for each encoder, so that only its own are left out."""
    from ray.exceptions import RayError

    try:
        _compute(todo, num_cpus, num_gpus, progress, run)
    except RayError as error:
        if len(todo) > 1:
            for folder, request in todo.items():
                _compute_what_can({folder: request}, num_cpus, num_gpus, progress, run)
            return
        # An encoder that does not load is the fault of its own trials, which will say so.
        (request,), cause = todo.values(), str(error).strip().splitlines()[-1]
        progress(f"features of {request.encoder} could not be computed: frozen trials run it: {cause}", None)


def _compute(todo: Mapping[Path, Request], num_cpus: float, num_gpus: float, progress: Progress, run: str) -> None:
    """Run the encoders over all rows of `todo` in one Ray Data execution, and add to each folder what it made."""
    with ExitStack() as stack:
        parts = {folder: part_of(folder) for folder in todo}
        for part in parts.values():
            stack.callback(shutil.rmtree, part, ignore_errors=True)
        read = _run_encoders(todo, parts, num_cpus, num_gpus, progress, run)
        for folder, request, encoder_rows in zip(todo, todo.values(), read, strict=True):
            _deliver(parts[folder], folder, request, encoder_rows)


def _run_encoders(
    todo: Mapping[Path, Request], parts: Mapping[Path, Path], num_cpus: float, num_gpus: float, progress: Progress,
    run: str,
) -> list[int]:
    """Fill the files of each request in its part; returns how many rows each encoder read."""
    import ray

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)  # or it tells the user that progress bars are off
    arrays: dict[tuple[int, str, str], np.memmap] = {}
    blocks: list[tuple[int, str, np.ndarray]] = []
    for k, (folder, request) in enumerate(todo.items()):
        for name, split in request.splits.items():
            for pooling in request.poolings:
                file, shape = parts[folder] / f"{name}.{pooling}.npy", (num_vectors(split, pooling), request.width())
                arrays[k, name, pooling] = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=shape)
            blocks += [(k, name, rows) for rows in budgeted(split.lengths, MICRO_BATCH_TOKENS)]
    # One item a block, by number: Ray neither cuts nor merges it, and wants a batch size where there are GPUs.
    requests = list(todo.values())
    references = [ray.put((k, requests[k].splits[name].tokens(rows))) for k, name, rows in blocks]
    items = [{"block": number} for number in range(len(blocks))]
    dataset = ray.data.from_items(items, override_num_blocks=len(items))
    dataset.set_name(f"{run}-features")
    encoders = [(str(request.encoder), request.fingerprint, request.poolings) for request in requests]
    settings = {"blocks": references, "encoders": encoders, "uses_gpu": num_gpus > 0}
    # Tasks with the encoder kept per process, not actors: Ray keeps a task's process, which has imported torch and
    # transformers (6 s), for the next task, while an actor's process ends with it.
    encode: Any = _encode_block
    dataset = dataset.map_batches(
        encode, batch_size=1, fn_kwargs=settings, num_cpus=num_cpus, num_gpus=num_gpus
    )
    total, done, read = sum(len(rows) for _, _, rows in blocks), 0, [0] * len(requests)
    batch: Any
    for batch in dataset.iter_batches(batch_size=None, batch_format="numpy"):
        for number, encoder_rows, states in zip(batch["block"], batch["encoder_rows"], batch["states"], strict=True):
            k, name, rows = blocks[int(number)]
            _place(arrays, k, name, rows, requests[k], np.frombuffer(states, np.float32))
            read[k] += int(encoder_rows)
            done += len(rows)
        progress(f"features: {done} of {total} texts", done / total)
    for array in arrays.values():
        array.flush()
    return read


def _place(
    arrays: Mapping[tuple[int, str, str], np.ndarray], k: int, name: str, rows: np.ndarray, request: Request,
    states: np.ndarray,
) -> None:
    """Put what a block of rows became, pooling after pooling, where it belongs: blocks may come in any order."""
    split = request.splits[name]
    vectors = states.reshape(-1, request.width())
    for pooling in request.poolings:
        places = rows
        if pooling == TOKENS:
            places = ranges((np.cumsum(split.lengths) - split.lengths)[rows], split.lengths[rows])
        arrays[k, name, pooling][places], vectors = vectors[: len(places)], vectors[len(places) :]


def _deliver(part: Path, folder: Path, request: Request, encoder_rows: int) -> None:
    """Move new files beside those that are there, the manifest last."""
    folder.mkdir(exist_ok=True)
    for file in sorted(part.iterdir()):
        publish(file.replace(folder / file.name))
    before = _manifest(folder)
    manifest = {
        "encoder": str(request.encoder),
        "rows": {name: len(split.lengths) for name, split in request.splits.items()},
        "poolings": sorted({*before["poolings"], *request.poolings}),
        "encoder_rows": before["encoder_rows"] + encoder_rows,
    }
    (part / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    publish((part / "manifest.json").replace(folder / "manifest.json"))


def _encode_block(
    batch: Any, blocks: list[Any], encoders: list[tuple[str, str, tuple[str, ...]]], uses_gpu: bool
) -> dict[str, list[Any]]:
    """The block that the batch numbers, all rows of one request: token ids -> its features, one after the other."""
    import ray
    import torch

    from model.heads.states import pooled_states

    number = int(batch["block"][0])
    request, arrays = ray.get(blocks[number])
    folder, fingerprint, poolings = encoders[request]
    encoder, counter = _encoder(folder, fingerprint, "cuda" if uses_gpu and torch.cuda.is_available() else "cpu")
    before = counter.rows
    with torch.inference_mode():
        tokens = {key: torch.from_numpy(array).to(encoder.device) for key, array in arrays.items()}
        states = pooled_states(encoder, tokens, poolings)
        flat = torch.cat([states[pooling].float() for pooling in poolings]).cpu().numpy()
    return {"block": [number], "encoder_rows": [counter.rows - before], "states": [flat.tobytes()]}


@functools.lru_cache(maxsize=4)
def _encoder(folder: str, fingerprint: str, device: str) -> tuple[Any, Any]:
    """The encoder, kept in this process, and what counts the rows that it reads.

    The fingerprint is part of the key: the folder may hold another encoder tomorrow.
    """
    from model.counting import RowCounter
    from model.heads.states import open_encoder

    fetch(Path(folder))
    encoder = open_encoder(folder).to(device)
    return encoder, RowCounter(encoder)
