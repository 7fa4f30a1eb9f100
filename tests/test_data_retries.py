"""Storage is tried again where that may help, as long as was allowed, and its user hears of it."""

import errno
import re
import threading
import time

import pytest

from data import retries
from data.retries import at_once, be_patient, passes, patiently


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(retries, "FIRST_WAIT_SECONDS", 0.01)
    yield
    be_patient(0)


class Failing:
    """Work that fails `times` times."""

    def __init__(self, times: int, error: OSError) -> None:
        self.left, self.error, self.calls = times, error, 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls > self.left:
            return "done"
        raise self.error


OUTAGE = OSError("When uploading x: AWS Error NETWORK_CONNECTION during PutObject: curlCode: 7, Couldn't connect")


def test_an_outage_is_ridden_out_and_told_twice():
    told: list[str] = []
    be_patient(30, told.append)
    work = Failing(4, OUTAGE)
    assert patiently("s3://b/x", work) == "done" and work.calls == 5
    assert len(told) == 2
    assert told[0].startswith("s3://b/x: When uploading") and told[0].endswith("trying again for 30 s")
    assert re.fullmatch(r"s3://b/x: works again after \d+ s", told[1])


def test_the_limit_ends_it_with_the_place_and_the_cause():
    be_patient(0.2, lambda text: None)
    begun = time.monotonic()
    with pytest.raises(OSError, match=r"s3://b/x: no success within \d s: When uploading .*Couldn't connect"):
        patiently("s3://b/x", Failing(10**9, OUTAGE))
    assert 0.2 <= time.monotonic() - begun < 5


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (OUTAGE, True),
        (OSError("AWS Error UNKNOWN (HTTP status 503) during PutObject"), True),
        (OSError("google::cloud::Status(UNAVAILABLE: try later)"), True),
        (OSError(errno.EIO, "Input/output error"), True),
        (OSError(errno.ESTALE, "Stale file handle"), True),
        (FileNotFoundError("AWS Error NO_SUCH_KEY"), False),
        (OSError(errno.ENOSPC, "No space left on device"), False),
        (OSError(errno.EACCES, "Permission denied"), False),
        (OSError("could not verify page integrity, CRC checksum verification failed"), False),
    ],
)  # fmt: skip
def test_only_what_may_pass_is_tried_again(error, again):
    assert passes(error) is again
    be_patient(30, lambda text: None)
    work = Failing(1, error)
    if again:
        assert patiently("x", work) == "done"
    else:
        with pytest.raises(OSError) as fault:
            patiently("x", work)
        assert fault.value is error and work.calls == 1


def test_who_did_not_ask_for_patience_gets_none():
    work = Failing(1, OUTAGE)
    with pytest.raises(OSError):
        patiently("x", work)
    be_patient(30, lambda text: None)
    others = Failing(1, OUTAGE)
    with at_once():
        with pytest.raises(OSError):
            patiently("x", Failing(1, OUTAGE))
        thread = threading.Thread(target=patiently, args=("x", others))
        thread.start()
        thread.join()
    assert others.calls == 2, "the block is one thread's"
    assert patiently("x", Failing(1, OUTAGE)) == "done"
