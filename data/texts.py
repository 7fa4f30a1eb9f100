"""A file of texts that are owed an answer each -> its lines, none left out.

In: a text, JSON, CSV, TSV, Parquet or Arrow file, compressed or not. Out: for every line (record of a CSV or an array,
row of a Parquet or Arrow file) its text, or why there is none: blank, broken, not UTF-8, without the field. Reading for
training is documents.py's, which may drop what is bad; here the n-th line out must be the n-th line in.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from data.columns import count_rows
from data.config import UserError
from data.formats import COMPRESSED, SUFFIXES, Format, format_of, read_records
from data.lines import READ_ERRORS, clean, open_bytes, read_lines
from data.records import Bad

PEEKED_LINES = 100  # of a JSONL file, to tell a wrong key from a bad line


class Line(NamedTuple):
    """One line of the input. Exactly one of text and error is None."""

    number: int
    """1-based line (row of a Parquet or Arrow file) where it begins; 0: the rest of the file cannot be read."""
    text: str | None
    error: str | None


def check_input(file: Path, text_field: str) -> Format:
    """The file's format. Raises UserError: no such file, empty, of no known format, without the text field."""
    if not file.exists():
        raise UserError(f"{file}: no such file; correct the path")
    if not file.is_file():
        raise UserError(f"{file}: not a file; give one file of texts")
    format = format_of(file.name)
    if format is None:
        known = f"{' '.join(SUFFIXES)}, also with {' '.join(COMPRESSED)}"
        raise UserError(f"{file}: its suffix tells no format; rename it to one of {known}")
    try:
        with file.open("rb") as opened:
            if not opened.read(1):
                raise UserError(f"{file}: is empty; give a file with at least one text")
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from None
    peeked = list(islice(read_texts(file, format, text_field), PEEKED_LINES))  # raises where a column is missing
    if not peeked:
        raise UserError(f"{file}: holds no rows; give a file with at least one text")
    if all(line.error and (": missing field" in line.error or ": blank" in line.error) for line in peeked):
        raise UserError(f"{file}: no {text_field!r} in its first {len(peeked)} lines; name the field of the text")
    return format


def read_texts(file: Path, format: Format, text_field: str) -> Iterator[Line]:
    """Every line in order. Raises UserError where a CSV, TSV, Parquet or Arrow file has no column `text_field`."""
    if format != "text":
        for record in read_records(str(file), format, (text_field,), keep_blank=True):
            if isinstance(record, Bad):
                detail = f" ({record.detail})" if record.detail else ""
                yield _error(record.line, record.reason.replace("_", " ") + detail)
            else:
                yield _line(record.line, record.values[0])
        return
    try:
        # Only "\n" ends a line, as for `wc -l`: a lone CR inside a text does not shift the answers behind it.
        for number, text in enumerate(read_lines(str(file), "utf-8", newline="\n"), 1):
            yield _line(number, text)
    except READ_ERRORS as error:
        yield _error(0, f"unreadable ({error})")


def _line(number: int, text: Any) -> Line:
    if text is None:
        return _error(number, "null, not text")
    if not isinstance(text, str):
        return _error(number, f"{type(text).__name__}, not text")
    if not text.strip():
        return _error(number, "blank")
    if clean(text) is None:
        return _error(number, "not valid UTF-8")
    return Line(number, text.strip(), None)


def _error(number: int, reason: str) -> Line:
    return Line(number, None, f"line {number}: {reason}" if number else f"the rest of the file: {reason}")


def count_lines(file: Path, format: Format) -> int:
    """Lines of the file, rows of a Parquet or Arrow file; a CSV or an array may hold others. Costs a pass."""
    if format in ("parquet", "arrow"):
        try:
            return count_rows(str(file), format == "parquet")
        except READ_ERRORS:
            return 1
    lines, last = 0, b"\n"
    try:
        with open_bytes(str(file)) as opened:
            while piece := opened.read(1 << 20):
                lines, last = lines + piece.count(b"\n"), piece[-1:]
    except READ_ERRORS:
        return lines + 1  # a cut archive: what can be read, and the error line at its end
    return lines + (last != b"\n")
