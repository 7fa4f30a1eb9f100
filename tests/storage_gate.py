"""A gate before a server: it lets connections through, resets them, or answers each request with an error."""

import socket
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType

_BODY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
UNAVAILABLE = (
    b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
)


class Gate:
    """Listens on a port of its own and passes bytes to `target` (http://host:port) and back, while it is open."""

    run: Path

    def __init__(self, target: str) -> None:
        host, _, port = target.removeprefix("http://").partition(":")
        self._target = host, int(port)
        self._answer: str | None = None
        self._pairs: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> "Gate":
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shut("reset")
        self._listener.close()

    def open(self) -> None:
        """Let all through again."""
        self._answer = None

    def shut(self, answer: str) -> None:
        """From now on, and for the connections there are: "reset", or "503" to each request."""
        self._answer = answer
        pairs, self._pairs = self._pairs, []
        for end in pairs:
            with suppress(OSError):  # closed already
                end.shutdown(socket.SHUT_RDWR)

    def _listen(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            if self._answer == "reset":
                return
            if self._answer == "503":
                client.recv(1 << 20)
                client.sendall(UNAVAILABLE)
                return
            with socket.create_connection(self._target) as server:
                self._pairs += [client, server]
                back = threading.Thread(target=_pump, args=(server, client), daemon=True)
                back.start()
                _pump(client, server)
                back.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Pass bytes on until one side is done."""
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
