"""Philox: the published numbers, and numbers that depend on nothing but what they are asked for."""

import numpy as np
import pytest

from data.philox import draws, draws_at, philox

VECTORS = [  # Random123's kat_vectors for philox4x32, 10 rounds
    ([0] * 4, (0, 0), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, (0xFFFFFFFF, 0xFFFFFFFF), [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        (0xA4093822, 0x299F31D0),
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize("counter, key, expected", VECTORS)
def test_philox_gives_the_published_numbers(counter, key, expected):
    assert philox(np.array(counter, dtype=np.uint32), key).tolist() == expected


def test_each_counter_may_have_a_key_of_its_own():
    counters, keys, expected = (np.array(part) for part in zip(*VECTORS, strict=True))
    assert philox(counters.astype(np.uint32), (keys[:, 0], keys[:, 1])).tolist() == expected.tolist()


def test_large_row_ids_and_purposes_draw_apart():
    ids = np.array([0, 1, 2**32, 2**40 + 1])
    drawn = [draws(1, 2, ids, 8, purpose).ravel() for purpose in (0, 1)]
    assert len(np.unique(np.concatenate(drawn))) == 64


def test_a_number_does_not_depend_on_what_else_is_drawn():
    """Neither on the rows beside it, nor on how many are drawn, nor on where drawing begins."""
    ids, visits = np.arange(3000) * 2**30, np.arange(3000) % 7
    whole = draws(5, visits, ids, 41, 3)
    assert np.array_equal(draws(5, visits, ids, 9, 3), whole[:, :9])
    assert np.array_equal(draws(5, visits, ids, 12, 3, first=8), whole[:, 8:20])
    assert np.array_equal(draws(5, 4, ids[4::7], 41, 3), whole[4::7])
    rows, places = np.nonzero(whole % 3 == 0)  # about 40,000: more than are made at once
    assert np.array_equal(draws_at(5, visits[rows], ids[rows], places, 3), whole[rows, places])


def test_nothing_is_drawn_for_no_rows():
    none = np.empty(0, np.int64)
    assert draws(1, none, none, 5, 0).shape == (0, 5)
    assert draws(1, 0, np.arange(3), 0, 0).shape == (3, 0)
    assert draws_at(1, none, none, none, 0).shape == (0,)
