"""Checkpoints of a run: complete or absent, never half.

In: an engine and the step it stands at. Out: `checkpoints/step-00000500/` with every rank's state and a manifest,
written last, that lists the files and their sizes. A folder without a manifest, or one whose files are not what the
manifest says, does not count. Knows neither Ray nor DeepSpeed's formats.
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"


def folder_of(run: Path, step: int) -> Path:
    """The checkpoint of the state before `step` is trained; names sort as numbers do."""
    return run / "checkpoints" / f"step-{step:08d}"


def read_manifest(folder: Path) -> dict[str, Any] | str:
    """The manifest of a complete checkpoint, or what is wrong with it in a few words."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
    except FileNotFoundError:
        return "no manifest: the save was not finished"
    except ValueError:
        return "its manifest is not readable"
    if not isinstance(manifest, dict) or not {"step", "files", "world_size"} <= manifest.keys():
        return "its manifest is not one of ours"
    for name, size in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes, the manifest says {size}"
    return manifest


def newest(run: Path) -> tuple[int, dict[str, Any] | None, list[str]]:
    """(step, manifest, complaints) of the newest complete checkpoint; (0, None, ...) where there is none.

    Complaints name each newer folder that was passed over, and why.
    """
    complaints: list[str] = []
    for folder in sorted((run / "checkpoints").glob("step-*"), reverse=True):
        manifest = read_manifest(folder)
        if isinstance(manifest, dict):
            return manifest["step"], manifest, complaints
        complaints.append(f"{folder.name}: {manifest}")
    return 0, None, complaints


def save(
    run: Path,
    step: int,
    write_state: Callable[[Path], None],
    barrier: Callable[[], object],
    is_first_rank: bool,
    facts: dict[str, Any],
    keep: int,
) -> Path:
    """Save the state before `step`: all ranks write, then rank 0 writes the manifest and removes older checkpoints.

    A leftover of the same step is wiped first. `facts` (world size, ZeRO stage, ...) go into the manifest.
    """
    folder = folder_of(run, step)
    if is_first_rank:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    barrier()
    write_state(folder)
    barrier()
    if is_first_rank:
        files = {str(p.relative_to(folder)): p.stat().st_size for p in sorted(folder.rglob("*")) if p.is_file()}
        write_json(folder / MANIFEST, {"step": step, **facts, "files": files})
        older = [old for old in sorted((run / "checkpoints").glob("step-*")) if old <= folder]
        whole = [old for old in older if isinstance(read_manifest(old), dict)][-keep:]
        for old in (old for old in older if old not in whole):
            (old / MANIFEST).unlink(missing_ok=True)  # no longer counts, whatever stops the removal half way
            shutil.rmtree(old, ignore_errors=True)
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
