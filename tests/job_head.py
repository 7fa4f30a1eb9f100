"""A real head of a cluster for tests of jobs, with ports, folders and a token of its own.

It runs in a virtual environment that has the pinned packages and no Cloze, its bin folder not on PATH, started from
another folder, in token mode, with no way to a package index.
"""

import random
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

TOKEN = "f00dfeed" * 4


RECIPE = """
storage: {storage}
corpus: {{sources: {corpus}, held_out: 0.1}}
tokenizer: {{vocab_size: 100}}
rows: {{length: 32, packing: document}}
encoder: {{hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 32, dropout: 0.0}}
pretrain: {{steps: 10, global_batch: 4, micro_batch: 2, eval_every_steps: null}}
checkpoints: {{every_steps: 100000}}
scaling: {{workers: 2, cpus_per_worker: 1, max_restarts: 0}}
"""


@dataclass(frozen=True)
class Head:
    """Where a running head answers, and the folder of everything that is its."""

    url: str
    gcs: str
    folder: Path


def free_ports(number: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def processes_of(folder: Path) -> list[psutil.Process]:
    """Every process of the Ray whose temp dir this is."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        words = " ".join(process.info["cmdline"] or [])
        if str(folder) in words or (process.info["environ"] or {}).get("CLOZE_TEST_HEAD") == str(folder):
            found.append(process)
    return found


@contextmanager
def running_head() -> Iterator[Head]:
    """Start a head that can import no Cloze, wait until jobs can be submitted, and take all of it away again."""
    folder = Path(tempfile.mkdtemp(prefix="cz-", dir="/tmp" if Path("/tmp").is_dir() else None))
    venv, home, elsewhere = folder / "venv", folder / "home", folder / "elsewhere"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    # A folder in a .pth is searched for packages, and its own .pth, that of an editable Cloze, is not read.
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(venv), "platbase": str(venv)}))
    (packages / "pinned.pth").write_text(sysconfig.get_path("purelib") + "\n")
    for place in (home, elsewhere):
        place.mkdir()
    gcs, dashboard, *others = free_ports(9)
    options = ("dashboard-agent-listen-port", "dashboard-agent-grpc-port", "metrics-export-port",
               "ray-client-server-port", "node-manager-port", "object-manager-port", "runtime-env-agent-port")
    python = str(venv / "bin" / "python")
    environment = {
        "HOME": str(home), "PATH": "/usr/bin:/bin", "CLOZE_TEST_HEAD": str(folder), "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": TOKEN, "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "1", "PIP_NO_INDEX": "1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }  # fmt: skip
    alone = subprocess.run([python, "-c", "import orchestration"], cwd=elsewhere, env=environment, capture_output=True)
    assert b"No module named 'orchestration'" in alone.stderr
    with (folder / "head.log").open("w") as log:
        process = subprocess.Popen(
            [python, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus=4", "--disable-usage-stats",
             f"--port={gcs}", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}", "--min-worker-port=0",
             "--max-worker-port=0", "--object-store-memory=200000000", f"--temp-dir={folder / 't'}",
             *(f"--{option}={port}" for option, port in zip(options, others, strict=True))],
            cwd=elsewhere, env=environment, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    ready = Head(f"http://127.0.0.1:{dashboard}", f"127.0.0.1:{gcs}", folder)
    try:
        wait(lambda: _interpreter(ready) == python, 90, (folder / "head.log").read_text)
        yield ready
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        for left in processes_of(folder):
            left.kill()
        shutil.rmtree(folder, ignore_errors=True)


def wait(condition, seconds: float, why=lambda: "") -> None:
    """Until the condition holds; fails, saying why, after so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, why()
        time.sleep(0.2)


def api(head: Head, path: str) -> Any:
    import requests

    return requests.get(head.url + path, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=30).json()


def _interpreter(head: Head) -> str | None:
    """As `cloze submit` finds it: that a new head names it takes some seconds."""
    import requests

    try:
        for node in api(head, "/nodes?view=summary")["data"]["summary"]:
            for word in node.get("cmdline", []):
                if word.startswith("--python_worker_command="):
                    return word.partition("=")[2].split(" ")[0]
    except (requests.RequestException, ValueError, KeyError):
        return None  # not yet
    return None


def written_recipe(head: Head) -> str:
    """A tiny run's recipe; its corpus, and its storage, lie where every node of the head reads them."""
    draw = random.Random(0)
    words = ["cat", "dog", "clerk", "judge", "court", "saw", "heard", "paid", "asked", "left", "the", "and", "nobody"]
    documents = [f"doc{n:03d} " + " ".join(draw.choices(words, k=12)) for n in range(200)]
    (head.folder / "corpus.txt").write_text("\n\n".join(documents))
    return RECIPE.format(storage=head.folder / "runs", corpus=head.folder / "corpus.txt")
