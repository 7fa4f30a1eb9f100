"""Tokens of documents, and what a row is made of: the two that packings go between.

In: arrays. Out: the documents one by one, as places in those arrays. Pure: knows neither texts nor special tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True)
class Documents:
    """Tokens of documents, one behind the other: N tokens, S sentences, D documents, none of them empty."""

    input_ids: np.ndarray
    """(N,) int32"""
    word_starts: np.ndarray
    """(N,) bool: whether a word begins here."""
    sentence_ends: np.ndarray
    """(S,) int64, ascending: where the tokens of each sentence end."""
    document_ends: np.ndarray
    """(D,) int64, ascending, each of them the end of a sentence."""

    def each(self) -> Iterator[tuple[int, list[int]]]:
        """The first token of each document, and the ends of its sentences."""
        cuts = np.searchsorted(self.sentence_ends, self.document_ends, "right").tolist()
        ends = self.sentence_ends.tolist()
        begin = first = 0
        for cut in cuts:
            yield begin, ends[first:cut]
            begin, first = ends[cut - 1], cut


class Arrangement(NamedTuple):
    """What a row is made of."""

    spans: list[tuple[int, int]]
    """First token and the one behind the last, of each document or segment in it."""
    label: int = -1
    """As data/rows.py's Row has it."""
    copied: bool = False
    """Segment B is a copy: its tokens are in another row as well."""
