"""Counts of documents, by source -> the facts that a manifest keeps, and the one line in which they are told.

In: counts by source and the files. Out: plain mappings and text. read = kept + empty + duplicate + quarantined holds
for the corpus and for each source, or building them fails. Knows neither files' content nor Ray.
"""

import hashlib
import json
from collections import Counter
from typing import Any

from data.config import Corpus, Source, UserError
from data.corpus import HELD_OUT, SourceFile, describe

OUTCOMES = ("kept", "empty", "duplicate")
MOST_BAD = 0.5  # of a source's records, where all sources together may have fewer unusable ones
TOLD = ("documents_read", *(f"documents_{name}" for name in (*OUTCOMES, "quarantined")), "quarantined_by_reason")
NAMED_FILES = 100  # of those that hold nothing


def tally(
    corpus: Corpus, files: list[SourceFile], counts: dict[int, Counter[str]], empty_files: list[str]
) -> dict[str, Any]:
    """Facts of a corpus: documents_* in all, quarantined_by_reason, files, and the same for each source."""
    total: Counter[str] = Counter()
    for count in counts.values():
        total.update(count)
    facts = {
        **_documents(total),
        "documents_in_held_out": total["in_held_out"],
        "quarantined_by_reason": dict(sorted(_reasons(total).items())),
        "files": len(files),
        "empty_files": len(empty_files),
        "empty_file_names": empty_files[:NAMED_FILES],
        "sources": [_source(source, i, files, counts) for i, source in enumerate(corpus.sources)],
    }
    if corpus.held_out_sources:
        named = Source(path=", ".join(source.path for source in corpus.held_out_sources))
        facts["held_out_sources"] = _source(named, HELD_OUT, files, counts)
    return facts


def _reasons(count: Counter[str]) -> Counter[str]:
    known = (*OUTCOMES, "read", "in_held_out")
    return Counter({reason: number for reason, number in count.items() if number and reason not in known})


def _documents(count: Counter[str]) -> dict[str, int]:
    facts = {f"documents_{name}": count[name] for name in ("read", *OUTCOMES)}
    facts["documents_quarantined"] = _reasons(count).total()
    if facts["documents_read"] != sum(facts.values()) - facts["documents_read"]:
        raise AssertionError(f"documents are lost or counted twice: {facts}")
    return facts


def _source(source: Source, number: int, files: list[SourceFile], counts: dict[int, Counter[str]]) -> dict[str, Any]:
    here = [file for file in files if file.source == number]
    listed = json.dumps([[file.path, file.size_bytes, file.mtime_ns] for file in here])
    return {
        "path": source.path,
        "files": len(here),
        "bytes": sum(file.size_bytes for file in here),
        "fingerprint": hashlib.sha256(listed.encode()).hexdigest()[:16],
        **_documents(counts.get(number, Counter())),
    }


def add_rows(facts: dict[str, Any], shards: dict[str, list[dict[str, Any]]]) -> None:
    """Put the number of its rows, of training and held out, at each source."""
    named = list(enumerate(facts["sources"]))
    named += [(HELD_OUT, facts["held_out_sources"])] if "held_out_sources" in facts else []
    for number, source in named:
        for name, side in (("rows", "train"), ("held_out_rows", "held_out")):
            source[name] = sum(shard["rows"] for shard in shards[side] if shard["source"] == number)


def check_sources(facts: dict[str, Any], max_bad_fraction: float) -> None:
    """Raise UserError, a line per source of which no document is kept, or most records are unusable though they are few
    among those of all sources."""
    faults: list[str] = []
    named = [(f"corpus.sources.{i}.path", source) for i, source in enumerate(facts["sources"])]
    named += [("corpus.held_out_sources", facts["held_out_sources"])] if "held_out_sources" in facts else []
    for key, source in named:
        if source["documents_kept"] == 0:
            told = [f"{source[f'documents_{name}']} {name}" for name in ("empty", "duplicate", "quarantined")]
            told = [text for text in told if text[0] != "0"]
            remedy = "give files that hold text"
            if source["documents_duplicate"]:
                remedy += ", or leave it out: a source before it or corpus.held_out_sources holds the same"
            faults.append(
                f"{key}={source['path']}: no document in {source['files']} files "
                f"({', '.join(told) or 'all files are blank'}); {remedy}"
            )
        elif source["documents_quarantined"] > max(MOST_BAD, max_bad_fraction) * source["documents_read"]:
            faults.append(
                f"{key}={source['path']}: {source['documents_quarantined']} of its {source['documents_read']} records "
                f"are unusable, which a corpus.max_bad_fraction of all sources hides; repair them, or leave it out"
            )
    if faults:
        raise UserError("\n".join(faults))


def tell(facts: dict[str, Any]) -> str:
    """What became of all documents of a corpus, in one line."""
    parts = [f"{facts[f'documents_{name}']:,} {name}" for name in (*OUTCOMES, "quarantined")]
    if facts["documents_in_held_out"]:
        parts[2] += f" ({facts['documents_in_held_out']:,} of held-out documents)"
    if reasons := facts["quarantined_by_reason"]:
        parts[3] += f" ({', '.join(f'{number:,} {reason}' for reason, number in reasons.items())})"
    text = f"{facts['documents_read']:,} documents read: {', '.join(parts)}"
    if facts["empty_files"]:
        names = ", ".join(describe(name) for name in facts["empty_file_names"][:3])
        more = ", ..." if facts["empty_files"] > 3 else ""
        text += f"; {facts['empty_files']:,} of {facts['files']:,} files are empty: {names}{more}"
    if facts["documents_without_tokens"]:
        text += f"; of {facts['documents_without_tokens']:,} documents kept the tokenizer leaves nothing"
    if facts["dropped_tokens"]:
        text += f"; {facts['dropped_tokens']:,} tokens are too few for a pair and in no row"
    return text
