"""What a task is to the rest of the road: examples as they were read, and as a model reads them.

In: what data/tasks.py and data/alignment.py found. Out: three records. Knows neither files nor tokenizers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np

IGNORED = -100  # the label of a token that counts for nothing; torch's cross entropy passes over it
NO_ANSWER = "no answer"  # the one label of an answering task whose questions need not have an answer in the text


class Example(NamedTuple):
    """One example as a reader of files gives it; what it means stands in `Examples`."""

    text: str
    target: Any = None
    pair: str | None = None
    choices: list[str] | None = None
    words: list[str] | None = None
    passage_id: str | None = None
    group: str | None = None


# What a reader gives for each example: its place, and the example, or what is wrong with it, or None for a blank one.
Read = tuple[str, Example | str | None]


@dataclass(frozen=True)
class Examples:
    """Examples of one kind in the order of their file: one entry of each list for each example.

    Targets by kind: classification: the label's name; multi_label: a tuple of names; regression: a float; tagging: a
    tag for each word; answering: a list of (first character in the context, answer), empty where it holds no answer;
    multiple_choice: the number of the right choice; embedding: the pair's label (loss softmax), its likeness as a float
    (cosine), or None (in_batch).
    """

    kind: str
    texts: list[str]
    """The first or only text; tagging: the words joined as they stood in the file."""
    pairs: list[str] | None = None
    """The second text; answering: the context; embedding: the passage."""
    choices: list[list[str]] | None = None
    """multiple_choice: what can go on from the text, the same number for each example."""
    words: list[list[str]] | None = None
    """tagging: the words to tag; None: words are told by data/words.py."""
    targets: list[Any] | None = None
    """None: unlabelled."""
    places: list[str] | None = None
    """"file:line" of each."""
    passage_ids: list[str] | None = None
    """embedding, with a file of passages: the id of each query's passage."""
    groups: list[str] | None = None
    """What must stay together where splits are made."""
    num_blank: int = 0
    """Examples left out because their text is blank."""

    def __len__(self) -> int:
        return len(self.texts)

    @classmethod
    def of(cls, kind: str, examples: Sequence[tuple[str, Example]], num_blank: int) -> "Examples":
        """Examples with their places, at least one. Those of one kind have the same fields."""
        places, read = zip(*examples, strict=True)
        columns = {name: list(values) for name, values in zip(Example._fields, zip(*read, strict=True), strict=True)}
        pairs, choices, words, ids, groups = (
            None if columns[name][0] is None else columns[name]
            for name in ("pair", "choices", "words", "passage_id", "group")
        )
        texts, targets = columns["text"], columns["target"]
        return cls(kind, texts, pairs, choices, words, targets, list(places), ids, groups, num_blank)

    def take(self, numbers: Sequence[int]) -> "Examples":
        """Some of the examples, in the order given."""
        lists = {f.name: getattr(self, f.name) for f in fields(self) if isinstance(getattr(self, f.name), list)}
        return replace(self, **{name: [values[i] for i in numbers] for name, values in lists.items()})


@dataclass(frozen=True)
class TaskData:
    """A task: its splits, and what their targets are."""

    kind: str
    labels: list[str]
    """Names of the training examples' labels or tags, sorted, so that a label's number does not depend on the order of
    a file. Answering: [NO_ANSWER] where some training questions have none. Else empty."""
    scheme: str | None
    """tagging: how tags mark entities; None: they mark none."""
    train: Examples
    validation: Examples
    test: Examples | None
    passages: dict[str, str] | None = None
    """embedding: texts to search by id, where task.passages gives them."""
    counts_unseen: bool = False
    """Validation and test examples may have labels that are not in `labels`: they count as wrong."""
    notes: tuple[str, ...] = ()
    """What the user should know and need not change, a line each."""


def ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The whole numbers of several ranges, one behind the other: starts (N,), counts (N,) -> (sum of counts,)."""
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(counts.sum())


@dataclass(frozen=True)
class Encoded:
    """What a model reads: U units of `group` rows, each a whole example or one window of it.

    B = U * group rows of T tokens (T is the longest row's). Rows of one unit follow one another.
    """

    input_ids: np.ndarray
    """(B, T) int32, padded with pad_id."""
    lengths: np.ndarray
    """(B,) int32."""
    segments: np.ndarray | None
    """(B, T) int8; None for single texts, and for an encoder that has none."""
    examples: np.ndarray
    """(U,) int64, ascending: the number of the example of each unit."""
    cuts: np.ndarray
    """(N,) bool by example: it is longer than what is read of it."""
    pad_id: int
    group: int = 1
    labels: np.ndarray | None = None
    """classification, multiple_choice: (U,) int64; multi_label: (U, C) float32; regression: (U,) float32; tagging:
    (U, T) int64, IGNORED but for the first token of each word; answering: (U, 2) int64, the answer's first and last
    token, (0, 0) in a window without it; embedding: (U,) int64 (softmax; zeros for in_batch) or float32 (cosine)."""
    word_ids: np.ndarray | None = None
    """tagging: (U, T) int32, the word that a token is of, -1 for special tokens and padding."""
    offsets: np.ndarray | None = None
    """answering: (U, T, 2) int32, a token's characters in the context, -1 for all others."""
    passage_ids: np.ndarray | None = None
    """embedding of pairs: (U,) int64, equal where second rows are."""
    features: np.ndarray | None = None
    """(B, D) float32: a frozen encoder's pooled outputs, where they were computed already; or (tokens, D): those of
    all tokens."""
    starts: np.ndarray | None = None
    """(B,) int64: where in `features` a row's tokens begin; None: features are of rows."""

    def __len__(self) -> int:
        return len(self.examples)

    def batch(self, units: np.ndarray) -> dict[str, np.ndarray]:
        """What a model reads of b units: input_ids, attention_mask, token_type_ids int64 (b * group, t), word_ids
        (b, t) of tagging, passage_ids (b,) of pairs, and labels.

        t is the longest of their rows. Where features are known they stand for the tokens: features (b * group, D);
        of tokens (b * group, t, D), zero behind a row's end, and the attention_mask.
        """
        rows = self._rows(units)
        each = {"passage_ids": self.passage_ids, "labels": self.labels}
        known = {name: values[units] for name, values in each.items() if values is not None}
        if self.features is not None and self.starts is None:
            return {"features": self.features[rows], **known}
        batch = self.tokens(rows)
        attended = batch["attention_mask"].astype(bool)
        longest = attended.shape[1]
        if self.word_ids is not None:  # a CRF goes from word to word
            batch["word_ids"] = self.word_ids[units, :longest].astype(np.int64)
            known |= {"labels": known["labels"][:, :longest]} if "labels" in known else {}
        if self.features is not None and self.starts is not None:
            del batch["input_ids"]
            batch.pop("token_type_ids", None)
            batch["features"] = np.zeros((*attended.shape, self.features.shape[1]), np.float32)
            batch["features"][attended] = self.features[(self.starts[rows, None] + np.arange(longest))[attended]]
        return batch | known

    def tokens(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """input_ids, attention_mask, token_type_ids int64 (r, t) of r rows, of whichever units."""
        lengths = self.lengths[rows]
        longest = int(lengths.max(initial=1))
        batch = {
            "input_ids": self.input_ids[rows, :longest].astype(np.int64),
            "attention_mask": (np.arange(longest) < lengths[:, None]).astype(np.int64),
        }
        if self.segments is not None:
            batch["token_type_ids"] = self.segments[rows, :longest].astype(np.int64)
        return batch

    def with_features(self, values: np.ndarray, on_tokens: bool) -> "Encoded":
        """The same with a frozen encoder's outputs: a vector for each row, or for each attended token of all rows.

        Raises ValueError where there are more or fewer: they were computed of other rows.
        """
        wanted = int(self.lengths.sum()) if on_tokens else len(self.lengths)
        if len(values) != wanted:
            raise ValueError(f"features of {len(values)} rows or tokens, not {wanted}: of other examples")
        return replace(self, features=values, starts=np.cumsum(self.lengths) - self.lengths if on_tokens else None)

    def take(self, numbers: np.ndarray) -> "Encoded":
        """The units of some examples, which are numbered anew in the order given."""
        numbers = np.asarray(numbers, np.int64)
        first = np.searchsorted(self.examples, numbers)
        counts = np.searchsorted(self.examples, numbers, "right") - first
        units = ranges(first, counts)
        rows = self._rows(units)
        longest = int(self.lengths[rows].max(initial=1))

        def cut(values: np.ndarray | None, of: np.ndarray) -> np.ndarray | None:
            return None if values is None else values[of, :longest]

        def each(values: np.ndarray | None, of: np.ndarray) -> np.ndarray | None:
            return None if values is None else values[of]

        return replace(
            self,
            input_ids=self.input_ids[rows, :longest],
            lengths=self.lengths[rows],
            segments=cut(self.segments, rows),
            examples=np.repeat(np.arange(len(numbers)), counts),
            cuts=self.cuts[numbers],
            labels=each(self.labels, units) if self.word_ids is None else cut(self.labels, units),
            word_ids=cut(self.word_ids, units),
            offsets=cut(self.offsets, units),
            passage_ids=each(self.passage_ids, units),
            features=self.features if self.starts is not None else each(self.features, rows),
            starts=each(self.starts, rows),
        )

    def _rows(self, units: np.ndarray) -> np.ndarray:
        """Numbers of the rows of units, (b * group,)."""
        return (np.asarray(units)[:, None] * self.group + np.arange(self.group)).reshape(-1)
