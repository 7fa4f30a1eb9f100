"""Parquet and Arrow files: only what is asked for is decoded, whatever type holds the text."""

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.config import UserError
from data.formats import read_records
from data.records import Bad, Record

TABLE = pa.table(
    {
        "text": ["one", None, "three"],
        "doc": [{"text": "in one", "deep": {"er": "x"}}, {"text": None, "deep": None}, None],
        "messages": [[{"role": "user", "content": "hello"}]] * 3,
        "map": pa.array([[("a", 1)]] * 3, pa.map_(pa.string(), pa.int64())),
    }
)


def write(table: pa.Table, path: Path, kind: str) -> Path:
    if kind == "parquet":
        pq.write_table(table, path)
    else:
        new = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
        with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    return path


def read(path: Path, kind: str, *fields: str, encoding: str = "utf-8") -> list[Record | Bad]:
    return list(read_records(str(path), "parquet" if kind == "parquet" else "arrow", fields or ("text",), encoding))


KINDS = pytest.mark.parametrize("kind", ["parquet", "stream", "file"])


@KINDS
def test_a_name_that_two_columns_have_is_refused(tmp_path: Path, kind: str):
    table = pa.table([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    with pytest.raises(UserError, match="a.data: 2 columns are named 'text'; rename them"):
        read(write(table, tmp_path / "a.data", kind), kind)


@KINDS
@pytest.mark.parametrize("packed", [False, True])
def test_columns_and_fields_of_structs_are_read_and_nothing_else(tmp_path: Path, kind: str, packed: bool):
    path = write(TABLE, tmp_path / "a.data", kind)
    if packed:
        path.write_bytes(gzip.compress(path.read_bytes()))
    assert read(path, kind) == [(1, ("one",)), (2, (None,)), (3, ("three",))]
    assert [record[1] for record in read(path, kind, "doc.text", "text")] == [
        ("in one", "one"), (None, None), (None, "three")
    ]  # fmt: skip
    assert [record[1] for record in read(path, kind, "doc.deep.er")] == [("x",), (None,), (None,)]


@KINDS
def test_other_columns_are_not_decoded(tmp_path: Path, kind: str):
    """Another column is damaged so that who reads it fails; who does not ask for it does not."""
    table = TABLE.append_column("big", pa.array(["x" * 1000] * 3))
    path = tmp_path / "a.data"
    if kind == "parquet":
        pq.write_table(table, path)
        leaves = pq.read_metadata(path)
        place = leaves.row_group(0).column(leaves.num_columns - 1)
        start = place.dictionary_page_offset or place.data_page_offset
    else:
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        make = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
        with make(path, table.schema, options=options) as writer:
            writer.write_table(table)
        start = path.read_bytes().rindex(b"\x28\xb5\x2f\xfd")  # of the last buffer that is packed
    data = bytearray(path.read_bytes())
    data[start : start + 12] = b"\xff" * 12
    path.write_bytes(data)
    assert [record[1] for record in read(path, kind)] == [("one",), (None,), ("three",)]
    assert [record.reason for record in read(path, kind, "big") if isinstance(record, Bad)] == ["unreadable"]


@KINDS
@pytest.mark.parametrize(
    ("field", "told"),
    [
        ("body", "no column 'body'; the columns there are: text, doc, messages, map"),
        ("doc.body", "no column 'doc.body'; the columns there are"),
        ("messages.content", "not a struct"),
        ("map.key", "not a struct"),
        ("text.x", "text is string, not a struct"),
    ],
)
def test_field_that_is_not_there_is_refused_and_says_what_is(tmp_path: Path, kind: str, field: str, told: str):
    path = write(TABLE, tmp_path / "a.data", kind)
    with pytest.raises(UserError, match=told) as error:
        read(path, kind, field)
    assert "\n" not in str(error.value)


@KINDS
def test_text_of_any_type(tmp_path: Path, kind: str):
    table = pa.table(
        {
            "large": pa.array(["a", None], pa.large_string()),
            "coded": pa.array(["a", None]).dictionary_encode(),
            "bytes": pa.array([b"a", None]),
            "large_bytes": pa.array([b"a", None], pa.large_binary()),
            "view": pa.array(["a", None], pa.string_view()),
        }
    )
    names = [name for name in table.column_names if kind != "parquet" or name != "view"]
    path = write(table.select(names), tmp_path / "a.data", kind)
    for name in names:
        assert read(path, kind, name) == [(1, ("a",)), (2, (None,))], name


@KINDS
def test_no_rows_and_null_columns(tmp_path: Path, kind: str):
    assert read(write(TABLE.slice(0, 0), tmp_path / "a.data", kind), kind) == []
    path = write(pa.table({"text": pa.nulls(2)}), tmp_path / "b.data", kind)
    assert read(path, kind) == [(1, (None,)), (2, (None,))]


@KINDS
def test_columns_of_bytes_are_read_in_the_encoding_of_the_source(tmp_path: Path, kind: str):
    path = write(pa.table({"text": ["caf\u00e9".encode("cp1252"), b"\xff"]}), tmp_path / "a.data", kind)
    assert [record[1] for record in read(path, kind, encoding="cp1252")] == [("caf\u00e9",), ("\u00ff",)]
    assert [record[1] for record in read(path, kind)] == [("caf\udc80",), ("\udc80",)]


@KINDS
def test_strings_that_are_no_utf_8_cost_their_rows_only(tmp_path: Path, kind: str):
    strings = pa.array([b"good", b"caf\xe9"]).view(pa.string())
    path = write(pa.table({"text": strings}), tmp_path / "a.data", kind)
    assert [record[1] for record in read(path, kind)] == [("good",), ("caf\udc80",)]


@KINDS
def test_file_that_is_cut_or_no_such_file_at_all_is_unreadable(tmp_path: Path, kind: str):
    rows = pa.table({"text": [f"row {i} " + "x" * i for i in range(3000)]})
    path = write(rows, tmp_path / "a.data", kind)
    whole = path.read_bytes()
    for size in (5, len(whole) // 2, len(whole) - 9):
        path.write_bytes(whole[:size])
        *_, last = read(path, kind)
        assert isinstance(last, Bad) or size == len(whole) - 9, (size, last)  # a stream may lack its end mark
    path.write_bytes(b"plain text, and long enough to be looked at")
    (bad,) = read(path, kind)
    assert isinstance(bad, Bad) and (bad.reason, bad.line) == ("unreadable", 0)


def test_rows_of_long_texts_are_decoded_few_at_a_time(tmp_path: Path):
    table = pa.table({"text": [str(i) + "x" * 1_000_000 for i in range(100)], "other": ["y"] * 100})
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=False, compression="zstd", write_batch_size=10)
    before = pa.total_allocated_bytes()
    most = 0
    for record in read_records(str(tmp_path / "a.parquet"), "parquet", ("text",)):
        assert isinstance(record, Record)
        most = max(most, pa.total_allocated_bytes() - before)
    assert record.line == 100 and most < 60_000_000
