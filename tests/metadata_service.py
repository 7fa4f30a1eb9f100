"""A cloud's metadata service, for tests of its notice: a real server on loopback."""

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager


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


@contextmanager
def metadata_service() -> Iterator[tuple[type[Service], str]]:
    """The service of one machine (what its class's `notice` and `preempted` say, it says) and its HOST:PORT."""
    machine = type("OneMachine", (Service,), {"asked": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), machine)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield machine, f"127.0.0.1:{server.server_port}"
    server.shutdown()
