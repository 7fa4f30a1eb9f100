"""One file -> its lines or records, one at a time, with the line each begins at.

In: a path, its format, the fields asked for, an encoding. Out: `Record`s (line number and values) and `Bad`s for what
cannot be read. Compression is told by content, memory is bounded by the longest record, nothing is guessed: bytes that
do not decode stay visible as MARK, and whoever wants a text asks `clean` for it.
"""

import codecs
import csv
import io
import itertools
import json
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from data.config import UserError

Format = Literal["text", "jsonl", "csv", "tsv", "parquet"]
SUFFIXES: dict[str, Format] = {
    ".txt": "text", ".text": "text", ".md": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
    ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet",
}  # fmt: skip
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
MARK = "\udc80"  # stands for undecodable bytes: a lone surrogate, which no valid text holds
PARQUET_ROWS = 1024  # rows decoded at once: 1,000 web pages are a few MB
SNIFFED_ROWS = 20_000  # of a TSV, to tell whether its fields are quoted
FIELD_CHARACTERS = 64_000_000  # of one CSV field: long documents pass, an open quote does not swallow the whole file
# What reading a file that is cut, damaged, not permitted or not in its encoding may raise, whatever compressed it.
READ_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError, UnicodeError)
csv.field_size_limit(FIELD_CHARACTERS)
codecs.register_error("mark", lambda error: (MARK, error.end))  # type: ignore[attr-defined]


class Bad(NamedTuple):
    """A record, or a whole file (line 0), that cannot be used, and why."""

    reason: str
    """encoding, broken_json, missing_field, not_text, broken_row, blank or unreadable."""
    file: str
    line: int
    detail: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {self.reason}" + (f" ({self.detail})" if self.detail else "")


class Record(NamedTuple):
    """The values asked for of one record, None where they are null."""

    line: int
    """1-based line (JSONL, CSV, TSV) or row (Parquet) at which the record begins."""
    values: tuple[Any, ...]


def format_of(name: str) -> Format | None:
    """Format told by the suffix, a compression suffix aside; None where it tells nothing."""
    path = Path(name.lower())
    return SUFFIXES.get(Path(path.stem).suffix if path.suffix in COMPRESSED else path.suffix)


def open_bytes(path: str) -> IO[bytes]:
    """Open a file for reading, decompressed if its first bytes say gzip, bzip2, xz or zstd. Raises OSError."""
    import bz2
    import gzip

    import pyarrow as pa

    file = open(path, "rb")  # noqa: SIM115  closed by the reader that wraps it
    magic = file.peek(6)[:6]
    if magic.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=file)  # type: ignore[return-value]
    if magic.startswith(b"BZh"):
        return bz2.BZ2File(file)
    if magic.startswith(b"\xfd7zXZ\x00"):
        return lzma.LZMAFile(file)
    if magic.startswith(b"\x28\xb5\x2f\xfd"):
        return io.BufferedReader(pa.CompressedInputStream(file, "zstd"), 1 << 20)  # type: ignore[arg-type]
    return file


def read_lines(path: str, encoding: str, newline: str | None = None) -> Iterator[str]:
    """Lines of a text file, each with its "\\n": CR and CRLF become "\\n", a BOM is dropped, bad bytes become MARK."""
    encoding = "utf-8-sig" if codecs.lookup(encoding).name == "utf-8" else encoding
    with io.TextIOWrapper(open_bytes(path), encoding=encoding, errors="mark", newline=newline) as lines:
        yield from lines


def is_text_encoding(encoding: str) -> bool:
    """Whether `read_lines` can read in it: Python also knows codecs of bytes (rot13) and of host names (idna)."""
    try:
        io.TextIOWrapper(io.BytesIO(b"a"), encoding=encoding, errors="mark").read()
    except (LookupError, ValueError):
        return False
    return True


def clean(text: str) -> bytes | None:
    """UTF-8 of a text; None if it holds bytes that did not decode, or half a surrogate pair from a JSON escape."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return None


def read_records(
    path: str, format: Format, fields: tuple[str, ...], encoding: str = "utf-8", keep_blank: bool = False
) -> Iterator[Record | Bad]:
    """Records of a JSONL, CSV, TSV or Parquet file, only `fields` of each.

    A blank line is no record; `keep_blank` makes it a Bad, for those who owe an answer to every line.
    Raises UserError where a CSV, TSV or Parquet file lacks a field, naming those it has. A file that breaks off
    (cut archive, damaged Parquet, no permission) ends with one Bad of line 0.
    """
    import pyarrow as pa

    reader = {"jsonl": _read_jsonl, "csv": _read_table, "tsv": _read_table, "parquet": _read_parquet}[format]
    try:
        for record in reader(path, fields, encoding, format):
            if keep_blank or not (isinstance(record, Bad) and record.reason == "blank"):
                yield record
    except (*READ_ERRORS, csv.Error, pa.ArrowException, ValueError) as error:
        if isinstance(error, UserError):
            raise
        yield Bad("unreadable", path, 0, " ".join(str(error).split())[:200])


def _read_jsonl(path: str, fields: tuple[str, ...], encoding: str, _: Format) -> Iterator[Record | Bad]:
    for number, line in enumerate(read_lines(path, encoding), 1):
        if not line.strip("\ufeff\0 \t\n"):
            yield Bad("blank", path, number)
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            bad_bytes = MARK in line
            yield Bad("encoding" if bad_bytes else "broken_json", path, number, "" if bad_bytes else str(error)[:100])
            continue
        if not isinstance(record, dict):
            yield Bad("broken_json", path, number, f"{type(record).__name__}, not an object")
            continue
        try:
            yield Record(number, tuple(_look_up(record, field) for field in fields))
        except KeyError as error:
            yield Bad("missing_field", path, number, f"no {error.args[0]!r} among {', '.join(record)[:80]}")


def _look_up(record: dict[str, Any], field: str) -> Any:
    """Value of a key, or of a dotted path into nested objects; raises KeyError."""
    if field in record:
        return record[field]
    value: Any = record
    for part in field.split("."):
        if not isinstance(value, dict) or part not in value:
            raise KeyError(field)
        value = value[part]
    return value


def _missing(path: str, fields: tuple[str, ...], there: list[str]) -> UserError:
    lacking = ", ".join(repr(field) for field in fields if field not in there)
    return UserError(f"{path}: no column {lacking}; the columns there are: {', '.join(there) or 'none'}")


def is_quoted(path: str, encoding: str) -> bool:
    """Whether a TSV quotes its fields as a CSV does: its first rows, read strictly so, have equally many fields.

    SST-2-like files hold stray quotes instead; there a quote is a character like any other. If all lines have the same
    number of tabs no field can hold a newline, so a quoted reading that joins lines is wrong however neat it looks.
    """
    num_tabs: list[int] = []
    num_quotes = 0

    def lines() -> Iterator[str]:
        nonlocal num_quotes
        for line in read_lines(path, encoding, newline=""):
            num_tabs.append(line.count("\t"))
            num_quotes += line.count('"')
            yield line

    try:
        rows = list(itertools.islice(csv.reader(lines(), delimiter="\t", strict=True), SNIFFED_ROWS))
    except csv.Error:
        return False
    joins_even_lines = len(set(num_tabs)) == 1 and len(rows) < len(num_tabs)
    return num_quotes > 0 and len({len(row) for row in rows if row}) == 1 and not joins_even_lines


def _read_table(path: str, fields: tuple[str, ...], encoding: str, format: Format) -> Iterator[Record | Bad]:
    if format == "csv" or is_quoted(path, encoding):
        rows = csv.reader(
            read_lines(path, encoding, newline=""), delimiter="," if format == "csv" else "\t", strict=True
        )
    else:
        rows = csv.reader(read_lines(path, encoding), delimiter="\t", quoting=csv.QUOTE_NONE)
    header = next(rows, None)
    if header is None:
        return
    if any(field not in header for field in fields):
        raise _missing(path, fields, header)
    columns = [header.index(field) for field in fields]
    for _ in itertools.count():
        line = rows.line_num + 1
        try:
            row = next(rows, None)
        except csv.Error as error:
            yield Bad("broken_row", path, line, str(error))
            continue
        if row is None:
            return
        if len(row) == len(header):
            yield Record(line, tuple(row[column] for column in columns))
        elif row:
            yield Bad("broken_row", path, line, f"{len(row)} fields, the header has {len(header)}")
        else:
            yield Bad("blank", path, line)


def _read_parquet(path: str, fields: tuple[str, ...], _: str, __: Format) -> Iterator[Record | Bad]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        schema = file.schema_arrow
        leaves = {file.schema.column(i).path for i in range(len(file.schema))}
        if any(field not in schema.names and field not in leaves for field in fields):
            raise _missing(path, fields, schema.names)
        number = 1
        for batch in file.iter_batches(PARQUET_ROWS, columns=list(fields)):
            columns = [_column(batch, field) for field in fields]
            for values in zip(*columns, strict=True):
                yield Record(number, values)
                number += 1


def _column(batch: Any, field: str) -> list[Any]:
    """Python values of a column or of a dotted path into a struct; bytes are decoded as UTF-8."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if field in batch.schema.names:
        column = batch.column(field)
    else:
        first, *rest = field.split(".")
        column = pc.struct_field(batch.column(first), rest)  # pyright: ignore[reportAttributeAccessIssue]
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    values = column.to_pylist()
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        values = [None if value is None else value.decode("utf-8", errors="mark") for value in values]
    return values
