"""Rows: no token is lost or doubled, no row is too long, sentences stay whole and documents apart where promised."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.rows import PIECE_CHARACTERS, pack_rows, split_sentences

CLS, SEP = 2, 3
DOCUMENTS = st.lists(st.lists(st.lists(st.integers(5, 99), max_size=30), max_size=6), max_size=12)


def pack(documents: list[list[list[int]]], length: int, packing: str = "full_sentences") -> list[list[int]]:
    return [row.tolist() for row in pack_rows(documents, length, packing, CLS, SEP)]


def tokens(rows: list[list[int]]) -> list[int]:
    return [token for row in rows for token in row if token >= 5]


@given(DOCUMENTS, st.integers(3, 40), st.sampled_from(["full_sentences", "document"]))
def test_tokens_in_are_tokens_out_in_order(documents: list[list[list[int]]], length: int, packing: str):
    rows = pack(documents, length, packing)
    assert tokens(rows) == [token for document in documents for sentence in document for token in sentence]
    for row in rows:
        assert 3 <= len(row) <= length
        assert (row[0], row[-1], row.count(CLS)) == (CLS, SEP, 1)
        assert [SEP, SEP] not in [row[i : i + 2] for i in range(len(row))]


def test_row_holds_whole_sentences_and_a_separator_between_documents():
    documents = [[[10, 11], [12, 13]], [[20]], [[30, 31, 32], [33]]]
    assert pack(documents, 9) == [[CLS, 10, 11, 12, 13, SEP, 20, SEP], [CLS, 30, 31, 32, 33, SEP]]


def test_document_packing_never_crosses_documents():
    documents = [[[10, 11], [12]], [[20]], [[]], [[30]]]
    assert pack(documents, 16, "document") == [[CLS, 10, 11, 12, SEP], [CLS, 20, SEP], [CLS, 30, SEP]]


def test_sentence_longer_than_a_row_is_cut_and_its_end_is_filled_up():
    assert pack([[[10], list(range(20, 30)), [40]]], 6) == [
        [CLS, 10, SEP], [CLS, 20, 21, 22, 23, SEP], [CLS, 24, 25, 26, 27, SEP], [CLS, 28, 29, 40, SEP]
    ]  # fmt: skip


def test_rows_are_int32():
    assert next(pack_rows([[[5, 6]]], 8, "full_sentences", CLS, SEP)).dtype == np.int32


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two!  Three? four", ["One.", " Two!", "  Three?", " four"]),
        ('He said "No." Then left.', ['He said "No."', " Then left."]),
        ("v1.2 costs 3.50 today", ["v1.2 costs 3.50 today"]),
        ("你好。再见！“好。”完", ["你好。", "再见！", "“好。”", "完"]),
        ("title\n\nbody text\nmore", ["title", "\n\nbody text", "\nmore"]),
    ],
)
def test_sentences(text: str, sentences: list[str]):
    assert split_sentences(text) == sentences


@given(st.text(alphabet=st.sampled_from("ab .!?\n\"'\u3002\uff01\u201d\t"), max_size=200))
def test_sentences_joined_are_the_text(text: str):
    assert "".join(split_sentences(text)) == text


def test_endless_sentence_is_cut_before_white_space_where_there_is_any():
    text = "word " * PIECE_CHARACTERS
    pieces = split_sentences(text)
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= PIECE_CHARACTERS
    assert all(piece.startswith(" word") for piece in pieces[1:])
    assert [len(piece) for piece in split_sentences("x" * 25_000)] == [PIECE_CHARACTERS, PIECE_CHARACTERS, 5_000]
