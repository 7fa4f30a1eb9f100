"""Tokens of documents -> pairs of segments, for objectives that judge whether two segments belong together.

In: where the sentences of documents end. Out: which tokens make segments A and B of each row, and the label. Nothing
is truncated: a segment that does not fit ends sooner, and the next row goes on there. Every draw comes from the seed,
through `random()` alone, whose numbers Python promises to keep. Pure: knows neither token ids nor files.
"""

import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator

import numpy as np

from data.arrangement import Arrangement, Documents

SHORT_PROBABILITY = 0.1  # of a row that aims at a random length. Source: google-research/bert, short_seq_prob


def next_sentence(documents: Documents, length: int, seed: int) -> Iterator[Arrangement]:
    """Half of the rows: A and what follows it (label 1). The others: A and text of another document (label 0).

    The text that B displaces begins the next row, so every token stands in an A or in a B that follows, once; a B
    from elsewhere is a copy, as in BERT. Where there is one document only, every B follows; then of a document of one
    token there is no pair. Source: arXiv:1810.04805 appendix A.2, and google-research/bert create_pretraining_data.py.
    """
    room = length - 3
    draw = random.Random(seed).random
    all_documents = list(documents.each())
    for number, (begin, ends) in enumerate(all_documents):
        while begin < ends[-1]:
            target = _aim(room, draw)
            follows = len(all_documents) == 1 or draw() < 0.5
            if ends[-1] - begin == 1:
                if len(all_documents) == 1:
                    break
                follows, a_end, b_end = False, begin + 1, begin + 1
            else:
                a_end, b_end = _segments(documents, begin, ends, target, room, draw)
            if follows:
                yield Arrangement([(begin, a_end), (a_end, b_end)], 1)
                begin = b_end
                continue
            if a_end != ends[(sentence := bisect_left(ends, a_end))]:  # A alone need not be cut for a B's sake
                a_end = max(a_end, min(ends[sentence], begin + room - room // 4))
            if ends[-1] - a_end == 1 and ends[-1] - begin < room:
                a_end += 1
            budget = max(1, max(target, b_end - begin) - (a_end - begin))
            other = int(draw() * (len(all_documents) - 1))
            copy = _excerpt(*all_documents[other + (other >= number)], budget, draw)
            yield Arrangement([(begin, a_end), copy], 0, copied=True)
            begin = a_end


def sentence_order(documents: Documents, length: int, seed: int) -> Iterator[Arrangement]:
    """Segments A and B in a row; half of the rows hold them swapped (label 0).

    A document of one token makes no pair. Source: ALBERT, arXiv:1909.11942 section 3.1.
    """
    room = length - 3
    draw = random.Random(seed).random
    for begin, ends in documents.each():
        while ends[-1] - begin > 1:
            a_end, b_end = _segments(documents, begin, ends, _aim(room, draw), room, draw)
            segments = [(begin, a_end), (a_end, b_end)]
            in_order = draw() < 0.5
            yield Arrangement(segments if in_order else segments[::-1], int(in_order))
            begin = b_end


def _aim(room: int, draw: Callable[[], float]) -> int:
    """Tokens that a pair aims at: the room, or now and then any number from 2 on."""
    return 2 + int(draw() * (room - 1)) if draw() < SHORT_PROBABILITY else room


def _segments(
    documents: Documents, begin: int, ends: list[int], target: int, room: int, draw: Callable[[], float]
) -> tuple[int, int]:
    """Where A (from `begin` on) and B behind it end, with two tokens or more before ends[-1].

    Whole sentences as far as `target` goes, at least two if the room holds two, parted at one of their ends. Where it
    does not: a short sentence and the first part of the next, or the two halves of a long one.
    """
    first = bisect_right(ends, begin)
    last = bisect_right(ends, begin + target)
    if last - first < 2:
        last = min(first + 2, bisect_right(ends, begin + room))
    if last - first >= 2:
        a_end, b_end = ends[first + int(draw() * (last - first - 1))], ends[last - 1]
    elif first + 1 < len(ends) and ends[first] - begin <= room // 2:
        a_end, b_end = ends[first], begin + room
    else:
        b_end = min(ends[first], begin + room)
        a_end = _middle(documents.word_starts, begin, b_end)
    if ends[-1] - b_end == 1:  # one token alone would make no pair
        b_end += 1 if b_end - begin < room else -1
    return min(a_end, b_end - 1), b_end


def _middle(word_starts: np.ndarray, begin: int, end: int) -> int:
    """The start of a word that is nearest to the middle; the middle itself where one word is all."""
    starts = np.flatnonzero(word_starts[begin + 1 : end]) + begin + 1
    middle = (begin + end) // 2
    return int(starts[np.abs(starts - middle).argmin()]) if len(starts) else middle


def _excerpt(begin: int, ends: list[int], budget: int, draw: Callable[[], float]) -> tuple[int, int]:
    """Whole sentences of a document from a random one on, `budget` tokens at most; the first is cut if too long."""
    sentence = int(draw() * len(ends))
    start = ends[sentence - 1] if sentence else begin
    last = bisect_right(ends, start + budget)
    return start, ends[last - 1] if last > sentence else start + budget
