"""Runs of the command line that tests disturb: a Ray of their own, a driver in a process, its workers by rank and node.

All of it is real: processes, signals, nodes of a ray.cluster_utils.Cluster.
"""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest

SMALL = [
    "corpus.sources=corpus.txt", "tokenizer.vocab_size=150", "rows.length=32", "rows.packing=document",
    "corpus.held_out=0.1", "encoder.hidden_size=32", "encoder.num_attention_heads=2", "encoder.intermediate_size=64",
    "encoder.num_hidden_layers=2", "encoder.dropout=0.0", "pretrain.global_batch=8", "pretrain.micro_batch=4",
    "pretrain.learning_rate=2e-3", "pretrain.eval_every_steps=50", "checkpoints.every_steps=50", "zero.stage=0",
    "scaling.cpus_per_worker=1.5",  # of 2 CPUs a node: one worker
]  # fmt: skip


def written_corpus(folder: Path) -> None:
    """300 short documents, each with words of its own."""
    draw = random.Random(0)
    subjects, verbs = ["cat", "dog", "clerk", "judge", "court"], ["saw", "heard", "paid", "asked", "left"]

    def clause() -> str:
        return f"the {draw.choice(subjects)} {draw.choice(verbs)} the {draw.choice(subjects)}"

    lines = [f"doc{n:04d} {clause()} and {clause()} nobody " * draw.randint(1, 2) for n in range(300)]
    (folder / "corpus.txt").write_text("\n\n".join(lines))


@dataclass
class Nodes:
    """A cluster on this machine: a head, and nodes that come and go. Each has 2 CPUs and so room for one worker."""

    cluster: Any
    others: list[Any] = field(default_factory=list)

    @property
    def address(self) -> str:
        return self.cluster.address

    def add(self, **environment: str) -> Any:
        node = self.cluster.add_node(num_cpus=2, object_store_memory=100_000_000, env_vars=environment or None)
        self.others.append(node)
        return node

    def lose(self) -> None:
        """The newest node's processes end by SIGKILL, as of a machine that is taken away."""
        self.cluster.remove_node(self.others.pop(), allow_graceful=False)

    def workers(self, title: str = "RayTrainWorker") -> list[psutil.Process]:
        """The training workers, or what else Ray calls so, the head's first. Their parents are their nodes' raylets."""
        found = []
        for node in self.cluster.list_all_nodes():
            raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
            found += [child for child in raylet.children() if title in " ".join(child.cmdline())]
        return found


@contextmanager
def nodes() -> Iterator[Nodes]:
    """A head without a driver in this process; not in Ray's folder, where any `ray.init()` would find and join it."""
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="cz-", dir="/tmp")  # short: sockets lie in it
    head = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": 150_000_000, "temp_dir": folder}
    # Cluster writes its address into the default folder whatever `temp_dir` says, and makes none.
    (Path(folder) / "ray").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            yield Nodes(cluster)
        finally:
            cluster.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


class Driver:
    """One `cloze pretrain` in a process of its own."""

    started: ClassVar[list["Driver"]] = []

    def __init__(self, home: Path, address: str, name: str, *words: str, **environment: str) -> None:
        self.run = home / "runs" / name
        self._log = (home / f"{name}.log").open("a")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "orchestration", "pretrain", f"name={name}", *SMALL, *words], cwd=home,
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
            env={**os.environ, "RAY_ADDRESS": address, "AWS_EC2_METADATA_DISABLED": "true", **environment},
        )  # fmt: skip
        self.started.append(self)

    def wait(self, seconds: float = 500) -> int:
        """The exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    @classmethod
    def end_all(cls) -> None:
        """Kill those that a test leaves: they would hold the workers' places in the tests behind it."""
        for driver in cls.started:
            if driver.process.poll() is None:
                driver.kill()
        cls.started.clear()

    def told(self) -> str:
        return Path(self._log.name).read_text()

    def log(self) -> str:
        return (self.run / "log" / "driver.log").read_text()

    def steps(self) -> list[dict[str, Any]]:
        """Whole lines of the steps so far."""
        path = self.run / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [line for line in (json.loads(text) for text in lines if text.endswith("\n")) if "loss" in line]

    def step(self) -> int:
        """The newest step; -1 before the first."""
        steps = self.steps()
        return steps[-1]["step"] if steps else -1

    def reaches(self, step: int, seconds: float = 300) -> float:
        """Wait until that step is done; returns the seconds it took."""
        return self.until(lambda: self.step() >= step, seconds)

    def until(self, condition: Callable[[], Any], seconds: float = 300) -> float:
        """Wait for the condition while the run goes on; returns the seconds it took."""
        begun = time.monotonic()
        while not condition():
            assert self.process.poll() is None, f"the run ended: {self.told()[-2000:]}"
            assert time.monotonic() - begun < seconds, f"not within {seconds} s: {self.told()[-2000:]}"
            time.sleep(0.1)
        return time.monotonic() - begun


STOPS = ("behind step", "seconds to the next new step", "steps redone")


class Watch:
    """The newest step of a run, again and again: where training stood still, for how long, and what was redone."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: list[tuple[float, int]] = []
        self.ended = threading.Event()

    def look(self) -> None:
        while not self.ended.wait(0.1):
            if not self._path.exists():
                continue
            with self._path.open("rb") as file:
                file.seek(max(0, self._path.stat().st_size - 2000))
                lines = file.read().split(b"\n")[:-1]
            steps = re.findall(rb'"step": (\d+), "epoch"', lines[-1] if lines else b"")
            if steps:
                self._seen.append((time.monotonic(), int(steps[0])))

    def stops(self, seconds: float = 4.0) -> list[tuple[int, float, int]]:
        """(newest step before, seconds until a newer one, steps done again) where that took longer than `seconds`."""
        found, top, since, lowest = [], -1, 0.0, 0
        for when, step in self._seen:
            if step <= top:
                lowest = min(lowest, step)
                continue
            if top >= 0 and when - since > seconds:
                found.append((top, when - since, max(0, top - lowest)))
            top, since, lowest = step, when, step
        return found


@contextmanager
def watched(run: Path) -> Iterator[Watch]:
    """Watch a run, whatever drivers it has."""
    watch = Watch(run / "metrics.jsonl")
    thread = threading.Thread(target=watch.look, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        watch.ended.set()
        thread.join()


def losses(run: Path) -> dict[int, float]:
    """Loss of each step; no step stands twice."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in lines if "loss" in line]
    assert steps == sorted(set(steps)), "a step stands twice"
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def table(rows: list[tuple[Any, ...]], heads: tuple[str, ...]) -> str:
    """Rows under heads, for a test's output."""
    cells = [heads, *[tuple(f"{cell:.1f}" if isinstance(cell, float) else str(cell) for cell in row) for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(heads))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
