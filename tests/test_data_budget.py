"""budget: every row stands in one batch, no batch is over the budget, and ragged rows are padded little."""

import numpy as np
import pytest

from data.budget import FEW_ROWS, budgeted

RANDOM = np.random.default_rng(0)
RAGGED = {
    "uniform": RANDOM.integers(3, 60, 1000),
    "pages": np.clip(RANDOM.lognormal(3.5, 1, 600).astype(int), 3, 512),
    "tweets": np.clip(RANDOM.lognormal(2.5, 0.6, 1500).astype(int), 3, 512),
}


@pytest.mark.parametrize("name", RAGGED)
def test_ragged_rows_are_padded_by_15_percent_at_most(name):
    lengths = RAGGED[name]
    batches = list(budgeted(lengths, 8192))
    positions = sum(int(lengths[rows].max()) * len(rows) for rows in batches)
    assert positions / lengths.sum() <= 1.15
    assert positions / len(batches) > 1000, "batches are no crumbs"
    unsorted = sum(int(some.max()) * len(some) for some in np.array_split(lengths, len(batches)))
    assert unsorted / lengths.sum() > 1.5, "the rows are ragged"


@pytest.mark.parametrize("tokens", [1, 64, 700, 8192])
def test_every_row_once_and_within_the_budget(tokens):
    lengths = RAGGED["pages"]
    batches = list(budgeted(lengths, tokens))
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    assert all(len(rows) == 1 or len(rows) * lengths[rows].max() <= tokens for rows in batches)
    longest = [int(lengths[rows].max()) for rows in batches]
    assert longest == sorted(longest, reverse=True)


def test_few_rows_go_together_and_none_make_no_batch():
    assert [rows.tolist() for rows in budgeted(np.array([1, 50, 2]), 8192)] == [[1, 2, 0]]
    assert list(budgeted(np.array([], np.int64), 8192)) == []
    assert [len(rows) for rows in budgeted(np.array([0] * (FEW_ROWS + 5)), 8192)] == [FEW_ROWS + 5]
