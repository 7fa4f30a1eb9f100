"""The order: each row once an epoch, new every epoch, any step without the steps before it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.order import WINDOW_ROWS, Order, rank_rows


def steps(order: Order, first: int, last: int) -> list[np.ndarray]:
    """The rows of steps [first, last), through the windows that hold them."""
    rows = {}
    for number in range(order.window_of(first), order.window_of(last - 1) + 1):
        window = order.window(number)
        rows.update({window.first_step + i: ids for i, ids in enumerate(window.rows)})
    return [rows[step] for step in range(first, last)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=60), st.integers(0, 2**32 - 1), st.integers(1, 700))
def test_an_epoch_is_every_row_once(group_rows, seed, global_batch):
    order = Order(np.array(group_rows), seed, global_batch)
    for epoch in (0, 3):
        first = epoch * order.steps_per_epoch
        rows = steps(order, first, first + order.steps_per_epoch)
        assert sorted(np.concatenate(rows)) == list(range(order.num_rows))
        assert all(len(ids) == global_batch for ids in rows[:-1])
        assert 0 < len(rows[-1]) <= global_batch


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 2000), st.integers(1, 64), st.integers(0, 5000), st.integers(1, 60))
def test_any_step_can_be_first(num_rows, global_batch, first, count):
    order = Order(np.full(num_rows // 50 + 1, 50), 7, global_batch)
    again = Order(np.full(num_rows // 50 + 1, 50), 7, global_batch)
    for one, other in zip(steps(order, 0, first + count)[first:], steps(again, first, first + count), strict=True):
        assert np.array_equal(one, other)


def test_epochs_and_seeds_differ():
    order = Order(np.full(40, 256), 7, 16)
    n = order.steps_per_epoch
    epochs = [np.concatenate(steps(order, e * n, (e + 1) * n)) for e in range(3)]
    other = np.concatenate(steps(Order(np.full(40, 256), 8, 16), 0, n))
    for one, two in [(0, 1), (1, 2), (0, 2)]:
        assert (epochs[one] == epochs[two]).mean() < 0.01
    assert (epochs[0] == other).mean() < 0.01


def test_a_window_mixes_the_corpus_and_is_read_once():
    """Rows of a step come from all over; an epoch reads little more than the store."""
    order = Order(np.full(400, 256), 0, 16)
    groups_read = 0
    for number in range(order.windows_per_epoch):
        rows = np.concatenate(order.window(number).rows)
        groups_read += len(np.unique(rows // 256))
        assert len(rows) <= WINDOW_ROWS
    assert groups_read <= 400 * 1.06
    first = steps(order, 0, 200)
    assert np.mean([len(np.unique(ids // 256)) for ids in first]) > 10


def test_a_corpus_smaller_than_a_step_is_one_step():
    order = Order(np.array([5]), 0, 64)
    assert order.steps_per_epoch == 1
    assert [sorted(ids) for ids in steps(order, 0, 3)] == [list(range(5))] * 3


def test_no_rows_are_refused():
    with pytest.raises(ValueError, match="no rows"):
        _ = Order(np.array([], dtype=np.int64), 0, 4).steps_per_epoch


@given(st.integers(0, 50), st.integers(1, 9))
def test_ranks_share_a_step_evenly(num_rows, world_size):
    parts = [rank_rows(np.arange(num_rows), rank, world_size) for rank in range(world_size)]
    assert sorted(np.concatenate(parts)) == list(range(num_rows))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
