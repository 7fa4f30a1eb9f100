"""Slow proofs of the data room: preparing killed again and again, the stream's memory over a tenfold store.

Moments are drawn anew in every run; the seed is in the failure's message.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from benchmarks.bench_stream import measure
from test_data_store import run, write_corpus

from data.store import Store

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

SCRIPT = """
import ray, sys, pathlib
ray.init(log_to_driver=False, logging_level="ERROR")
sys.path.insert(0, sys.argv[1])
import test_data_store
print("started", flush=True)
test_data_store.run(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]), chunk_bytes=4000)
"""
KILLS = 8


def contents(store: Store) -> dict[str, bytes]:
    return {str(path.relative_to(store.path)): path.read_bytes() for path in store.path.rglob("*") if path.is_file()}


def test_prepare_killed_at_any_moment_ends_with_the_same_store(tmp_path: Path, ray_4_cpus: str):
    seed = time.time_ns()
    draw = random.Random(seed)
    corpus = write_corpus(tmp_path / "corpus", 3000)
    began = time.monotonic()
    undisturbed = contents(run(corpus, tmp_path / "undisturbed", chunk_bytes=4000))
    seconds = time.monotonic() - began
    cache = tmp_path / "cache"
    words = [sys.executable, "-c", SCRIPT, str(Path(__file__).parent), str(corpus), str(cache)]
    killed = 0
    for _ in range(KILLS):
        process = subprocess.Popen(
            words, env={**os.environ, "RAY_ADDRESS": ray_4_cpus}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert process.stdout is not None and process.stdout.readline() == b"started\n"
        time.sleep(draw.uniform(0, seconds))
        if process.poll() is None:
            killed += 1
        else:  # it was done: the next one begins anew
            shutil.rmtree(cache)
        process.send_signal(signal.SIGKILL)
        process.wait()
    store = run(corpus, cache, chunk_bytes=4000)
    assert killed >= 2, "nothing was killed while it worked"
    assert contents(store) == undisturbed, f"seed {seed}"
    assert list(cache.iterdir()) == [store.path], f"seed {seed}"


def test_memory_of_the_stream_does_not_grow_with_the_store(tmp_path: Path, ray_4_cpus: str):
    small, large = (measure(tmp_path / str(rows), rows) for rows in (60_000, 600_000))
    for kind in small.peak_bytes.keys() & large.peak_bytes.keys():
        grown = large.peak_bytes[kind] - small.peak_bytes[kind]
        assert grown < 60_000_000, f"{kind}: {small.peak_bytes[kind]:,} -> {large.peak_bytes[kind]:,} bytes"
    assert {"MapBatches", "object store"} <= small.peak_bytes.keys()
