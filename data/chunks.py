"""What runs inside Ray tasks while a corpus is prepared: a group of files -> chunks of documents.

In: files, and in the second pass what the driver decided. Out: small records for the driver, the documents to keep.
A chunk is a few MB of text from neighbouring files, cut by content alone, so that the store is the same whatever
the number of CPUs. Knows no Ray: the driver (prepare.py) hands these functions to it.
"""

import hashlib
from collections.abc import Iterable, Iterator

import numpy as np

from data.census import Chunk, Plan, Scan
from data.config import Tokenizer, UserError
from data.corpus import SourceFile, read_documents
from data.records import Bad
from data.vocabulary import count_words

CHUNK_BADS = 1000  # records described per chunk; the counts are always full


def hash_text(text: str) -> int:
    """64 bits of a text's hash: which documents are equal, and which are held out."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def read_chunks(group: int, files: Iterable[SourceFile], chunk_bytes: int) -> Iterator[Chunk]:
    """Read a group of files as chunks of `chunk_bytes` of text, the last one marked.

    Raises UserError where a text column is missing.
    """
    chunk = Chunk(group, 0)
    num_bytes = 0
    for file in files:
        num_records = 0
        for document in read_documents(file):
            num_records += 1
            if isinstance(document, Bad):
                chunk.skipped[document.reason] += 1
                if len(chunk.bads) < CHUNK_BADS:
                    chunk.bads.append(document)
            elif not document:
                chunk.skipped["empty"] += 1
            else:
                if num_bytes >= chunk_bytes:
                    yield chunk
                    chunk, num_bytes = Chunk(group, chunk.number + 1), 0
                chunk.documents.append(document)
                num_bytes += len(document.encode())
        if num_records == 0:
            chunk.empty_files.append(file.path)
    chunk.is_last = True
    yield chunk


def scan_group(
    group: int, files: list[SourceFile], chunk_bytes: int, counted_share: float, tokenizer: Tokenizer
) -> Iterator[Scan]:
    """First pass: hashes, counts, and word counts of a share of the documents, chosen by hash."""
    try:
        for chunk in read_chunks(group, files, chunk_bytes):
            hashes = [hash_text(document) for document in chunk.documents]
            sample = [
                document
                for hash, document in zip(hashes, chunk.documents, strict=True)
                if hash % 2**32 < counted_share * 2**32
            ]
            sizes = [len(document.encode()) for document in chunk.documents]
            chunk.documents = []
            words = count_words(sample, tokenizer)
            yield Scan(chunk, np.array(hashes, np.uint64), np.array(sizes, np.int64), words)
    except UserError as error:
        nothing = np.empty(0, np.uint64)
        yield Scan(Chunk(group, 0, is_last=True), nothing, nothing.astype(np.int64), fault=str(error))


def read_kept(group: int, plan: Plan) -> Iterator[tuple[int, list[str], list[str]]]:
    """Second pass: number, training documents and held-out documents of each chunk, duplicates dropped."""
    for chunk in read_chunks(group, plan.groups[group], plan.chunk_bytes):
        place = (group, chunk.number)
        if len(chunk.documents) != plan.num_documents.get(place, 0):
            names = ", ".join(file.path for file in plan.groups[group][:3])
            raise RuntimeError(f"a file changed while it was being prepared (one of {names}, ...); run again")
        dropped = set(plan.dropped.get(place, np.empty(0, np.int64)).tolist())
        parts: tuple[list[str], list[str]] = ([], [])
        for i, document in enumerate(chunk.documents):
            if i not in dropped:
                hash = hash_text(document)
                parts[hash < plan.held_out_below or hash == plan.held_out_too].append(document)
        if parts[0] or parts[1]:
            yield chunk.number, *parts
