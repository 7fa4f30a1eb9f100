"""Rows of every packing: no token is lost or doubled, none too long, starts are right, what is left out is counted."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.arrangement import Documents
from data.rows import PACKINGS, Packed, Row, pack_rows

CLS, SEP, FIRST = 2, 3, 10
PAIRS = ("next_sentence", "sentence_order")
SIZES = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=6), max_size=12)


def numbered(sizes: list[list[int]], word_tokens: int = 1) -> Documents:
    """Documents of sentences of so many tokens; each token is another: FIRST, FIRST + 1, ..."""
    total = sum(map(sum, sizes))
    return Documents(
        np.arange(FIRST, FIRST + total, dtype=np.int32),
        np.arange(total) % word_tokens == 0,
        np.cumsum([size for document in sizes for size in document], dtype=np.int64),
        np.cumsum([sum(document) for document in sizes], dtype=np.int64),
    )


def pack(sizes: list[list[int]], length: int, packing: str, seed: int = 0) -> Packed:
    return pack_rows(numbered(sizes), length, packing, CLS, SEP, seed)


def ids(packed: Packed) -> list[list[int]]:
    return [row.input_ids.tolist() for row in packed.rows]


def spans(row: Row) -> list[list[int]]:
    """The token ids of each document or segment, by `starts` alone; special tokens may stand at its ends only."""
    parts = np.split(row.input_ids, list(row.starts))
    inner = [[int(token) for token in part if token >= FIRST] for part in parts]
    for part, tokens in zip(parts, inner, strict=True):
        assert part.tolist() in ([CLS, *tokens, SEP], [*tokens, SEP])
    return inner


@settings(max_examples=400)
@given(SIZES, st.integers(8, 40), st.sampled_from(sorted(PACKINGS)), st.integers(0, 9), st.integers(1, 4))
def test_every_token_comes_out_once_in_order_or_is_counted(
    sizes: list[list[int]], length: int, packing: str, seed: int, word_tokens: int
):
    documents = numbered(sizes, word_tokens)
    packed = pack_rows(documents, length, packing, CLS, SEP, seed)
    document_of = np.repeat(np.arange(len(sizes)), [sum(document) for document in sizes])
    once: list[int] = []
    for row in packed.rows:
        assert 3 <= len(row.input_ids) <= length
        assert row.input_ids.dtype == np.int32
        assert row.input_ids[0] == CLS
        segments = spans(row)
        for tokens in segments:
            assert tokens == list(range(tokens[0], tokens[0] + len(tokens)))  # a run of the text, not empty
            assert document_of[tokens[0] - FIRST] == document_of[tokens[-1] - FIRST]
        copied = packing == "next_sentence" and row.label == 0
        once += sum(segments[:1] if copied else segments, [])
        assert row.label in ((0, 1) if packing in PAIRS else (-1,))
        if packing in PAIRS:
            assert len(segments) == 2
        if packing in ("document", "line"):
            assert len(segments) == 1
        # Words begin where they do in the text, and where a span begins.
        first = {tokens[0] for tokens in segments}
        expected = [t < FIRST or t in first or documents.word_starts[t - FIRST] for t in row.input_ids.tolist()]
        assert row.word_starts.tolist() == expected
    assert len(once) == len(set(once)) == len(documents.input_ids) - packed.dropped_tokens
    if packing not in ("packed", "sentence_order"):
        assert once == sorted(once)
    if packing not in PAIRS:
        assert packed.dropped_tokens == 0
    elif packing == "sentence_order":
        assert packed.dropped_tokens == sum(sum(document) == 1 for document in sizes)
    else:
        assert packed.dropped_tokens == int(len(sizes) == 1 and sum(sizes[0]) == 1)


@given(SIZES, st.integers(8, 40))
def test_packed_cuts_no_document_that_fits(sizes: list[list[int]], length: int):
    packed = pack(sizes, length, "packed")
    parts = [tokens for row in packed.rows for tokens in spans(row)]
    begins = np.cumsum([0, *(sum(document) for document in sizes)])
    for document, begin in zip(sizes, begins, strict=False):
        if sum(document) <= length - 2:
            assert list(range(FIRST + begin, FIRST + begin + sum(document))) in parts


def test_row_holds_whole_sentences_and_a_separator_between_documents():
    packed = pack([[2, 2], [1], [3, 1]], 9, "full_sentences")
    assert ids(packed) == [[CLS, 10, 11, 12, 13, SEP, 14, SEP], [CLS, 15, 16, 17, 18, SEP]]
    assert [list(row.starts) for row in packed.rows] == [[6], []]


def test_document_packing_never_crosses_documents():
    assert ids(pack([[2, 1], [1], [1]], 16, "document")) == [[CLS, 10, 11, 12, SEP], [CLS, 13, SEP], [CLS, 14, SEP]]


def test_packed_documents_have_their_own_special_tokens_and_fill_the_fullest_row_that_has_room():
    packed = pack([[5], [4], [2], [3]], 12, "packed")
    assert ids(packed) == [
        [CLS, *range(10, 15), SEP, CLS, *range(19, 21), SEP],
        [CLS, *range(15, 19), SEP, CLS, *range(21, 24), SEP],
    ]
    assert [list(row.starts) for row in packed.rows] == [[7], [6]]


def test_sentence_longer_than_a_row_is_cut_and_its_end_is_filled_up():
    assert ids(pack([[1, 10, 1]], 6, "full_sentences")) == [
        [CLS, 10, SEP], [CLS, 11, 12, 13, 14, SEP], [CLS, 15, 16, 17, 18, SEP], [CLS, 19, 20, 21, SEP]
    ]  # fmt: skip


@pytest.mark.parametrize("packing", sorted(PACKINGS))
@pytest.mark.parametrize("tokens", [2, 5, 126, 128, 130])
def test_a_corpus_smaller_than_a_row_or_just_as_long_gives_rows(packing: str, tokens: int):
    packed = pack([[tokens]], 128, packing)
    assert packed.rows
    assert packed.dropped_tokens == 0
    assert sum((row.input_ids >= FIRST).sum() for row in packed.rows) == tokens


@pytest.mark.parametrize("packing", sorted(PACKINGS))
def test_no_documents_no_rows(packing: str):
    assert pack([], 16, packing) == Packed([], 0)
