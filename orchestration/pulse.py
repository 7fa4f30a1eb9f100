"""The driver's word on where it is: <run>/status.json, for `cloze status` and whoever else reads files.

In: the stages of a run as they begin. Out: the file, written whole every few seconds, when a stage begins, and at the
end with how it ended. Knows neither Ray nor what the stages do.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from data.storage import is_remote, publish
from orchestration.cause import cause_of
from orchestration.checkpoint import write_json
from orchestration.progress import Stage

logger = logging.getLogger(__name__)
BEAT_SECONDS, BUCKET_SECONDS = 2.0, 10.0  # a request to a bucket costs money
STATUS = "status.json"


class Pulse:
    """Writes a run's status; `facts` are what is known of it from the start."""

    def __init__(self, run: Path, facts: dict[str, Any]) -> None:
        self._run = run
        self._facts = {"run": run.name, **facts, "host": socket.gethostname(), "pid": os.getpid(), "began": time.time()}
        self._stage: Stage | None = None
        self._lock = threading.Lock()  # a late beat must not overwrite the end

    def watch(self, stage: Stage) -> None:
        """A stage begins."""
        self._stage = stage
        self.write("running")

    def write(self, state: str, cause: str | None = None) -> None:
        """Write the status down. A disk that is full does not end the run; what is there then grows old."""
        status = {**self._facts, "state": state, "cause": cause, "beat": time.time()}
        if (stage := self._stage) is not None:
            status |= {"stage": stage.name, "text": stage.text, "fraction": stage.fraction, **stage.facts}
            status["eta_seconds"] = stage.eta_seconds() if state == "running" else None
        with self._lock:
            try:
                write_json(self._run / STATUS, status)
                publish(self._run / STATUS)
            except OSError as error:
                logger.warning("%s could not be written: %s", STATUS, error)

    def beat(self, stop: threading.Event) -> None:
        """Write until told to stop."""
        while not stop.wait(BUCKET_SECONDS if is_remote(self._run) else BEAT_SECONDS):
            self.write("running")


@contextmanager
def beating(run: Path, facts: dict[str, Any]) -> Iterator[Pulse]:
    """Keep the run's status up to date while the block works, and say at its end how it ended."""
    pulse = Pulse(run, facts)
    pulse.write("running")
    stop = threading.Event()
    thread = threading.Thread(target=pulse.beat, args=(stop,), daemon=True)
    thread.start()
    state, cause = "finished", None
    try:
        yield pulse
    except (KeyboardInterrupt, SystemExit) as error:
        state, cause = "stopped", str(error) or None
        raise
    except BaseException as error:
        state, cause = "failed", cause_of(error)
        raise
    finally:
        stop.set()
        thread.join()
        pulse.write(state, cause)
