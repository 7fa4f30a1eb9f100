"""Tokens of documents -> token rows.

In: the tokens of documents, with the places where words, sentences and documents end. Out: rows of at most `length`
ids that begin with [CLS] and end with [SEP], and how many tokens are in none of them. Pure: knows neither files nor
tokenizers nor Ray. Sentence pairs are made in data/pairs.py.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from data.arrangement import Arrangement, Documents
from data.pairs import next_sentence, sentence_order

BLOCK_ROWS = 4096  # put together at once, in one array: bounds the memory for a document of 20 MB


class Row(NamedTuple):
    """One row of T tokens, special tokens included."""

    input_ids: np.ndarray
    """(T,) int32"""
    word_starts: np.ndarray
    """(T,) bool: whether a word begins here. Special tokens begin one, so that none continues a word."""
    starts: Sequence[int] | np.ndarray = ()
    """Where a further document begins (or segment B of a pair), ascending; the first begins at 0 and is not told."""
    label: int = -1
    """Of a pair: 1 where B follows A (next_sentence), 1 where the two stand in order (sentence_order), else 0."""


class Packed(NamedTuple):
    """Rows of documents, and what is in none of them."""

    rows: list[Row]
    dropped_tokens: int
    """Tokens in no row: those of documents of one token, of which there is no pair to make."""


def pack_rows(documents: Documents, length: int, packing: str, cls_id: int, sep_id: int, seed: int) -> Packed:
    """Rows (3 to `length` ids) of documents, as rows.packing says (data/config.py). Equal seeds give equal pairs."""
    arrangements = PACKINGS[packing](documents, length, seed)
    rows: list[Row] = []
    placed = 0
    while block := list(islice(arrangements, BLOCK_ROWS)):
        rows.extend(_build(documents, block, packing == "packed", cls_id, sep_id))
        placed += sum(stop - start for spans, *_ in block for start, stop in spans)
        placed -= sum(spans[1][1] - spans[1][0] for spans, _, copied in block if copied)
    return Packed(rows, len(documents.input_ids) - placed)


def _fill(documents: Documents, length: int, crossing: bool) -> Iterator[Arrangement]:
    """Whole sentences until the next does not fit; whether a row may go on with the next document behind a [SEP].

    A sentence longer than a row is cut into rows; its last piece goes on filling.
    """
    room = length - 2
    row: list[tuple[int, int]] = []
    used = 0
    for begin, ends in documents.each():
        first = stop = begin
        for end in ends:
            while used + (gap := int(bool(row) and first == stop)) + end - stop > room:
                if used == 0:
                    yield Arrangement([(stop, stop + room)])
                    first = stop = stop + room
                    continue
                if first < stop:
                    row.append((first, stop))
                yield Arrangement(row)
                row, used, first = [], 0, stop
            used += gap + end - stop
            stop = end
        if first < stop:
            row.append((first, stop))
        if row and not crossing:
            yield Arrangement(row)
            row, used = [], 0
    if row:
        yield Arrangement(row)


def full_sentences(documents: Documents, length: int, seed: int) -> Iterator[Arrangement]:
    """Rows cross documents. Source: RoBERTa, arXiv:1907.11692 section 4.2."""
    return _fill(documents, length, crossing=True)


def document(documents: Documents, length: int, seed: int) -> Iterator[Arrangement]:
    """A new document begins a new row; so does a new line where each line is given as a document."""
    return _fill(documents, length, crossing=False)


def packed(documents: Documents, length: int, seed: int) -> Iterator[Arrangement]:
    """Documents (the rows of long ones) put where they leave the least room, none cut that fits a row.

    Best fit in the order of the corpus: arXiv:2404.10830 section 3, which sorts by length first; so groups of rows stay
    alike. A row takes its place in the output when its first document does.
    """
    rows: list[list[tuple[int, int]]] = []
    with_room: defaultdict[int, list[int]] = defaultdict(list)  # room left -> rows
    rooms = 0  # bit r: there is a row with room r
    for spans, *_ in _fill(documents, length, crossing=False):
        need = spans[0][1] - spans[0][0] + 2
        if fitting := rooms >> need:
            room = need + (fitting & -fitting).bit_length() - 1
            number = with_room[room].pop()
            if not with_room[room]:
                rooms &= ~(1 << room)
            rows[number] += spans
        else:
            room, number = length, len(rows)
            rows.append(spans)
        if room - need > 2:
            with_room[room - need].append(number)
            rooms |= 1 << (room - need)
    return map(Arrangement, rows)


PACKINGS: dict[str, Callable[[Documents, int, int], Iterator[Arrangement]]] = {
    "full_sentences": full_sentences,
    "document": document,
    "packed": packed,
    "line": document,
    "next_sentence": next_sentence,
    "sentence_order": sentence_order,
}


def _build(
    documents: Documents, arrangements: list[Arrangement], apart: bool, cls_id: int, sep_id: int
) -> Iterator[Row]:
    """Put rows together, all at once: [CLS] span [SEP] span [SEP], or where they are `apart` a [CLS] before each."""
    spans = np.array([span for arrangement in arrangements for span in arrangement.spans], np.int64)
    per_row = np.array([len(arrangement.spans) for arrangement in arrangements])
    firsts = np.cumsum(per_row) - per_row  # the first span of each row
    opens = np.full(len(spans), apart)  # which spans have a [CLS] before them
    opens[firsts] = True
    sizes = spans[:, 1] - spans[:, 0]
    ends = np.cumsum(sizes + opens + 1)
    begins = ends - sizes - opens - 1
    texts = begins + opens  # where the text of each span begins

    input_ids = np.full(ends[-1], sep_id, np.int32)
    input_ids[begins[opens]] = cls_id
    word_starts = np.ones(ends[-1], bool)
    before = np.cumsum(sizes) - sizes
    tokens = np.arange(sizes.sum())
    sources = tokens + np.repeat(spans[:, 0] - before, sizes)
    places = tokens + np.repeat(texts - before, sizes)
    input_ids[places] = documents.input_ids[sources]
    word_starts[places] = documents.word_starts[sources]
    word_starts[texts] = True  # also where a row goes on in the middle of a word: [CLS] has no rest

    bounds = [*begins[firsts].tolist(), len(input_ids)]
    further = begins - np.repeat(begins[firsts], per_row)
    for number, (first, count) in enumerate(zip(firsts.tolist(), per_row.tolist(), strict=True)):
        row = slice(bounds[number], bounds[number + 1])
        starts = further[first + 1 : first + count] if count > 1 else ()
        yield Row(input_ids[row], word_starts[row], starts, arrangements[number].label)
