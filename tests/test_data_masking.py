"""Masking: the exact counts, the 80/10/10 shares, and independence of everything but (seed, epoch, row)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.config import Masking
from data.masking import IGNORED, Vocabulary, draws, mask_rows, philox

VOCABULARY = Vocabulary(size=1000, mask_id=4, special_ids=(0, 1, 2, 3, 4))


def rows(num_rows: int, length: int, seed: int = 0) -> np.ndarray:
    """[CLS] words [SEP] [PAD]..., ragged."""
    draw = np.random.default_rng(seed)
    ids = draw.integers(5, VOCABULARY.size, (num_rows, length)).astype(np.int32)
    ends = draw.integers(2, length, num_rows)
    ids[:, 0] = 2
    ids[np.arange(num_rows), ends] = 3
    ids[np.arange(length) > ends[:, None]] = 0
    return ids


@pytest.mark.parametrize(
    "counter, key, expected",
    [  # Random123's kat_vectors for philox4x32, 10 rounds
        ([0] * 4, (0, 0), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, (0xFFFFFFFF, 0xFFFFFFFF), [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            (0xA4093822, 0x299F31D0),
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_gives_the_published_numbers(counter, key, expected):
    assert philox(np.array(counter, dtype=np.uint32), key).tolist() == expected


def test_shares_are_80_10_10():
    """A hundred thousand targets: 80 % [MASK], 10 % random, 10 % kept; 15 % of the maskable positions in all."""
    ids = rows(9000, 128)
    inputs, labels = mask_rows(ids, np.arange(9000), 0, 1, Masking(), VOCABULARY)
    target = labels != IGNORED
    assert target.sum() > 80_000
    masked = inputs[target] == VOCABULARY.mask_id
    kept = inputs[target] == labels[target]
    assert masked.mean() == pytest.approx(0.8, abs=0.005)
    assert kept.mean() == pytest.approx(0.1 + 0.1 / 995, abs=0.005)
    changed = inputs[target][~masked & ~kept]
    assert changed.min() >= 5  # no special token is put in
    assert len(np.unique(changed)) == 995  # and every other one can be
    maskable = ~np.isin(ids, VOCABULARY.special_ids)
    expected = np.maximum(1, np.rint(maskable.sum(1) * 0.15))
    assert np.array_equal(target.sum(1), np.minimum(expected, maskable.sum(1)))
    places = target[:, 1:20].sum(0) / maskable[:, 1:20].sum(0)  # no place is preferred
    assert np.ptp(places) < 0.06


@settings(max_examples=40, deadline=None)
@given(st.floats(0.01, 0.99), st.integers(1, 60), st.integers(0, 2**32 - 1))
def test_only_ordinary_tokens_are_targets(probability, num_rows, seed):
    ids = rows(num_rows, 16, seed)
    inputs, labels = mask_rows(ids, np.arange(num_rows), 2, seed, Masking(mlm_probability=probability), VOCABULARY)
    target = labels != IGNORED
    special = np.isin(ids, VOCABULARY.special_ids)
    assert not (target & special).any()
    assert np.array_equal(inputs[~target], ids[~target])
    assert np.array_equal(labels[target], ids[target])
    assert (target.any(axis=1) == (~special).any(axis=1)).all()  # every row that can has a target


def test_a_row_of_special_tokens_has_no_target():
    ids = np.array([[2, 3, 0, 0], [2, 9, 3, 0]], dtype=np.int32)
    _, labels = mask_rows(ids, np.array([0, 1]), 0, 0, Masking(), VOCABULARY)
    assert (labels[0] == IGNORED).all()
    assert labels[1].tolist() == [IGNORED, 9, IGNORED, IGNORED]


def test_masks_belong_to_the_row_not_to_its_company():
    """Any grouping, any order of rows, any padding width: the same masks."""
    ids = rows(64, 32)
    whole = mask_rows(ids, np.arange(64), 5, 9, Masking(), VOCABULARY)
    shuffled = np.random.default_rng(0).permutation(64)
    for chosen in (shuffled, np.arange(3), np.array([17])):
        part = mask_rows(ids[chosen], chosen, 5, 9, Masking(), VOCABULARY)
        assert all(np.array_equal(a, b[chosen]) for a, b in zip(part, whole, strict=True))


def test_masks_are_new_every_epoch_unless_static():
    ids = rows(64, 64)
    dynamic = [mask_rows(ids, np.arange(64), epoch, 9, Masking(), VOCABULARY)[1] for epoch in range(2)]
    static = [mask_rows(ids, np.arange(64), epoch, 9, Masking(dynamic=False), VOCABULARY)[1] for epoch in range(2)]
    other = mask_rows(ids, np.arange(64), 0, 10, Masking(), VOCABULARY)[1]
    common = ((dynamic[0] >= 0) & (dynamic[1] >= 0)).sum() / (dynamic[0] >= 0).sum()
    assert 0.05 < common < 0.3  # chance would leave 15 % in common
    assert np.array_equal(*static)
    assert not np.array_equal(dynamic[0], other)


def test_large_row_ids_and_purposes_draw_apart():
    ids = np.array([0, 1, 2**32, 2**40 + 1])
    drawn = [draws(1, 2, ids, 8, purpose).ravel() for purpose in (0, 1)]
    assert len(np.unique(np.concatenate(drawn))) == 64


def test_no_rows_are_masked_to_no_rows():
    """A rank without a row in a step."""
    empty = np.empty((0, 16), np.int32), np.empty(0, np.int64)
    assert [a.shape for a in mask_rows(*empty, 0, 0, Masking(), VOCABULARY)] == [(0, 16), (0, 16)]


def test_shares_can_be_all_mask():
    ids = rows(50, 64)
    inputs, labels = mask_rows(
        ids, np.arange(50), 0, 0, Masking(mask_share=1.0, random_share=0.0), VOCABULARY
    )
    assert (inputs[labels != IGNORED] == VOCABULARY.mask_id).all()
