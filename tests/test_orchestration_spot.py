"""The cloud's notice, asked of a real server that speaks IMDSv2 or Google's protocol."""

import json
import threading
import time
from collections.abc import Iterator

import pytest
from metadata_service import Service, metadata_service

from orchestration import spot

ENDS = "2030-01-01T00:00:00Z"


@pytest.fixture
def server(monkeypatch) -> Iterator[tuple[type[Service], str]]:
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED", raising=False)
    monkeypatch.setattr(spot, "POLL_SECONDS", 0.05)
    with metadata_service() as service:
        yield service


def test_amazon(server, monkeypatch):
    """No notice, a new token, then the notice: the node is drained once, with the cloud's deadline."""
    machine, address = server
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://{address}/")
    drained: list[float] = []
    thread = threading.Thread(target=spot._watch, args=(lambda ends: drained.append(ends) is None,), daemon=True)
    thread.start()
    time.sleep(0.5)
    assert thread.is_alive() and not drained and len(machine.asked) > 2
    machine.token = "second"  # the first one is refused from now on
    time.sleep(0.3)
    machine.notice = json.dumps({"action": "terminate", "time": ENDS})
    thread.join(5)
    assert drained == [1893456000.0]


def test_google(server, monkeypatch):
    machine, address = server
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://{address}/nothing")
    monkeypatch.setenv("GCE_METADATA_HOST", address)
    drained: list[float] = []
    thread = threading.Thread(target=spot._watch, args=(lambda ends: drained.append(ends) is None,), daemon=True)
    thread.start()
    time.sleep(0.3)
    assert thread.is_alive() and not drained
    machine.preempted = "TRUE"
    thread.join(5)
    assert drained and 25 < drained[0] - time.time() <= 30


def test_where_there_is_no_service_nothing_is_asked_again(server, monkeypatch):
    machine, address = server
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:9")
    begun = time.monotonic()
    assert spot.service() is None and time.monotonic() - begun < 2 * spot.PROBE_SECONDS + 0.5
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://{address}")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert spot.service() is None and machine.asked == []
