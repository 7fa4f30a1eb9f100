"""What runs inside Ray tasks while a corpus is prepared: a group of files -> chunks of documents.

In: files, and in the second pass what the driver decided. Out: small records for the driver, the documents to keep.
A chunk is a few MB of text from neighbouring files, cut by content alone, so that the store is the same whatever
the number of CPUs. Knows no Ray: the driver (passes.py) hands these functions to it.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from data.census import Chunk, Plan, Scan
from data.config import Tokenizer, UserError
from data.corpus import SourceFile
from data.documents import Piece, hash_text, read_documents
from data.records import Bad
from data.vocabulary import count_words

CHUNK_BADS = 10_000  # records described per chunk; the counts are always full


def read_chunks(group: int, files: Iterable[SourceFile], chunk_bytes: int) -> Iterator[Chunk]:
    """Read a group of files, of one source, as chunks of `chunk_bytes` of text, the last one marked.

    Raises UserError where a text column is missing.
    """
    chunk = Chunk(group, 0)
    num_bytes = 0
    for file in files:
        chunk.source = file.source
        num_records = 0
        for document in read_documents(file):
            num_records += 1
            if isinstance(document, Bad):
                chunk.skipped[document.reason] += 1
                if len(chunk.bads) < CHUNK_BADS:
                    chunk.bads.append(document)
                continue
            if not document:
                chunk.skipped["empty"] += 1
                continue
            if num_bytes >= chunk_bytes:
                yield chunk
                chunk, num_bytes = Chunk(group, chunk.number + 1, file.source), 0
            if isinstance(document, Piece):
                chunk.pieces[len(chunk.documents)] = document.end
                document = document.text
            chunk.documents.append(document)
            num_bytes += _size(document)
        if num_records == 0:
            chunk.empty_files.append(file.path)
    chunk.is_last = True
    yield chunk


def _size(text: str) -> int:
    """Bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def read_group(group: int, files: list[SourceFile], chunk_bytes: int) -> Iterator[Chunk | Scan]:
    """First pass, reading: the chunks of a group; a mistake of the user as a Scan that tells it."""
    try:
        yield from read_chunks(group, files, chunk_bytes)
    except UserError as error:
        nothing = np.empty(0, np.uint64)
        yield Scan(Chunk(group, 0, is_last=True), nothing, nothing.astype(np.int64), fault=str(error))


def scan_chunk(chunk: Chunk, counted_share: float, tokenizer: Tokenizer) -> Scan:
    """First pass, counting: hashes, sizes, and word counts of a share of the documents, chosen by hash."""
    hashes = [hash_text(document) for document in chunk.documents]
    sample = [
        document for hash, document in zip(hashes, chunk.documents, strict=True) if hash % 2**32 < counted_share * 2**32
    ]
    sizes = [_size(document) for document in chunk.documents]
    chunk.documents = []
    words = count_words(sample, tokenizer)
    return Scan(chunk, np.array(hashes, np.uint64), np.array(sizes, np.int64), words)


def read_kept(plan: Plan, chunk_bytes: int) -> Iterator[tuple[int, list[str], list[str]]]:
    """Second pass: number, training documents and held-out documents of each chunk, duplicates dropped."""
    for chunk in read_chunks(plan.group, plan.files, chunk_bytes):
        number = chunk.number
        if plan.num_documents[number : number + 1] != [len(chunk.documents)]:
            names = ", ".join(file.path for file in plan.files[:3])
            raise RuntimeError(f"a file changed while it was being prepared (one of {names}, ...); run again")
        gone = [*plan.dropped.get(number, ()), *plan.held_out.get(number, ())]
        held_out = [chunk.documents[i] for i in plan.held_out.get(number, ())]
        train = chunk.documents
        if gone:
            kept = np.ones(len(train), bool)
            kept[gone] = False
            train = [document for document, stays in zip(train, kept.tolist(), strict=True) if stays]
        if train or held_out:
            yield number, train, held_out
