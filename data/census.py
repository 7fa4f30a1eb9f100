"""What the first pass over a corpus learnt -> what the second one does.

In: a `Scan` of every chunk, in the order of the corpus. Out: a `Plan` (which documents are copies, which are held out),
or the UserError of a corpus that cannot be used. Pure: numbers only, no files, no Ray.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from data.config import Corpus, UserError
from data.corpus import SourceFile, describe
from data.records import Bad

HASHES = 2**64


@dataclass
class Chunk:
    """Documents of one piece of one group of files, and what was skipped on the way to them."""

    group: int
    number: int
    documents: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    bads: list[Bad] = field(default_factory=list)
    empty_files: list[str] = field(default_factory=list)
    is_last: bool = False


@dataclass
class Scan:
    """What the driver learns of a chunk in the first pass."""

    chunk: Chunk
    """Without its documents."""
    hashes: np.ndarray
    """Hash of each document's text: (D,) uint64."""
    sizes: np.ndarray
    """Bytes of each document: (D,) int64."""
    words: Counter[str] = field(default_factory=Counter)
    fault: str = ""
    """A mistake of the user that only reading shows."""


@dataclass(frozen=True)
class Plan:
    """What the driver decided after the first pass."""

    groups: list[list[SourceFile]]
    num_documents: dict[tuple[int, int], int]
    """Documents of each chunk (group, number), to notice files that changed in between."""
    dropped: dict[tuple[int, int], np.ndarray]
    """Places of duplicates within a chunk."""
    held_out_below: int
    """Documents whose hash is below are held out."""
    held_out_too: int | None
    """Hash of one more, where none lies below."""
    chunk_bytes: int


def check(corpus: Corpus, documents: int, skipped: Counter[str], bads: Sequence[Bad], num_files: int) -> None:
    """Raise UserError for too many unusable records, or none usable."""
    reasons = Counter({reason: count for reason, count in skipped.items() if reason != "empty"})
    bad = reasons.total()
    # A file that breaks off is one record here but may hide many: it also counts as a share of the files.
    share = max(bad / max(1, documents + skipped.total()), reasons["unreadable"] / max(1, num_files))
    if share > corpus.max_bad_fraction:
        first = {bad.reason: bad for bad in reversed(bads)}
        told = []
        for reason, count in reasons.most_common(3):
            told.append(f"{count} {reason}")
            if reason in first:  # of very many bad records not all are described
                example = first[reason]._replace(file=describe(first[reason].file))
                told[-1] += f", first {str(example).replace(f': {reason}', '', 1)}"
        raise UserError(
            f"corpus.max_bad_fraction={corpus.max_bad_fraction}: {bad} of {documents + skipped.total()} records "
            f"cannot be used: {'; '.join(told)}; repair them or allow corpus.max_bad_fraction={min(1.0, share):.3g}"
        )
    if documents == 0:
        told = ", ".join(f"{count} {reason}" for reason, count in skipped.most_common()) or "all files are blank"
        raise UserError(f"corpus.sources: no document in {num_files} files ({told}); give files that hold text")


def decide(
    groups: list[list[SourceFile]], chunk_bytes: int, scans: list[Scan], corpus: Corpus
) -> tuple[Plan, int]:
    """Which documents are duplicates (all but the first of equal hash), and which are held out; and how many stay."""
    chunks: list[Chunk] = [scan.chunk for scan in scans]
    sizes = [len(scan.hashes) for scan in scans]
    hashes = np.concatenate([scan.hashes for scan in scans])
    distinct, first = np.unique(hashes, return_index=True)
    dropped: dict[tuple[int, int], np.ndarray] = {}
    if corpus.deduplicate:
        repeated = np.ones(len(hashes), bool)
        repeated[first] = False
        for chunk, flags in zip(chunks, np.split(repeated, np.cumsum(sizes)[:-1]), strict=True):
            if flags.any():
                dropped[chunk.group, chunk.number] = np.flatnonzero(flags)
    # Of two or more distinct documents at least one is held out and at least one is not. If no hash is small enough,
    # the smallest of the shorter half is taken: of one book and ten notes it must not be the book.
    below = min(int(corpus.held_out * HASHES), int(distinct[-1])) if len(distinct) > 1 else 0
    too = None
    if len(distinct) > 1 and below <= distinct[0]:
        document_bytes = np.concatenate([scan.sizes for scan in scans])[first]
        too = int(distinct[document_bytes <= np.median(document_bytes)][0])
    counts = {(chunk.group, chunk.number): size for chunk, size in zip(chunks, sizes, strict=True)}
    return Plan(groups, counts, dropped, below, too, chunk_bytes), len(distinct) if corpus.deduplicate else len(hashes)
