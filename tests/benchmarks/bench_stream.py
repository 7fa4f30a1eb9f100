"""What the stream costs: memory against the size of the store, start against how far the run is, rows a second.

    make bench BENCH=stream ARGS="[ROWS]"

Two stores of rows of 128 tokens, one of ROWS (default 100,000) and one ten times as large, are each streamed once,
masked, to two ranks that do not train. Peak memory: unique memory (USS) of every process of the Ray that streams,
sampled every 0.1 s, and of the object store. Start: seconds from building the stream to the first step, at 1 % and at
99 % of the run.
"""

import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import ray

sys.path.insert(0, str(Path(__file__).parent.parent))

from made_store import made_manifest

from data.config import Masking
from data.rows import Row
from data.store import Store, write_shard
from orchestration.pacer import Pacer
from orchestration.segments import Plan, PlanPhase, order_of
from orchestration.stream import build, parts_of

LENGTH, SHARD_ROWS, GLOBAL_BATCH, RANKS = 128, 8000, 256, 2
MB = 1e6


@dataclass(frozen=True)
class Cost:
    """Of one pass over a store."""

    rows: int
    rows_per_second: float
    peak_bytes: dict[str, int]
    """Largest unique memory of one process, by kind of process."""
    start_seconds: dict[float, float]
    """By share of the run that was done before."""


def write_store(folder: Path, num_rows: int) -> Store:
    """A store of random rows; they compress to about half."""
    draw = np.random.default_rng(0)
    shards = []
    for number, begin in enumerate(range(0, num_rows, SHARD_ROWS)):
        size = min(SHARD_ROWS, num_rows - begin)
        ids = draw.integers(5, 8000, (size, LENGTH)).astype(np.int32)
        words = draw.random((size, LENGTH)) < 0.8
        name = f"shard-{number:06d}.parquet"
        num_bytes = write_shard(folder / "train" / name, [Row(*row) for row in zip(ids, words, strict=True)])
        shards.append({"name": name, "rows": size, "bytes": num_bytes, "source": 0})
    return made_manifest(folder, {"train": shards, "held_out": []}, LENGTH, "document", vocab_size=8000)


def drain(plan: Plan, start: int, last: int) -> tuple[float, float]:
    """Take the stream from `start` to `last`: seconds to the first part, seconds in all."""
    pacer: Any = Pacer.remote()
    begun = time.monotonic()
    stream: Any = ray.get(pacer.open.remote(start))
    shards = build(plan, start, RANKS, pacer, stream)
    first: list[float] = []

    def consume(rank: int) -> None:
        for part in parts_of(shards[rank], rank):
            first.append(time.monotonic() - begun)
            if rank == 0:
                ray.get(pacer.begin.remote(part.last_step, {}))
            if part.last_step >= last:
                break

    threads = [threading.Thread(target=consume, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return min(first), time.monotonic() - begun


def watch(peak: dict[str, int], done: threading.Event) -> None:
    """Keep the largest unique memory of each kind of process below this one."""
    while not done.wait(0.1):
        for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
            try:
                kind = process.name().split("::")[-1].split("(")[0].strip() or "?"
                peak[kind] = max(peak.get(kind, 0), process.memory_full_info().uss)
            except psutil.Error:
                continue
        peak["object store"] = max(peak.get("object store", 0), psutil.disk_usage("/dev/shm").used)


def measure(folder: Path, num_rows: int) -> Cost:
    """Stream a store of `num_rows` once. Ray must have been started by this process."""
    store = write_store(folder, num_rows)
    steps = order_of(store, (1.0,), 0, GLOBAL_BATCH).steps_per_epoch
    plan = Plan(
        run=str(folder), phases=(PlanPhase(0, steps, length=128, micro_batch=8, store=str(folder)),), seed=0,
        global_batch=GLOBAL_BATCH, eval_every_steps=None, masking=Masking(), weights=(1.0,),
    )  # fmt: skip
    drain(plan, 0, 1)  # processes start once
    peak: dict[str, int] = {}
    done = threading.Event()
    watcher = threading.Thread(target=watch, args=(peak, done))
    watcher.start()
    _, seconds = drain(plan, 0, steps)
    done.set()
    watcher.join()
    starts = {share: drain(plan, int(share * steps), int(share * steps) + 1)[0] for share in (0.01, 0.99)}
    return Cost(num_rows, num_rows / seconds, peak, starts)


def main(rows: int) -> None:
    """Print both costs side by side."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    with tempfile.TemporaryDirectory() as folder:
        costs = [measure(Path(folder) / str(n), n) for n in (rows, 10 * rows)]
    print(f"{'':28}" + "".join(f"{cost.rows:>14,}" for cost in costs) + "   rows")
    print(f"{'rows a second':28}" + "".join(f"{cost.rows_per_second:>14,.0f}" for cost in costs))
    for share in costs[0].start_seconds:
        print(f"{f'first step at {share:.0%}, s':28}" + "".join(f"{c.start_seconds[share]:>14.2f}" for c in costs))
    for kind in sorted(set(costs[0].peak_bytes) & set(costs[1].peak_bytes)):
        print(f"{f'{kind}, MB':28}" + "".join(f"{cost.peak_bytes[kind] / MB:>14,.0f}" for cost in costs))


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 100_000)
