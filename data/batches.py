"""What travels from the stream to a worker, and the micro-batches it becomes.

In: the masked rows that one rank trains on over a few steps (a Part). Out: per step the micro-batches of that rank.
Knows numpy and pyarrow; torch never: the worker turns arrays into tensors.

A micro-batch is a dict of arrays, B rows x T tokens (T: the longest row of the micro-batch, rounded up to 8):
    input_ids        (B, T) int64   what the model sees; [PAD] behind the row's end
    attention_mask   (B, T) int64   1 on tokens, 0 on padding
    labels           (B, T) int64   token to guess, -100 where there is none
of sentence pairs also
    token_type_ids   (B, T) int64   0 on segment A and padding, 1 on segment B
    pair_labels      (B,)   int64   1 where B follows A (or the two stand in order), 0 where not, -100 on filler rows
and of packed documents also
    document_ids     (B, T) int64   number of the document within the row, -1 on padding: attention stays inside each
    position_ids     (B, T) int64   position within the document
and for objectives that sample tokens
    draws            (B, T) float32 uniform in [0, 1), of each token
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
import pyarrow as pa

from data.masking import IGNORED

WIDE = ("input_ids", "labels", "segments", "draws")  # (n, L) columns of a Part
NARROW = ("step", "row_ids", "lengths", "pair_labels")  # (n,)
FLAGS = ("evaluation", "ends_run")
PAIRS = ("next_sentence", "sentence_order")  # packings whose segments are those of a pair


@dataclass(frozen=True)
class Part:
    """The rows of one rank for steps [first_step, last_step), in step order; n rows of at most L tokens."""

    evaluation: bool
    """Held-out rows to evaluate on before `first_step` is trained; steps are then batch numbers."""
    first_step: int
    last_step: int
    rank: int
    epoch: int
    step: np.ndarray
    """(n,) int64: the step of each row."""
    row_ids: np.ndarray
    """(n,) int64"""
    lengths: np.ndarray
    """(n,) int32: tokens of each row that are not padding."""
    input_ids: np.ndarray
    """(n, L) int32"""
    labels: np.ndarray
    """(n, L) int32"""
    segments: np.ndarray | None = None
    """(n, L) int16: document or segment of each token; None where the model is not to know."""
    pair_labels: np.ndarray | None = None
    """(n,) int8, of pairs only."""
    draws: np.ndarray | None = None
    """(n, L) float32, for objectives that sample tokens."""
    ends_run: bool = False
    """Nothing comes behind this part: it is the last one of the last evaluation."""


def encode(part: Part) -> bytes:
    """One Part as bytes (Arrow IPC)."""
    scalars = {f.name: str(int(getattr(part, f.name))) for f in fields(part) if f.type in (bool, int)}
    wide = {name: getattr(part, name) for name in WIDE if getattr(part, name) is not None}
    columns = {name: pa.FixedSizeListArray.from_arrays(a.reshape(-1), a.shape[1]) for name, a in wide.items()}
    columns |= {name: pa.array(getattr(part, name)) for name in NARROW if getattr(part, name) is not None}
    batch = pa.RecordBatch.from_pydict(columns)
    batch = batch.replace_schema_metadata({**scalars, "width": str(part.input_ids.shape[1])})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def decode(payload: bytes) -> Part:
    """The Part that `encode` wrote."""
    batch = pa.ipc.open_stream(payload).read_next_batch()
    metadata = {key.decode(): int(value) for key, value in (batch.schema.metadata or {}).items()}
    width = metadata.pop("width")
    arrays = {name: batch.column(name) for name in batch.schema.names}
    wide = {name: arrays.pop(name).flatten().to_numpy().reshape(-1, width) for name in WIDE if name in arrays}
    return Part(
        **{name: bool(value) if name in FLAGS else value for name, value in metadata.items()},
        **{name: array.to_numpy() for name, array in arrays.items()},
        **wide,
    )


def steps_of(part: Part) -> Iterator[tuple[int, np.ndarray]]:
    """Each step of the part with the indices of its rows (none for a rank that has no row in it)."""
    bounds = np.searchsorted(part.step, np.arange(part.first_step, part.last_step + 1))
    for step, begin, end in zip(range(part.first_step, part.last_step), bounds[:-1], bounds[1:], strict=True):
        yield step, np.arange(begin, end)


def micro_batches(
    part: Part, rows: np.ndarray, micro_batch: int, accumulation: int, pad_id: int
) -> list[dict[str, np.ndarray]]:
    """Exactly `accumulation` micro-batches of `micro_batch` rows: the given rows of the part, then filler rows.

    A filler row is one attended [PAD] without a target: weight zero, so that every rank does the same number of
    micro-batches whatever the division leaves. (Attending nothing would make its softmax, and then gradients, NaN.)
    """
    batches = []
    for number in range(accumulation):
        chosen = rows[number * micro_batch : (number + 1) * micro_batch]
        longest = int(part.lengths[chosen].max(initial=1))
        width = min(-(-longest // 8) * 8, part.input_ids.shape[1])
        lengths = np.ones(micro_batch, dtype=np.int64)
        lengths[: len(chosen)] = part.lengths[chosen]
        input_ids = np.full((micro_batch, width), pad_id, dtype=np.int64)
        input_ids[: len(chosen)] = part.input_ids[chosen, :width]
        labels = np.full((micro_batch, width), IGNORED, dtype=np.int64)
        labels[: len(chosen)] = part.labels[chosen, :width]
        attention_mask = (np.arange(width) < lengths[:, None]).astype(np.int64)
        batch = {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}
        if part.segments is not None:
            segments = np.zeros((micro_batch, width), dtype=np.int64)
            segments[: len(chosen)] = part.segments[chosen, :width]
            batch |= _pairs(part, chosen, segments) if part.pair_labels is not None else _documents(segments, lengths)
        if part.draws is not None:
            batch["draws"] = np.zeros((micro_batch, width), dtype=np.float32)
            batch["draws"][: len(chosen)] = part.draws[chosen, :width]
        batches.append(batch)
    return batches


def _pairs(part: Part, chosen: np.ndarray, segments: np.ndarray) -> dict[str, np.ndarray]:
    """What the model is told of sentence pairs."""
    assert part.pair_labels is not None
    pair_labels = np.full(len(segments), IGNORED, dtype=np.int64)
    pair_labels[: len(chosen)] = part.pair_labels[chosen]
    return {"token_type_ids": segments, "pair_labels": pair_labels}


def _documents(segments: np.ndarray, lengths: np.ndarray) -> dict[str, np.ndarray]:
    """What the model is told of packed documents."""
    places = np.arange(segments.shape[1])
    document_ids = np.where(places < lengths[:, None], segments, -1)
    begins = np.diff(document_ids, axis=1, prepend=-2) != 0
    return {"document_ids": document_ids, "position_ids": places - np.maximum.accumulate(begins * places, axis=1)}
