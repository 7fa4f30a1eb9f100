"""A run's folder: what it was started with, whether it is finished.

In: a folder named by the user and the config of this start. Out: the folder, held by this process alone, or a
UserError that says why not. Knows neither Ray nor what is trained.
"""

import json
import logging
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from data.config import UserError
from data.retries import at_once
from data.storage import children, fetch, is_remote, place, publish, remove, shown
from orchestration import metrics
from orchestration.cluster import in_job
from orchestration.config import Config, to_yaml
from orchestration.identity import identity
from orchestration.lease import leased
from orchestration.recipe import build_config

logger = logging.getLogger(__name__)

PROBE = "written to see that it can be, and removed"


def folder_of(config: Config, suffix: str = "") -> Path:
    """The run's folder, absolute: workers run elsewhere. Raises UserError for storage of another kind."""
    return place(config.storage) / f"{config.name}{suffix}"


def fetch_run(run: Path) -> None:
    """Bring what a report shows of a run and of the sweep or pretraining beside it, where they lie in a bucket."""
    for folder in {run, run.with_name(run.name.removesuffix("-sweep"))}:
        metrics.bring(folder / "metrics.jsonl")
        for name in ("config.yaml", "summary.json", "leaderboard.json", "winner.json", "suite.json", "trials"):
            fetch(folder / name, delete=False)


def cache_of(config: Config) -> Path:
    """Prepared corpora and features, shared by the runs of one storage."""
    return place(config.storage) / ".cache"


def check_storage(config: Config) -> None:
    """Prove that this machine can write there, read it back and delete it, leaving nothing behind. Raises UserError.

    The other nodes prove the same once Ray is joined (orchestration/doctor.py).
    """
    storage = place(config.storage)
    if is_remote(storage):
        probe = storage / f".probe-{socket.gethostname()}-{os.getpid()}"
        try:
            probe.parent.mkdir(parents=True, exist_ok=True)
            with at_once():
                probe.write_text(PROBE)
                publish(probe, keep=False)
                fetch(probe)
                if not probe.exists() or probe.read_text() != PROBE:
                    raise OSError("what was written is not what is read")
                remove(probe)
        except OSError as error:
            cause = " ".join(str(error).split())[:200]
            raise UserError(
                f"storage={config.storage}: cannot be written ({cause}); give a bucket that exists and credentials "
                f"that may write to it (instance profile, environment, ~/.aws), or another storage=FOLDER"
            ) from None
        return
    existing = next(path for path in (cache_of(config), storage, *storage.parents) if path.exists())
    try:
        with tempfile.NamedTemporaryFile(dir=existing, prefix=".probe-") as file:
            file.write(PROBE.encode())
            file.flush()
            os.fsync(file.fileno())
            if Path(file.name).read_bytes() != PROBE.encode():
                raise OSError(0, "what was written is not what is read")
    except OSError as error:
        raise UserError(
            f"storage={config.storage}: {existing} cannot be written ({error.strerror}); give storage=FOLDER that can"
        ) from None


def check_identity(run: Path, config: Config, sections: tuple[str, ...]) -> None:
    """Compare with what the folder was started with. Raises UserError with each differing key and both values."""
    path = run / "config.yaml"
    fetch(path)
    if not path.exists():
        return
    try:
        old = identity(build_config(yaml.safe_load(path.read_text(encoding="utf-8")), {}), sections)
    except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
        cause = str(error).splitlines()[0]
        raise UserError(f"{shown(path)}: cannot be read ({cause}); restore it, or give another name=NAME") from None
    new = identity(config, sections)
    differing = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
    if differing:
        lines = [
            f"{key}: run {run.name} was started with {_typed(old.get(key))}, now {_typed(new.get(key))}"
            for key in differing
        ]
        lines.append(f"give the old value{'s' * (len(differing) > 1)}, or another name=NAME for a new run")
        raise UserError("\n".join(lines))


def _typed(value: Any) -> str:
    """A value as its user writes it."""
    return "null" if value is None else repr(value)


def summary_of(run: Path) -> dict[str, Any] | None:
    """summary.json of a finished run; None where it, or the export, is not there whole: then the run goes on."""
    try:
        for path in (run / "summary.json", run / "export" / "config.json"):
            fetch(path)
        if not (run / "export" / "config.json").exists():
            return None
        return json.loads((run / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


@contextmanager
def held(run: Path, config: Config) -> Iterator[Path]:
    """Hold the run's folder for this process and write the effective config.yaml into it.

    A folder that did not exist before is removed again when a UserError comes: a mistake leaves nothing behind.
    Raises UserError while another driver holds it.
    """
    fresh = [folder for folder in (run, *run.parents) if not folder.exists()]
    if is_remote(run) and children(run):
        fresh = []
    try:
        run.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{run}: cannot be made ({error.strerror}); give another name or storage") from None
    mistaken = False
    try:
        with leased(run, waits=in_job()):
            part = run / "config.yaml.part"
            part.write_text(to_yaml(config), encoding="utf-8")
            part.replace(run / "config.yaml")
            publish(run / "config.yaml")
            try:
                yield run
            except UserError:
                mistaken = bool(fresh)
                raise
    finally:
        if mistaken:
            _leave_nothing(fresh)


def _leave_nothing(fresh: list[Path]) -> None:
    """Remove a run's folder, and those above it where nothing else came to lie there."""
    try:
        remove(fresh[0])
    except OSError as error:  # must not hide what the user did wrong
        logger.warning("%s: could not be removed: %s", fresh[0], error)
    for folder in fresh[1:]:
        with suppress(OSError):
            folder.rmdir()
