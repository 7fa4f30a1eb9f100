"""Texts -> token ids and where words begin, by any fast tokenizer, each distinct word tokenised once.

In: a tokenizer's tokenizer.json and texts. Out: arrays of their tokens. Text is text: "[SEP]" in it gives no special
token. Knows neither sentences nor rows.

Tokenising is nine tenths of what preparing a corpus costs (0.6 million tokens per second and core), and nearly all words
of a text were seen before. Where a tokenizer provably treats what stands between two single spaces on its own, whatever
stands around it, such pieces are looked up; otherwise a piece is the whole text. The result is the same.
"""

import json
import os
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from data.config import UserError
from data.storage import fetch_once

if TYPE_CHECKING:
    from tokenizers import Encoding
    from tokenizers import Tokenizer as Backend

PIECES_KEPT = 300_000  # English text of 1 GB has about as many distinct words; 60 MB. More, and the table begins anew
BATCH_CHARACTERS = 500_000  # handed to the tokenizer at once: its encodings take about 60 bytes per character
# What these do to a character depends on no other across a space (Strip and Precompiled may look on) ...
_KEEPING = frozenset("Lowercase NFC NFD NFKC NFKD".split())
# ... and these may leave nothing of a word, so that two spaces meet: no matter where white space is no token.
_DELETING = frozenset("BertNormalizer StripAccents Nmt".split())
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

    def __init__(self, tokenizer: str, word_segmenter: str | None) -> None:
        from tokenizers import Tokenizer as Backend

        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # Ray's tasks are the parallelism; threads would fight them
        self._backend = Backend.from_str(tokenizer)
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.encode_special_tokens = True
        self._by_words = cuts_at_spaces(json.loads(tokenizer))
        self._segment = _segmenter(word_segmenter) if word_segmenter else None
        self._marks = _space_marks(self._backend)
        self._forget()

    def _forget(self) -> None:
        self._numbers: dict[str, int] = {}
        self._ids = np.empty(0, np.int32)
        self._word_starts = np.empty(0, bool)
        self._bounds = np.zeros(1, np.int64)  # piece i is _ids[_bounds[i] : _bounds[i + 1]]

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Tokens of texts, none added. Memory is bounded by their length, not by their number."""
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
        pieces = [split_words(text) for text in texts] if self._by_words else [[" " + text] for text in texts]
        flat = list(chain.from_iterable(pieces))
        if len(self._numbers) > PIECES_KEPT:
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

    def _learn(self, pieces: list[str]) -> None:
        """Tokenise pieces that are new."""
        texts = [piece[1:] if piece[:1] == " " else " " + piece for piece in pieces]
        encodings = self._backend.encode_batch(texts, add_special_tokens=False)  # encode_batch_fast tells no words
        sizes = np.fromiter(map(len, encodings), np.int64, len(encodings))
        ends = np.cumsum(sizes)
        total = int(ends[-1])
        ids = np.fromiter(chain.from_iterable(encoding.ids for encoding in encodings), np.int32, total)
        word_starts = self._word_starts_of(encodings, ids, ends)
        if self._segment:
            starts = ends - sizes
            for text, encoding, start, end in zip(texts, encodings, starts, ends, strict=True):
                if not text.isascii():
                    word_starts[start:end] = _segmented(text, encoding, word_starts[start:end], self._segment)
        self._numbers.update(zip(pieces, range(len(self._numbers), len(self._numbers) + len(pieces)), strict=True))
        self._bounds = np.concatenate([self._bounds, self._bounds[-1] + ends])
        self._ids = np.concatenate([self._ids, ids])
        self._word_starts = np.concatenate([self._word_starts, word_starts])

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


_encoder = lru_cache(maxsize=2)(Encoder)  # by content: a path may come to hold another tokenizer


def split_words(text: str) -> list[str]:
    """The pieces of a text between single spaces. A piece is told without the space that stands before it; one that
    has none (the first, or a text that other white space makes hard to cut) is told behind a space instead.
    """
    body = text.lstrip()
    if not body.isprintable() or "  " in body or body[-1:] == " ":  # isprintable: no white space but spaces
        return [" " + text]
    words = body.split(" ")
    white = text[: len(text) - len(body)]
    if white != " ":
        words[0] = f" {white}{words[0]}"
    return words


def cuts_at_spaces(tokenizer: dict[str, Any]) -> bool:
    """Is the encoding of a text that of its pieces (`split_words`) in a row? tokenizer: the tokenizer.json.

    True for what was looked into: pre-tokenisers that begin anew at each space, behind normalisers that look at no
    character beyond it. WordPiece, BPE and Unigram see one pre-token at a time.
    """
    if any(not token["special"] for token in tokenizer["added_tokens"]) or tokenizer["model"].get("dropout"):
        return False
    normalizers, splitters = (_steps(tokenizer[key]) for key in ("normalizer", "pre_tokenizer"))
    kinds = [step["type"] for step in splitters]
    drops_white_space = kinds[:1] in (["BertPreTokenizer"], ["WhitespaceSplit"], ["Whitespace"])
    if {step["type"] for step in normalizers} - _KEEPING - (_DELETING if drops_white_space else set()):
        return False
    if kinds == ["ByteLevel"]:
        return bool(splitters[0].get("use_regex", True))
    if kinds in (["Metaspace"], ["WhitespaceSplit", "Metaspace"]):
        return bool(splitters[-1].get("split", True)) and splitters[-1].get("prepend_scheme") == "always"
    return drops_white_space and len(kinds) == 1


def _steps(part: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The steps of a normaliser or pre-tokeniser, sequences laid flat."""
    if part is None:
        return []
    if part["type"] != "Sequence":
        return [part]
    return [step for inner in part.get("normalizers", part.get("pretokenizers", [])) for step in _steps(inner)]


def _space_marks(backend: "Backend") -> np.ndarray | None:
    """(vocabulary,) bool, which tokens begin a word, of a tokenizer that does not tell words itself; None if it does."""
    words = backend.encode("a b c", add_special_tokens=False).word_ids
    if len(words) == 1 or len(set(words)) > 1:
        return None
    marks = np.zeros(backend.get_vocab_size(), bool)
    for token, number in backend.get_vocab().items():
        marks[number] = token.startswith(_SPACE_MARKS)
    return marks


def _segmenter(name: str) -> Any:
    """A function from a text to its (word, first character, last) triples."""
    try:
        import rjieba
    except ImportError:
        raise UserError(f"rows.word_segmenter={name}: it is not installed here; pip install {name}") from None
    return lambda text: rjieba.tokenize(text, "default")


def _segmented(text: str, encoding: "Encoding", word_starts: np.ndarray, segment: Any) -> np.ndarray:
    """Word starts where the words of Chinese text are the segmenter's; those of other text stay."""
    begins = np.zeros(len(text) + 1, bool)
    begins[[start for _, start, _ in segment(text)]] = True
    chinese = np.fromiter(map(is_chinese, text), bool, len(text))
    first, last = np.array(encoding.offsets, np.int64).reshape(-1, 2).T
    inside = chinese[np.minimum(first, len(text) - 1)]
    counts = np.concatenate([[0], np.cumsum(begins)])
    later = np.concatenate([[True], first[1:] > first[:-1]])  # not a further byte of the same character
    return np.where(inside, later & (counts[last] > counts[first]), word_starts)


def is_chinese(character: str) -> bool:
    """Han characters, the supplementary planes among them."""
    return "㐀" <= character <= "鿿" or "豈" <= character <= "﫿" or "𠀀" <= character <= "𲎯"
