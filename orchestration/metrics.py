"""metrics.jsonl: one line per optimizer step, and one per evaluation.

In: records of rank 0. Out: a file in which no step stands twice, whatever was killed and resumed.
    step      step epoch tokens targets loss learning_rate gradient_norm tokens_per_second data_wait_fraction
              workers
              skipped (true where loss or gradient was no finite number, which is null then: no weight moved)
    evaluation   step eval_loss eval_accuracy eval_targets      (before that step is trained)
A bucket cannot be appended to: there a start writes metrics/<start>.jsonl, the lines it begins with, and
metrics/<start>-<number>.jsonl, those it adds; the newest start counts. A finished run leaves metrics.jsonl alone.
Knows neither Ray nor torch.
"""

import errno
import json
import logging
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from data.storage import fetch, is_remote, publish, remove

logger = logging.getLogger(__name__)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """All whole lines of a metrics file; a line cut by a kill is left out."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):
                yield json.loads(line)


def bring(path: Path) -> None:
    """Make the metrics file of a run whose folder is a bucket, as far as it was carried there."""
    if not is_remote(path):
        return
    segments = path.parent / "metrics"
    fetch(segments)
    names = sorted(file.name for file in segments.glob("*.jsonl"))
    if not names:
        fetch(path)
        return
    start = max(name.partition("-")[0].removesuffix(".jsonl") for name in names)
    files = [segments / f"{start}.jsonl", *sorted(segments.glob(f"{start}-*.jsonl"))]
    carried = "".join(file.read_text(encoding="utf-8") for file in files)
    # On the node that writes it the file is ahead of the bucket, and open.
    if not (path.exists() and path.read_text(encoding="utf-8").startswith(carried)):
        path.write_text(carried, encoding="utf-8")


def cut(path: Path, step: int) -> list[dict[str, Any]]:
    """Remove the lines of `step` and later ones, as training starts again there; returns those that stay.

    An evaluation of the weights before `step` stays: it may have been the last one of a run whose budget was raised.
    """
    bring(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = [line for line in read(path) if line["step"] < step or (line["step"] == step and "eval_loss" in line)]
    part = path.with_name(path.name + ".part")
    part.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
    part.replace(path)
    return kept


def _remove_all(files: list[Path]) -> None:
    """Delete files of a bucket; what stays is older than what counts."""
    try:
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(remove, files))
    except OSError as error:
        logger.warning("older segments of metrics could not be removed: %s", error)


class Writer:
    """Appends records to a metrics file, from `step` on."""

    def __init__(self, path: Path, step: int) -> None:
        kept = cut(path, step)
        self._evaluated = step if kept and kept[-1]["step"] == step else None
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._size = path.stat().st_size
        self._unwritten: list[str] = []
        self._segments = path.parent / "metrics"
        self._waiting: list[str] = []
        self._lock = threading.Lock()  # of the lines: a thread carries them while training writes more
        self._carrying = threading.Lock()  # of the segments' order
        self._num_segments = 0
        if is_remote(path):
            self._begin()

    def _begin(self) -> None:
        """A new start in the bucket; older ones go once it is there."""
        older = sorted(self._segments.glob("*.jsonl"))
        last = max((int(file.stem.partition("-")[0]) for file in older), default=0)
        self._start = f"{last + 1:04d}"
        self._segments.mkdir(parents=True, exist_ok=True)
        first = self._segments / f"{self._start}.jsonl"
        shutil.copyfile(self._path, first)
        publish(first)
        # A segment every 30 s: 20,000 of a week without a restart, which would hold up a start for half an hour.
        self._remover = threading.Thread(target=_remove_all, args=(older,), daemon=True, name="cloze-metrics-remover")
        self._remover.start()

    def write(self, record: dict[str, Any]) -> None:
        """Append one record, unless it is the evaluation that the file begins with."""
        if record["step"] == self._evaluated and "eval_loss" in record:
            return
        line = json.dumps(record) + "\n"
        with self._lock:
            self._unwritten.append(line)
            if is_remote(self._path):
                self._waiting.append(line)
            try:
                self._append()
            except OSError as error:  # a full disk, say: training goes on, and the next line brings this one
                logger.warning("%s: %s", self._path, error)

    def _append(self) -> None:
        """Bring what is not written yet into the file, whole lines or nothing. Raises OSError."""
        lines = "".join(self._unwritten).encode()
        if not lines:
            return
        try:
            if self._file.write(lines) != len(lines):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            self._file.truncate(self._size)
            raise
        self._size += len(lines)
        self._unwritten.clear()

    def carry(self) -> None:
        """Have the storage hold all lines so far; any thread may. Raises OSError; the next call carries them too."""
        with self._carrying:
            with self._lock:
                self._append()
                lines = list(self._waiting) if is_remote(self._path) else []
            if not is_remote(self._path):
                os.fsync(self._file.fileno())
            if lines:
                segment = self._segments / f"{self._start}-{self._num_segments:08d}.jsonl"
                segment.write_text("".join(lines), encoding="utf-8")
                publish(segment)
                self._num_segments += 1
                with self._lock:
                    del self._waiting[: len(lines)]

    def finish(self) -> None:
        """The last line is written."""
        self.carry()
        publish(self._path)
        if is_remote(self._path):
            self._remover.join()
            remove(self._segments)
