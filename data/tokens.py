"""Documents of a chunk -> sentences -> tokens -> one shard of rows on storage.

In: texts, a tokenizer's folder, the rows section. Out: a shard, and what went into it. Runs inside Ray tasks and knows
no Ray; what a row is made of stands in data/rows.py.
"""

import zlib
from itertools import accumulate, chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data.arrangement import Documents
from data.config import Rows
from data.encoding import Encoder, open_encoder
from data.rows import pack_rows
from data.sentences import split_lines, split_sentences
from data.store import write_shard


class Written(NamedTuple):
    """What one shard holds, and what it could not."""

    rows: int
    tokens: int
    """Not padding; special tokens count."""
    dropped_tokens: int
    """In no row: see data/rows.py's Packed."""
    bytes: int
    empty_documents: int
    """Documents (lines, where each is a row) of which the tokenizer leaves nothing; they are no rows."""
    following_rows: int
    """Pairs of next_sentence whose B had to follow A: the documents given were one."""


def write_rows(
    documents: list[str], path: Path, tokenizer_folder: Path, rows: Rows, cls_id: int, sep_id: int
) -> Written:
    """Tokenise and pack documents into one shard; no rows, no shard. Sentence pairs are drawn by the shard's name.

    Raises UserError where rows.word_segmenter is not installed.
    """
    if rows.packing == "line":
        documents = list(chain.from_iterable(map(split_lines, documents)))
    tokens = tokenise(documents, open_encoder(tokenizer_folder, rows.word_segmenter))
    packed = pack_rows(tokens, rows.longest, rows.packing, cls_id, sep_id, seed=zlib.crc32(path.name.encode()))
    alone = rows.packing == "next_sentence" and len(tokens.document_ends) == 1
    return Written(
        rows=len(packed.rows),
        tokens=sum(len(row.input_ids) for row in packed.rows),
        dropped_tokens=packed.dropped_tokens,
        bytes=write_shard(path, packed.rows) if packed.rows else 0,
        empty_documents=len(documents) - len(tokens.document_ends),
        following_rows=len(packed.rows) if alone else 0,
    )


def tokenise(documents: list[str], encoder: Encoder) -> Documents:
    """Tokens of documents. What the tokenizer leaves nothing of, sentence or document, is not in them."""
    sentences = [split_sentences(document) for document in documents]
    continues = [i > 0 and not sentence[:1].isspace() for parts in sentences for i, sentence in enumerate(parts)]
    encoded = encoder.encode(list(chain.from_iterable(sentences)), continues)
    ends = np.concatenate([[0], encoded.ends])[list(accumulate(map(len, sentences)))] if documents else encoded.ends
    return Documents(encoded.input_ids, encoded.word_starts, _distinct(encoded.ends), _distinct(ends))


def _distinct(ends: np.ndarray) -> np.ndarray:
    """Ends without those at which nothing ended."""
    return ends[np.diff(ends, prepend=0) > 0]
