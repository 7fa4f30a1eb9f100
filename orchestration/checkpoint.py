"""Checkpoints of a run: complete or absent, never half.

In: an engine and the step it stands at. Out: `checkpoints/step-00000500/` with every rank's state and a manifest,
written last, that lists the files and their sizes. A folder without a manifest, or one whose files are not what the
manifest says, does not count. Knows neither Ray nor DeepSpeed's formats.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from data.storage import children, fetch, forget, publish, remove, sizes

MANIFEST = "manifest.json"


def folder_of(run: Path, step: int) -> Path:
    """The checkpoint of the state before `step` is trained; names sort as numbers do."""
    return run / "checkpoints" / f"step-{step:08d}"


def read_manifest(folder: Path) -> dict[str, Any] | str:
    """The manifest of a complete checkpoint, or what is wrong with it in a few words."""
    fetch(folder / MANIFEST)
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
    except FileNotFoundError:
        return "no manifest: the save was not finished"
    except ValueError:
        return "its manifest is not readable"
    if not isinstance(manifest, dict) or not {"step", "files", "world_size"} <= manifest.keys():
        return "its manifest is not one of ours"
    there = sizes(folder)
    for name, size in manifest["files"].items():
        if name not in there:
            return f"{name} is missing"
        if there[name] != size:
            return f"{name} has {there[name]} bytes, the manifest says {size}"
    return manifest


def newest(run: Path) -> tuple[int, dict[str, Any] | None, list[str]]:
    """(step, manifest, complaints) of the newest complete checkpoint; (0, None, ...) where there is none.

    Complaints name each newer folder that was passed over, and why.
    """
    complaints: list[str] = []
    for folder in reversed(_folders(run)):
        manifest = read_manifest(folder)
        if isinstance(manifest, dict):
            return manifest["step"], manifest, complaints
        complaints.append(f"{folder.name}: {manifest}")
    return 0, None, complaints


def _folders(run: Path) -> list[Path]:
    """All checkpoints, whole or not, oldest first."""
    return [run / "checkpoints" / name for name in children(run / "checkpoints") if name.startswith("step-")]


def save(
    run: Path,
    step: int,
    write_state: Callable[[Path], None],
    barrier: Callable[[], object],
    is_first_rank: bool,
    is_first_of_node: bool,
    facts: dict[str, Any],
    keep: int,
) -> Path:
    """Save the state before `step`: all ranks write, then rank 0 writes the manifest and removes older checkpoints.

    A leftover of the same step is wiped first. `facts` (world size, ZeRO stage, ...) go into the manifest.
    Into a bucket the first rank of each node carries what the ranks of its node wrote; no node keeps a copy.
    """
    folder = folder_of(run, step)
    if is_first_rank:
        remove(folder)
    barrier()
    if is_first_of_node:
        forget(folder)
    barrier()
    folder.mkdir(parents=True, exist_ok=True)
    barrier()
    write_state(folder)
    barrier()
    if is_first_of_node:
        publish(folder, keep=False)
    barrier()
    if is_first_rank:
        folder.mkdir(exist_ok=True)
        write_json(folder / MANIFEST, {"step": step, **facts, "files": sizes(folder)})
        publish(folder / MANIFEST)
        older = [old for old in _folders(run) if old <= folder]
        whole = [old for old in older if isinstance(read_manifest(old), dict)][-keep:]
        for old in (old for old in older if old not in whole):
            remove(old / MANIFEST)  # no longer counts, whatever stops the removal half way
            remove(old)
    barrier()
    return folder


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that a reader sees the old file or the whole new one, also after a power cut."""
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8") as file:
        json.dump(value, file, indent=2, ensure_ascii=False)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
