"""Masking: exact choices and counts, the published laws, and independence of everything but (seed, visit, row)."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.config import Masking
from data.masking import IGNORED, Vocabulary, mask_rows, mlm_probability, token_draws
from data.philox import draws

VOCABULARY = Vocabulary(size=1000, mask_id=4, special_ids=(0, 1, 2, 3, 4))
STRATEGIES = ("token", "whole_word", "span", "ngram")
each_strategy = pytest.mark.parametrize("strategy", STRATEGIES)


def rows(num_rows: int, length: int, seed: int = 0, pad: int = 0, size: int = 1000) -> np.ndarray:
    """[CLS] tokens [SEP] tokens [SEP] [PAD]..., ragged."""
    draw = np.random.default_rng(seed)
    ids = draw.integers(5, size, (num_rows, length)).astype(np.int32)
    ends = draw.integers(2, length, num_rows)
    ids[:, 0] = 2
    ids[np.arange(num_rows), ends] = 3
    if length > 20:
        ids[::3, 9] = 3
    ids[np.arange(length) > ends[:, None]] = pad
    return ids


def words(ids: np.ndarray, seed: int = 0, share: float = 0.6) -> np.ndarray:
    """Word starts, at random; behind [CLS] often none, as where the row before holds the beginning of the word."""
    return (np.random.default_rng(seed).random(ids.shape) < share) | np.isin(ids, VOCABULARY.special_ids)


def masked(ids: np.ndarray, masking: Masking, **given: np.ndarray | int | Vocabulary) -> tuple[np.ndarray, np.ndarray]:
    """`mask_rows` with what a test does not care about filled in."""
    options = {
        "word_starts": words(ids), "row_ids": np.arange(len(ids)), "visits": np.zeros(len(ids), np.int64),
        "probability": np.full(len(ids), masking.mlm_probability), "seed": 9, "vocabulary": VOCABULARY, **given,
    }  # fmt: skip
    return mask_rows(ids, masking=masking, **options)


def runs_by_hand(
    ids: np.ndarray, starts: np.ndarray, row_id: int, visit: int, probability: float, seed: int, masking: Masking
) -> list[list[list[int]]]:
    """Runs of one row as lists of words, a word as a list of places: the rules of data/masking.py word for word."""
    special = np.isin(ids, VOCABULARY.special_ids)
    found: list[list[int]] = []  # words and special tokens
    for place in range(len(ids)):
        if special[place] or starts[place] or place == 0 or special[place - 1]:
            found.append([])
        found[-1].append(place)
    eligible = [number for number, word in enumerate(found) if not special[word[0]]]
    if not eligible:
        return []
    lots = draws(seed, visit, np.array([row_id]), len(ids), 0)[0]
    order = sorted(eligible, key=lambda number: (lots[number], number))
    if masking.strategy == "span":
        weights = [(1 - masking.span_probability) ** i for i in range(masking.max_span)]
    else:
        weights = [1 / n for n in range(1, {"whole_word": 1, "ngram": masking.max_ngram}[masking.strategy] + 1)]
    longest = draws(seed, visit, np.array([row_id]), len(ids), 3)[0] / 2**32
    room = max(1, round(sum(not s for s in special) * probability))
    if all(len(found[number]) > room for number in eligible):
        room = len(found[order[0]])
    runs: list[list[list[int]]] = []
    taken: set[int] = set()
    for turn, number in enumerate(order):
        wanted = 1 + sum(longest[turn] >= sum(weights[: i + 1]) / sum(weights) for i in range(len(weights) - 1))
        run: list[list[int]] = []
        while len(run) < wanted and number in set(eligible) - taken and len(found[number]) <= room:
            run.append(found[number])
            room -= len(found[number])
            taken.add(number)
            number += 1
        runs += [run] if run else []
    return runs


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(STRATEGIES[1:]), st.floats(0.01, 0.99), st.integers(1, 12), st.integers(3, 40),
    st.floats(0.1, 1), st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_runs_are_chosen_as_the_rules_say(strategy, probability, num_rows, length, share, seed):
    masking = Masking(strategy=strategy, mask_share=0.5, random_share=0.3, max_span=5)
    ids = rows(num_rows, length, seed)[:, seed % 2 :]  # every other time without [CLS]
    starts, visits = words(ids, seed, share), np.arange(num_rows) % 3
    inputs, labels = masked(
        ids, masking, word_starts=starts, visits=visits, probability=np.full(num_rows, probability), seed=seed
    )
    for row in range(num_rows):
        runs = runs_by_hand(ids[row], starts[row], row, int(visits[row]), probability, seed, masking)
        places = sorted(place for run in runs for word in run for place in word)
        assert np.flatnonzero(labels[row] != IGNORED).tolist() == places
        for run in runs if strategy == "span" else []:  # all of a span is [MASK], or all random, or all kept
            inside = [place for word in run for place in word]
            seen = inputs[row, inside]
            assert (seen == 4).all() or (seen == ids[row, inside]).all() or (
                (seen != 4).all() and ((seen != ids[row, inside]).mean() >= 0.5)
            )


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(STRATEGIES), st.floats(0.01, 0.99), st.integers(1, 60), st.integers(0, 2**32 - 1))
def test_targets_are_ordinary_whole_and_within_the_budget(strategy, probability, num_rows, seed):
    ids = rows(num_rows, 30, seed)
    starts = words(ids, seed)
    share = np.linspace(0.01, probability, num_rows)
    inputs, labels = masked(ids, Masking(strategy=strategy), word_starts=starts, probability=share, seed=seed)
    target, special = labels != IGNORED, np.isin(ids, VOCABULARY.special_ids)
    assert inputs.dtype == labels.dtype == np.int32
    assert not (target & special).any()
    assert np.array_equal(inputs[~target], ids[~target]) and np.array_equal(labels[target], ids[target])
    assert not np.isin(inputs[target], [0, 1, 2, 3]).any()
    assert (target.any(axis=1) == (~special).any(axis=1)).all()  # every row that can has a target
    budget = np.minimum(np.maximum(1, np.rint((~special).sum(1) * share)), (~special).sum(1))
    if strategy == "token":
        assert np.array_equal(target.sum(1), budget)
        return
    inside = ~starts & ~special  # continues the word before it, if there is one
    inside[:, 1:] &= ~special[:, :-1]
    inside[:, 0] = False
    assert np.array_equal(target[:, 1:][inside[:, 1:]], target[:, :-1][inside[:, 1:]])  # whole words whole
    for row in range(num_rows):
        cuts = np.flatnonzero(~inside[row])
        sizes = np.diff([*cuts, 30])
        chosen, left = sizes[target[row, cuts]], sizes[~target[row, cuts] & ~special[row, cuts]]
        if chosen.sum() > budget[row]:  # no word is short enough: one of them
            assert len(chosen) == 1 and min([*chosen, *left]) > budget[row]
        else:  # what is not spent no word has room in
            assert left.size == 0 or left.min() > budget[row] - chosen.sum()


@pytest.mark.parametrize(
    ("num_rows", "length", "seed", "visit", "digest"),
    [
        (64, 32, 0, 0, "35ffd3bf53f1dac6"),
        (64, 32, 0, 5, "afceecd97ca6156e"),
        (300, 128, 3, 2**32 - 1, "3b6d6be11e673687"),
    ],
)
def test_single_tokens_are_masked_as_in_every_run_before(num_rows, length, seed, visit, digest):
    """Runs that were begun with an earlier version go on with the same masks."""
    ids = rows(num_rows, length, seed)
    inputs, labels = masked(ids, Masking(), row_ids=np.arange(num_rows) + 2**33, visits=np.full(num_rows, visit))
    assert hashlib.sha256(inputs.tobytes() + labels.tobytes()).hexdigest()[:16] == digest


def test_frozen_masks_of_two_rows():
    ids = np.array([[2, 514, 756, 950, 39, 148, 823, 948, 252, 315, 3, 0], [2, 828, 260, 412, 645, 3] + [0] * 6])
    inputs, labels = masked(
        ids.astype(np.int32), Masking(mlm_probability=0.4, mask_share=0.4, random_share=0.3),
        row_ids=np.array([7, 2**32 + 7]), visits=np.array([3, 3]), seed=11,
    )  # fmt: skip
    assert inputs[0].tolist() == [2, 514, 496, 950, 39, 4, 823, 948, 252, 315, 3, 0]
    assert inputs[1].tolist() == [2, 4, 260, 412, 562, 3] + [0] * 6
    assert np.flatnonzero(labels[0] != IGNORED).tolist() == [1, 2, 4, 5]
    assert np.flatnonzero(labels[1] != IGNORED).tolist() == [1, 4]


@each_strategy
def test_masks_belong_to_the_row_not_to_its_company(strategy, monkeypatch):
    """Any grouping, any order of rows, any padding width, any visits beside it: the same masks."""
    masking = Masking(strategy=strategy)
    ids = rows(64, 32)
    starts, row_ids, visits, share = words(ids), np.arange(64) * 2**31, np.arange(64) % 5, np.linspace(0.05, 0.6, 64)
    given = {"word_starts": starts, "row_ids": row_ids, "visits": visits, "probability": share}
    whole = masked(ids, masking, **given)
    shuffled = np.random.default_rng(0).permutation(64)
    for chosen in (shuffled, np.arange(3), np.array([17])):
        part = masked(ids[chosen], masking, **{key: value[chosen] for key, value in given.items()})
        assert all(np.array_equal(a, b[chosen]) for a, b in zip(part, whole, strict=True))
    padding = (0, 0), (0, 11)
    wide = masked(np.pad(ids, padding), masking, **{**given, "word_starts": np.pad(starts, padding)})
    assert all(np.array_equal(a[:, :32], b) for a, b in zip(wide, whole, strict=True))
    assert (wide[1][:, 32:] == IGNORED).all()
    monkeypatch.setattr("data.masking.PIECE_TOKENS", 100)  # three rows at once
    assert all(np.array_equal(a, b) for a, b in zip(masked(ids, masking, **given), whole, strict=True))


@each_strategy
def test_masks_are_new_at_every_visit_and_static_ones_come_in_turn(strategy):
    ids = rows(64, 64)

    def at(visit: int, **options: object) -> np.ndarray:
        return masked(ids, Masking(strategy=strategy, **options), visits=np.full(64, visit))[1]

    common = ((at(0) >= 0) & (at(1) >= 0)).sum() / (at(0) >= 0).sum()
    assert 0.05 < common < 0.35  # chance would leave 15 % in common, more in short rows
    copies = [at(visit, dynamic=False, copies=3) for visit in range(5)]
    assert np.array_equal(copies[0], copies[3]) and np.array_equal(copies[1], copies[4])
    assert len({copy.tobytes() for copy in copies}) == 3
    assert np.array_equal(at(0, dynamic=False, copies=1), at(4, dynamic=False, copies=1))
    assert not np.array_equal(at(0), masked(ids, Masking(strategy=strategy), seed=10)[1])


@each_strategy
def test_shares_are_80_10_10(strategy):
    """A hundred thousand targets: 80 % [MASK], 10 % random, 10 % kept; random ones uniform over ordinary tokens."""
    vocabulary = Vocabulary(size=55, mask_id=4, special_ids=(0, 1, 2, 3, 4))
    ids = rows(11_000, 128, size=55)
    inputs, labels = masked(ids, Masking(strategy=strategy), vocabulary=vocabulary)
    target = labels != IGNORED
    assert target.sum() > 100_000
    assert target.sum() / (ids > 4).sum() == pytest.approx(0.15, abs=0.002)
    seen, true = inputs[target], labels[target]
    assert (seen == 4).mean() == pytest.approx(0.8, abs=0.01)
    assert (seen == true).mean() == pytest.approx(0.1 + 0.1 / 50, abs=0.01)
    changed = seen[(seen != 4) & (seen != true)]
    assert changed.min() >= 5  # no special token is put in
    counts = np.bincount(changed, minlength=55)[5:]
    assert np.abs(counts - counts.mean()).max() < 5 * np.sqrt(counts.mean())  # and every other one alike


@each_strategy
def test_no_place_is_preferred(strategy):
    """Words of one to three tokens in equal numbers: each place is a target as often as any other.

    Runs begin at any word, so the first words of a row are in fewer of them; runs of words are tested behind those.
    """
    masking = Masking(strategy=strategy, max_span=4)
    ids = np.random.default_rng(0).integers(5, 1000, (30_000, 60)).astype(np.int32)
    starts = np.tile(np.array([1, 1, 0, 1, 0, 0], bool), 10)[None].repeat(30_000, 0)
    _, labels = masked(ids, masking, word_starts=starts)
    shares = (labels != IGNORED).mean(axis=0)
    assert shares.mean() == pytest.approx(0.15, abs=0.002)
    if strategy == "token":
        assert np.abs(shares - 0.15).max() < 5 * np.sqrt(0.15 * 0.85 / 30_000)
    by_word = shares[3 * 6 : 54].reshape(-1, 6)[:, [0, 1, 3]]
    assert (by_word.max(0) - by_word.min(0)).max() < 0.014  # six times the chance deviation of one


@pytest.mark.parametrize("strategy", ["span", "ngram"])
def test_run_lengths_follow_the_published_law(strategy):
    """Long rows and a small share, so that few runs meet or end with the budget."""
    masking = Masking(strategy=strategy, mlm_probability=0.02)
    ids = np.full((100, 10_000), 7, np.int32)
    _, labels = masked(ids, masking, word_starts=np.ones(ids.shape, bool))
    edges = np.diff(np.pad(labels != IGNORED, ((0, 0), (1, 1))).astype(int), axis=1)
    lengths = np.nonzero(edges == -1)[1] - np.nonzero(edges == 1)[1]
    law = 0.8 ** np.arange(10) if strategy == "span" else 1 / np.arange(1, 4)
    law /= law.sum()
    found = np.bincount(lengths, minlength=len(law) + 1)[1:] / len(lengths)
    assert np.abs(found[: len(law)] - law).max() < 0.02
    assert found[len(law) :].sum() < 0.02
    mean = (law * np.arange(1, len(law) + 1)).sum()
    assert mean == pytest.approx(3.8 if strategy == "span" else 18 / 11, abs=0.01)  # what the papers say of theirs
    assert lengths.mean() == pytest.approx(mean, rel=0.03)


@each_strategy
def test_padding_and_special_tokens_are_no_targets_in_500_ragged_batches(strategy):
    """Half of all tokens masked, padding told from its id, also where that is the id of the separator."""
    masking = Masking(strategy=strategy, mlm_probability=0.5)
    for batch in range(500):
        ids = rows(8, 24, batch, pad=(0, 3)[batch % 2])
        inputs, labels = masked(ids, masking, row_ids=np.arange(8) + 8 * batch)
        target = labels != IGNORED
        assert (labels[target] >= 5).all() and (ids[target] >= 5).all()
        assert np.array_equal(inputs[ids < 5], ids[ids < 5])
        assert target.any(axis=1).all()


@each_strategy
def test_rows_of_one_word_have_a_target_and_rows_of_none_do_not(strategy):
    ids = np.array([[2, 3, 0, 0, 0], [2, 9, 3, 0, 0], [2, 9, 10, 11, 3], [2, 9, 10, 11, 3]], np.int32)
    starts = np.array([[1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 0, 0, 1], [1, 0, 0, 0, 1]], bool)
    for visit in range(20):
        _, labels = masked(ids, Masking(strategy=strategy), word_starts=starts, visits=np.full(4, visit))
        assert (labels[0] == IGNORED).all()
        assert labels[1].tolist() == [IGNORED, 9, IGNORED, IGNORED, IGNORED]
        whole = [IGNORED, 9, 10, 11, IGNORED]  # also where the word began in the row before
        for row in (2, 3):
            assert (labels[row] != IGNORED).sum() == 1 if strategy == "token" else labels[row].tolist() == whole


@each_strategy
def test_no_rows_are_masked_to_no_rows(strategy):
    """A rank without a row in a step."""
    assert [a.shape for a in masked(np.empty((0, 16), np.int32), Masking(strategy=strategy))] == [(0, 16), (0, 16)]


def test_shares_can_be_all_mask():
    ids = rows(50, 64)
    inputs, labels = masked(ids, Masking(mask_share=1.0, random_share=0.0))
    assert (inputs[labels != IGNORED] == VOCABULARY.mask_id).all()


def test_the_share_goes_in_a_straight_line_from_the_first_step_to_the_last():
    falling = Masking(mlm_probability=0.3, final_mlm_probability=0.15)
    shares = mlm_probability(falling, np.array([0, 50, 100, 101]), 101)
    assert shares.tolist() == pytest.approx([0.3, 0.225, 0.15, 0.15])
    assert float(mlm_probability(falling, 25, 101)) == pytest.approx(0.2625)
    assert mlm_probability(falling, np.array([0]), 1).tolist() == [0.3]
    constant = mlm_probability(Masking(), np.arange(6).reshape(2, 3), 6)
    assert constant.shape == (2, 3) and (constant == 0.15).all()


def test_numbers_for_samples_are_uniform_and_of_seed_visit_and_row_alone():
    ids, visits = np.arange(400), np.zeros(400, np.int64)
    whole = token_draws(ids, visits, 50, seed=3)
    assert whole.dtype == np.float32 and whole.min() >= 0 and whole.max() < 1
    counts = np.histogram(whole, 20, (0, 1))[0]
    assert np.abs(counts - 1000).max() < 6 * 1000**0.5
    assert np.array_equal(token_draws(ids[[7, 3]], visits[:2], 20, seed=3), whole[[7, 3], :20])
    assert not np.array_equal(token_draws(ids, visits + 1, 50, seed=3), whole)
    assert not np.array_equal(token_draws(ids, visits, 50, seed=4), whole)
