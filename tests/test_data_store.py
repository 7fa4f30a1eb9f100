"""The prepared store: every document counted, none in two parts, the same whatever runs it, whole or absent."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import data.passes
from data.config import Corpus, Rows, Tokenizer, UserError
from data.prepare import prepare
from data.store import Shards, Store, fresh_folder, open_store
from data.tokenizer import load_tokenizer

pytestmark = pytest.mark.usefixtures("ray_4_cpus")
SENTENCE = "the quick brown fox jumps over a lazy dog while seven wizards boxed five jugs of liquor and sang"
WORDS = SENTENCE.split()
LETTERS = "abcdefghij"


def name(number: int) -> str:
    """A word that only document `number` holds and that the tokenizer spells letter by letter at worst."""
    return "doc" + "".join(LETTERS[int(digit)] for digit in f"{number:04d}")


def document(number: int, num_words: int = 12) -> str:
    chosen = np.random.default_rng(number).choice(WORDS, num_words)
    return f"{name(number)} {' '.join(chosen)}."


def write_corpus(folder: Path, num_documents: int = 60, num_files: int = 3) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(num_files):
        here = [document(number) for number in range(num_documents) if number % num_files == i]
        (folder / f"{i}.txt").write_text("\n\n".join(here) + "\n")
    return folder


def run(
    corpus: Path, cache: Path, chunk_bytes: int = 10_000, rows: dict[str, Any] | None = None, vocab_size: int = 120,
    tokenizer: str | None = None, source: dict[str, Any] | None = None, **options: Any,
) -> Store:  # fmt: skip
    """Prepare one source; `options` are the corpus section's."""
    return prepare(
        Corpus(sources=[{"path": str(corpus), **(source or {})}], **options),  # type: ignore[list-item]
        Tokenizer(vocab_size=vocab_size, path=tokenizer),
        Rows(**{"length": 32, **(rows or {})}), cache, lambda text, fraction: None, chunk_bytes,
    )  # fmt: skip


def texts(store: Store, part: str) -> str:
    """All rows of a part, decoded and joined."""
    shards: Shards = getattr(store, part)
    ids = shards.read(np.arange(shards.num_rows)).input_ids
    return " ".join(load_tokenizer(store.tokenizer_folder).batch_decode(ids, skip_special_tokens=True))


def found(store: Store, part: str, num_documents: int) -> set[int]:
    text = texts(store, part)
    return {number for number in range(num_documents) if name(number) in text}


def content(store: Store) -> dict[str, bytes]:
    paths = [path for path in sorted(store.path.rglob("*")) if path.is_file()]
    return {str(path.relative_to(store.path)): path.read_bytes() for path in paths}


def test_every_document_stands_in_exactly_one_part_and_the_counts_add_up(tmp_path: Path):
    corpus = write_corpus(tmp_path / "corpus", 60)
    lines = [{"text": None}, {"text": " "}, {"text": " " + document(5)}]
    (corpus / "more.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (corpus / "blank.txt").write_text("\n \n")
    (corpus / "empty.jsonl.gz").write_bytes(gzip.compress(b""))
    (corpus / "zero.csv").touch()
    store = run(corpus, tmp_path / "cache", held_out=0.2)
    train, held_out = found(store, "train", 60), found(store, "held_out", 60)
    assert train | held_out == set(range(60)) and not train & held_out
    assert 3 <= len(held_out) <= 24
    manifest = store.manifest
    assert (manifest["documents_read"], manifest["documents_kept"]) == (63, 60)
    assert (manifest["documents_empty"], manifest["documents_duplicate"]) == (2, 1)
    assert (manifest["documents_quarantined"], manifest["quarantined_by_reason"]) == (0, {})
    assert (manifest["files"], manifest["empty_files"]) == (7, 3)
    assert {Path(path).name for path in manifest["empty_file_names"]} == {"blank.txt", "empty.jsonl.gz", "zero.csv"}


def test_rows_hold_all_tokens_of_the_documents_and_the_manifest_counts_them(tmp_path: Path):
    corpus = write_corpus(tmp_path / "corpus", 60)
    for packing in ("full_sentences", "document"):
        store = run(corpus, tmp_path / "cache", rows={"packing": packing})
        tokenizer = load_tokenizer(store.tokenizer_folder)
        expected = sum(len(tokenizer(document(i), add_special_tokens=False)["input_ids"]) for i in range(60))
        found = total = 0
        for shards in (store.train, store.held_out):
            read = shards.read(np.arange(shards.num_rows))
            ids, lengths = read.input_ids, read.lengths
            assert ids.dtype == lengths.dtype == np.int32 and ids.shape == (shards.num_rows, 32)
            assert ((ids != 0) == (np.arange(32) < lengths[:, None])).all()
            found += int((ids > 4).sum() + (ids == 1).sum())
            total += int(lengths.sum())
        assert (found, store.manifest["tokens"]) == (expected, total)


def test_store_is_the_same_byte_for_byte_whatever_the_parallelism(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    corpus = write_corpus(tmp_path / "corpus", 400, num_files=5)
    wide = run(corpus, tmp_path / "wide", chunk_bytes=3000)
    monkeypatch.setattr(data.passes, "READ_CPUS", 1.5)  # of the 4 there are: one or two tasks at a time, not eight
    monkeypatch.setattr(data.passes, "WORK_CPUS", 2.0)
    narrow = run(corpus, tmp_path / "narrow", chunk_bytes=3000)
    assert len(wide.manifest["shards"]["train"]) >= 8
    assert content(wide) == content(narrow)


def test_equal_store_is_used_again_and_a_changed_corpus_or_option_makes_another(tmp_path: Path):
    corpus, cache = write_corpus(tmp_path / "corpus"), tmp_path / "cache"
    first = run(corpus, cache)
    stamps = {path: path.stat().st_mtime_ns for path in first.path.rglob("*")}
    again = run(corpus, cache, max_bad_fraction=0.5)  # how much may be bad does not change the rows
    assert again == first and {path: path.stat().st_mtime_ns for path in first.path.rglob("*")} == stamps
    changes: list[dict[str, Any]] = [{"rows": {"length": 40}}, {"held_out": 0.3}, {"vocab_size": 110}]
    others = [run(corpus, cache, **change) for change in changes]
    os.utime(corpus / "0.txt", ns=(1, 1))
    others.append(run(corpus, cache))
    assert len({store.path for store in [first, *others]}) == 5


def test_held_out_documents_stay_held_out_when_the_corpus_grows(tmp_path: Path):
    before = found(run(write_corpus(tmp_path / "corpus", 100), tmp_path / "cache", held_out=0.2), "held_out", 100)
    after = found(run(write_corpus(tmp_path / "corpus", 130), tmp_path / "cache", held_out=0.2), "held_out", 130)
    assert before == {number for number in after if number < 100}


def test_copies_never_straddle_the_parts(tmp_path: Path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(f"{document(i % 40)}{' ' * (i % 3)}" for i in range(100)))
    for deduplicate in (True, False):
        store = run(corpus, tmp_path / "cache", held_out=0.3, deduplicate=deduplicate, source={"document": "line"})
        train, held_out = found(store, "train", 40), found(store, "held_out", 40)
        assert train | held_out == set(range(40)) and not train & held_out
        assert store.manifest["documents_kept"] == (40 if deduplicate else 100)


def test_two_documents_are_one_for_each_part_and_one_document_is_trained_on(tmp_path: Path):
    for num_documents, held_out in ((2, 0.001), (2, 0.999), (1, 0.5)):
        corpus = write_corpus(tmp_path / f"corpus{num_documents}", num_documents, num_files=1)
        store = run(corpus, tmp_path / "cache", rows={"length": 128}, held_out=held_out, vocab_size=20)
        assert (store.train.num_rows, store.held_out.num_rows) == (1, num_documents - 1)
        assert store.held_out.read(np.array([], np.int64)).input_ids.shape == (0, 128)


def test_one_long_line_is_windowed_not_cut_off(tmp_path: Path):
    corpus = tmp_path / "long.txt"
    corpus.write_text(" ".join(WORDS[i % len(WORDS)] for i in range(40_000)) + "\n\nshort one\n\nshort two\n")
    store = run(corpus, tmp_path / "cache", vocab_size=90, rows={"length": 32})
    words = load_tokenizer(store.tokenizer_folder)("the quick brown fox", add_special_tokens=False)["input_ids"]
    assert store.manifest["documents_kept"] == 3
    assert 1 <= store.held_out.num_rows <= 2  # one of the short ones, not the book
    assert store.manifest["tokens"] >= 40_000 * len(words) / 4
    assert store.train.num_rows <= 1.02 * store.manifest["tokens"] / 32 + 3


def test_too_many_bad_records_stop_it_naming_reasons_places_and_the_way_out(tmp_path: Path):
    corpus = write_corpus(tmp_path / "corpus", 60)
    (corpus / "bad.jsonl").write_text('{"text": "ok"}\n{"text": "cut\n{"text": 7}\n{"text": 8}\n')
    (corpus / "latin.txt").write_bytes(b"good\n\ncaf\xe9\n")
    with pytest.raises(UserError) as error:
        run(corpus, tmp_path / "cache")
    message = str(error.value)
    assert "\n" not in message and message.startswith("corpus.max_bad_fraction=0.01: 4 of 66 records")
    assert "2 not_text, first" in message and "bad.jsonl:3" in message and "latin.txt:3" in message
    assert list((tmp_path / "cache").iterdir()) == []
    assert message.endswith(", or name the text with the source's text_field")
    allowed = float(message.rpartition("max_bad_fraction=")[2].partition(",")[0])
    store = run(corpus, tmp_path / "cache", max_bad_fraction=allowed)
    assert store.manifest["quarantined_by_reason"] == {"not_text": 2, "broken_json": 1, "encoding": 1}
    assert store.manifest["documents_quarantined"] == 4
    quarantine = [json.loads(line) for line in (store.path / "quarantine.jsonl").read_text().splitlines()]
    assert sorted((Path(bad["file"]).name, bad["line"]) for bad in quarantine) == [
        ("bad.jsonl", 2), ("bad.jsonl", 3), ("bad.jsonl", 4), ("latin.txt", 3)
    ]  # fmt: skip
    with pytest.raises(UserError, match=r"0.01: 4 of 66 records .* 2 not_text, first .*bad.jsonl:3"):
        run(corpus, tmp_path / "cache")  # the store that was allowed is there, and still too bad


def test_broken_archive_is_not_one_bad_record_among_many(tmp_path: Path):
    corpus = write_corpus(tmp_path / "corpus", 300)
    (corpus / "cut.txt.gz").write_bytes(gzip.compress(os.urandom(5000))[:2000])
    with pytest.raises(UserError, match=r"unreadable, first .*cut.txt.gz"):
        run(corpus, tmp_path / "cache")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (" \n\n", r"^corpus.sources.0.path=.*a.txt: no document in 1 files \(all files are blank\)"),
        ("\u200b\n\n\x01", "corpus.sources: no document holds a word"),
        ("a few words only", r"tokenizer.vocab_size=120: this corpus fills only \d+ tokens"),
    ],
)
def test_corpus_without_usable_text_is_refused_and_leaves_nothing(tmp_path: Path, text: str, told: str):
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(UserError, match=told):
        run(tmp_path / "a.txt", tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_missing_column_found_while_reading_is_told_as_the_users_mistake(tmp_path: Path):
    (tmp_path / "a.csv").write_text("id,body\n1,hello\n")
    with pytest.raises(UserError, match="a.csv: no column 'text'; the columns there are: id, body"):
        run(tmp_path / "a.csv", tmp_path / "cache")


def test_tokenizer_from_a_folder_is_used_as_it_is(tmp_path: Path):
    corpus = write_corpus(tmp_path / "corpus")
    first = run(corpus, tmp_path / "cache")
    second = run(corpus, tmp_path / "cache", tokenizer=str(first.tokenizer_folder), vocab_size=8192)
    assert second.path != first.path
    assert second.manifest["tokenizer"] == first.manifest["tokenizer"]
    assert texts(second, "train") == texts(first, "train")


@pytest.mark.soak
def test_killed_preparation_leaves_no_store_and_the_next_one_starts_clean(tmp_path: Path, ray_4_cpus: str):
    corpus, cache = write_corpus(tmp_path / "corpus", 1200), tmp_path / "cache"
    script = (
        "import ray, sys, pathlib; ray.init(log_to_driver=False, logging_level='ERROR');"
        "sys.path.insert(0, sys.argv[1]); import test_data_store as t;"
        "t.run(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]), chunk_bytes=2000)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(Path(__file__).parent), str(corpus), str(cache)],
        env={**os.environ, "RAY_ADDRESS": ray_4_cpus},
    )  # fmt: skip
    deadline = time.monotonic() + 90
    while not list(cache.glob("*.part-*/train/shard-*")) and time.monotonic() < deadline:
        assert process.poll() is None, "it ended before a shard was seen"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (part,) = cache.iterdir()
    with pytest.raises(UserError, match="no prepared corpus"):
        open_store(part)
    store = run(corpus, cache, chunk_bytes=2000)
    assert list(cache.iterdir()) == [store.path]
    assert store.manifest["documents_kept"] == 1200


def test_fresh_folder_is_whole_or_absent(tmp_path: Path):
    dead = tmp_path / f"x.part-{os.uname().nodename}-{2**22 + 1}"  # above any process id
    dead.mkdir()
    with pytest.raises(RuntimeError), fresh_folder(tmp_path / "store") as part:
        (part / "half").touch()
        raise RuntimeError("interrupted")
    assert list(tmp_path.iterdir()) == []
    with fresh_folder(tmp_path / "store") as part:
        (part / "whole").touch()
        assert not (tmp_path / "store").exists()
    assert [path.name for path in tmp_path.rglob("*")] == ["store", "whole"]


def test_what_another_host_left_is_removed_a_day_later(tmp_path: Path):
    old, new = (tmp_path / f"x.part-pod-{n}-41" for n in ("old", "new"))
    for part in (old, new):
        part.mkdir()
        (part / "train").mkdir()
    for path in (old / "train", old):
        os.utime(path, (time.time() - 90_000,) * 2)
    with fresh_folder(tmp_path / "store"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store", new.name]


def test_a_damaged_store_is_named_with_what_to_do(tmp_path: Path, ray_4_cpus: str):
    corpus = write_corpus(tmp_path / "corpus")
    store = run(corpus, tmp_path / "cache")
    tokenizer = store.tokenizer_folder / "tokenizer.json"
    swaps = {
        tokenizer: tokenizer.read_text().replace('"##a"', '"##A"').replace('"##b"', '"##a"').replace('"##A"', '"##b"'),
        store.path / "quarantine.jsonl": "{",
        store.path / "manifest.json": "{",
    }
    for path, damaged in swaps.items():
        whole = path.read_text()
        path.write_text(damaged)
        named = "tokenizer" if path == tokenizer else path.name
        with pytest.raises(UserError, match=f"{named}: .*remove .* run again"):
            run(corpus, tmp_path / "cache")
        path.write_text(whole)
    assert run(corpus, tmp_path / "cache").path == store.path
