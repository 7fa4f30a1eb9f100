"""The stream: the same rows and masks in every step, for any number of ranks, any speeds, any start."""

import dataclasses
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from made_store import made_store
from rank_threads import in_threads

from data.batches import Part, decode
from data.config import Masking
from data.order import GROUP_ROWS, WINDOW_ROWS
from data.store import Shards, Store, open_store
from orchestration.pacer import END, LOOKAHEAD_STEPS, MAKE, OVER, Pacer
from orchestration.segments import Plan, PlanPhase, order_of, window_of
from orchestration.stream import _ends_of_items, build, generate, parts_of

STEPS = 90


def plan_of(folder: Path, *stores: Store, steps: tuple[int, ...] = (STEPS,), **settings: Any) -> Plan:
    """A phase for each store, of so many steps."""
    defaults = {
        "seed": 5, "global_batch": 7, "eval_every_steps": 40, "masking": Masking(), "weights": (1.0,),
        "needs_draws": True,
    }  # fmt: skip
    ends = [sum(steps[: number + 1]) for number in range(len(steps))]
    phases = tuple(
        PlanPhase(end - count, end, length=16, micro_batch=4, store=str(store.path))
        for store, end, count in zip(stores, ends, steps, strict=True)
    )
    return Plan(run=str(folder), phases=phases, **{**defaults, **settings})


def ending(plan: Plan, step: int) -> Plan:
    """The plan of a run that ends there."""
    return dataclasses.replace(plan, phases=(dataclasses.replace(plan.phases[0], end_step=step),))


@pytest.fixture(scope="module")
def plan(ray_4_cpus, tmp_path_factory) -> Plan:
    folder = tmp_path_factory.mktemp("stream")
    return plan_of(folder, made_store(folder / "store", [170, 1, 189], held_out=41))


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
                    arrays = part.input_ids[i], part.labels[i], part.draws[i]
                    rows[int(row)] = b"".join(array.tobytes() for array in arrays)
            if rank == slow_rank:
                time.sleep(0.05)
            if rank == 0:
                ray.get(pacer.begin.remote(step, {}))

    in_threads(world_size, consume)
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
    store = open_store(plan.phases[0].store)
    order = order_of(store, plan.weights, plan.seed, plan.global_batch)
    assert order.steps_per_epoch < STEPS  # more than one epoch
    first_epoch = [row for step in range(order.steps_per_epoch) for row in whole[0][step]]
    assert sorted(first_epoch) == list(range(store.train.num_rows))
    window = order.window(0)
    assert all(set(whole[0][step]) == set(rows.tolist()) for step, rows in enumerate(window.rows))


def test_evaluation_loses_no_row_and_comes_when_due(plan, whole):
    held_out = list(range(open_store(plan.phases[0].store).held_out.num_rows))
    assert held_out
    assert {step: sorted(rows) for step, rows in whole[1].items()} == dict.fromkeys((0, 40, 80, STEPS), held_out)


def test_a_finished_run_streams_only_its_last_evaluation(plan, whole):
    trained, evaluated = drain(plan, STEPS, 2)
    assert trained == {}
    assert {step: sorted(rows) for step, rows in evaluated.items()} == {STEPS: sorted(whole[1][STEPS])}


def test_ranks_without_rows_are_served_too(plan):
    """One row a step for two ranks: one of them has none, and still takes part in every step."""
    lone = dataclasses.replace(ending(plan, 20), global_batch=1, eval_every_steps=None)
    one, two = drain(lone, 0, 1), drain(lone, 0, 2)
    assert one[0] == two[0] and len(one[0]) == 20


def test_generation_waits_for_training(ray_4_cpus):
    pacer = Pacer.remote()
    stream = ray.get(pacer.open.remote(100))
    assert ray.get(pacer.wait.remote(stream, 100 + LOOKAHEAD_STEPS), timeout=10) == MAKE
    ahead = pacer.wait.remote(stream, 101 + LOOKAHEAD_STEPS)
    assert ray.wait([ahead], timeout=0.5)[0] == []
    pacer.begin.remote(101, {})
    assert ray.get(ahead, timeout=10) == MAKE
    stale = pacer.wait.remote(stream, 10_000)
    ray.get(pacer.open.remote(50))
    assert ray.get(stale, timeout=10) == OVER  # a worker group that started anew ends the old stream


def run_alone(plan: Plan, start: int, world_size: int = 1) -> list[Part]:
    """All parts from `start` on, generated in this process, window after window, without a wait."""
    pacer = Pacer.remote()
    stream = ray.get(pacer.open.remote(start))
    ray.get(pacer.begin.remote(10**9, {}))
    windows = {"begin": np.array([window_of(plan, start)]), "end": np.array([window_of(plan, plan.steps) + 1])}
    blocks = generate(windows, plan, start, world_size, pacer, stream)
    return [decode(payload) for block in blocks for payload in block["part"]]


@pytest.fixture
def rows_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each row group that is read from storage."""
    read: list[int] = []
    read_group: Callable[..., Any] = Shards._read_group

    def counted(self: Shards, *place: int) -> Any:
        table = read_group(self, *place)
        read.append(table.num_rows)
        return table

    monkeypatch.setattr(Shards, "_read_group", counted)
    return read


def test_an_epoch_reads_the_store_once_and_a_restart_reads_what_is_left(ray_4_cpus, tmp_path, rows_read):
    sizes = [3000, 4001, 2999, 3500, 3777, 3000, 4000]
    store = made_store(tmp_path / "store", sizes, length=8)
    order = order_of(store, (1.0,), 5, 32)
    plan = plan_of(tmp_path, store, steps=(order.steps_per_epoch,), global_batch=32, eval_every_steps=None)
    plan = dataclasses.replace(plan, eval_every_steps=10**9)
    assert order.windows_per_epoch == 3
    whole = run_alone(plan, 0, world_size=3)
    assert sum(rows_read) <= 1.2 * sum(sizes), "whatever the ranks, a window is read once"
    for share in (0.01, 0.5, 0.99):
        start = int(share * plan.steps)
        rows_read.clear()
        rest = run_alone(plan, start, world_size=2)
        left = sum(sizes) - 32 * start
        assert sum(rows_read) <= left + WINDOW_ROWS + 2 * GROUP_ROWS * order.windows_per_epoch
        assert by_row(rest) == {key: row for key, row in by_row(whole).items() if key[0] >= start}


def by_row(parts: list[Part]) -> dict[tuple[int, int], tuple[bytes, ...]]:
    """(step, row id) -> what the model sees and guesses, of all ranks."""
    return {
        (int(part.step[i]), int(part.row_ids[i])): (part.input_ids[i].tobytes(), part.labels[i].tobytes())
        for part in parts
        if not part.evaluation
        for i in range(len(part.row_ids))
    }


def test_weights_reach_the_stream_and_each_visit_has_masks_of_its_own(ray_4_cpus, tmp_path):
    store = made_store(tmp_path / "store", [60, 60], sources=[0, 1])
    plan = plan_of(tmp_path, store, steps=(18,), global_batch=10, weights=(0.5, 2.5))
    parts = run_alone(plan, 0)
    rows = np.concatenate([part.row_ids for part in parts if not part.evaluation])
    assert np.bincount(rows // 60).tolist() == [30, 150]
    assert sorted(np.bincount(rows, minlength=120)[60:]) == [2] * 30 + [3] * 30
    labels: dict[int, set[bytes]] = {}
    for part in parts:
        for i, row in enumerate(part.row_ids):
            labels.setdefault(int(row), set()).add(part.labels[i].tobytes())
    assert np.mean([len(labels[row]) for row in range(60, 120)]) > 1.5


@pytest.mark.parametrize("packing", ["document", "packed", "next_sentence", "sentence_order"])
def test_the_model_is_told_of_segments_where_the_packing_has_them(ray_4_cpus, tmp_path, packing):
    store = made_store(tmp_path / "store", [40], packing=packing)
    plan = plan_of(tmp_path, store, steps=(4,), global_batch=10, eval_every_steps=None)
    parts = [part for part in run_alone(plan, 0, world_size=2) if not part.evaluation]
    assert sum(len(part.row_ids) for part in parts) == 40
    for part in parts:
        assert (part.segments is None) == (packing == "document")
        assert (part.pair_labels is None) == (packing in ("document", "packed"))
        if part.segments is not None:
            filled = np.arange(16) < part.lengths[:, None]
            assert (part.segments == ((np.arange(16) >= 3) & filled)).all()
        if part.pair_labels is not None:
            assert part.pair_labels.tolist() == (part.row_ids % 2).tolist()


def test_the_share_of_targets_follows_the_run(ray_4_cpus, tmp_path):
    store = made_store(tmp_path / "store", [400], length=64)
    masking = Masking(mlm_probability=0.4, final_mlm_probability=0.1)
    plan = plan_of(tmp_path, store, steps=(10,), global_batch=40, masking=masking, eval_every_steps=None)
    parts = [part for part in run_alone(plan, 0) if not part.evaluation]
    shares = {}
    for part in parts:
        for step in np.unique(part.step):
            here = part.step == step
            shares[int(step)] = (part.labels[here] >= 0).sum() / (part.lengths[here] - 2).sum()
    assert [round(shares[step], 1) for step in (0, 9)] == [0.4, 0.1]
    assert all(shares[step] > shares[step + 1] for step in range(9))


def test_phases_follow_one_another_each_on_its_own_rows(ray_4_cpus, tmp_path):
    """The rows and masks of each phase are those of a run of that phase alone; only the steps are numbered through."""
    short = made_store(tmp_path / "short", [170, 1], held_out=11)
    long = made_store(tmp_path / "long", [120], held_out=7, length=24)
    plan = plan_of(tmp_path, short, long, steps=(30, 20))
    alone = [by_row(run_alone(plan_of(tmp_path, store, steps=(n,)), 0)) for store, n in ((short, 30), (long, 20))]
    expected = alone[0] | {(step + 30, row): seen for (step, row), seen in alone[1].items()}
    parts = run_alone(plan, 0, world_size=2)
    assert by_row(parts) == expected
    held_out: dict[int, list[int]] = {}
    for part in parts:
        if part.evaluation:
            held_out.setdefault(part.first_step, []).extend(part.row_ids.tolist())
            assert part.input_ids.shape[1] == (16 if part.first_step < 30 else 24)
    assert {step: sorted(rows) for step, rows in held_out.items()} == {
        0: list(range(11)), 30: list(range(7)), 40: list(range(7)), 50: list(range(7)),
    }  # fmt: skip
    for start in (13, 29, 30, 31, 49, 50):  # inside a phase, at the border, at the end
        rest = run_alone(plan, start, world_size=3)
        assert by_row(rest) == {key: seen for key, seen in expected.items() if key[0] >= start}
    steps = [part.first_step for part in drain_parts(plan, 25, 2)[0] if not part.evaluation]
    assert steps[0] == 25 and 30 in steps and steps == sorted(steps)


def drain_parts(plan: Plan, start: int, world_size: int, spent_at: int | None = None) -> list[list[Part]]:
    """The parts of each rank through Ray Data; at step `spent_at` the ranks agree that the budget is spent."""
    pacer = Pacer.remote()
    stream = ray.get(pacer.open.remote(start))
    shards = build(plan, start, world_size, pacer, stream)
    seen: list[list[Part]] = [[] for _ in range(world_size)]

    def consume(rank: int) -> None:
        for part in parts_of(shards[rank], rank):
            seen[rank].append(part)
            if rank == 0 and not part.evaluation:
                ray.get(pacer.begin.remote(part.last_step, {}))
                if spent_at is not None and part.first_step <= spent_at < part.last_step:
                    ray.get(pacer.finish.remote())

    in_threads(world_size, consume)
    return seen


@pytest.mark.timeout(180)
@pytest.mark.parametrize("held_out", [41, pytest.param(0, marks=pytest.mark.soak)])
def test_a_spent_budget_ends_a_stream_of_a_billion_steps_with_one_evaluation(ray_4_cpus, tmp_path, held_out):
    store = made_store(tmp_path / "store", [170, 1, 189], held_out=held_out)
    endless = plan_of(tmp_path, store, steps=(10**9,), eval_every_steps=None)
    ends = _ends_of_items(window_of(endless, endless.steps))
    assert len(ends) <= 400, "Ray keeps an item for each task from the start"
    assert ends == sorted(set(ends)) and ends[-1] == window_of(endless, endless.steps), "and they are all windows"
    ranks = drain_parts(endless, 70, 2, spent_at=150)
    trained = [{part.last_step for part in parts if not part.evaluation} for parts in ranks]
    assert trained[0] == trained[1], "every rank gets the same steps, also those that are passed over"
    assert 150 < max(trained[0]) <= 150 + LOOKAHEAD_STEPS + 2 * 16
    evaluated = sorted(row for parts in ranks for part in parts if part.evaluation for row in part.row_ids.tolist())
    assert evaluated == list(range(held_out))
    assert all(parts[-1].evaluation is bool(held_out) for parts in ranks)


def test_after_the_end_one_waiter_makes_the_evaluation_and_the_others_nothing(ray_4_cpus):
    pacer = Pacer.remote()
    stream = ray.get(pacer.open.remote(0))
    waiting = [pacer.wait.remote(stream, 10_000 + step) for step in range(3)]
    assert ray.wait(waiting, timeout=0.5)[0] == []
    ray.get(pacer.finish.remote())
    answers = ray.get([*waiting, pacer.wait.remote(stream, 0)], timeout=10)
    assert sorted(answers) == [END, OVER, OVER, OVER]
    twice = [pacer.wait.remote(stream, step) for step in (10_000, 10_001, 10_002, 0)]
    assert ray.get(twice, timeout=10) == answers, "an answer that was lost on its way is given again"
    again = ray.get(pacer.open.remote(5))
    assert ray.get(pacer.wait.remote(again, 5), timeout=10) == MAKE
