"""Files and documents: every format, every way a record can be bad, and the faults told before anything starts."""

import bz2
import gzip
import json
import lzma
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.config import Corpus, UserError
from data.corpus import SourceFile, find_files, group_files
from data.documents import read_documents
from data.records import Bad


def read(path: Path, **source: str) -> list[str | Bad]:
    (file,) = find_files(Corpus(sources=[{"path": str(path), **source}]))  # type: ignore[list-item]
    return list(read_documents(file))


def reasons(documents: list[str | Bad]) -> list[tuple[str, int]]:
    return [(document.reason, document.line) for document in documents if isinstance(document, Bad)]


def texts(documents: list[str | Bad]) -> list[str]:
    return [document for document in documents if not isinstance(document, Bad)]


def test_folder_is_read_recursively_in_a_stable_order_without_hidden_and_unknown_files(tmp_path: Path):
    for name in ("b.txt", "a/z.jsonl", "a/y.csv.gz", ".hidden.txt", "_SUCCESS", "notes.log", "c.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    found = find_files(Corpus(sources=[str(tmp_path)]))  # type: ignore[arg-type]
    assert [(Path(file.path).name, file.format) for file in found] == [
        ("y.csv.gz", "csv"), ("z.jsonl", "jsonl"), ("b.txt", "text"), ("c.parquet", "parquet")
    ]  # fmt: skip


def test_glob_and_file_that_name_one_file_twice_read_it_once(tmp_path: Path):
    for name in ("a.txt", "b.txt", "c.md"):
        (tmp_path / name).write_text(name)
    found = find_files(Corpus(sources=[str(tmp_path / "b.txt"), str(tmp_path / "*.txt")]))  # type: ignore[arg-type]
    assert [Path(file.path).name for file in found] == ["b.txt", "a.txt"]


def test_given_format_takes_every_file_of_a_folder(tmp_path: Path):
    (tmp_path / "part-0000").write_text("one\n\ntwo")
    assert texts(read(tmp_path, format="text")) == ["one", "two"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere", ["no such file or folder"]),
        ("*.jsonl", ["matches no file"]),
        ("empty-folder", ["no readable file", ".jsonl"]),
        ("empty.txt", ["all 1 files are empty"]),
        ("data.bin", ["tells no format", "format: text"]),
        ("http://bucket/corpus", ["s3://BUCKET/KEY"]),
    ],
)
def test_source_that_cannot_be_read_is_one_line_with_key_path_and_remedy(tmp_path: Path, name: str, words: list[str]):
    (tmp_path / "empty-folder").mkdir()
    (tmp_path / "empty.txt").touch()
    (tmp_path / "data.bin").write_bytes(b"x")
    path = name if "://" in name else str(tmp_path / name)
    with pytest.raises(UserError) as error:
        find_files(Corpus(sources=[path]))  # type: ignore[arg-type]
    message = str(error.value)
    assert "\n" not in message and message.startswith("corpus.sources") and name.rpartition("/")[2] in message
    assert all(word in message for word in words), message


def test_each_faulty_source_has_its_line(tmp_path: Path):
    (tmp_path / "good.txt").write_text("text")
    good = str(tmp_path / "good.txt")
    sources = [str(tmp_path / "x"), good, {"path": good, "encoding": "klingon"}]
    with pytest.raises(UserError) as error:
        find_files(Corpus(sources=sources))  # type: ignore[arg-type]
    lines = str(error.value).splitlines()
    assert [line.split(".path")[0] for line in lines] == ["corpus.sources.0", "corpus.sources.2"]
    assert "klingon" in lines[1]


@pytest.mark.parametrize("encoding", ["rot13", "base64", "idna", "punycode", "undefined", "", "utf\0"])
def test_encoding_that_is_none_of_text_is_refused_by_its_key(tmp_path: Path, encoding: str):
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(UserError, match=r"^corpus.sources.0.path=.*a.txt: encoding=") as error:
        read(tmp_path / "a.txt", encoding=encoding)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("pattern", ["", "*.txt"])
def test_link_to_nothing_is_refused_by_name(tmp_path: Path, pattern: str):
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere.txt")
    with pytest.raises(UserError, match=r"^corpus.sources.0.path=.*gone.txt is a link to nothing; .*$"):
        find_files(Corpus(sources=[str(tmp_path / pattern)]))  # type: ignore[arg-type]


def test_folder_that_cannot_be_listed_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "shut").mkdir()
    scan = os.scandir

    def scandir(path: str):
        if path.endswith("shut"):
            raise PermissionError(13, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(UserError, match=r"^corpus.sources.0.path=.*shut cannot be read \(Permission denied\)"):
        find_files(Corpus(sources=[str(tmp_path)]))  # type: ignore[arg-type]


@pytest.mark.parametrize("pattern", ["", "**/*.txt"])
def test_hidden_folders_are_left_out_and_links_never_read_a_folder_twice(tmp_path: Path, pattern: str):
    for name in (".git/x.txt", "a/.venv/y.txt", "a/b/z.txt", "_c/w.txt", "v.txt"):
        (tmp_path / "corpus" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "corpus" / name).write_text(name)
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "u.txt").write_text("u")
    for link, target in (("a/loop", "corpus"), ("a/b/twice", "corpus/a"), ("linked", "else"), ("too", "else")):
        (tmp_path / "corpus" / link).symlink_to(tmp_path / target)
    found = find_files(Corpus(sources=[str(tmp_path / "corpus" / pattern)]))  # type: ignore[arg-type]
    names = [str(Path(file.path).relative_to(tmp_path / "corpus")) for file in found]
    assert names == ["_c/w.txt", "a/b/z.txt", "linked/u.txt", "v.txt"]


TEXT = "first line\nsecond line\n\n\nnext block\n \t\nlast\n"


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ("line", ["first line", "second line", "next block", "last"]),
        ("block", ["first line\nsecond line", "next block", "last"]),
        ("file", [TEXT.strip()]),
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_text_has_the_same_documents_whatever_its_line_ends_and_bom(
    tmp_path: Path, document: str, expected: list[str], newline: str, bom: bytes
):
    path = tmp_path / "a.txt"
    path.write_bytes(bom + TEXT.replace("\n", newline).encode())
    assert read(path, document=document) == expected


def test_bytes_that_do_not_decode_cost_their_document_only_and_name_the_line(tmp_path: Path):
    path = tmp_path / "c.txt"
    path.write_bytes("good\n\nfine\ncaf\u00e9 ".encode() + b"caf\xe9\n\nlast\n")
    documents = read(path)
    assert texts(documents) == ["good", "last"]
    assert reasons(documents) == [("encoding", 4)]
    assert "c.txt:4: encoding" in str(documents[1])


@pytest.mark.parametrize("encoding", ["gb18030", "utf-16", "utf-16-be", "latin-1"])
def test_other_encodings(tmp_path: Path, encoding: str):
    written = "caf\u00e9" if encoding == "latin-1" else "\u4eba\u6743\n\n\u5ba3\u8a00"
    (tmp_path / "a.txt").write_bytes(written.encode(encoding))
    assert read(tmp_path / "a.txt", encoding=encoding) == written.split("\n\n")


def test_bad_jsonl_lines_are_told_apart_and_cost_nothing_else(tmp_path: Path):
    lines = [
        '{"text": "good", "meta": {"u": 1}}', '{"text": "cut', "", '{"body": "x"}', '{"text": 5}', '{"text": ["x"]}',
        '{"text": null}', '{"text": "  "}', "[1, 2]", '{"text": "half \\ud800"}', "[" * 100_000,
        '{"text": "also good", "meta": "u"}',
    ]  # fmt: skip
    (tmp_path / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    documents = read(tmp_path / "a.jsonl")
    assert texts(documents) == ["good", "", "", "also good"]
    assert reasons(documents) == [
        ("broken_json", 2), ("missing_field", 4), ("not_text", 5), ("not_text", 6), ("not_object", 9),
        ("encoding", 10), ("broken_json", 11),
    ]  # fmt: skip


def test_dotted_field_reaches_into_objects_and_structs(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"doc": {"text": "inside"}}))
    columns = {"doc": [{"text": "inside", "n": 1}], "messages": [[{"role": "x"}]]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.parquet"):
        assert read(tmp_path / name, text_field="doc.text") == ["inside"]


def test_csv_fields_may_hold_newlines_quotes_and_commas(tmp_path: Path):
    (tmp_path / "a.csv").write_bytes(b'id,text\r\n1,"one, ""two""\r\nthree"\r\n2,plain\r\n\r\n3,too,many\r\n4,""\r\n')
    documents = read(tmp_path / "a.csv")
    assert texts(documents) == ['one, "two"\nthree', "plain", ""]
    assert reasons(documents) == [("broken_row", 6)]


def test_tsv_with_stray_quotes_keeps_them_and_a_quoted_one_loses_them(tmp_path: Path):
    stray = tmp_path / "stray.tsv"
    stray.write_text('text\tlabel\n"so it begins\tpos\nhe said "no"\tneg\n5" long" it is"\tpos\n')
    assert read(stray) == ['"so it begins', 'he said "no"', '5" long" it is"']
    quoted = tmp_path / "quoted.tsv"
    quoted.write_text('text\tlabel\n"two\nlines with ""quotes"""\tpos\nplain\tneg\n')
    assert read(quoted) == ['two\nlines with "quotes"', "plain"]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.parquet"])
def test_missing_text_column_names_the_columns_there_are(tmp_path: Path, name: str):
    path = tmp_path / name
    if name.endswith("parquet"):
        pq.write_table(pa.table({"id": [1], "body": ["x"]}), path)
    else:
        path.write_text("id,body\n1,x\n".replace(",", "," if name.endswith("csv") else "\t"))
    with pytest.raises(UserError, match="no column 'text'; the columns there are: id, body"):
        read(path)


def test_parquet_types_of_text(tmp_path: Path):
    columns = {
        "plain": pa.array(["a", None, " "]),
        "large": pa.array(["a", None, " "], pa.large_string()),
        "coded": pa.array(["a", None, " "]).dictionary_encode(),
        "bytes": pa.array([b"a", None, b" "]),
        "nothing": pa.nulls(3),
        "bad": pa.array([b"a", b"\xff", b"b"]),
        "number": pa.array([1, 2, None]),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    for name in ("plain", "large", "coded", "bytes"):
        assert read(tmp_path / "a.parquet", text_field=name) == ["a", "", ""]
    assert read(tmp_path / "a.parquet", text_field="nothing") == ["", "", ""]
    assert reasons(read(tmp_path / "a.parquet", text_field="bad")) == [("encoding", 2)]
    assert reasons(read(tmp_path / "a.parquet", text_field="number")) == [("not_text", 1), ("not_text", 2)]


LINES = b"".join(json.dumps({"text": f"document {i}"}).encode() + b"\n" for i in range(500))


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.bz2", "a.jsonl.xz", "a.jsonl.zst", "a.jsonl"])
def test_compression_is_told_by_content(tmp_path: Path, name: str):
    pack = {"bz2": bz2.compress, "xz": lzma.compress, "zst": lambda data: pa.compress(data, "zstd", asbytes=True)}
    (tmp_path / name).write_bytes(pack.get(name.rpartition(".")[2], gzip.compress)(LINES))
    assert texts(read(tmp_path / name)) == [f"document {i}" for i in range(500)]


@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz", "zst"])
def test_cut_archive_gives_what_it_holds_and_names_the_file(tmp_path: Path, suffix: str):
    packs = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
    lines = b"".join(json.dumps({"text": os.urandom(200).hex()}).encode() + b"\n" for _ in range(1500))
    whole = packs.get(suffix, lambda data: pa.compress(data, "zstd", asbytes=True))(lines)
    path = tmp_path / f"cut.jsonl.{suffix}"
    for size in (60, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        documents = read(path)
        if size > 60 and suffix in ("gz", "zst"):  # the others pack more than this at once
            assert len(texts(documents)) > 100
        assert documents[-1][:3] == ("unreadable", str(path), 0), (size, documents[-1])


def test_damaged_parquet_is_unreadable_not_an_exception(tmp_path: Path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 but no more")
    assert reasons(read(tmp_path / "a.parquet")) == [("unreadable", 0)]


def test_small_neighbours_are_grouped_and_large_files_stand_alone():
    files = [SourceFile(str(i), "text", size_bytes=size) for i, size in enumerate([1, 2, 3, 0, 50, 4, 1])]
    assert [[file.size_bytes for file in group] for group in group_files(files, 6)] == [[1, 2, 3], [0], [50], [4, 1]]
