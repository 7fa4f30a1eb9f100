"""The cloud's notice, asked of a real server that speaks IMDSv2 or Google's protocol."""

import http.server
import json
import threading
import time
from collections.abc import Iterator

import pytest

from orchestration import spot

ENDS = "2030-01-01T00:00:00Z"


class Service(http.server.BaseHTTPRequestHandler):
    """IMDSv2 as AWS documents it (a token by PUT, 401 without it, 404 until there is a notice), and Google's path."""

    notice: str | None = None
    token = "first"
    preempted = "FALSE"
    asked: list[str]

    def do_PUT(self) -> None:
        assert int(self.headers["X-aws-ec2-metadata-token-ttl-seconds"]) > 0
        self._answer(200 if self.path == "/latest/api/token" else 404, self.token)

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.path == "/computeMetadata/v1/instance/preempted":
            self._answer(200 if self.headers.get("Metadata-Flavor") == "Google" else 403, self.preempted)
        elif self.headers.get("X-aws-ec2-metadata-token") != self.token:
            self._answer(401, "")
        elif self.path == "/latest/meta-data/spot/instance-action" and self.notice:
            self._answer(200, self.notice)
        else:
            self._answer(404, "")

    def _answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch) -> Iterator[tuple[type[Service], str]]:
    handler = type("OneMachine", (Service,), {"asked": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED", raising=False)
    monkeypatch.setattr(spot, "POLL_SECONDS", 0.05)
    yield handler, f"127.0.0.1:{server.server_port}"
    server.shutdown()


def test_amazon(server, monkeypatch):
    """No notice, a new token, then the notice: the node is drained once, with the cloud's deadline."""
    machine, address = server
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://{address}/")
    drained: list[float] = []
    thread = threading.Thread(target=spot._watch, args=(drained.append,), daemon=True)
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
    thread = threading.Thread(target=spot._watch, args=(drained.append,), daemon=True)
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
