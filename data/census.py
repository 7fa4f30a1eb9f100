"""What the first pass over a corpus learnt -> what the second one does, and the counts that a manifest keeps.

In: a `Scan` of every chunk, in the order of the corpus. Out: a `Plan` for each group (which documents are copies, which
are held out) and counts that add up, or the UserError of a corpus that cannot be used. Pure: no files, no Ray.
"""

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from data.config import Corpus, UserError
from data.corpus import HELD_OUT, SourceFile, describe
from data.records import Bad

HASHES = 2**64
TRAINED, HELD, DROPPED = 0, 1, 2  # what becomes of a document


@dataclass
class Chunk:
    """Documents of one piece of one group of files, and what was skipped on the way to them."""

    group: int
    number: int
    source: int = 0
    documents: list[str] = field(default_factory=list)
    pieces: dict[int, int | Bad | None] = field(default_factory=dict)
    """Places of documents that are parts of a long one -> `Piece.end`."""
    skipped: Counter[str] = field(default_factory=Counter)
    """Records without text ("empty") and those that cannot be read, by reason."""
    bads: list[Bad] = field(default_factory=list)
    empty_files: list[str] = field(default_factory=list)
    is_last: bool = False


@dataclass
class Scan:
    """What the driver learns of a chunk in the first pass."""

    chunk: Chunk
    """Without its documents."""
    hashes: np.ndarray
    """Hash of each document's text: (D,) uint64. Of a part of a long one: nothing, its end tells."""
    sizes: np.ndarray
    """Bytes of each document: (D,) int64."""
    words: Counter[str] = field(default_factory=Counter)
    fault: str = ""
    """A mistake of the user that only reading shows."""


@dataclass(frozen=True)
class Plan:
    """What the driver decided for one group of files. A place is that of a document, or a part of one, in its chunk."""

    group: int
    files: list[SourceFile]
    num_documents: list[int] = field(default_factory=list)
    """Documents of each chunk, to notice files that changed in between."""
    dropped: dict[int, np.ndarray] = field(default_factory=dict)
    """Number of a chunk -> places of copies, and of long documents that turned out bad."""
    held_out: dict[int, np.ndarray] = field(default_factory=dict)
    """Number of a chunk -> places of the documents that are held out."""


@dataclass(frozen=True)
class Census:
    """All documents of a corpus, a number each; N of them, parts of long ones apart."""

    scans: list[Scan]
    hashes: np.ndarray
    """(N,) uint64"""
    sizes: np.ndarray
    """(N,) int64, bytes; of a long document all at its first part"""
    owners: np.ndarray
    """(N,) int64: the document that each is a part of, most often itself"""
    is_bad: np.ndarray
    """(N,) bool: parts of a document that turned out bad"""
    sources: np.ndarray
    """(N,) int64"""

    @property
    def whole(self) -> np.ndarray:
        """Numbers of what counts as a document: (D,) int64."""
        return np.flatnonzero((self.owners == np.arange(len(self.owners))) & ~self.is_bad)


def take_census(scans: list[Scan]) -> Census:
    """Join what the chunks told, and the parts of long documents; of these the bad ones go to their chunks' bads."""
    hashes = np.concatenate([scan.hashes for scan in scans])
    owners = np.arange(len(hashes))
    is_bad = np.zeros(len(hashes), bool)
    start = 0
    parts: list[int] = []
    for scan in scans:
        for place, end in scan.chunk.pieces.items():
            parts.append(start + place)
            if end is None:
                continue
            owners[parts] = parts[0]
            if isinstance(end, Bad):
                is_bad[parts] = True
                scan.chunk.skipped[end.reason] += 1
                scan.chunk.bads.append(end)
            else:
                hashes[parts] = end
            parts = []
        start += len(scan.hashes)
    sizes = np.concatenate([scan.sizes for scan in scans])
    sizes = np.bincount(owners, sizes, len(sizes)).astype(np.int64)
    sources = np.repeat([scan.chunk.source for scan in scans], [len(scan.hashes) for scan in scans]).astype(np.int64)
    return Census(scans, hashes, sizes, owners, is_bad, sources)


def decide(
    groups: list[list[SourceFile]], census: Census, corpus: Corpus
) -> tuple[list[Plan], dict[int, Counter[str]]]:
    """Which documents are copies (all but the first of equal hash) and which are held out.

    Documents of held-out sources are, whoever else has them too: those are dropped there as copies. So no text stands
    in both parts. Returns a plan for each group and the counts of each source: read, kept, empty, duplicate,
    in_held_out (of the duplicates) and each reason of what cannot be read.
    """
    whole = census.whole
    hashes, sources = census.hashes[whole], census.sources[whole]
    distinct, first = np.unique(hashes, return_index=True)
    fate = np.full(len(hashes), TRAINED, np.int8)
    in_held_out = np.zeros(len(hashes), bool)
    if corpus.held_out_sources:
        is_held = sources == HELD_OUT
        in_held_out = ~is_held & np.isin(hashes, hashes[is_held])
        fate[is_held] = HELD
    elif len(distinct) > 1:
        # Of two or more distinct documents at least one is held out and at least one is not. If no hash is small
        # enough, the smallest of the shorter half is taken: of one book and ten notes it must not be the book.
        below = np.uint64(min(int(corpus.held_out * HASHES), int(distinct[-1])))
        fate[hashes < below] = HELD
        if below <= distinct[0]:
            sizes = census.sizes[whole][first]
            fate[hashes == distinct[sizes <= np.median(sizes)][0]] = HELD
    repeated = np.full(len(hashes), corpus.deduplicate)
    repeated[first] = False
    fate[repeated | in_held_out] = DROPPED

    counts = _count(census, fate, in_held_out)
    fates = np.full(len(census.hashes), DROPPED, np.int8)
    fates[whole] = fate
    fates = fates[census.owners]
    plans = [Plan(number, files) for number, files in enumerate(groups)]
    start = 0
    for scan in census.scans:
        plan = plans[scan.chunk.group]
        here = fates[start : start + len(scan.hashes)]
        plan.num_documents.append(len(here))
        for kind, places in ((DROPPED, plan.dropped), (HELD, plan.held_out)):
            if len(found := np.flatnonzero(here == kind)):
                places[scan.chunk.number] = found
        start += len(here)
    return plans, counts


def _count(census: Census, fate: np.ndarray, in_held_out: np.ndarray) -> dict[int, Counter[str]]:
    """Counts of each source, of which read = kept + empty + duplicate + those of all reasons."""
    sources = census.sources[census.whole]
    counts: dict[int, Counter[str]] = {scan.chunk.source: Counter() for scan in census.scans}
    for scan in census.scans:
        counts[scan.chunk.source] += scan.chunk.skipped
    for source, count in counts.items():
        here = sources == source
        count["read"] = count.total() + int(here.sum())
        count["kept"] = int((fate[here] != DROPPED).sum())
        count["duplicate"] = int((fate[here] == DROPPED).sum())
        count["in_held_out"] = int(in_held_out[here].sum())
    return counts


def check(corpus: Corpus, facts: dict[str, Any], bads: list[Bad]) -> None:
    """Raise UserError for too many unusable records; `facts` are the manifest's, `bads` examples of them."""
    reasons = Counter(facts["quarantined_by_reason"])
    bad, read = reasons.total(), facts["documents_read"]
    # A file that breaks off is one record here but may hide many: it also counts as a share of the files.
    share = max(bad / max(1, read), reasons["unreadable"] / max(1, facts["files"]))
    if share <= corpus.max_bad_fraction:
        return
    first = {bad.reason: bad for bad in reversed(bads)}
    told = []
    for reason, count in reasons.most_common(3):
        told.append(f"{count} {reason}")
        if reason in first:  # of very many bad records not all are described
            example = first[reason]._replace(file=describe(first[reason].file))
            told[-1] += f", first {str(example).replace(f': {reason}', '', 1)}"
    # Rounded up, or what is advised would be refused again. If nothing is readable there is nothing to allow.
    remedy = f"repair them or allow corpus.max_bad_fraction={math.ceil(1000 * share) / 1000:g}"
    if bad == read:
        remedy = "repair them"
    if reasons.most_common(1)[0][0] in ("missing_field", "not_text"):
        remedy += ", or name the text with the source's text_field"
    raise UserError(
        f"corpus.max_bad_fraction={corpus.max_bad_fraction}: {bad} of {read} records "
        f"cannot be used: {'; '.join(told)}; {remedy}"
    )
