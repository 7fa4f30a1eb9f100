"""Who holds a run's folder: one driver at a time, also where one takes another for dead that is not.

In: a run's folder. Out: the folder, held by this process alone, or a UserError that names the holder. The lease is a
file in the folder, renewed every few seconds; where it cannot be renewed (a full disk, storage that is away) nothing
happens. A holder that was suspended, or cut off, for so long that another one took its place finds the other's lease
when it comes to renew its own, and ends at once, and its workers with it. Workers look before they save, as a driver
may be stopped while they go on. Knows neither Ray nor what is trained.
"""

import errno
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from data.config import UserError
from data.retries import at_once
from data.storage import fetch, publish, remove, shown
from orchestration.checkpoint import write_json

logger = logging.getLogger(__name__)

NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
HEARTBEAT_SECONDS = 10
# A holder elsewhere that has been silent for so long is gone. Longer than a save is patient with storage that is away
# (data/retries.py: 480 s), as no lease can be renewed meanwhile.
STALE_SECONDS = 600
WATCHED_BEATS = 2.5  # clocks may differ: one that is to be taken for gone gives no sign for so long while it is watched
FIELDS = {"token", "machine", "host", "pid", "started", "beat"}


def is_held(run: Path) -> bool:
    """Whether a driver that lives holds the run's folder."""
    fetch(run / "lease.json", delete=False)
    holder = _read(run / "lease.json")
    return holder is not None and _lives(holder)


def token_of(run: Path) -> str | None:
    """The token of the lease on a folder that this process holds; None: nobody holds it."""
    return (_read(run / "lease.json") or {}).get("token")


def taken_by(run: Path, token: str) -> str | None:
    """Who holds a folder in place of the driver with this token, in words; None: nobody. Raises OSError."""
    holder = _found(run / "lease.json")
    return None if holder is None or holder["token"] == token else f"process {holder['pid']} on {holder['host']}"


@contextmanager
def leased(run: Path, waits: bool = False) -> Iterator[None]:
    """Hold a folder that is there for this process. Raises UserError while another driver holds it.

    `waits`: nobody sits before it (a job, which its cluster starts again where a node with the driver was lost): a
    holder elsewhere that may be gone is waited for.
    """
    lease, token = run / "lease.json", uuid.uuid4().hex
    _take(lease, token, waits)
    stop = threading.Event()
    terminal = os.dup(2)  # standard error may become a log that lies in this very folder
    heart = threading.Thread(target=_beat, args=(lease, token, stop, terminal), daemon=True, name="cloze-lease")
    heart.start()
    try:
        yield
    finally:
        stop.set()
        heart.join()
        os.close(terminal)
        try:
            fetch(lease, delete=False)
            if (_read(lease) or {}).get("token") == token:
                remove(lease)
        except OSError as error:  # must not hide what ended the run
            logger.warning("%s: could not be removed: %s", shown(lease), error)


def _take(lease: Path, token: str, waits: bool) -> None:
    """Create the lease, replacing one whose holder is gone. Raises UserError while the holder lives.

    In a bucket nothing is created exclusively, and of two drivers that find the same dead one each may remove the
    other's lease: then both believe that they hold the folder, until the first renewal ends one.
    """
    fetch(lease)
    own = lease.with_name(f"lease-{token}.json")
    while True:
        write_json(own, _holder(token))
        try:
            _create(lease, own)
            publish(lease)
            return
        except FileExistsError:
            holder = _read(lease)
            if holder is not None and not _is_gone(lease, holder, waits):
                raise UserError(_refusal(lease, holder)) from None
            if _read(lease) == holder:  # else another one took it meanwhile
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


def _refusal(lease: Path, holder: dict[str, Any]) -> str:
    text = f"run {lease.parent.name} is held by process {holder['pid']} on {holder['host']}"
    if holder["machine"] == _machine():
        return f"{text}; wait for it, stop it, or give another name=NAME"
    return (
        f"{text}, which gave a sign of life {max(0, time.time() - holder['beat']):.0f} s ago; wait for it, stop it, or "
        f"give another name=NAME; after {STALE_SECONDS} s without a sign the same command goes on, at once if you "
        f"know that it is gone and delete {shown(lease)}"
    )


def _holder(token: str) -> dict[str, Any]:
    """This process, and a sign of life."""
    process = psutil.Process()
    return {
        "token": token, "machine": _machine(), "host": socket.gethostname(), "pid": process.pid,
        "started": process.create_time(), "beat": time.time(),
    }  # fmt: skip


def _machine() -> str:
    """Where a process's number means one process: the boot of a machine and, in it, the container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _read(lease: Path) -> dict[str, Any] | None:
    """Who holds the lease; None where the file was cut by a kill, or is gone."""
    try:
        holder = json.loads(lease.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return holder if isinstance(holder, dict) and holder.keys() >= FIELDS else None


def _lives(holder: dict[str, Any]) -> bool:
    """Whether the holder is still at work."""
    if holder["machine"] != _machine():
        return time.time() - holder["beat"] < STALE_SECONDS
    try:
        process = psutil.Process(holder["pid"])
        return process.status() != psutil.STATUS_ZOMBIE and abs(process.create_time() - holder["started"]) < 1
    except psutil.NoSuchProcess:
        return False


def _is_gone(lease: Path, holder: dict[str, Any], waits: bool) -> bool:
    """Whether a holder is gone; one elsewhere is watched before, as clocks may differ.

    `waits`: for one that gave a sign of life of late, until it counts as gone or gives another.
    """
    if holder["machine"] == _machine():
        return not _lives(holder)
    left = min(holder["beat"] + STALE_SECONDS - time.time(), STALE_SECONDS)
    if left > 0 and not waits:
        return False
    if left > 0:
        logger.warning("%s; if it stays silent, this one goes on in %.0f s", _refusal(lease, holder), left)
    until = time.monotonic() + max(left, WATCHED_BEATS * HEARTBEAT_SECONDS)
    while time.monotonic() < until:
        time.sleep(HEARTBEAT_SECONDS / 4)
        fetch(lease)
        now = _read(lease)
        if now is None:
            return True
        if now != holder:
            return False
    return True


def _found(lease: Path) -> dict[str, Any] | None:
    """Who holds the lease, by the storage; None: nobody. Raises OSError where the storage does not say."""
    fetch(lease)
    with suppress(FileNotFoundError):
        lease.read_bytes()  # says why it cannot be read
    return _read(lease)


def _beat(lease: Path, token: str, stop: threading.Event, terminal: int) -> None:
    """Renew the lease until told to stop; the process ends where that is no longer its right."""
    renewed = time.time()  # goes on while a machine is suspended
    while not stop.wait(HEARTBEAT_SECONDS):
        try:
            with at_once():  # it is tried again at the next beat
                holder = _found(lease)
                if holder is not None and holder["token"] != token:
                    _end(f"process {holder['pid']} on {holder['host']} took this run for abandoned", lease, terminal)
                if holder is None and time.time() - renewed > STALE_SECONDS:
                    _end("another process may have taken this run for abandoned, and ended it", lease, terminal)
                write_json(lease, _holder(token))
                publish(lease)
            renewed = time.time()
        except Exception as error:  # whatever it is: a heart that stops costs the lease
            logger.warning("%s: could not be renewed: %s", shown(lease), error)


def _end(cause: str, lease: Path, terminal: int) -> None:
    """End this process without a word to the folder, which is another's. Ray ends a job with its driver."""
    threading.Timer(5, os._exit, (1,)).start()  # the log may lie on storage that hangs
    text = f"{shown(lease)}: {cause}; this process ends, and writes nothing more"
    try:
        os.write(terminal, f"cloze: {text}\n".encode())
        logger.error("%s", text)
    finally:
        os._exit(1)
