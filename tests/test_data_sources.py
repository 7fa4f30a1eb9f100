"""Several sources and held-out ones: every shard of one source, every document in one part, every count adds up."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_data_store import document, found, name, run, write_corpus

import data.documents
from data.census import check, decide, take_census
from data.chunks import read_chunks, read_kept, scan_chunk
from data.config import Corpus, Rows, Source, Tokenizer, UserError
from data.corpus import SourceFile, find_files, group_files
from data.prepare import CHUNK_BYTES, LARGEST_CHUNK_BYTES, chunk_bytes_of, fingerprint, prepare
from data.store import Store
from data.tally import check_sources, tally, tell
from data.tokenizer import load_tokenizer

pytestmark = pytest.mark.usefixtures("ray_4_cpus")
OUTCOMES = ("kept", "empty", "duplicate", "quarantined")


def run_sources(cache: Path, *sources: Any, vocab_size: int = 120, chunk_bytes: int = 3000, **options: Any) -> Store:
    return prepare(
        Corpus(sources=list(sources), **options), Tokenizer(vocab_size=vocab_size), Rows(length=32), cache,
        lambda text, fraction: None, chunk_bytes,
    )  # fmt: skip


def write_lines(path: Path, numbers: range, **more: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps({"text": document(number), **more}) for number in numbers))
    return path


def add_up(facts: dict[str, Any]) -> None:
    assert facts["documents_read"] == sum(facts[f"documents_{outcome}"] for outcome in OUTCOMES)


def check_counts(store: Store) -> None:
    facts = store.manifest
    sources = [*facts["sources"], *([facts["held_out_sources"]] if "held_out_sources" in facts else [])]
    for part in [facts, *sources]:
        add_up(part)
    assert facts["documents_quarantined"] == sum(facts["quarantined_by_reason"].values())
    for fact in (f"documents_{outcome}" for outcome in ("read", *OUTCOMES)):
        assert facts[fact] == sum(source[fact] for source in sources)
    assert sum(source["rows"] for source in sources) == store.train.num_rows
    assert sum(source["held_out_rows"] for source in sources) == store.held_out.num_rows


def test_every_shard_is_of_one_source_and_each_source_is_counted(tmp_path: Path):
    write_corpus(tmp_path / "one", 60)
    two = write_lines(tmp_path / "two.jsonl", range(60, 100))
    three = tmp_path / "three.csv"
    three.write_text("id,body\n" + "".join(f"{i},{document(i)}\n" for i in range(95, 110)))
    sources = (str(tmp_path / "one"), {"path": str(two), "weight": 0}, {"path": str(three), "text_field": "body"})
    store = run_sources(tmp_path / "cache", *sources, held_out=0.1)
    check_counts(store)
    shards = store.manifest["shards"]["train"]
    assert [shard["source"] for shard in shards] == sorted(shard["source"] for shard in shards)
    assert {shard["source"] for shard in shards} == {0, 1, 2}
    for shard in shards:
        assert shard["bytes"] == (store.path / "train" / shard["name"]).stat().st_size
    facts = store.manifest["sources"]
    assert [(fact["path"], fact["files"]) for fact in facts] == [
        (str(tmp_path / "one"), 3),
        (str(two), 1),
        (str(three), 1),
    ]
    assert [fact["documents_kept"] for fact in facts] == [60, 40, 10]
    assert facts[2]["documents_duplicate"] == 5  # 95 to 99 stand in the second source too
    ends = np.cumsum([0, *(fact["rows"] for fact in facts)])
    for source, numbers in enumerate((range(60), range(60, 100), range(100, 110))):
        ids = np.arange(ends[source], ends[source + 1])
        text = " ".join(load_tokenizer(store.tokenizer_folder).batch_decode(store.train.read(ids).input_ids))
        inside = {number for number in range(110) if name(number) in text}
        assert inside and inside <= set(numbers)


def test_weights_change_no_store_and_all_else_does(tmp_path: Path):
    path = write_lines(tmp_path / "a.jsonl", range(30))
    other = write_lines(tmp_path / "b.jsonl", range(30, 60))

    def print_of(*sources: Any, **options: Any) -> str:
        corpus = Corpus(sources=list(sources), **options)
        return fingerprint(find_files(corpus), corpus, Tokenizer(), Rows())

    both = print_of(str(path), str(other))
    assert both == print_of({"path": str(path), "weight": 3}, {"path": str(other), "weight": 0}, max_bad_fraction=1)
    others = [
        print_of(str(other), str(path)), print_of(str(tmp_path)), print_of(str(path)),
        print_of(str(path), str(other), held_out=0.5), print_of(str(path), str(other), deduplicate=False),
        print_of(str(path), held_out_sources=str(other)), print_of(str(path), {"path": str(other), "text_field": "x"}),
    ]  # fmt: skip
    assert len({both, *others}) == 8
    held_out = [print_of(str(path), held_out_sources=str(other), held_out=share) for share in (0.1, 0.2)]
    assert held_out[0] == held_out[1]  # the share does not count then


@pytest.mark.parametrize("deduplicate", [True, False])
def test_held_out_sources_are_all_that_is_held_out_and_stand_nowhere_else(tmp_path: Path, deduplicate: bool):
    lines = [document(i) for i in range(50)] + [f"  {document(i)}\t" for i in range(10)]
    (tmp_path / "train.txt").write_text("\n\n".join(lines))
    for number, numbers in enumerate((range(5, 8), range(7, 9), range(100, 104))):
        write_lines(tmp_path / "test" / f"{number}.jsonl", numbers)
    store = run_sources(
        tmp_path / "cache", str(tmp_path / "train.txt"), deduplicate=deduplicate,
        held_out_sources=[str(tmp_path / "test" / "0.jsonl"), str(tmp_path / "test")],
    )  # fmt: skip
    check_counts(store)
    held_out = {5, 6, 7, 8, *range(100, 104)}
    assert found(store, "held_out", 110) == held_out
    assert found(store, "train", 110) == set(range(50)) - held_out
    facts = store.manifest
    assert facts["held_out_sources"]["documents_read"] == 9
    assert facts["held_out_sources"]["documents_duplicate"] == (1 if deduplicate else 0)
    assert facts["documents_in_held_out"] == 8  # 5 to 8, each twice
    assert facts["sources"][0]["documents_duplicate"] == (14 if deduplicate else 8)
    assert {shard["source"] for shard in facts["shards"]["held_out"]} == {-1}
    assert "(8 of held-out documents)" in tell(facts)


def test_source_without_a_usable_document_is_named_and_a_file_without_one_is_counted(tmp_path: Path):
    good = write_lines(tmp_path / "good.jsonl", range(300))
    empty = tmp_path / "nulls.jsonl"
    empty.write_text('{"text": null}\n{"text": " "}\n')
    copies = write_lines(tmp_path / "copies.jsonl", range(20))
    for sources, told in (
        ((str(good), str(empty)), r"^corpus.sources.1.path=.*nulls.jsonl: no document in 1 files \(2 empty\); give"),
        (
            (str(good), str(copies)),
            r"^corpus.sources.1.path=.*copies.jsonl: no document .*\(20 duplicate\).* leave it out",
        ),
        (({"path": str(empty), "weight": 0}, str(good)), r"^corpus.sources.0.path=.*nulls.jsonl: no document"),
    ):
        with pytest.raises(UserError, match=told) as error:
            run_sources(tmp_path / "cache", *sources)
        assert "\n" not in str(error.value)
    with pytest.raises(UserError, match=r"^corpus.held_out_sources=.*nulls.jsonl: no document"):
        run_sources(tmp_path / "cache", str(good), held_out_sources=str(empty))
    (tmp_path / "folder").mkdir()
    for path in (good, empty):
        path.rename(tmp_path / "folder" / path.name)
    (tmp_path / "folder" / "zero.jsonl.gz").write_bytes(gzip.compress(b""))
    store = run_sources(tmp_path / "cache", str(tmp_path / "folder"))
    check_counts(store)
    line = tell(store.manifest)
    assert line.startswith(
        "302 documents read: 300 kept, 2 empty, 0 duplicate, 0 quarantined; 1 of 3 files are empty: "
    )
    assert line.endswith("zero.jsonl.gz")


def test_file_is_of_the_first_source_that_names_it_and_of_a_held_out_one_before_all(tmp_path: Path):
    paths = [str(write_lines(tmp_path / f"{letter}.jsonl", range(3))) for letter in "abc"]
    corpus = Corpus(sources=[paths[1], str(tmp_path)], held_out_sources=[paths[2]])  # type: ignore[arg-type]
    assert [(file.path, file.source) for file in find_files(corpus)] == [(paths[2], -1), (paths[1], 0), (paths[0], 1)]
    with pytest.raises(UserError, match=r"^corpus.sources.1.path=.*b.jsonl: all its files are read by a source before"):
        find_files(Corpus(sources=[str(tmp_path), paths[1]]))  # type: ignore[arg-type]


def test_groups_never_mix_sources():
    files = [
        SourceFile(str(i), "text", size_bytes=1, source=source) for i, source in enumerate([-1, -1, 0, 0, 1, 2, 2])
    ]
    assert [[file.source for file in group] for group in group_files(files, 100)] == [[-1, -1], [0, 0], [1], [2, 2]]


def test_shards_grow_with_the_corpus_so_that_there_are_about_100_000():
    def text(size: int) -> list[SourceFile]:
        return [SourceFile("a", "text", size_bytes=size)]

    assert chunk_bytes_of(text(10**6)) == chunk_bytes_of(text(4 * 10**11)) == CHUNK_BYTES
    assert chunk_bytes_of(text(10**12)) == 10_000_000
    assert chunk_bytes_of(text(10**14)) == LARGEST_CHUNK_BYTES
    assert chunk_bytes_of([SourceFile("a.zst", "parquet", size_bytes=25 * 10**10)]) == 10_000_000


@pytest.mark.parametrize("deduplicate", [True, False])
def test_long_documents_are_copies_held_out_and_counted_as_one(
    tmp_path: Path, deduplicate: bool, monkeypatch: pytest.MonkeyPatch
):
    """Pieces of 300 characters in this process and, by the length of a document, in those of Ray."""
    long = [" ".join(document(number) for number in range(first, first + 40)) for first in (0, 40, 80, 120)]
    lines = [long[0], document(200), long[1], f" {long[0]} ", long[2], document(201), long[1], long[3]]
    (tmp_path / "a.txt").write_text("\n\n".join(lines))
    for pieces in (data.documents.PIECE_CHARACTERS, 300):
        monkeypatch.setattr(data.documents, "PIECE_CHARACTERS", pieces)
        corpus = Corpus(sources=[str(tmp_path / "a.txt")], deduplicate=deduplicate, held_out=0.4)  # type: ignore[arg-type]
        groups = group_files(find_files(corpus), 500)
        scans = [scan_chunk(chunk, 0.0, Tokenizer()) for chunk in read_chunks(0, groups[0], 500)]
        (plan,), counts = decide(groups, census := take_census(scans), corpus)
        facts = tally(corpus, groups[0], counts, [])
        add_up(facts)
        assert (facts["documents_read"], facts["documents_kept"]) == (8, 6 if deduplicate else 8)
        parts = [[*read] for read in zip(*((train, held) for _, train, held in read_kept(plan, 500)), strict=True)]
        train, held = (" ".join(text for texts in part for text in texts) for part in parts)
        inside = [{number for number in range(202) if name(number) in text} for text in (train, held)]
        assert not inside[0] & inside[1] and inside[0] | inside[1] == {*range(160), 200, 201}
        assert sum(map(len, (train.split(), held.split()))) == sum(
            len(line.split()) for i, line in enumerate(lines) if not deduplicate or i not in (3, 6)
        )
        fates = [{number // 40 for number in numbers if number < 160} for numbers in inside]
        assert not fates[0] & fates[1]
        assert int(census.sizes[census.whole].sum()) == sum(len(line.strip()) for line in lines)


def test_file_that_changes_while_it_is_prepared_is_no_store(tmp_path: Path):
    path = write_lines(tmp_path / "a.jsonl", range(50))
    corpus = Corpus(sources=[str(path)])  # type: ignore[arg-type]

    def change(text: str, fraction: float | None) -> None:
        if text.startswith("tokenizer"):
            path.write_text(path.read_text().replace("fox", "cat"))

    with pytest.raises(RuntimeError, match=r"a.jsonl changed while it was prepared"):
        prepare(corpus, Tokenizer(vocab_size=120), Rows(length=32), tmp_path / "cache", change)
    assert list((tmp_path / "cache").iterdir()) == []


def test_reasons_are_told_the_commonest_three_with_an_example_each(tmp_path: Path):
    lines = [json.dumps({"text": document(i)}) for i in range(50)]
    lines += ['{"text": 1}'] * 5 + ['{"text": "'] * 4 + ["[]"] * 3 + ['{"t": 1}'] * 2
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    with pytest.raises(UserError) as error:
        run(tmp_path / "a.jsonl", tmp_path / "cache")
    message = str(error.value)
    assert message.startswith("corpus.max_bad_fraction=0.01: 14 of 64 records cannot be used: 5 not_text, first ")
    for told in ("a.jsonl:51", "4 broken_json, first", "a.jsonl:56", "3 not_object, first", "a.jsonl:60"):
        assert told in message
    assert "missing_field" not in message
    run(tmp_path / "a.jsonl", tmp_path / "cache", max_bad_fraction=0.3)
    with pytest.raises(UserError, match="^corpus.max_bad_fraction=0.0: "):
        check(Corpus(sources=(Source(path="x"),), max_bad_fraction=0), {
            "quarantined_by_reason": {"not_text": 1}, "documents_read": 10**9, "files": 1
        }, [])  # fmt: skip


def test_files_of_a_bucket_are_read_in_tasks_that_know_its_address(tmp_path: Path, s3: dict[str, str]):
    import ray
    from pyarrow import fs

    write_corpus(tmp_path / "corpus", 60)
    with pytest.MonkeyPatch.context() as patch:
        for key, value in s3.items():
            patch.setenv(key, value)
        remote = fs.FileSystem.from_uri("s3://cloze-test")[0]
        fs.copy_files(str(tmp_path / "corpus"), "cloze-test/sources", destination_filesystem=remote)
        files = find_files(Corpus(sources=["s3://cloze-test/sources/*.txt"]))  # type: ignore[arg-type]

    def read(files: list[SourceFile]) -> list[str]:
        return [text for chunk in read_chunks(0, files, 1000) for text in chunk.documents]

    texts = ray.get(ray.remote(num_cpus=0.5, runtime_env={"env_vars": s3})(read).remote(files))
    assert sorted(texts) == sorted(document(number) for number in range(60))


def test_a_source_that_is_mostly_unusable_is_not_hidden_by_a_large_one() -> None:
    good = {"path": "large", "files": 1, "documents_kept": 99_990, "documents_read": 100_000,
            "documents_quarantined": 10, "documents_empty": 0, "documents_duplicate": 0}  # fmt: skip
    bad = {**good, "path": "books", "documents_kept": 1, "documents_read": 50, "documents_quarantined": 49}
    check_sources({"sources": [good]}, 0.01)
    with pytest.raises(UserError, match="^corpus.sources.1.path=books: 49 of its 50 records are unusable, which a"):
        check_sources({"sources": [good, bad]}, 0.01)
    check_sources({"sources": [good, bad]}, 0.99)
