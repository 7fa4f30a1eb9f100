"""A corpus on storage -> a store of token rows, once, by Ray Data in two passes.

In: the corpus, tokenizer and rows sections, and a cache folder. Out: an open store; an equal one is used again.
Pass 1 reads every document for its hash (duplicates, held-out part), the faults and the words. Then the driver decides
and trains the tokenizer. Pass 2 reads again, tokenises and writes shards. The driver must have called ray.init.
"""

import hashlib
import json
import pickle
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from data import docstrings
from data.census import Plan, Scan, check, decide
from data.chunks import read_kept, scan_group
from data.config import Corpus, Rows, Tokenizer, UserError
from data.corpus import DOCSTRINGS, SourceFile, find_files, group_files
from data.records import Bad
from data.storage import alone, fetch, fetch_once, publish
from data.store import MANIFEST, Store, fresh_folder, open_store
from data.tokenizer import (
    describe_tokenizer,
    fingerprint_of,
    load_tokenizer,
    save_tokenizer,
    train_wordpiece,
)
from data.tokens import write_rows

FORMAT = 2  # of the store; a change makes every older store a different one
CHUNK_BYTES = 4_000_000  # of text in a shard: about 8,000 rows of 128 tokens, a second of tokenising
COUNTED_BYTES = 100_000_000  # of text whose words train the tokenizer: more changes 8,192 pieces little
QUARANTINE = "quarantine.jsonl"
QUARANTINED = 10_000  # records described there
READ_CPUS, ROWS_CPUS = 0.25, 0.5  # asked of Ray per task: unequal, so that one big file is tokenised by many tasks
Progress = Callable[[str, float | None], None]


def prepare(
    corpus: Corpus,
    tokenizer: Tokenizer,
    rows: Rows,
    cache: Path,
    progress: Progress,
    chunk_bytes: int = CHUNK_BYTES,
    run: str = "cloze",
) -> Store:
    """Prepare a corpus in `cache`/<fingerprint>/, in shards of `chunk_bytes` of text, or open it if that was done.

    `run` stands before the names of the Ray Data executions, by which a dashboard tells runs apart.

    Raises UserError for sources that cannot be read, more unusable records than corpus.max_bad_fraction, no text,
    a vocabulary that the text cannot fill, and a tokenizer that lacks special tokens. A run that is killed leaves
    a `.part-` folder, which the next one removes.
    """
    files = find_files(corpus)
    if tokenizer.path is not None:
        load_tokenizer(tokenizer.path)
    cache = Path(cache).absolute()
    target = cache / fingerprint(files, corpus, tokenizer, rows, chunk_bytes)
    with alone(target):
        fetch(target / MANIFEST)
        if (target / MANIFEST).is_file():
            store = open_store(target)
            _check_again(store, corpus)
            return store
        import ray

        assert ray.is_initialized(), "the driver starts Ray before it prepares a corpus"
        shutil.rmtree(target, ignore_errors=True)  # without its manifest it is not whole
        with fresh_folder(target) as part:
            groups = group_files(_expand(files, cache, progress, run), chunk_bytes)
            manifest = _fill(part, groups, corpus, tokenizer, rows, chunk_bytes, progress, run)
            (part / MANIFEST).write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return open_store(target)


def _check_again(store: Store, corpus: Corpus) -> None:
    """Check a store that an earlier, maybe more lenient run made: max_bad_fraction is no part of its fingerprint."""
    facts = store.manifest
    skipped = Counter({reason: n for reason, n in facts["documents_skipped"].items() if reason != "duplicate"})
    with open(fetch_once(store.path / QUARANTINE), encoding="utf-8") as lines:
        bads = [Bad(**json.loads(line)) for line in lines]
    check(corpus, facts["documents_read"] - skipped.total(), skipped, bads, facts["files"])


def fingerprint(
    files: list[SourceFile], corpus: Corpus, tokenizer: Tokenizer, rows: Rows, chunk_bytes: int = CHUNK_BYTES
) -> str:
    """Name of the store that these files and options make: changed files or options never mix with an older store."""
    options = corpus.model_dump(mode="json", include={"held_out", "deduplicate"})
    words = tokenizer.model_dump() if tokenizer.path is None else fingerprint_of(Path(tokenizer.path))
    key = docstrings.key() if any(file.path == DOCSTRINGS for file in files) else None
    facts = [tuple(vars(file).values()) for file in files]
    parts = [FORMAT, chunk_bytes, options, facts, key, words, rows.model_dump()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _expand(files: list[SourceFile], cache: Path, progress: Progress, run: str) -> list[SourceFile]:
    """Put the files of the embedded corpus where "docstrings" stands, building it if it is not there yet."""
    expanded: list[SourceFile] = []
    for file in files:
        if file.path != DOCSTRINGS:
            expanded.append(file)
            continue
        folder = docstrings.build(cache, progress, run=run)
        for path in sorted(folder.glob("corpus-*.parquet")):
            expanded.append(SourceFile(str(path), "parquet", size_bytes=path.stat().st_size))
    return expanded


def _fill(
    part: Path,
    groups: list[list[SourceFile]],
    corpus: Corpus,
    tokenizer: Tokenizer,
    rows: Rows,
    chunk_bytes: int,
    progress: Progress,
    run: str,
) -> dict[str, Any]:
    """Write everything but the manifest into `part` and return the manifest."""
    scans = _scan(groups, chunk_bytes, tokenizer, progress, run)
    num_files = sum(map(len, groups))
    skipped: Counter[str] = Counter()
    for scan in scans:
        skipped.update(scan.chunk.skipped)
    num_documents = sum(len(scan.hashes) for scan in scans)
    bads = [bad for scan in scans for bad in scan.chunk.bads]
    check(corpus, num_documents, skipped, bads, num_files)
    plan, kept = decide(groups, chunk_bytes, scans, corpus)
    skipped["duplicate"] = num_documents - kept

    for name in ("train", "held_out", "tokenizer"):
        (part / name).mkdir(parents=True)
    with open(part / QUARANTINE, "w", encoding="utf-8") as quarantine:
        for bad in bads[:QUARANTINED]:
            quarantine.write(json.dumps(bad._asdict(), ensure_ascii=False) + "\n")
    if tokenizer.path is None:
        progress(f"tokenizer: {tokenizer.vocab_size:,} tokens from {kept:,} documents", 0.4)
        words: Counter[str] = Counter()
        for scan in scans:
            words.update(scan.words)
        if not words:
            raise UserError("corpus.sources: no document holds a word; give files that hold text")
        save_tokenizer(
            train_wordpiece(words, tokenizer), part / "tokenizer", lowercase=tokenizer.folds_case, length=rows.length
        )
    else:
        load_tokenizer(tokenizer.path).save_pretrained(str(part / "tokenizer"))
    publish(part / "tokenizer")  # the tasks of other nodes read it
    described = describe_tokenizer(part / "tokenizer")
    shards, tokens = _write(part, plan, rows, described, progress, run)
    if not shards["train"]:
        raise UserError("corpus.sources: no document holds a token of tokenizer.path; give other text or tokenizer")
    empty_files = [name for scan in scans for name in scan.chunk.empty_files]
    return {
        "format": FORMAT,
        "documents_read": num_documents + skipped.total() - skipped["duplicate"],
        "documents_kept": kept,
        "documents_skipped": {reason: count for reason, count in sorted(skipped.items()) if count},
        "text_bytes": sum(int(scan.sizes.sum()) for scan in scans),
        "tokens": tokens,
        "files": num_files,
        "empty_files": len(empty_files),
        "empty_file_names": empty_files[:100],
        "tokenizer": described,
        "rows": rows.model_dump(),
        "shards": shards,
    }


def _run(
    name: str, groups: int, chunk_bytes: int, *stages: tuple[Callable[..., Any], float]
) -> Iterator[dict[str, Any]]:
    """Stream group numbers through stages on Ray Data and yield what comes out, in any order."""
    import ray

    # from_items, because ray.data.range runs a task that asks for a whole CPU: a small cluster may have less.
    items = [{"id": number} for number in range(groups)]
    dataset = ray.data.from_items(items, override_num_blocks=min(groups, 1000))
    context = dataset.context
    context.enable_progress_bars = context.print_on_execution_start = False
    context.target_max_block_size = chunk_bytes // 2  # a block ends after each chunk instead of gathering thirty
    for stage, num_cpus in stages:
        dataset = dataset.map_batches(stage, batch_size=1, batch_format="pyarrow", num_cpus=num_cpus)
    dataset.set_name(name)
    yield from dataset.iter_rows()


def _scan(
    groups: list[list[SourceFile]], chunk_bytes: int, tokenizer: Tokenizer, progress: Progress, run: str
) -> list[Scan]:
    """Pass 1. Returns what was learnt of every chunk, in the order of the corpus; raises UserError."""
    import pyarrow as pa
    import ray

    sizes = [sum(file.size_bytes for file in group) for group in groups]
    # A packed file counts four times its size: about what text packs to.
    text = sum(file.size_bytes * (1 if file.format == "text" else 4) for group in groups for file in group)
    share = 0.0 if tokenizer.path else min(1.0, COUNTED_BYTES / max(1, text))
    shared = ray.put(groups)

    def scan(batch: pa.Table) -> Iterator[pa.Table]:
        for group in batch["id"].to_pylist():
            for result in scan_group(group, ray.get(shared)[group], chunk_bytes, share, tokenizer.folds_case):
                yield pa.table({"scan": pa.array([pickle.dumps(result)], pa.large_binary())})

    scans: list[Scan] = []
    done = documents = 0
    for row in _run(f"{run}-scan", len(groups), chunk_bytes, (scan, ROWS_CPUS)):
        result: Scan = pickle.loads(row["scan"])
        if result.fault:
            raise UserError(result.fault)
        scans.append(result)
        documents += len(result.hashes)
        done += sizes[result.chunk.group] if result.chunk.is_last else 0
        progress(f"reading: {documents:,} documents", 0.4 * done / max(1, sum(sizes)))
    return sorted(scans, key=lambda scan: (scan.chunk.group, scan.chunk.number))


def _write(
    part: Path, plan: Plan, rows: Rows, tokenizer: dict[str, Any], progress: Progress, run: str
) -> tuple[dict[str, list[dict[str, Any]]], int]:
    """Pass 2. Returns the shards of both parts in the order of the corpus, and the tokens of all rows."""
    import pyarrow as pa
    import ray

    shared = ray.put(plan)
    texts = pa.list_(pa.large_string())

    def read(batch: pa.Table) -> Iterator[pa.Table]:
        for group in batch["id"].to_pylist():
            for number, train, held_out in read_kept(group, ray.get(shared)):
                columns = {"train": pa.array([train], texts), "held_out": pa.array([held_out], texts)}
                yield pa.table({"group": [group], "chunk": [number], **columns})

    def write(batch: pa.Table) -> pa.Table:
        place = batch["group"][0].as_py(), batch["chunk"][0].as_py()
        name = f"shard-{place[0]:06d}-{place[1]:06d}.parquet"
        line: dict[str, Any] = {"group": place[0], "chunk": place[1], "name": name, "tokens": 0}
        for side in ("train", "held_out"):
            written = write_rows(
                batch[side][0].as_py(), part / side / name, part / "tokenizer", rows,
                tokenizer["cls_id"], tokenizer["sep_id"],
            )  # fmt: skip
            line[side] = written.rows
            line["tokens"] += written.tokens
        return pa.Table.from_pylist([line])

    lines: list[dict[str, Any]] = []
    for line in _run(f"{run}-rows", len(plan.groups), plan.chunk_bytes, (read, READ_CPUS), (write, ROWS_CPUS)):
        lines.append(line)
        written = sum(line["train"] + line["held_out"] for line in lines)
        progress(f"rows: {written:,} of {rows.length} tokens", 0.5 + 0.5 * len(lines) / len(plan.num_documents))
    lines.sort(key=lambda line: (line["group"], line["chunk"]))
    shards = {
        side: [{"name": line["name"], "rows": line[side], "source": 0} for line in lines if line[side]]
        for side in ("train", "held_out")
    }
    return shards, sum(line["tokens"] for line in lines)
