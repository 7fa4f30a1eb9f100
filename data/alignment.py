"""Examples of any kind -> token rows, windows of long ones, and labels in the tokens' places.

In: `Examples`, a tokenizer. Out: `Encoded`, numpy. Knows no files and no model. How each kind is read:

    classification, multi_label,  one text: cut to the row, or (with a stride) in windows that share `stride` tokens;
    regression                    two texts: cut token by token, always the longer one (transformers' longest_first)
    tagging                       words; a word's label stands at its first token. Cut or in windows
    answering                     question and context: the question gets at most half of the row, the context is read
                                  in windows; those that do not hold the whole answer are labelled (0, 0)
    multiple_choice               a row for each choice, behind the text; cut as two texts
    embedding                     a row for each text, behind its prefix; cut

An empty text is a row of special tokens only; a word of which the tokenizer makes nothing (a control character) is read
as the unknown token, so that every word has an answer.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from data.examples import IGNORED, Encoded, Examples
from data.reader import Reader, Template, open_reader
from data.windows import check_stride, room_of, share_room, windows_of
from data.words import split_words

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

CHUNK_TEXTS = 512  # tokenised at once: an encoding of tokenizers holds about 200 bytes for each token
NONE = np.zeros(0, np.int32)


def encode_examples(
    examples: Examples,
    labels: Sequence[str],
    tokenizer: str | Path | Reader,
    length: int,
    stride: int | None = None,
    segments: bool = False,
    query_prefix: str = "",
    passage_prefix: str = "",
    ignore_unseen: bool = False,
) -> Encoded:
    """Examples as rows of at most `length` tokens, special tokens included; (N,) examples give U >= N units.

    `segments`: whether the encoder tells the first text from the second. `stride`: tokens that neighbouring windows
    share; None: cut, and a quarter of `length` for answering. Targets, where there are any, become labels: their
    numbers in `labels`. Raises UserError where `length` holds no token beside the special ones, or `stride` leaves a
    window nothing new; ValueError for a target that is not among `labels`, unless `ignore_unseen` makes it one that
    counts for no loss.
    """
    reader = tokenizer if isinstance(tokenizer, Reader) else open_reader(tokenizer)
    rows = _Rows(reader.pad_id, segments)
    if examples.kind == "tagging":
        _read_words(rows, examples, reader, length, stride)
    elif examples.kind == "answering":
        _read_answers(rows, examples, reader, length, stride)
    elif examples.kind == "embedding":
        rows.group = 1 if examples.pairs is None else 2
        columns = [[query_prefix + text for text in examples.texts]]
        columns += [] if examples.pairs is None else [[passage_prefix + text for text in examples.pairs]]
        _read_texts(rows, columns, reader, length, None)
    elif examples.kind == "multiple_choice":
        _read_choices(rows, examples, reader, length)
    elif examples.pairs is not None:
        _read_pairs(rows, examples.texts, examples.pairs, reader, length)
    else:
        _read_texts(rows, [examples.texts], reader, length, stride)
    encoded = rows.encoded(len(examples), _labels(examples, labels, rows, ignore_unseen))
    if examples.kind != "embedding" or examples.pairs is None:
        return encoded
    numbers: dict[bytes, int] = {}
    ids = [numbers.setdefault(row.tobytes(), len(numbers)) for row in rows.ids[1::2]]
    return replace(encoded, passage_ids=np.array(ids, np.int64))


@dataclass
class _Rows:
    """Rows as they are found."""

    pad_id: int
    with_segments: bool
    group: int = 1
    ids: list[np.ndarray] = field(default_factory=list)
    segments: list[np.ndarray] = field(default_factory=list)
    words: list[np.ndarray] = field(default_factory=list)
    firsts: list[np.ndarray] = field(default_factory=list)
    offsets: list[np.ndarray] = field(default_factory=list)
    units: list[int] = field(default_factory=list)
    cuts: set[int] = field(default_factory=set)
    spans: list[tuple[int, int]] = field(default_factory=list)

    def add(self, template: Template, first: np.ndarray, second: np.ndarray = NONE) -> None:
        ids, segments = template.join(first, second)
        self.ids.append(ids)
        if self.with_segments:
            self.segments.append(segments)

    def encoded(self, num_examples: int, labels: np.ndarray | None) -> Encoded:
        lengths = np.array([len(ids) for ids in self.ids], np.int32)
        longest = int(lengths.max(initial=1))
        several = self.with_segments and any(part.any() for part in self.segments)
        cuts = np.zeros(num_examples, bool)
        cuts[sorted(self.cuts)] = True
        return Encoded(
            input_ids=_padded(self.ids, longest, self.pad_id, np.int32),
            lengths=lengths,
            segments=_padded(self.segments, longest, 0, np.int8) if several else None,
            examples=np.array(self.units, np.int64),
            cuts=cuts,
            pad_id=self.pad_id,
            group=self.group,
            labels=labels,
            word_ids=_padded(self.words, longest, -1, np.int32) if self.words else None,
            offsets=_padded(self.offsets, longest, -1, np.int32) if self.offsets else None,
        )


def _padded(rows: Sequence[np.ndarray], longest: int, filling: int, dtype: Any) -> np.ndarray:
    padded = np.full((len(rows), longest, *rows[0].shape[1:]) if rows else (0, longest), filling, dtype)
    for row, values in zip(padded, rows, strict=True):
        row[: len(values)] = values
    return padded


def _encodings(backend: "Tokenizer", texts: Sequence[Any], words: bool = False) -> Iterator["Encoding"]:
    """Encodings without special tokens, uncut."""
    for start in range(0, len(texts), CHUNK_TEXTS):
        chunk = list(texts[start : start + CHUNK_TEXTS])
        yield from backend.encode_batch(chunk, is_pretokenized=words, add_special_tokens=False)


def _read_texts(rows: _Rows, columns: Sequence[Sequence[str]], reader: Reader, length: int, stride: int | None) -> None:
    room = room_of(length, reader.single)
    check_stride(stride, room, length)
    streams = [_encodings(reader.texts, column) for column in columns]
    for example, encodings in enumerate(zip(*streams, strict=True)):
        for encoding in encodings:
            ids = np.array(encoding.ids, np.int32)
            for window in windows_of(len(ids), room, stride):
                rows.add(reader.single, ids[window])
                if encoding is encodings[0]:
                    rows.units.append(example)
            if stride is None and len(ids) > room:
                rows.cuts.add(example)


def _read_pairs(rows: _Rows, texts: Sequence[str], pairs: Sequence[str], reader: Reader, length: int) -> None:
    room = room_of(length, reader.pair, 2)
    streams = zip(_encodings(reader.texts, texts), _encodings(reader.texts, pairs), strict=True)
    for row, (first, second) in enumerate(streams):
        one, two = share_room(len(first.ids), len(second.ids), room)
        rows.add(reader.pair, np.array(first.ids[:one], np.int32), np.array(second.ids[:two], np.int32))
        example, place = divmod(row, rows.group)
        if place == 0:
            rows.units.append(example)
        if (one, two) != (len(first.ids), len(second.ids)):
            rows.cuts.add(example)


def _read_choices(rows: _Rows, examples: Examples, reader: Reader, length: int) -> None:
    choices = examples.choices or []
    rows.group = max((len(some) for some in choices), default=1)
    texts = [text for text, some in zip(examples.texts, choices, strict=True) for _ in some]
    _read_pairs(rows, texts, [choice for some in choices for choice in some], reader, length)


def _read_words(rows: _Rows, examples: Examples, reader: Reader, length: int, stride: int | None) -> None:
    room = room_of(length, reader.single)
    check_stride(stride, room, length)
    words = examples.words
    if words is None:
        words = [[text[start:end] for start, end in split_words(text)] for text in examples.texts]
    before = len(reader.single.specials[0])
    for example, encoding in enumerate(_encodings(reader.words, words, words=True)):
        ids = np.array(encoding.ids, np.int32)
        of = np.array(encoding.word_ids, np.int32)
        missing = np.setdiff1d(np.arange(len(words[example]), dtype=np.int32), of)
        if len(missing):
            unknown = reader.pad_id if reader.unk_id is None else reader.unk_id
            places = np.searchsorted(of, missing)
            ids, of = np.insert(ids, places, unknown), np.insert(of, places, missing)
        first = np.diff(of, prepend=-1) != 0
        for window in windows_of(len(ids), room, stride):
            rows.add(reader.single, ids[window])
            kept, starts = np.full(len(rows.ids[-1]), -1, np.int32), np.zeros(len(rows.ids[-1]), bool)
            inside = slice(before, before + len(of[window]))
            kept[inside], starts[inside] = of[window], first[window]
            rows.words.append(kept)
            rows.firsts.append(starts)
            rows.units.append(example)
        if stride is None and len(ids) > room:
            rows.cuts.add(example)


def _read_answers(rows: _Rows, examples: Examples, reader: Reader, length: int, stride: int | None) -> None:
    room = room_of(length, reader.pair, 2)
    check_stride(stride, room - room // 2, length)  # a long question takes half of it
    contexts = examples.pairs or []
    streams = zip(_encodings(reader.texts, examples.texts), _encodings(reader.texts, contexts), strict=True)
    for example, (question, context) in enumerate(streams):
        asked = np.array(question.ids[: room // 2], np.int32)
        ids = np.array(context.ids, np.int32)
        offsets = np.array(context.offsets, np.int32).reshape(-1, 2)
        span = None if examples.targets is None else _span(examples.targets[example], offsets)
        left = room - len(asked)
        shared = min(length // 4, left - 1) if stride is None else stride
        before = sum(map(len, reader.pair.specials[:2])) + len(asked)
        for window in windows_of(len(ids), left, shared):
            rows.add(reader.pair, asked, ids[window])
            kept = np.full((len(rows.ids[-1]), 2), -1, np.int32)
            kept[before : before + len(ids[window])] = offsets[window]
            rows.offsets.append(kept)
            rows.units.append(example)
            holds = span is not None and window.start <= span[0] and span[1] < window.stop
            shift = before - window.start
            rows.spans.append((span[0] + shift, span[1] + shift) if holds and span else (0, 0))
        if len(question.ids) > len(asked):
            rows.cuts.add(example)


def _span(answers: Sequence[tuple[int, str]], offsets: np.ndarray) -> tuple[int, int] | None:
    """First and last token of the first answer; None where there is none, or the tokenizer makes nothing of it."""
    if not answers:
        return None
    start, end = answers[0][0], answers[0][0] + len(answers[0][1])
    inside = np.flatnonzero((offsets[:, 1] > start) & (offsets[:, 0] < end) & (offsets[:, 1] > offsets[:, 0]))
    return (int(inside[0]), int(inside[-1])) if len(inside) else None


def _labels(
    examples: Examples, labels: Sequence[str], rows: _Rows, ignore_unseen: bool = False
) -> np.ndarray | None:
    """The targets of units, None for unlabelled examples."""
    targets = examples.targets
    if targets is None:
        return None
    if examples.kind == "answering":
        return np.array(rows.spans, np.int64).reshape(-1, 2)
    numbers = {label: i for i, label in enumerate(labels)}
    if ignore_unseen:
        numbers = defaultdict(lambda: IGNORED, numbers)
    try:
        if examples.kind == "tagging":
            return _token_labels(rows, [np.array([numbers[tag] for tag in tags], np.int64) for tags in targets])
        if examples.kind == "multi_label":
            values = np.zeros((len(targets), len(labels)), np.float32)
            for row, names in zip(values, targets, strict=True):
                row[[numbers[name] for name in names if numbers[name] != IGNORED]] = 1
        elif any(isinstance(target, str) for target in targets):
            values = np.array([numbers[target] for target in targets], np.int64)
        elif any(isinstance(target, float) for target in targets):
            values = np.array(targets, np.float32)
        else:  # the number of a choice, or None: nothing but the pair itself
            values = np.array([target or 0 for target in targets], np.int64)
    except KeyError as error:
        raise ValueError(f"label {error.args[0]!r} is not among the task's {len(labels)} labels") from None
    return values[np.array(rows.units, np.int64)]


def _token_labels(rows: _Rows, tags: Sequence[np.ndarray]) -> np.ndarray:
    """Numbers of tags at the first token of each word. A window that begins inside a word does not hold its first."""
    longest = max((len(ids) for ids in rows.ids), default=1)
    labels = np.full((len(rows.ids), longest), IGNORED, np.int64)
    for row, words, first, example in zip(labels, rows.words, rows.firsts, rows.units, strict=True):
        places = np.flatnonzero(first)
        row[places] = tags[example][words[places]]
    return labels
