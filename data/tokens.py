"""Documents of a chunk -> sentences -> token ids -> one shard of rows on storage.

In: texts, a tokenizer's folder, the rows section. Out: a shard, and how many rows and tokens it holds. Runs inside Ray
tasks and knows no Ray; what a row is made of stands in data/rows.py.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from data.config import Rows
from data.rows import pack_rows, split_sentences
from data.storage import fetch_once
from data.store import write_shard

BATCH_SENTENCES = 2000  # handed to the tokenizer at once: bounds the memory of its encodings


class Written(NamedTuple):
    """What a shard holds."""

    rows: int
    tokens: int
    dropped_tokens: int
    bytes: int


def write_rows(
    documents: list[str], path: Path, tokenizer_folder: Path, rows: Rows, cls_id: int, sep_id: int
) -> Written:
    """Tokenise and pack documents into one shard, and say what it holds. No rows, no shard."""
    packed = list(pack_rows(_tokenise(documents, tokenizer_folder), rows.length, rows.packing, cls_id, sep_id))
    num_bytes = write_shard(path, packed) if packed else 0
    return Written(len(packed), sum(len(row.input_ids) for row in packed), 0, num_bytes)


def _tokenise(documents: list[str], tokenizer_folder: Path) -> Iterator[list[list[int]]]:
    """Token ids of each sentence of each document."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # Ray's tasks are the parallelism; threads would fight them
    from tokenizers import Tokenizer as Backend

    backend = Backend.from_file(str(fetch_once(tokenizer_folder / "tokenizer.json")))
    backend.no_truncation()
    backend.no_padding()
    waiting: list[list[str]] = []
    num_waiting = 0
    for document in documents:
        waiting.append(split_sentences(document))
        num_waiting += len(waiting[-1])
        if num_waiting >= BATCH_SENTENCES:
            yield from _encode(backend, waiting)
            waiting, num_waiting = [], 0
    yield from _encode(backend, waiting)


def _encode(backend: "object", documents: list[list[str]]) -> Iterator[list[list[int]]]:
    sentences = [sentence for document in documents for sentence in document]
    encodings = iter(backend.encode_batch_fast(sentences, add_special_tokens=False))  # type: ignore[attr-defined]
    for document in documents:
        yield [next(encodings).ids for _ in document]
