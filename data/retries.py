"""Patience with storage that answers errors for a while: try again, ever more seldom, up to a limit.

In: work on storage, and what it is about. Out: its result, or the error with how long was tried. Off until a process
asks for it: before a run starts its user wants the error, in the middle of a week of computing he does not.
Knows neither buckets nor checkpoints.
"""

import errno
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

logger = logging.getLogger(__name__)
T = TypeVar("T")

# Below scaling.stuck_seconds (600): who waits for a save that tries again is not stuck. Most outages of S3 and restarts
# of an NFS server are shorter.
LIMIT_SECONDS = float(os.environ.get("CLOZE_STORAGE_SECONDS", "480"))
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.5, 15.0
# What a server or the way to it answers. Whatever else goes wrong (a damaged file, a full disk) would go wrong again.
# An AWS error of any kind: in the middle of a run refused credentials are mostly those that are being renewed.
_PASSING = re.compile(r"AWS Error|curlCode|google::cloud|HTTP|[Tt]imed? ?out|Connection|Could not connect", re.ASCII)
_PASSING_NUMBERS = {
    errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ECONNRESET, errno.ECONNREFUSED, errno.EHOSTDOWN,
    errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EREMOTEIO, errno.EAGAIN,
}  # fmt: skip

_limit_seconds = 0.0
_tell: Callable[[str], object] = logger.warning
_here = threading.local()


def be_patient(seconds: float = LIMIT_SECONDS, tell: Callable[[str], object] = logger.warning) -> None:
    """From now on this process tries again for so long; 0: not at all. `tell` hears when trying begins and ends."""
    global _limit_seconds, _tell
    _limit_seconds, _tell = seconds, tell


@contextmanager
def at_once() -> Iterator[None]:
    """In the block this thread tries nothing again: a user waits for the answer."""
    _here.at_once = True
    try:
        yield
    finally:
        _here.at_once = False


def passes(error: OSError) -> bool:
    """Whether the error may be gone when the same is tried again."""
    if isinstance(error, FileNotFoundError):
        return False
    return error.errno in _PASSING_NUMBERS or (error.errno is None and _PASSING.search(str(error)) is not None)


def patiently(what: str, work: Callable[[], T]) -> T:
    """The result of `work`, which may be called several times. Raises its OSError, naming `what` if it was retried."""
    begun: float | None = None
    wait = FIRST_WAIT_SECONDS
    while True:
        try:
            result = work()
        except OSError as error:
            if _limit_seconds <= 0 or getattr(_here, "at_once", False) or not passes(error):
                raise
            cause, now = " ".join(str(error).split())[:200], time.monotonic()
            if begun is None:
                begun = now
                _tell(f"{what}: {cause}; trying again for {_limit_seconds:g} s")
            if now - begun >= _limit_seconds:
                raise OSError(f"{what}: no success within {now - begun:.0f} s: {cause}") from error
            time.sleep(min(wait, LONGEST_WAIT_SECONDS))
            wait *= 2
        else:
            if begun is not None:
                _tell(f"{what}: works again after {time.monotonic() - begun:.0f} s")
            return result
