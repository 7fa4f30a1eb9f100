"""The order: each row as often as its source's weight says, new every epoch, any step without the steps before it."""

import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.order import GROUP_ROWS, WINDOW_ROWS, Order, rank_rows


def one_source(shard_rows: list[int], seed: int, global_batch: int) -> Order:
    return Order(np.array(shard_rows, np.int64), np.zeros(len(shard_rows), np.int64), (1.0,), seed, global_batch)


def steps(order: Order, first: int, last: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows and visits of steps [first, last), through the windows that hold them."""
    found = {}
    for number in range(order.window_of(first), order.window_of(last - 1) + 1):
        window = order.window(number)
        pairs = zip(window.rows, window.visits, strict=True)
        found.update({window.first_step + i: pair for i, pair in enumerate(pairs)})
    return [found[step] for step in range(first, last)]


def epoch_rows(order: Order, epoch: int) -> list[np.ndarray]:
    first = epoch * order.steps_per_epoch
    return [rows for rows, _ in steps(order, first, first + order.steps_per_epoch)]


shards = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 900)), min_size=1, max_size=12)
weights = st.tuples(*[st.sampled_from([0.0, 0.3, 0.5, 1.0, 2.0, 2.5])] * 3)


@settings(max_examples=80, deadline=None)
@given(shards, st.integers(0, 2**32 - 1), st.integers(1, 700))
def test_an_epoch_is_every_row_once(shards, seed, global_batch):
    sources, rows = np.array(sorted(shards)).T
    if not rows.sum():
        return
    order = Order(rows, sources, (1.0, 1.0, 1.0), seed, global_batch)
    for epoch in (0, 3):
        found = epoch_rows(order, epoch)
        assert sorted(np.concatenate(found)) == list(range(rows.sum()))
        assert all(len(ids) == global_batch for ids in found[:-1])
        assert 0 < len(found[-1]) <= global_batch


@settings(max_examples=60, deadline=None)
@given(shards, weights, st.integers(1, 700))
def test_weights_are_visits_per_epoch(shards, weights, global_batch):
    """Over ten epochs the rows of a source are visited 10 x weight times, none more than once oftener than another."""
    sources, rows = np.array(sorted(shards)).T
    order = Order(rows, sources, weights, 7, global_batch)
    if not order.num_rows:
        return
    visited = [0] * rows.sum()
    for ids, visits in steps(order, 0, 10 * order.steps_per_epoch):
        for row, visit in zip(ids, visits, strict=True):
            visited[row] = max(visited[row], visit + 1)
    counts = np.zeros(rows.sum(), int)
    for ids, _ in steps(order, 0, 10 * order.steps_per_epoch):
        np.add.at(counts, ids, 1)
    assert counts.tolist() == visited  # the visits of a row are numbered 0, 1, 2, ...: each has masks of its own
    source_of = np.repeat(sources, rows)
    for source, weight in enumerate(weights):
        of_source = counts[source_of == source]
        if len(of_source):
            assert of_source.max() - of_source.min() <= 1
            per_epoch = max(1, round(weight * len(of_source))) if weight else 0
            assert of_source.sum() == 10 * per_epoch


def test_sources_are_interleaved_evenly():
    """Every window holds the sources in the proportion of the whole, to a row."""
    rows = np.array([100_000, 3_000, 40_000])
    order = Order(rows, np.array([0, 1, 2]), (1.0, 2.0, 0.5), 1, 32)
    expected = np.array([100_000, 6_000, 20_000]) / 126_000
    bounds = np.cumsum(rows)
    for number in range(order.windows_per_epoch):
        ids = np.concatenate(order.window(number).rows)
        share = np.bincount(np.searchsorted(bounds, ids, side="right"), minlength=3)
        assert np.abs(share - expected * len(ids)).max() <= 2


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 2000), st.integers(1, 64), st.integers(0, 5000), st.integers(1, 60))
def test_any_step_can_be_first(num_rows, global_batch, first, count):
    order, again = (one_source([num_rows, 50], 7, global_batch) for _ in range(2))
    for one, other in zip(steps(order, 0, first + count)[first:], steps(again, first, first + count), strict=True):
        assert np.array_equal(one, other)


def test_epochs_and_seeds_differ():
    epochs = [np.concatenate(epoch_rows(one_source([10_240], 7, 16), epoch)) for epoch in range(3)]
    other = np.concatenate(epoch_rows(one_source([10_240], 8, 16), 0))
    for one, two in [(0, 1), (1, 2), (0, 2)]:
        assert (epochs[one] == epochs[two]).mean() < 0.01
    assert (epochs[0] == other).mean() < 0.01


@pytest.mark.parametrize("sources", [1, 20])
def test_a_window_mixes_the_corpus_and_is_read_once(sources):
    """Rows of a step come from all over; an epoch reads at most 1.2 times the store, however many sources there are."""
    shard_rows = np.full(100 * sources, 1111)
    order = Order(shard_rows, np.repeat(np.arange(sources), 100), (1.0,) * sources, 0, 16)
    rows_read = 0
    ends = np.cumsum(shard_rows)
    for number in range(order.windows_per_epoch):
        rows = np.concatenate(order.window(number).rows)
        shard = np.searchsorted(ends, rows, side="right")
        groups = np.unique(shard * 100 + (rows - (ends - shard_rows)[shard]) // GROUP_ROWS)
        rows_read += np.minimum(GROUP_ROWS, 1111 - groups % 100 * GROUP_ROWS).sum()
        assert len(rows) <= WINDOW_ROWS or sources > 1
    assert rows_read <= 1.2 * shard_rows.sum()
    first = steps(order, 0, 200)
    assert np.mean([len(np.unique(np.searchsorted(ends, ids, side="right"))) for ids, _ in first]) > 10


def test_ten_billion_rows_cost_no_memory_and_no_start():
    """10^10 rows in 10^5 shards: a few numbers per shard, and the window of any step at once."""
    shard_rows = 100_000 + np.arange(100_000) % 97
    tracemalloc.start()
    begun = time.monotonic()
    order = Order(shard_rows, np.zeros(100_000, np.int64), (1.0,), 7, 4096)
    late = order.window(order.window_of(2_000_000))
    seconds = time.monotonic() - begun
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert order.num_rows > 10**10 and late.epoch == 0 and len(late.rows[0]) == 4096
    assert peak < 20_000_000, f"{peak:,} bytes, {seconds:.2f} s"


def test_a_corpus_smaller_than_a_step_is_one_step():
    order = one_source([5], 0, 64)
    assert order.steps_per_epoch == 1
    assert [sorted(ids) for ids, _ in steps(order, 0, 3)] == [list(range(5))] * 3


def test_no_rows_are_refused():
    with pytest.raises(ValueError, match="no rows"):
        _ = one_source([], 0, 4).steps_per_epoch


@given(st.integers(0, 50), st.integers(1, 9))
def test_ranks_share_a_step_evenly(num_rows, world_size):
    parts = [rank_rows(np.arange(num_rows), rank, world_size) for rank in range(world_size)]
    assert sorted(np.concatenate(parts)) == list(range(num_rows))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
