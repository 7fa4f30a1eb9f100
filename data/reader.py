"""A tokenizer's folder -> what reads labelled texts: tokens of texts and of words, and where special tokens go.

In: a Hugging Face folder. Out: a `Reader`. Reads text as transformers does (a special token's name in a text is that
token), for that is how the finished model is used elsewhere. Reading text of a corpus is data/tokenizer.py's.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from data.tokenizer import load_tokenizer

if TYPE_CHECKING:
    import tokenizers


@dataclass(frozen=True)
class Template:
    """Special tokens around one text, or around and between two: three runs of ids, and the segment of each part."""

    specials: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    """Before the first text, between the texts (none for one text), behind the last."""
    segments: tuple[int, int, int, int, int]
    """Of: before, first text, between, second text, behind."""

    @property
    def size(self) -> int:
        """Number of special tokens."""
        return sum(len(part) for part in self.specials)

    def join(self, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Ids (int32) and segments (int8) of a row of two runs of ids; `second` is empty where there is one text."""
        before, between, behind = self.specials
        parts = (before, first, between, second, behind)
        ids = np.concatenate([np.asarray(part, np.int32) for part in parts])
        return ids, np.repeat(np.array(self.segments, np.int8), [len(part) for part in parts])


@dataclass(frozen=True)
class Reader:
    """A tokenizer for labelled texts."""

    texts: "tokenizers.Tokenizer"
    words: "tokenizers.Tokenizer"
    """The same for texts that are words already: each begins as a word in running text does."""
    single: Template
    pair: Template
    pad_id: int
    unk_id: int | None


def open_reader(folder: str | Path) -> Reader:
    """The reader of a folder. Raises UserError as load_tokenizer."""
    tokenizer: Any = load_tokenizer(folder)
    texts = cast("tokenizers.Tokenizer", tokenizer.backend_tokenizer)
    texts.no_truncation()
    texts.no_padding()
    return Reader(
        texts, _for_words(texts), _template(texts, ["a"]), _template(texts, ["a", "a"]), tokenizer.pad_token_id,
        tokenizer.unk_token_id,
    )  # fmt: skip


def _template(backend: "tokenizers.Tokenizer", texts: list[str]) -> Template:
    """What the tokenizer puts around one or two texts, seen on an example."""
    encoding = backend.encode(texts[0], texts[1] if len(texts) > 1 else None)
    of = encoding.sequence_ids  # None: a special token
    places = [[i for i, number in enumerate(of) if number == text] for text in range(len(texts))]
    first, last = places[0], places[-1]
    runs = (range(first[0]), range(first[-1] + 1, last[0]), range(last[-1] + 1, len(of)))
    specials = [tuple(encoding.ids[i] for i in run) for run in runs]
    segments = [encoding.type_ids[run[0]] if len(run) else 0 for run in runs]
    types = (segments[0], encoding.type_ids[first[0]], segments[1], encoding.type_ids[last[0]], segments[2])
    return Template((specials[0], specials[1], specials[2]), types)


def _for_words(texts: "tokenizers.Tokenizer") -> "tokenizers.Tokenizer":
    """The tokenizer with a space put before every word where its tokens know that space (byte-level BPE).

    transformers asks for the same, add_prefix_space=True, before RoBERTa reads words.
    """
    from tokenizers import Tokenizer as Backend

    if texts.pre_tokenizer is None:
        return texts
    state = json.loads(cast(Any, texts.pre_tokenizer).__getstate__())
    if not _prefix_spaces(state):
        return texts
    words = Backend.from_str(texts.to_str())
    pre_tokenizer = cast(Any, words.pre_tokenizer)
    pre_tokenizer.__setstate__(json.dumps(state).encode())
    words.pre_tokenizer = pre_tokenizer
    return words


def _prefix_spaces(state: Any) -> bool:
    """Turn add_prefix_space on in a pre-tokenizer's state; whether that changed anything."""
    if isinstance(state, list):
        return any([_prefix_spaces(part) for part in state])  # a list: all of them, not until the first
    if not isinstance(state, dict):
        return False
    changed = state.get("type") == "ByteLevel" and state.get("add_prefix_space") is False
    if changed:
        state["add_prefix_space"] = True
    return any([_prefix_spaces(value) for value in state.values()]) or changed
