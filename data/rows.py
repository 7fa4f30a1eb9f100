"""Documents -> token rows.

In: texts, cut into sentences, as lists of token ids. Out: rows of at most `length` ids that begin with [CLS] and end
with [SEP]. No token is lost and none comes twice. Pure: knows neither files nor tokenizers nor Ray.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np


class Row(NamedTuple):
    """One row of T tokens, special tokens included."""

    input_ids: np.ndarray
    """(T,) int32"""
    word_starts: np.ndarray
    """(T,) bool: whether a word begins here. Special tokens begin one, so that none continues a word."""
    starts: Sequence[int] = ()
    """Where a further document begins (or segment B of a pair), ascending; the first begins at 0 and is not told."""
    label: int = -1
    """Of a pair: 1 where B follows A (next_sentence), 1 where the two stand in order (sentence_order), else 0."""


# After . ! ? (and a closing quote) before white space; after the full-width marks; before a run of newlines.
_BOUNDARY = re.compile(
    r"(?<=[.!?])(?=\s)|(?<=[.!?][\"'”’)\]])(?=\s)|(?<=[。！？])(?![。！？”’」』）])|(?<=[。！？][”’」』）])|(?<!\n)(?=\n)"
)
PIECE_CHARACTERS = 10_000  # longest text handed to a tokenizer at once: a 20 MB line must not become one encoding


def split_sentences(text: str) -> list[str]:
    """Cut a text at sentence ends and newlines; the parts joined are the text again.

    White space goes with the part that follows it, as byte-level tokenizers expect. A part longer than
    PIECE_CHARACTERS is cut before white space where it has any.
    """
    sentences: list[str] = []
    for sentence in _BOUNDARY.split(text):
        start = 0
        while len(sentence) - start > PIECE_CHARACTERS:
            stop = start + PIECE_CHARACTERS
            space = max(sentence.rfind(" ", start + 1, stop), sentence.rfind("\t", start + 1, stop))
            stop = space if space > start else stop
            sentences.append(sentence[start:stop])
            start = stop
        if start < len(sentence):
            sentences.append(sentence[start:])
    return sentences


def pack_rows(
    documents: Iterable[Sequence[Sequence[int]]], length: int, packing: str, cls_id: int, sep_id: int
) -> Iterator[Row]:
    """Rows (3 to `length` ids) of documents, each a sequence of sentences, each a sequence of token ids.

    full_sentences: whole sentences until the next does not fit, crossing documents with a [SEP] between
    (RoBERTa, arXiv:1907.11692 section 4.2). document: the same, but a new document begins a new row.
    A sentence longer than a row is cut into rows; its last piece goes on filling.
    """
    room = length - 2
    row: list[int] = []

    def close() -> Row:
        closed = np.empty(len(row) + 2, np.int32)
        closed[0], closed[-1] = cls_id, sep_id
        closed[1:-1] = row
        row.clear()
        return Row(closed, np.ones(len(closed), bool))

    for document in documents:
        begins = True
        for sentence in document:
            if not sentence:
                continue
            if row and begins:
                if packing == "document" or len(row) + 1 + len(sentence) > room:
                    yield close()
                else:
                    row.append(sep_id)
            elif row and len(row) + len(sentence) > room:
                yield close()
            begins = False
            start = 0
            while len(sentence) - start > room:
                row.extend(sentence[start : start + room])
                start += room
                yield close()
            row.extend(sentence[start:])
    if row:
        yield close()
