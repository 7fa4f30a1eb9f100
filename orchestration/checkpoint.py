"""Checkpoints of a run: complete or absent, never half, and of this run.

In: a run's folder. Out: which of its checkpoints count, the newest and the best of them, what is wrong with the others.
A checkpoint is `checkpoints/step-00000500/` with every rank's state and a manifest, written last:

    step            the cursor too: the order of rows is a function of the step
    files           name -> bytes and SHA-256 of each; what is not listed does not count
    config, tokenizer, data       which run it is of: values of the config's identity, two fingerprints
    world_size, zero_stage, precision, versions       how it was made
    eval_loss       held-out loss of exactly this state, or null
    spent           tokens, seconds and worker_seconds up to here

Sizes are compared whenever somebody looks: one listing. Hashes are compared once per start, by the workers that will
load (orchestration/resuming.py): for a checkpoint of 100 GB one process would need a minute and a half, which
all ranks share. SHA-256 because `sha256sum` can check it by hand, and as fast as any of hashlib's: 1.1 GB/s a core
where the processor has instructions for it. Knows neither Ray nor DeepSpeed's formats.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from data.retries import patiently
from data.storage import children, fetch, is_remote, publish, remove, shown, sizes
from orchestration.config import Config
from orchestration.identity import PRETRAIN_SECTIONS, identity

MANIFEST = "manifest.json"
DAMAGED = "manifest.damaged.json"  # what a manifest is called once its files turned out to be others
THREADS = 2  # of one rank that hashes: a GPU node has some cores to spare for each
_NAME = re.compile(r"step-(\d+)")
_NEEDED = {"step", "files", "world_size", "zero_stage", "precision", "config", "tokenizer", "data"}

Manifest = dict[str, Any]


def folder_of(run: Path, step: int) -> Path:
    """The checkpoint of the state before `step` is trained; names sort as numbers do."""
    return run / "checkpoints" / f"step-{step:08d}"


def owner_of(config: Config, tokenizer: str, data: str) -> dict[str, Any]:
    """What a manifest says of the run it is of; `tokenizer`, `data`: fingerprints."""
    return {"config": identity(config, PRETRAIN_SECTIONS), "tokenizer": tokenizer, "data": data}


def read_manifest(folder: Path, owner: Mapping[str, Any] | None = None) -> Manifest | str:
    """The manifest of a complete checkpoint, or what is wrong with it in a few words.

    `owner` (see owner_of): one of another run does not count either. Raises OSError where the storage cannot be read.
    """
    fetch(folder / MANIFEST)
    try:
        text = patiently(shown(folder / MANIFEST), (folder / MANIFEST).read_text)
        manifest = json.loads(text)
    except FileNotFoundError:
        damaged = DAMAGED in children(folder)
        return "its files were found damaged before" if damaged else "no manifest: the save was not finished"
    except ValueError:
        return "its manifest is not readable"
    if not isinstance(manifest, dict) or not manifest.keys() >= _NEEDED or not _lists(manifest["files"]):
        return "its manifest is not one of ours"
    if owner and (difference := _difference(manifest, owner)):
        return f"of another run: {difference}"
    if folder != folder_of(folder.parent.parent, manifest["step"]):
        return f"of another run: its manifest is of step {manifest['step']}"
    there = sizes(folder)
    for name, file in manifest["files"].items():
        if name not in there:
            return f"{name} is missing"
        if there[name] != file["bytes"]:
            return f"{name} has {there[name]} bytes, the manifest says {file['bytes']}"
    return manifest


def _lists(files: Any) -> bool:
    entries = files.values() if isinstance(files, dict) else [None]
    return all(isinstance(entry, dict) and {"bytes", "hash"} <= entry.keys() for entry in entries)


def _difference(manifest: Manifest, owner: Mapping[str, Any]) -> str | None:
    """The first thing in which a manifest is not of this run. Keys of the config that one side lacks came with another
    version of Cloze: comparing them would make a run forget its own checkpoints after an update."""
    theirs, ours = manifest["config"], owner["config"]
    for key in sorted(theirs.keys() & ours.keys()):
        if theirs[key] != ours[key]:
            return f"{key} is {theirs[key]!r} there, {ours[key]!r} here"
    for key, name in (("tokenizer", "tokenizer"), ("data", "prepared rows")):
        if manifest[key] != owner[key]:
            return f"its {name} are {manifest[key]}, here {owner[key]}"
    return None


def find(run: Path, owner: Mapping[str, Any] | None = None) -> list[tuple[Path, Manifest]]:
    """All checkpoints that count, the newest first."""
    return [(folder, found) for folder, found in _read(run, owner) if isinstance(found, dict)]


def newest(run: Path, owner: Mapping[str, Any] | None = None) -> tuple[int, Manifest | None, list[str]]:
    """(step, manifest, complaints) of the newest complete checkpoint; (0, None, ...) where there is none.

    Complaints name each newer folder that was passed over, and why.
    """
    complaints: list[str] = []
    for folder, found in _read(run, owner):
        if isinstance(found, dict):
            return found["step"], found, complaints
        complaints.append(f"{folder.name}: {found}")
    return 0, None, complaints


def _read(run: Path, owner: Mapping[str, Any] | None) -> Iterator[tuple[Path, Manifest | str]]:
    """Each folder and its manifest, or what is wrong with it, the newest first; read as they are asked for."""
    return ((folder, read_manifest(folder, owner)) for folder in reversed(_folders(run)))


def lost(complaints: Iterable[str]) -> list[str]:
    """Of the complaints of `newest`, those of checkpoints that once counted: not of saves that a fault broke off, nor
    of another run's. A run that has only such ones must not begin at step 0 in silence."""
    harmless = ("no manifest: ", "of another run: ")
    return [told for told in complaints if not told.partition(": ")[2].startswith(harmless)]


def best(run: Path, owner: Mapping[str, Any] | None = None) -> Manifest | None:
    """The manifest of the one with the lowest held-out loss, of equals the newest; None where none was evaluated."""
    return _best(manifest for _, manifest in find(run, owner))


def _best(manifests: Iterable[Manifest]) -> Manifest | None:
    judged = [m for m in manifests if m.get("eval_loss") is not None and math.isfinite(m["eval_loss"])]
    return min(judged, key=lambda manifest: (manifest["eval_loss"], -manifest["step"]), default=None)


def _folders(run: Path) -> list[Path]:
    """All checkpoints, whole or not, in the order of their steps."""
    names = [name for name in children(run / "checkpoints") if _NAME.fullmatch(name)]
    return [run / "checkpoints" / name for name in sorted(names, key=lambda name: int(name.removeprefix("step-")))]


def retain(run: Path, step: int, keep: int, owner: Mapping[str, Any]) -> list[Path]:
    """Delete what is older than the checkpoint of `step` but for the newest `keep` (it is one of them) and the best.

    That of `step` itself is never deleted, whatever a listing says of it that has not all its files yet.

    What kills left half written goes too. Checkpoints of another run stay: they are somebody's. Returns the deleted.
    """
    whole, strangers = [], []
    older = [folder for folder in _folders(run) if int(folder.name.removeprefix("step-")) <= step]
    for folder in older:
        manifest = read_manifest(folder, owner)
        if isinstance(manifest, dict):
            whole.append((folder, manifest))
        elif manifest.startswith(("of another run", "its manifest is not one of ours")):
            strangers.append(folder)
    kept = {folder for folder, _ in whole[-keep:]} | set(strangers)
    if (leader := _best(manifest for _, manifest in whole)) is not None:
        kept.add(folder_of(run, leader["step"]))
    kept.add(folder_of(run, step))
    gone = [folder for folder in older if folder not in kept]
    for folder in gone:
        remove(folder / MANIFEST)  # no longer counts, whatever stops the removal half way
        remove(folder)
    return gone


def digest(file: Path) -> str:
    """SHA-256 of a file, in hex. Raises OSError."""
    with file.open("rb", buffering=0) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def damaged(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What is wrong with these files of a checkpoint, by their hashes; in a bucket: with this node's copies.

    Raises OSError where they cannot be read: that says nothing of what is in them.
    """

    def judge(name: str) -> str | None:
        try:
            there = patiently(shown(folder / name), lambda: digest(folder / name))
        except FileNotFoundError:
            return f"{name} is missing"
        return None if there == files[name]["hash"] else f"{name} holds other bytes than were saved"

    with ThreadPoolExecutor(THREADS) as pool:
        return [fault for fault in pool.map(judge, files) if fault]


def shares(files: Mapping[str, Mapping[str, Any]], number: int) -> list[list[str]]:
    """Names of files in `number` shares of about the same bytes, the same on every rank that asks."""
    parts: list[list[str]] = [[] for _ in range(number)]
    held = [0] * number
    for name in sorted(files, key=lambda name: (-files[name]["bytes"], name)):
        least = held.index(min(held))
        parts[least].append(name)
        held[least] += files[name]["bytes"]
    return parts


def set_aside(folder: Path) -> None:
    """Have a damaged checkpoint count no more, for anyone. Its files stay until newer ones are saved."""
    if not is_remote(folder):
        (folder / MANIFEST).replace(folder / DAMAGED)
        return
    fetch(folder / MANIFEST)
    publish(folder / MANIFEST, at=folder / DAMAGED)
    remove(folder / MANIFEST)


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that a reader sees the old file or the whole new one, also after a power cut."""
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8") as file:
        json.dump(value, file, indent=2, ensure_ascii=False)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
