"""The stream: the same rows and masks in every step, for any number of ranks, any speeds, any start."""

import dataclasses
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import ray

from data.config import Corpus, Masking, Rows, Tokenizer
from data.order import Order
from data.prepare import prepare
from orchestration.stream import LOOKAHEAD_STEPS, Pacer, Plan, build, parts_of

STEPS = 90


@pytest.fixture(scope="module")
def plan(ray_4_cpus, tmp_path_factory) -> Plan:
    folder = tmp_path_factory.mktemp("stream")
    draw = np.random.default_rng(0)
    lines = [" ".join(f"w{n}" for n in draw.integers(0, 60, draw.integers(3, 30))) for _ in range(400)]
    (folder / "corpus.txt").write_text("\n".join(lines))
    corpus = Corpus(sources=[{"path": str(folder / "corpus.txt"), "document": "line"}], held_out=0.1)
    store = prepare(
        corpus, Tokenizer(vocab_size=80), Rows(length=32, packing="document"), folder, lambda text, fraction: None
    )
    return Plan(
        run=str(folder), store=str(store.path), seed=5, steps=STEPS, global_batch=7, evaluation_batch=4,
        eval_every_steps=40, masking=Masking(),
    )  # fmt: skip


def drain(plan: Plan, start: int, world_size: int, slow_rank: int | None = None):
    """step -> {row id: (inputs, labels)} over all ranks, and step -> held-out row ids; ranks run in threads."""
    pacer = Pacer.remote()
    stream = ray.get(pacer.open.remote(start))
    shards = build(plan, start, world_size, pacer, stream)
    trained: dict[int, dict[int, bytes]] = {}
    evaluated: dict[int, list[int]] = {}
    order_seen: list[list[int]] = [[] for _ in range(world_size)]
    lock = threading.Lock()

    def consume(rank: int) -> None:
        step = start
        for part in parts_of(shards[rank], rank):
            if part.evaluation:
                with lock:
                    evaluated.setdefault(step, []).extend(part.row_ids.tolist())
                continue
            assert part.first_step == step
            order_seen[rank] += range(part.first_step, part.last_step)
            step = part.last_step
            with lock:
                for i, row in enumerate(part.row_ids):
                    rows = trained.setdefault(int(part.step[i]), {})
                    assert int(row) not in rows
                    rows[int(row)] = part.input_ids[i].tobytes() + part.labels[i].tobytes()
            if rank == slow_rank:
                time.sleep(0.05)
            if rank == 0:
                ray.get(pacer.begin.remote(step, {}))

    threads = [threading.Thread(target=consume, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "the stream hangs"
    assert all(steps == list(range(start, plan.steps)) for steps in order_seen)
    return trained, evaluated


@pytest.fixture(scope="module")
def whole(plan):
    return drain(plan, 0, 1)


@pytest.mark.parametrize("world_size, start, slow", [(2, 0, 0), (3, 0, 2), (2, 37, None), (4, 89, None)])
def test_steps_hold_the_same_rows_and_masks_whatever_the_ranks(plan, whole, world_size, start, slow):
    trained, evaluated = drain(plan, start, world_size, slow)
    assert trained == {step: rows for step, rows in whole[0].items() if step >= start}
    expected = {step: sorted(rows) for step, rows in whole[1].items() if step >= start}
    assert {step: sorted(rows) for step, rows in evaluated.items()} == expected


def test_the_stream_is_the_order(plan, whole):
    from data.store import open_store

    store = open_store(Path(plan.store))
    order = Order(store.train.group_rows, plan.seed, plan.global_batch)
    assert order.steps_per_epoch < STEPS  # more than one epoch
    first_epoch = [row for step in range(order.steps_per_epoch) for row in whole[0][step]]
    assert sorted(first_epoch) == list(range(store.train.num_rows))
    window = order.window(0)
    assert all(set(whole[0][step]) == set(rows.tolist()) for step, rows in enumerate(window.rows))


def test_evaluation_loses_no_row_and_comes_when_due(plan, whole):
    from data.store import open_store

    held_out = list(range(open_store(Path(plan.store)).held_out.num_rows))
    assert held_out
    assert {step: sorted(rows) for step, rows in whole[1].items()} == dict.fromkeys((0, 40, 80, STEPS), held_out)


def test_a_finished_run_streams_only_its_last_evaluation(plan, whole):
    trained, evaluated = drain(plan, STEPS, 2)
    assert trained == {}
    assert {step: sorted(rows) for step, rows in evaluated.items()} == {STEPS: sorted(whole[1][STEPS])}


def test_ranks_without_rows_are_served_too(plan):
    """One row a step for two ranks: one of them has none, and still takes part in every step."""
    lone = dataclasses.replace(plan, global_batch=1, steps=20, eval_every_steps=None)
    one, two = drain(lone, 0, 1), drain(lone, 0, 2)
    assert one[0] == two[0] and len(one[0]) == 20


def test_generation_waits_for_training(ray_4_cpus):
    pacer = Pacer.remote()
    stream = ray.get(pacer.open.remote(100))
    assert ray.get(pacer.wait.remote(stream, 100 + LOOKAHEAD_STEPS), timeout=10)
    ahead = pacer.wait.remote(stream, 101 + LOOKAHEAD_STEPS)
    assert ray.wait([ahead], timeout=0.5)[0] == []
    pacer.begin.remote(101, {})
    assert ray.get(ahead, timeout=10)
    stale = pacer.wait.remote(stream, 10_000)
    ray.get(pacer.open.remote(50))
    assert ray.get(stale, timeout=10) is False  # a worker group that started anew ends the old stream
