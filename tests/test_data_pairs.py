"""Sentence pairs: halves true and false, some short, B from elsewhere where the label says so, sentences kept whole."""

import numpy as np
import pytest
from test_data_rows import CLS, FIRST, SEP, numbered, spans

from data.rows import Row, pack_rows

LENGTH = 64
ROOM = LENGTH - 3


def corpus(num_documents: int = 400, seed: int = 1) -> list[list[int]]:
    """Documents of 3 to 40 sentences of 3 to 25 tokens."""
    draw = np.random.Generator(np.random.Philox(seed))
    return [draw.integers(3, 26, draw.integers(3, 41)).tolist() for _ in range(num_documents)]


SIZES = corpus()


def rows_of(packing: str, sizes: list[list[int]] = SIZES, seed: int = 0) -> list[Row]:
    return pack_rows(numbered(sizes), LENGTH, packing, CLS, SEP, seed).rows


@pytest.mark.parametrize("packing", ["next_sentence", "sentence_order"])
def test_labels_are_even_and_a_tenth_aims_low(packing: str):
    rows = rows_of(packing)
    labels = np.array([row.label for row in rows])
    assert len(rows) > 1500
    assert abs(labels.mean() - 0.5) < 4 * 0.5 / len(rows) ** 0.5  # four standard deviations
    # Sentences of one token fill a row to its aim exactly: what is not full aimed low, but the ends of documents.
    single = rows_of(packing, [[1] * 200_000, [1] * 200_000])
    aimed_low = np.array([len(row.input_ids) < LENGTH for row in single])
    expected = 0.1 * (ROOM - 2) / (ROOM - 1)  # an aim from 2 on, the room among them
    assert abs(aimed_low.mean() - expected) < 4 * (0.1 * 0.9 / len(single)) ** 0.5 + 0.001
    short = np.array([len(row.input_ids) - 3 for row in single])[aimed_low]
    assert abs(short.mean() - (2 + ROOM - 1) / 2) < 2.5  # any length alike


def test_b_follows_a_or_is_from_another_document():
    document_of = np.repeat(np.arange(len(SIZES)), [sum(document) for document in SIZES])
    partners = set()
    for row in rows_of("next_sentence"):
        a, b = spans(row)
        if row.label:
            assert b[0] == a[-1] + 1
        else:
            partners.add(int(document_of[b[0] - FIRST]))
            assert document_of[b[0] - FIRST] != document_of[a[0] - FIRST]
    assert len(partners) > 0.8 * len(SIZES)  # others are drawn from everywhere


def test_swapped_segments_stand_in_their_order_otherwise():
    for row in rows_of("sentence_order"):
        first, second = spans(row)
        assert second[0] == first[-1] + 1 if row.label else first[0] == second[-1] + 1


@pytest.mark.parametrize("packing", ["next_sentence", "sentence_order"])
def test_segments_are_whole_sentences_where_two_fit(packing: str):
    """No sentence is longer than half of the room here, so none has to be cut but for an odd token at an end."""
    ends = set((np.cumsum([0, *(size for document in SIZES for size in document)]) + FIRST).tolist())
    edges = [edge for row in rows_of(packing) for part in spans(row) for edge in (part[0], part[-1] + 1)]
    assert np.mean([edge in ends for edge in edges]) > 0.97  # the others: the last sentence of a document, halved


def test_label_does_not_show_in_lengths():
    """A model that sees the lengths of A and B only must not learn the label from them."""
    rows = rows_of("next_sentence")
    for part in (0, 1):
        sizes = [np.mean([len(spans(row)[part]) for row in rows if row.label == label]) for label in (0, 1)]
        assert abs(sizes[0] - sizes[1]) < 0.12 * ROOM


@pytest.mark.parametrize("packing", ["next_sentence", "sentence_order"])
def test_pairs_depend_on_the_seed_alone(packing: str):
    def facts(seed: int) -> list[tuple[bytes, int]]:
        return [(row.input_ids.tobytes(), row.label) for row in rows_of(packing, SIZES[:50], seed)]

    assert facts(3) == facts(3)
    assert facts(3) != facts(4)


def test_only_document_has_no_other_so_every_b_follows():
    assert {row.label for row in rows_of("next_sentence", SIZES[:1])} == {1}


def test_one_sentence_is_parted_at_the_word_nearest_to_its_middle():
    documents = numbered([[9]], word_tokens=4)  # words at 0, 4, 8
    (row,) = pack_rows(documents, LENGTH, "sentence_order", CLS, SEP, 0).rows
    assert sorted(spans(row)) == [[10, 11, 12, 13], [14, 15, 16, 17, 18]]
