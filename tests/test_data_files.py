"""Folders and globs, on disk and in a bucket, and the folders that datasets.save_to_disk writes."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

import data.storage
from data.config import Corpus, UserError
from data.corpus import find_files
from data.documents import read_documents


def texts(path: str | Path, **source: str) -> list[str]:
    files = find_files(Corpus(sources=[{"path": str(path), **source}]))  # type: ignore[list-item]
    return [text for file in files for text in read_documents(file) if isinstance(text, str)]


def test_saved_dataset_gives_the_files_its_state_lists_and_no_cached_ones(tmp_path: Path):
    saved = datasets.Dataset.from_dict({"text": [f"text {i}" for i in range(100)], "label": list(range(100))})
    saved.save_to_disk(str(tmp_path / "saved"), num_shards=3)
    for name in ("cache-0123.arrow", "data-00009-of-00010.arrow"):
        (tmp_path / "saved" / name).write_bytes((tmp_path / "saved" / "data-00000-of-00003.arrow").read_bytes())
    expected = [f"text {i}" for i in range(100)]
    assert texts(tmp_path / "saved") == texts(tmp_path / "saved", format="arrow") == expected
    assert texts(tmp_path / "saved" / "*.arrow") == texts(tmp_path) == expected
    assert texts(tmp_path / "saved" / "data-00000-of-00003.arrow") == expected[:34]


def test_saved_dataset_that_lacks_a_file_is_refused(tmp_path: Path):
    saved = datasets.Dataset.from_dict({"text": [f"text {i}" for i in range(100)]})
    saved.save_to_disk(str(tmp_path / "saved"), num_shards=3)
    (tmp_path / "saved" / "data-00001-of-00003.arrow").unlink()
    with pytest.raises(UserError, match="saved lacks data-00001-of-00003.arrow, which its state.json lists"):
        texts(tmp_path / "saved")


def test_sliced_and_mapped_dataset_saves_what_it_shows(tmp_path: Path):
    whole = datasets.Dataset.from_dict({"text": [f"text {i}" for i in range(10)]})
    whole.select([7, 2]).map(lambda row: {"text": row["text"] + "!"}).save_to_disk(str(tmp_path / "saved"))
    assert texts(tmp_path / "saved") == ["text 7!", "text 2!"]


def test_dataset_dict_is_refused_and_names_its_splits(tmp_path: Path):
    part = datasets.Dataset.from_dict({"text": ["a"]})
    datasets.DatasetDict({"train": part, "test": part}).save_to_disk(str(tmp_path / "saved"))
    for path in (tmp_path / "saved", tmp_path):
        with pytest.raises(
            UserError, match=r"saved is a DatasetDict of train, test; give path=.*saved/train$"
        ) as error:
            texts(path)
        assert "\n" not in str(error.value)
    assert texts(tmp_path / "saved" / "train") == ["a"]


def test_state_of_something_else_hides_nothing(tmp_path: Path):
    (tmp_path / "state.json").write_text('{"text": "state"}')
    (tmp_path / "a.txt").write_text("a")
    assert texts(tmp_path) == ["a", "state"]


@pytest.fixture(scope="module")
def bucket(s3: dict[str, str]) -> Iterator[pyarrow.fs.FileSystem]:
    """A bucket with a corpus below cloze-test/corpus."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3.items():
            patch.setenv(name, value)
        filesystem = pyarrow.fs.FileSystem.from_uri("s3://cloze-test")[0]
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"text": ["p1", "p2"], "other": [1, 2]}), sink)
        saved = pa.BufferOutputStream()
        with pa.ipc.new_stream(saved, pa.schema([("text", pa.string())])) as writer:
            writer.write_batch(pa.record_batch({"text": ["d1"]}))
        files = {
            "a.txt": b"a1\n\na2\n", "b/c.jsonl.gz": pa.compress(b'{"text": "c1"}\n', "gzip", asbytes=True),
            "b/d e%20f.txt": b"odd name", "b/deep/x.json": b'[{"text": "x1"}, {"text": "x2"}]',
            ".hidden/y.txt": b"y", "_SUCCESS": b"", "p.parquet": sink.getvalue().to_pybytes(), "notes.log": b"log",
            "saved/data-0.arrow": saved.getvalue().to_pybytes(), "saved/cache-1.arrow": saved.getvalue().to_pybytes(),
            "saved/state.json": b'{"_data_files": [{"filename": "data-0.arrow"}]}', "saved/dataset_info.json": b"{}",
        }  # fmt: skip
        for name, content in files.items():
            with filesystem.open_output_stream(f"cloze-test/corpus/{name}", compression=None) as stream:
                stream.write(content)
        with filesystem.open_output_stream("cloze-test/packed/p.parquet.gz", compression=None) as stream:
            stream.write(pa.compress(sink.getvalue().to_pybytes(), "gzip", asbytes=True))
        yield filesystem


ALL = ["a1", "a2", "c1", "odd name", "x1", "x2", "p1", "p2", "d1"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("s3://cloze-test/corpus", ALL),
        ("s3://cloze-test/corpus/", ALL),
        ("s3://cloze-test/corpus/a.txt", ["a1", "a2"]),
        ("s3://cloze-test/corpus/*.txt", ["a1", "a2"]),
        ("s3://cloze-test/corpus/b/*", ["c1", "odd name"]),
        ("s3://cloze-test/corpus/**/*.txt", ["a1", "a2", "odd name"]),
        ("s3://cloze-test/corpus/**/*.js*", ["c1", "x1", "x2"]),
        ("s3://cloze-test/cor*/[ab]/c.jsonl.?z", ["c1"]),
        ("s3://cloze-test/corpus/b/**", ["c1", "odd name", "x1", "x2"]),
        ("s3://cloze-test/corpus/saved/*", ["d1"]),
        ("s3://cloze-test/packed", ["p1", "p2"]),
    ],
)
def test_bucket_is_read_as_a_folder_is(bucket: pyarrow.fs.FileSystem, path: str, expected: list[str]):
    assert texts(path) == expected


def test_files_of_a_bucket_have_sizes_and_times(bucket: pyarrow.fs.FileSystem):
    files = find_files(Corpus(sources=["s3://cloze-test/corpus"]))  # type: ignore[arg-type]
    assert [(file.path.rpartition("corpus/")[2], file.format) for file in files] == [
        ("a.txt", "text"), ("b/c.jsonl.gz", "jsonl"), ("b/d e%20f.txt", "text"), ("b/deep/x.json", "jsonl"),
        ("p.parquet", "parquet"), ("saved/data-0.arrow", "arrow"),
    ]  # fmt: skip
    info = bucket.get_file_info("cloze-test/corpus/a.txt")
    assert (files[0].size_bytes, files[0].mtime_ns) == (7, info.mtime_ns) and info.mtime_ns > 10**18


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("s3://no-such-bucket/corpus", "the bucket cannot be listed"),
        ("s3://no-such-bucket/*.txt", "the bucket cannot be listed"),
        ("s3://no-such-bucket", "the bucket cannot be listed"),
        ("s3://cloze-test/nothing", "no such file or folder in the bucket"),
        ("s3://cloze-test/corpus/*.csv", "the glob matches no file"),
        ("s3://cloze-test/corpus/notes.log", "its suffix tells no format"),
        ("s3://", "neither a path nor a bucket"),
        ("https://example.com/a.txt", "neither a path nor a bucket"),
    ],
)
def test_what_is_wrong_with_a_bucket_is_one_line(bucket: pyarrow.fs.FileSystem, path: str, told: str):
    with pytest.raises(UserError) as error:
        texts(path)
    message = str(error.value)
    assert message.startswith(f"corpus.sources.0.path={path}: ") and told in message and "\n" not in message


def test_google_bucket_without_credentials_is_said_and_not_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(data.storage, "GS_RETRY_SECONDS", 1)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/credentials.json")
    begin = time.monotonic()
    with pytest.raises(UserError, match=r"^corpus.sources.0.path=gs://cloze-nowhere/x: the bucket cannot be listed"):
        texts("gs://cloze-nowhere/x")
    assert time.monotonic() - begin < 30


def test_object_that_went_away_is_unreadable_and_named(bucket: pyarrow.fs.FileSystem):
    for name in ("gone.txt", "gone.jsonl", "gone.parquet", "gone.arrow"):
        with bucket.open_output_stream(f"cloze-test/other/{name}", compression=None) as stream:
            stream.write(b"text")
    files = find_files(Corpus(sources=["s3://cloze-test/other"]))  # type: ignore[arg-type]
    bucket.delete_dir("cloze-test/other")
    assert len(files) == 4
    for file in files:
        (bad,) = read_documents(file)
        assert bad[:3] == ("unreadable", file.path, 0), json.dumps(bad)
