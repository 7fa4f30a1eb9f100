"""Texts -> token ids and where words begin, by any fast tokenizer, each distinct word tokenised once.

In: a tokenizer's tokenizer.json and texts. Out: arrays of their tokens. Text is text: "[SEP]" in it gives no special
token. Knows neither sentences nor rows.

Tokenisers do 0.6 million tokens per second and core, and nearly all words of a text were seen before: looking them up
does two million, the rest of the road included. Where a tokenizer provably treats what stands between white space on
its own, whatever stands around it, words are looked up; so are single Chinese characters where it takes each for a
word. Otherwise a piece is the whole text. The result is the same.
"""

import copy
import json
import os
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate, chain, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from data.config import UserError
from data.splitting import cuts_at_chinese, steps_of, word_splitter
from data.storage import fetch_once
from data.tokenizer import text_backend

if TYPE_CHECKING:
    from tokenizers import Encoding
    from tokenizers import Tokenizer as Backend

PIECES_KEPT = 300_000  # English text of 1 GB has about as many distinct words; 60 MB. More, and the table begins anew
TOKENS_KEPT = 3_000_000  # and so it does where pieces are whole sentences, which hardly ever come again
BATCH_CHARACTERS = 500_000  # handed to the tokenizer at once: its encodings take about 60 bytes per character
# Characters that BERT's normaliser sets apart: fewer than it does (the planes beyond), which is as right.
_CHINESE = "\\u3400-\\u4dbf\\u4e00-\\u9fff\\uf900-\\ufaff"
_CHINESE_RUN = re.compile(f"[{_CHINESE}]+")
_CHINESE_OR_NOT = re.compile(f"[{_CHINESE}]+|[^{_CHINESE}]+")
CONTINUES = "\udc81"  # before a piece that goes on inside a text: half a surrogate pair, which no text holds
_SPACE_MARKS = ("▁", "Ġ", " ")  # begin the tokens that begin a word: SentencePiece's, byte-level BPE's, plain


class Encoded(NamedTuple):
    """Tokens of several texts, one behind the other."""

    input_ids: np.ndarray
    """(N,) int32"""
    word_starts: np.ndarray
    """(N,) bool: whether a word begins with this token."""
    ends: np.ndarray
    """(texts,) int64, ascending: where the tokens of each text end."""


class Encoder:
    """A tokenizer with the pieces that it met before."""

    def __init__(self, backend: "Backend", word_segmenter: str | None) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # Ray's tasks are the parallelism; threads would fight them
        facts = json.loads(backend.to_str())
        self._backend = backend
        self._split, self._by_characters = word_splitter(facts), cuts_at_chinese(facts)
        self._inner = _continuing(facts)
        self._segment = open_segmenter(word_segmenter) if word_segmenter else None
        self._marks = _space_marks(self._backend)
        self._forget()

    def _forget(self) -> None:
        self._numbers: dict[str, int] = {}
        self._ids = np.empty(0, np.int32)
        self._word_starts = np.empty(0, bool)
        self._bounds = np.zeros(1, np.int64)  # piece i is _ids[_bounds[i] : _bounds[i + 1]]

    def encode(self, texts: Sequence[str], continues: Sequence[bool] = ()) -> Encoded:
        """Tokens of texts, none added. Memory is bounded by their length, not by their number.

        `continues`: which texts go on where the one before ended, without white space, as sentences of Chinese do. A
        tokenizer that puts a space before whatever text it is given puts none there.
        """
        if self._inner is not None:
            texts = [CONTINUES + text if inside else text for text, inside in zip_longest(texts, continues)]
        parts: list[Encoded] = []
        start = num_characters = 0
        for stop, text in enumerate(texts, 1):
            num_characters += len(text)
            if num_characters >= BATCH_CHARACTERS or stop == len(texts):
                parts.append(self._encode_batch(texts[start:stop]))
                start, num_characters = stop, 0
        if not parts:
            return Encoded(np.empty(0, np.int32), np.empty(0, bool), np.empty(0, np.int64))
        before = np.cumsum([0, *(len(part.input_ids) for part in parts)])
        return Encoded(
            np.concatenate([part.input_ids for part in parts]),
            np.concatenate([part.word_starts for part in parts]),
            np.concatenate([part.ends + shift for part, shift in zip(parts, before, strict=False)]),
        )

    def _encode_batch(self, texts: Sequence[str]) -> Encoded:
        """Look the pieces of texts up, after those that are new were tokenised."""
        pieces = [self._pieces(text) for text in texts]
        flat = list(chain.from_iterable(pieces))
        if len(self._numbers) > PIECES_KEPT or len(self._ids) > TOKENS_KEPT:
            self._forget()
        new = dict.fromkeys(flat).keys() - self._numbers.keys()
        if new:
            self._learn(list(new))
        numbers = np.fromiter(map(self._numbers.__getitem__, flat), np.int64, len(flat))
        first = self._bounds[numbers]
        sizes = self._bounds[numbers + 1] - first
        ends = np.cumsum(sizes)
        places = np.repeat(first - ends + sizes, sizes) + np.arange(ends[-1] if len(ends) else 0)
        of_texts = np.cumsum(np.fromiter(map(len, pieces), np.int64, len(pieces)))
        return Encoded(self._ids[places], self._word_starts[places], np.concatenate([[0], ends])[of_texts])

    def _pieces(self, text: str) -> list[str]:
        """The pieces of a text that the tokenizer treats each on its own.

        A piece is told without the space that stands before it; one that has none is told behind a space instead, or
        behind CONTINUES.
        """
        if text[:1] == CONTINUES:
            first, *words = self._pieces(text[1:])
            return [CONTINUES + first.removeprefix(" "), *words]
        words = self._split(text) if self._split else [" " + text]
        if not self._by_characters or text.isascii():
            return words
        return list(chain.from_iterable([word] if word.isascii() else self._split_chinese(word) for word in words))

    def _split_chinese(self, piece: str) -> list[str]:
        """A piece cut around each Chinese character, or around each word of them where there is a segmenter."""
        space, text = (" ", piece[1:]) if piece[0] == " " else ("", piece)
        parts: list[str] = []
        for part in _CHINESE_OR_NOT.findall(text):
            chinese = _CHINESE_RUN.match(part) is not None
            parts += (self._segment(part) if self._segment else part) if chinese else [part]
        return [space + parts[0], *(" " + part for part in parts[1:])]

    def _learn(self, pieces: list[str]) -> None:
        """Tokenise pieces that are new."""
        texts, encodings = self._tokenise(pieces)
        sizes = np.fromiter(map(len, encodings), np.int64, len(encodings))
        ends = np.cumsum(sizes)
        total = int(ends[-1])
        ids = np.fromiter(chain.from_iterable(encoding.ids for encoding in encodings), np.int32, total)
        word_starts = self._word_starts_of(encodings, ids, ends)
        if self._segment:
            starts = ends - sizes
            for text, encoding, start, end in zip(texts, encodings, starts, ends, strict=True):
                if not _CHINESE_RUN.search(text):
                    continue
                if self._by_characters:  # the piece is one word of the segmenter's
                    word_starts[start + 1 : end] = False
                else:
                    word_starts[start:end] = _segmented(text, encoding, word_starts[start:end], self._segment)
        self._numbers.update(zip(pieces, range(len(self._numbers), len(self._numbers) + len(pieces)), strict=True))
        self._bounds = np.concatenate([self._bounds, self._bounds[-1] + ends])
        self._ids = np.concatenate([self._ids, ids])
        self._word_starts = np.concatenate([self._word_starts, word_starts])

    def _tokenise(self, pieces: list[str]) -> tuple[list[str], list["Encoding"]]:
        """Pieces as text, and their encodings. `encode_batch_fast` tells no words."""
        texts = [piece[1:] if piece[:1] in (" ", CONTINUES) else " " + piece for piece in pieces]
        encodings = self._backend.encode_batch(texts, add_special_tokens=False)
        inside = [i for i, piece in enumerate(pieces) if piece[:1] == CONTINUES]
        if inside and self._inner is not None:
            found = self._inner.encode_batch([texts[i] for i in inside], add_special_tokens=False)
            for i, encoding in zip(inside, found, strict=True):
                encodings[i] = encoding
        return texts, encodings

    def _word_starts_of(self, encodings: list["Encoding"], ids: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Where the word of a token is another than that of the token before, and where a piece begins."""
        if self._marks is not None:
            starts = self._marks[ids]
        else:
            words = np.fromiter(chain.from_iterable(encoding.word_ids for encoding in encodings), np.int32, len(ids))
            starts = np.ones(len(ids), bool)
            starts[1:] = words[1:] != words[:-1]
        starts[np.concatenate([[0], ends])[:-1][np.diff(ends, prepend=0) > 0]] = True
        return starts


def open_encoder(folder: Path, word_segmenter: str | None = None) -> Encoder:
    """The encoder of a tokenizer's folder, kept for the next chunk that this process tokenises.

    Raises UserError where the word segmenter is not installed.
    """
    return _encoder(fetch_once(folder / "tokenizer.json").read_text(encoding="utf-8"), word_segmenter)


@lru_cache(maxsize=2)
def _encoder(tokenizer: str, word_segmenter: str | None) -> Encoder:
    """By content: a path may come to hold another tokenizer."""
    return Encoder(text_backend(tokenizer), word_segmenter)


def _continuing(tokenizer: dict[str, Any]) -> "Backend | None":
    """The tokenizer without the space that it puts before a text; None where it puts none."""
    from tokenizers import Tokenizer as Backend

    tokenizer, changed = copy.deepcopy(tokenizer), False
    for step in steps_of(tokenizer["pre_tokenizer"]):
        for key, never in (("prepend_scheme", "never"), ("add_prefix_space", False)):
            if step.get(key, never) != never:
                step[key], changed = never, True
    if not changed:
        return None
    backend = Backend.from_str(json.dumps(tokenizer))
    backend.encode_special_tokens = True
    return backend


def _space_marks(backend: "Backend") -> np.ndarray | None:
    """(vocabulary,) bool: which tokens begin a word, for a tokenizer that tells no words itself; None if it does."""
    words = backend.encode("a b c", add_special_tokens=False).word_ids
    if len(words) == 1 or len(set(words)) > 1:
        return None
    marks = np.zeros(backend.get_vocab_size(), bool)
    for token, number in backend.get_vocab().items():
        marks[number] = token.startswith(_SPACE_MARKS)
    return marks


def open_segmenter(name: str) -> Callable[[str], list[str]]:
    """A function from a run of Chinese characters to its words. Raises UserError where it is not installed."""
    try:
        import rjieba
    except ImportError:
        raise UserError(f"rows.word_segmenter={name}: it is not installed here; pip install {name}") from None
    return rjieba.cut


def _segmented(
    text: str, encoding: "Encoding", word_starts: np.ndarray, segment: Callable[[str], list[str]]
) -> np.ndarray:
    """Word starts where the words of Chinese characters are the segmenter's; those of other text stay."""
    chinese, begins = np.zeros(len(text) + 1, bool), np.zeros(len(text) + 1, bool)
    for run in _CHINESE_RUN.finditer(text):
        chinese[run.start() : run.end()] = True
        begins[[run.start() + end for end in accumulate(map(len, segment(run[0])[:-1]), initial=0)]] = True
    first, last = np.array(encoding.offsets, np.int64).reshape(-1, 2).T
    before = np.concatenate([[0], np.cumsum(begins)])  # words that begin before each character
    # Tokens of bytes may share a character: the first of them begins the word.
    new = np.clip(np.concatenate([[0], np.maximum.accumulate(last)[:-1]]), first, last)
    return np.where(chinese[first], before[last] > before[new], word_starts)
