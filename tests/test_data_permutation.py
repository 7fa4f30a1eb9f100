"""Computed permutations: each number once, back again, unlike each other, without memory."""

import tracemalloc

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from data.permutation import permute, places_of


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 3000), st.integers(0, 2**32 - 1), st.integers(0, 2**31))
def test_every_number_stands_once_and_is_found_again(size, seed, visit):
    places = np.arange(size)
    numbers = permute(places, size, (seed, 0, visit))
    assert sorted(numbers) == list(range(size))
    assert np.array_equal(places_of(numbers, size, (seed, 0, visit)), places)


def test_keys_give_permutations_of_their_own():
    size = 5000
    keys = [(7, 0, 0), (7, 0, 1), (7, 1, 0), (8, 0, 0)]
    numbers = [permute(np.arange(size), size, key) for key in keys]
    for i, one in enumerate(numbers):
        for other in [np.arange(size), *numbers[:i]]:
            assert (one == other).mean() < 0.005


def test_numbers_are_spread_evenly():
    """Of 200 permutations of 50 numbers, each number stands at each place about 4 times: chi-square within 5 sigma."""
    size, keys = 50, 200
    counts = np.zeros((size, size))
    for key in range(keys):
        counts[np.arange(size), permute(np.arange(size), size, (3, 0, key))] += 1
    statistic = ((counts - keys / size) ** 2 / (keys / size)).sum()
    freedom = (size - 1) ** 2
    assert abs(statistic - freedom) < 5 * np.sqrt(2 * freedom)


def test_a_billion_numbers_cost_nothing():
    tracemalloc.start()
    numbers = permute(np.arange(10**9 - 1000, 10**9), 10**9, (1, 2, 3))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(np.unique(numbers)) == 1000 and numbers.max() < 10**9
    assert peak < 1_000_000
