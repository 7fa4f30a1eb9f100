"""A corpus on storage -> a store of token rows, once, by Ray Data in two passes.

In: the corpus, tokenizer and rows sections, and a cache folder. Out: an open store; an equal one is used again.
Pass 1 reads every document for its hash (duplicates, held-out part), the faults and the words. Then the driver decides
and trains the tokenizer. Pass 2 reads again, tokenises and writes shards. The driver must have called ray.init.
"""

import hashlib
import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from data import docstrings
from data.census import Scan, check, decide, take_census
from data.config import Corpus, Rows, Tokenizer, UserError
from data.corpus import DOCSTRINGS, SourceFile, find_files, group_files
from data.encoding import open_segmenter
from data.passes import QUARANTINED, Execution, Progress, scan, write
from data.records import Bad
from data.storage import alone, fetch, fetch_once, publish, shown
from data.store import MANIFEST, Store, check_shards, fresh_folder, open_store
from data.tally import add_rows, check_sources, tally
from data.tokenizer import describe_tokenizer, fingerprint_of, load_tokenizer, save_tokenizer
from data.vocabulary import train_tokenizer

FORMAT = 4  # of the store; a change makes every older store a different one
# Of text in a shard: about 8,000 rows of 128 tokens, a second of tokenising. A corpus of more than MOST_CHUNKS of them
# (400 GB) has larger ones, up to what one task may hold.
CHUNK_BYTES, LARGEST_CHUNK_BYTES, MOST_CHUNKS = 4_000_000, 64_000_000, 100_000
QUARANTINE = "quarantine.jsonl"


def chunk_bytes_of(files: list[SourceFile]) -> int:
    """Bytes of text in a shard of a corpus of these files."""
    text = sum(file.text_bytes for file in files)
    return min(LARGEST_CHUNK_BYTES, max(CHUNK_BYTES, -(-text // MOST_CHUNKS)))


def prepare(
    corpus: Corpus,
    tokenizer: Tokenizer,
    rows: Rows,
    cache: Path,
    progress: Progress,
    chunk_bytes: int | None = None,
    run: str = "cloze",
    autoscales: bool = False,
) -> Store:
    """Prepare a corpus in `cache`/<fingerprint>/, in shards of `chunk_bytes` of text, or open it if that was done.

    `run` names the Ray Data executions; of a cluster that `autoscales` the CPUs are not known beforehand.
    Raises UserError for sources that cannot be read or hold no document, more unusable records than
    corpus.max_bad_fraction, a vocabulary that the text cannot fill, and a tokenizer that lacks special tokens. A run
    that is killed leaves a `.part-` folder, which the next one removes.
    """
    cache = Path(cache).absolute()
    check_segmenter(rows)
    files = find_files(corpus)
    chunk_bytes = chunk_bytes or chunk_bytes_of(files)
    target = cache / fingerprint(files, corpus, tokenizer, rows, chunk_bytes)
    with alone(target):
        if (store := _found(target, corpus)) is not None:
            return store
        import ray

        assert ray.is_initialized(), "the driver starts Ray before it prepares a corpus"
        if not (target / MANIFEST).is_file():  # not whole; another process may have finished it just now
            shutil.rmtree(target, ignore_errors=True)
        with fresh_folder(target) as part:
            expanded = _expand(files, cache, progress, run)
            tasks = None if autoscales else max(1, int(ray.cluster_resources().get("CPU", 1)))
            execution = Execution(progress, run, tasks)
            manifest = _fill(part, expanded, corpus, tokenizer, rows, chunk_bytes, execution)
            if changed := set(files) - set(find_files(corpus)):
                raise RuntimeError(f"{min(file.path for file in changed)} changed while it was prepared; run again")
            with open(part / MANIFEST, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")
        return open_store(target)


def find_prepared(corpus: Corpus, tokenizer: Tokenizer, rows: Rows, cache: Path) -> Store | None:
    """The store of a corpus if it was prepared; needs no Ray. Raises UserError as `prepare` does."""
    files = find_files(corpus)
    target = Path(cache).absolute() / fingerprint(files, corpus, tokenizer, rows, chunk_bytes_of(files))
    return _found(target, corpus, looks=True)


def _found(target: Path, corpus: Corpus, looks: bool = False) -> Store | None:
    """The store at `target`, if it is there: with all its shards, and lawful for this corpus section.

    `looks`: without a hold on it; what somebody is about to publish there stays.
    """
    fetch(target / MANIFEST, delete=not looks)
    if not (target / MANIFEST).is_file():
        return None
    store = open_store(target)
    check_shards(store)
    if describe_tokenizer(store.tokenizer_folder)["fingerprint"] != store.manifest["tokenizer"]["fingerprint"]:
        raise UserError(
            f"{shown(store.tokenizer_folder)}: not the tokenizer that made these rows; remove {shown(target)} and run "
            f"again: the same rows are prepared anew"
        )
    # It may be of a more lenient run: max_bad_fraction is no part of its fingerprint.
    try:
        with open(fetch_once(store.path / QUARANTINE), encoding="utf-8") as lines:
            bads = [Bad(**json.loads(line)) for line in lines]
    except (FileNotFoundError, ValueError, TypeError) as error:
        raise UserError(
            f"{shown(store.path / QUARANTINE)}: damaged ({error}); remove {shown(target)} and run again"
        ) from None
    check(corpus, store.manifest, bads)
    return store


def check_segmenter(rows: Rows) -> None:
    """Raise UserError where the word segmenter is not installed."""
    if rows.word_segmenter is not None:
        open_segmenter(rows.word_segmenter)


def fingerprint(
    files: list[SourceFile], corpus: Corpus, tokenizer: Tokenizer, rows: Rows, chunk_bytes: int = CHUNK_BYTES
) -> str:
    """Name of the store that these files and options make: changed files or options never mix with an older store.

    A source's weight is not in it: it decides how often a row is visited, not what stands in it.
    """
    options = _options(corpus)
    words = tokenizer.model_dump() if tokenizer.path is None else fingerprint_of(Path(tokenizer.path))
    key = docstrings.key() if any(file.path == DOCSTRINGS for file in files) else None
    facts = [tuple(vars(file).values()) for file in files]
    parts = [FORMAT, chunk_bytes, options, facts, key, words, rows.model_dump()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _options(corpus: Corpus) -> dict[str, Any]:
    """What of the corpus section decides the rows, beside the files."""
    held_out = None if corpus.held_out_sources else corpus.held_out
    return {"held_out": held_out, "deduplicate": corpus.deduplicate}


def _expand(files: list[SourceFile], cache: Path, progress: Progress, run: str) -> list[SourceFile]:
    """Put the files of the embedded corpus where "docstrings" stands, building it if it is not there yet."""
    expanded: list[SourceFile] = []
    for file in files:
        if file.path != DOCSTRINGS:
            expanded.append(file)
            continue
        folder = docstrings.build(cache, progress, run=run)
        for path in sorted(folder.glob("corpus-*.parquet")):
            expanded.append(replace(file, path=str(path), size_bytes=path.stat().st_size))
    return expanded


def _fill(
    part: Path,
    files: list[SourceFile],
    corpus: Corpus,
    tokenizer: Tokenizer,
    rows: Rows,
    chunk_bytes: int,
    execution: Execution,
) -> dict[str, Any]:
    """Write everything but the manifest into `part` and return the manifest."""
    groups = group_files(files, chunk_bytes)
    scans = scan(groups, chunk_bytes, tokenizer, execution)
    plans, counts = decide(groups, census := take_census(scans), corpus)
    empty_files = [name for result in scans for name in result.chunk.empty_files]
    facts = tally(corpus, files, counts, empty_files)
    bads = [bad for result in scans for bad in result.chunk.bads]
    check(corpus, facts, bads)
    check_sources(facts, corpus.max_bad_fraction)

    for name in ("train", "held_out", "tokenizer"):
        (part / name).mkdir(parents=True)
    # A file's name, or a key, may hold bytes that are no UTF-8: they are written as the escapes that JSON has for them.
    with open(part / QUARANTINE, "w", encoding="utf-8", errors="backslashreplace") as quarantine:
        for bad in bads[:QUARANTINED]:
            quarantine.write(json.dumps(bad._asdict(), ensure_ascii=False) + "\n")
    execution.progress(f"tokenizer: from {facts['documents_kept']:,} documents", 0.4)
    described = _make_tokenizer(part / "tokenizer", scans, tokenizer, rows)
    shards, tokens = write(part, plans, chunk_bytes, rows, described, execution)
    if not shards["train"]:
        empty, dropped = tokens["documents_without_tokens"], tokens["dropped_tokens"]
        raise UserError(
            f"rows.packing={rows.packing}: {facts['documents_kept']} documents give no row (the tokenizer leaves "
            f"nothing of {empty}; {dropped} tokens are too few for a pair); give other text, tokenizer.path or "
            f"rows.packing"
        )
    add_rows(facts, shards)
    return {
        "format": FORMAT,
        "options": {**_options(corpus), "chunk_bytes": chunk_bytes},
        **facts,
        "text_bytes": int(census.sizes[census.whole].sum()),
        **tokens,
        "tokenizer": described,
        "rows": rows.model_dump(),
        "shards": shards,
    }


def _make_tokenizer(folder: Path, scans: list[Scan], tokenizer: Tokenizer, rows: Rows) -> dict[str, Any]:
    """Train the tokenizer on the words that were counted, or copy the one that was given; returns its description."""
    if tokenizer.path is None:
        words: Counter[str] = Counter()
        for result in scans:
            words.update(result.words)
        if not words:
            raise UserError("corpus.sources: no document holds a word; give files that hold text")
        save_tokenizer(train_tokenizer(words, tokenizer), folder, tokenizer, rows.longest)
    else:
        load_tokenizer(tokenizer.path).save_pretrained(str(folder))
    publish(folder)  # the tasks of other nodes read it
    return describe_tokenizer(folder)
