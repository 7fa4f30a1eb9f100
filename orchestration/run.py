"""A run's folder: who holds it, what it was started with, whether it is finished.

In: a folder named by the user and the config of this start. Out: the folder, held by this process alone, or a
UserError that says why not. Knows neither Ray nor what is trained.
"""

import errno
import json
import logging
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import yaml

from data.config import UserError
from data.retries import at_once
from data.storage import children, fetch, is_remote, place, publish, remove, shown
from orchestration import metrics
from orchestration.checkpoint import write_json
from orchestration.config import Config, to_yaml
from orchestration.identity import identity
from orchestration.recipe import build_config

logger = logging.getLogger(__name__)

PROBE = "written to see that it can be, and removed"
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
HEARTBEAT_SECONDS = 10
STALE_SECONDS = 60  # a holder on another machine that has been silent for this long is gone


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


def is_held(run: Path) -> bool:
    """Whether a driver that lives holds the run's folder."""
    fetch(run / "lease.json", delete=False)
    holder = _read(run / "lease.json")
    return holder is not None and _lives(holder)


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
    lease = run / "lease.json"
    _take(lease, run)
    stop = threading.Event()
    heart = threading.Thread(target=_beat, args=(lease, stop), daemon=True)
    heart.start()
    mistaken = False
    try:
        part = run / "config.yaml.part"
        part.write_text(to_yaml(config), encoding="utf-8")
        part.replace(run / "config.yaml")
        publish(run / "config.yaml")
        yield run
    except UserError:
        mistaken = True
        raise
    finally:
        stop.set()
        heart.join()
        with _told("the run's folder could not be left as it should"):  # must not hide what ended the run
            fetch(lease, delete=False)
            if (_read(lease) or {}).get("pid") == os.getpid():
                remove(lease)
            if mistaken and fresh:
                remove(run)
        if mistaken:
            for folder in fresh[1:]:
                with suppress(OSError):  # not empty: something else came to lie there
                    folder.rmdir()


def _take(lease: Path, run: Path) -> None:
    """Create the lease, replacing one whose holder is gone. Raises UserError while the holder lives.

    In a bucket nothing is created exclusively: of two drivers that start within a second, both may find no lease.
    """
    fetch(lease)
    while True:
        own = lease.with_name(f"lease-{os.getpid()}.json")
        write_json(own, _holder())
        try:
            _create(lease, own)
            publish(lease)
            return
        except FileExistsError:
            holder = _read(lease)
            if holder is not None and _lives(holder):
                raise UserError(
                    f"run {run.name} is held by process {holder['pid']} on {holder['host']}; "
                    f"wait for it, stop it, or give another name=NAME"
                ) from None
            lease.unlink(missing_ok=True)
        finally:
            own.unlink(missing_ok=True)


def _create(lease: Path, own: Path) -> None:
    """Give a written file the name of the lease. Raises FileExistsError where there is one."""
    try:
        os.link(own, lease)  # whole or not at all: nobody reads a lease that is being written
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        with lease.open("xb") as file:  # mounted buckets and many Windows shares have no links
            file.write(own.read_bytes())


def _holder() -> dict[str, Any]:
    """This process, and a sign of life."""
    process = psutil.Process()
    return {"host": socket.gethostname(), "pid": process.pid, "started": process.create_time(), "beat": time.time()}


def _read(lease: Path) -> dict[str, Any] | None:
    """Who holds the lease; None where the file was cut by a kill, or is gone."""
    try:
        holder = json.loads(lease.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return holder if isinstance(holder, dict) and {"host", "pid", "started", "beat"} <= holder.keys() else None


def _lives(holder: dict[str, Any]) -> bool:
    """Whether the holder is still at work."""
    if holder["host"] != socket.gethostname():
        return time.time() - holder["beat"] < STALE_SECONDS
    try:
        process = psutil.Process(holder["pid"])
        return process.status() != psutil.STATUS_ZOMBIE and abs(process.create_time() - holder["started"]) < 1
    except psutil.NoSuchProcess:
        return False


def _beat(lease: Path, stop: threading.Event) -> None:
    """Renew the lease until told to stop; storage that fails for a moment does not end it."""
    while not stop.wait(HEARTBEAT_SECONDS):
        with _told("the lease could not be renewed"):
            write_json(lease, _holder())
            publish(lease)


@contextmanager
def _told(what: str) -> Iterator[None]:
    """An OSError of the block goes to the log, and work goes on."""
    try:
        yield
    except OSError as error:
        logger.warning("%s: %s", what, error)
