"""Masked positions of rows, as a pure function of (seed, visit, row id).

In: token rows. Out: what the model sees and what it has to guess. Knows numpy only.
Random numbers come from a counter-based generator (data/philox.py), so that a row's masks depend neither on the worker
that makes them nor on the rows beside it nor on the padding behind it.

Each strategy spends a budget, the row's share of its maskable tokens:

    token                       exactly the budget, single tokens
    whole_word, span, ngram     words in random order, each the first of a run of as many words as is drawn for it

A run ends early at a special token, at a word that is a target already, and before a word that the budget has no room
for; a word that has no room as the first of a run is passed over, as in BERT's code (google-research/bert,
create_pretraining_data.py, create_masked_lm_predictions). So every word is whole, no budget is exceeded, and tokens of
it stay unspent only where each word that is left is longer. One exception: a row all of whose words are longer than the
budget has one target word, the first drawn, because a row without a target teaches nothing.

Shapes: B rows, T tokens.
"""

from dataclasses import dataclass

import numpy as np

from data.config import Masking
from data.philox import draws, draws_at

IGNORED = -100  # label of a position that is no target; torch's cross-entropy leaves it out by default
_ORDER, _TREATMENT, _SUBSTITUTE, _LENGTH, _SAMPLE = range(5)  # purposes of draws: changing one changes every run
_PLACE_BITS = 20  # of a sort key: rows are shorter than 2^20 tokens
_LAST = np.iinfo(np.int64).max  # sort key of what is never chosen
PIECE_TOKENS = 131_072  # masked at once: with 2 million the arrays leave the cache, and whole words take thrice as long
_LENGTHS_AT_ONCE = 16  # run lengths drawn ahead; a row of 128 tokens needs about 10


@dataclass(frozen=True)
class Vocabulary:
    """What masking must know of a tokenizer."""

    size: int
    mask_id: int
    special_ids: tuple[int, ...]
    """Ids that are never masked and never the random token, [PAD] among them."""


def mlm_probability(masking: Masking, step: np.ndarray | int, steps: int) -> np.ndarray:
    """Share of the maskable tokens to guess at `step`, a number or any shape, of a run of `steps` -> float64, alike.

    A straight line from `mlm_probability` at step 0 to `final_mlm_probability` at the last, and that behind it.
    Source: a decaying share, arXiv:2305.15096.
    """
    first, last = masking.mlm_probability, masking.final_mlm_probability
    progress = np.clip(np.asarray(step) / max(1, steps - 1), 0, 1)
    return first + ((first if last is None else last) - first) * progress


def mask_rows(
    input_ids: np.ndarray,
    word_starts: np.ndarray,
    row_ids: np.ndarray,
    visits: np.ndarray,
    probability: np.ndarray,
    seed: int,
    masking: Masking,
    vocabulary: Vocabulary,
) -> tuple[np.ndarray, np.ndarray]:
    """Choose targets in rows, replace them, and return (inputs, labels), both (B, T) int32; labels IGNORED elsewhere.

    input_ids (B, T) int32, word_starts (B, T) bool, row_ids (B,) int64, visits (B,) int64 (how often each row was
    visited before), probability (B,) float64 (of each row's n maskable tokens max(1, round(n x probability)) are its
    budget).
    What replaces a target is drawn for each token, as in BERT's and ALBERT's code; in the strategy span once for all
    tokens of a run. Source: BERT, arXiv:1810.04805 section 3.1 and appendix A.1 (80/10/10); SpanBERT,
    arXiv:1907.10529 section 3.1 (replacement at the level of spans).
    """
    num_rows = max(1, PIECE_TOKENS // max(1, input_ids.shape[1]))
    if len(input_ids) > num_rows:  # what fits the cache at once: twice as fast
        pieces = [slice(start, start + num_rows) for start in range(0, len(input_ids), num_rows)]
        masked = [
            mask_rows(
                input_ids[piece], word_starts[piece], row_ids[piece], visits[piece], probability[piece], seed, masking,
                vocabulary,
            )
            for piece in pieces
        ]  # fmt: skip
        return np.concatenate([inputs for inputs, _ in masked]), np.concatenate([labels for _, labels in masked])
    visits = visits if masking.dynamic else visits % masking.copies
    special = np.zeros(vocabulary.size, dtype=bool)
    special[list(vocabulary.special_ids)] = True
    maskable = ~special[input_ids]
    per_row = np.count_nonzero(maskable, axis=1)
    budget = np.minimum(np.maximum(1, np.rint(per_row * probability)).astype(np.int64), per_row)
    lot = draws(seed, visits, row_ids, input_ids.shape[1], _ORDER)
    if masking.strategy == "token":
        rows, places = np.nonzero(_lowest(lot, maskable, budget))
        treated_as = places
    else:
        words = _words_of(maskable, word_starts)
        rows, places, origins = _choose_runs(words, budget, lot, _run_lengths(masking), seed, visits, row_ids)
        treated_as = origins if masking.strategy == "span" else places
    return _replace(input_ids, rows, places, treated_as, seed, visits, row_ids, masking, special, vocabulary.mask_id)


def token_draws(row_ids: np.ndarray, visits: np.ndarray, tokens: int, seed: int) -> np.ndarray:
    """A uniform number in [0, 1) for each token, rows (B,) and visits (B,) as for masks -> (B, tokens) float32.

    A generator's samples are drawn by it, so that they too depend on nothing but (seed, visit, row).
    """
    return (draws(seed, visits, row_ids, tokens, _SAMPLE) >> 8).astype(np.float32) * np.float32(2**-24)


def _lowest(lot: np.ndarray, maskable: np.ndarray, budget: np.ndarray) -> np.ndarray:
    """The `budget` (B,) maskable positions of each row with the lowest lots (B, T), the first of equal ones."""
    keys = _sort_keys(lot, maskable)
    in_order = np.sort(keys, axis=1)  # of keys, not of places: four times as fast as argsort
    highest = np.take_along_axis(in_order, np.maximum(budget - 1, 0)[:, None], axis=1)
    return (keys <= highest) & maskable


def _sort_keys(lot: np.ndarray, eligible: np.ndarray) -> np.ndarray:
    """Lots (B, N) uint32 as int64 keys that differ, because each holds its place in the lower bits."""
    keys = (lot.astype(np.int64) << _PLACE_BITS) | np.arange(lot.shape[1])
    keys[~eligible] = _LAST
    return keys


@dataclass(frozen=True)
class _Words:
    """Words of rows, numbered from 0 in each. A special token is a word of its own, no run goes across it."""

    first: np.ndarray
    """(B, T + 1) int64: place of each word's first token; behind the last word T."""
    eligible: np.ndarray
    """(B, T) bool: whether the word is none of the special ones."""


def _words_of(maskable: np.ndarray, word_starts: np.ndarray) -> _Words:
    """Words (B, T) of rows. What a row begins with is a word, though the row before may hold the beginning of it."""
    num_rows, tokens = maskable.shape
    begins = word_starts | ~maskable
    begins[:, 1:] |= ~maskable[:, :-1]
    begins[:, :1] = True
    rows, places = np.nonzero(begins)
    numbers = (np.cumsum(begins, axis=1) - 1)[rows, places]
    first = np.full((num_rows, tokens + 1), tokens, np.int64)
    eligible = np.zeros((num_rows, tokens), bool)
    first[rows, numbers] = places
    eligible[rows, numbers] = maskable[rows, places]
    return _Words(first, eligible)


def _run_lengths(masking: Masking) -> np.ndarray:
    """Probability of each run length 1, 2, ... in words, float64.

    span: the geometric distribution cut at max_span and scaled to 1, as in SpanBERT's code (its mean of 3.8 words in
    arXiv:1907.10529 section 3.1 is this one's). ngram: p(n) = (1/n) / sum of 1/k, arXiv:1909.11942 section 4.1.
    """
    if masking.strategy == "whole_word":
        return np.ones(1)
    if masking.strategy == "span":
        weights = (1 - masking.span_probability) ** np.arange(masking.max_span)
    else:
        weights = 1 / np.arange(1, masking.max_ngram + 1)
    return weights / weights.sum()


def _choose_runs(
    words: _Words,
    budget: np.ndarray,
    lot: np.ndarray,
    lengths: np.ndarray,
    seed: int,
    visits: np.ndarray,
    row_ids: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Spend each row's budget on runs; returns of each target its row, its place, and the place its run begins at.

    A round looks at the next word of every row that is not done: its results are its own, whatever the rows beside it.
    """
    num_rows, tokens = words.eligible.shape
    longest = len(lengths)
    order = np.sort(_sort_keys(lot, words.eligible), axis=1) & ((1 << _PLACE_BITS) - 1)
    num_words = np.count_nonzero(words.eligible, axis=1)
    sizes = np.diff(words.first, axis=1)
    nothing_fits = np.where(words.eligible, sizes, tokens + 1).min(axis=1, initial=tokens + 1) > budget
    rows = np.flatnonzero(nothing_fits & (num_words > 0))
    remaining = budget.copy()
    remaining[rows] = sizes[rows, order[rows, 0]]

    # Flat, with room for a run that begins at the last word: rows of `width` words.
    width = tokens + longest + 1
    first = np.full((num_rows, width), tokens, np.int64)
    first[:, : tokens + 1] = words.first
    free = np.zeros((num_rows, width), bool)
    free[:, :tokens] = words.eligible
    first, free = first.ravel(), free.ravel()
    begun_at = np.full(num_rows * width, -1, np.int64)
    within = np.arange(longest)
    bounds = np.cumsum(lengths)[:-1] * 2.0**32
    drawn = np.empty((num_rows, 0), np.int64)
    active = np.flatnonzero(num_words)
    for turn in range(tokens):
        if not active.size:
            break
        start = active * width + order[active, turn]
        run = start[:, None] + within
        begin = first[start]
        fits = free[run] & (first[run + 1] - begin[:, None] <= remaining[active][:, None])
        if longest > 1:
            if turn % _LENGTHS_AT_ONCE == 0:
                numbers = draws(seed, visits[active], row_ids[active], _LENGTHS_AT_ONCE, _LENGTH, first=turn)
                drawn = np.empty((num_rows, _LENGTHS_AT_ONCE), np.int64)
                drawn[active] = np.searchsorted(bounds, numbers, side="right") + 1
            fits &= within < drawn[active, turn % _LENGTHS_AT_ONCE][:, None]
            fits = np.logical_and.accumulate(fits, axis=1)
        chosen = run[fits]
        free[chosen] = False
        num_chosen = np.count_nonzero(fits, axis=1)
        begun_at[chosen] = np.repeat(begin, num_chosen)
        remaining[active] -= first[start + num_chosen] - begin
        active = active[(remaining[active] > 0) & (turn + 1 < num_words[active])]

    chosen = np.flatnonzero(begun_at >= 0)
    counts = first[chosen + 1] - first[chosen]
    token = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    places = np.repeat(first[chosen], counts) + token
    return np.repeat(chosen // width, counts), places, np.repeat(begun_at[chosen], counts)


def _replace(
    input_ids: np.ndarray,
    rows: np.ndarray,
    places: np.ndarray,
    treated_as: np.ndarray,
    seed: int,
    visits: np.ndarray,
    row_ids: np.ndarray,
    masking: Masking,
    special: np.ndarray,
    mask_id: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Put [MASK], a random token or the token itself at the targets (rows, places), by the draw at `treated_as`."""
    treatment = draws_at(seed, visits[rows], row_ids[rows], treated_as, _TREATMENT) / 2.0**32
    masked = treatment < masking.mask_share
    random = ~masked & (treatment < masking.mask_share + masking.random_share)
    inputs, labels = input_ids.copy(), np.full(input_ids.shape, IGNORED, np.int32)
    labels[rows, places] = input_ids[rows, places]
    inputs[rows[masked], places[masked]] = mask_id
    rows, places = rows[random], places[random]
    ordinary = np.flatnonzero(~special).astype(np.int32)
    substitute = draws_at(seed, visits[rows], row_ids[rows], places, _SUBSTITUTE).astype(np.uint64)
    inputs[rows, places] = ordinary[(substitute * np.uint64(len(ordinary))) >> np.uint64(32)]
    return inputs, labels
