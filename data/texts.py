"""A file of texts that are owed an answer each -> its lines, none left out.

In: a text, JSON, CSV, TSV, Parquet or Arrow file, compressed or not, and the fields that make one question: a text, two
texts, a question and its choices. Out: for every line (record of a CSV or an array, row of a Parquet or Arrow file) the
values of its fields, or why there are none: blank, broken, not UTF-8, a field missing. Reading for training is
documents.py's, which may drop what is bad; here the n-th line out must be the n-th line in.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from data.columns import count_rows
from data.config import UserError
from data.formats import COMPRESSED, SUFFIXES, Format, format_of, read_records
from data.lines import READ_ERRORS, clean, open_bytes, read_lines
from data.records import Bad

PEEKED_LINES = 100  # that are not blank, to tell a wrong key from a bad line
MISSING, BLANK = "missing field", "blank"

Value = str | tuple[str, ...]
"""A text, or the words of one that comes in words."""


class Line(NamedTuple):
    """One line of the input. Exactly one of values and error is None."""

    number: int
    """1-based line (row of a Parquet or Arrow file) where it begins; 0: the rest of the file cannot be read."""
    values: tuple[Value, ...] | None
    """One for each field; none of them blank, all of them valid UTF-8."""
    error: str | None


def check_input(file: Path, fields: tuple[str, ...], words: bool = False) -> Format:
    """The file's format. Raises UserError: no such file, empty, of no known format, without one of the fields.

    `words`: the first field may also be a list of words.
    """
    if not file.exists():
        raise UserError(f"{file}: no such file; correct the path")
    if not file.is_file():
        raise UserError(f"{file}: not a file; give one file of texts")
    format = format_of(file.name)
    if format is None:
        known = f"{' '.join(SUFFIXES)}, also with {' '.join(COMPRESSED)}"
        raise UserError(f"{file}: its suffix tells no format; rename it to one of {known}")
    if format == "text" and len(fields) > 1:
        raise UserError(
            f"{file}: a text file has one text a line, and {', '.join(fields)} are needed; give JSONL, CSV, TSV or "
            f"Parquet"
        )
    try:
        with file.open("rb") as opened:
            if not opened.read(1):
                raise UserError(f"{file}: is empty; give a file with at least one text")
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from None
    _check_fields(file, format, fields, words)
    return format


def _check_fields(file: Path, format: Format, fields: tuple[str, ...], words: bool) -> None:
    """Read until a line tells that the fields are right. Raises UserError where none does."""
    named = " and ".join(repr(field) for field in fields)
    rows = missing = 0
    for line in read_texts(file, format, fields, words):  # raises where a column is missing
        rows += 1
        if line.error is None:
            return
        reason = line.error.partition(": ")[2]
        missing += reason.startswith(MISSING)
        if missing >= PEEKED_LINES:
            break
        if not reason.startswith(MISSING) and not reason.endswith(BLANK):
            return  # a fault of that line
    if not rows:
        raise UserError(f"{file}: holds no rows; give a file with at least one text")
    if missing:
        raise UserError(f"{file}: no {named} in its first {rows} lines; name the field of the text")
    if format == "text":
        raise UserError(f"{file}: holds only blank lines; give a file with at least one text")
    raise UserError(f"{file}: {named} is blank in all of its {rows} lines; name the field of the text")


def read_texts(
    file: Path, format: Format, fields: tuple[str, ...], words: bool = False, exact: bool = False
) -> Iterator[Line]:
    """Every line in order. Raises UserError where a CSV, TSV, Parquet or Arrow file has no column of a field's name.

    Texts are stripped of white space around them; `exact`: only of a line's end, for those who tell places in them.
    """
    if format != "text":
        for record in read_records(str(file), format, fields, keep_blank=True):
            if isinstance(record, Bad):
                detail = f" ({record.detail})" if record.detail else ""
                yield _error(record.line, record.reason.replace("_", " ") + detail)
            else:
                yield _line(record.line, record.values, fields, words, exact)
        return
    try:
        # Only "\n" ends a line, as for `wc -l`: a lone CR inside a text does not shift the answers behind it.
        for number, text in enumerate(read_lines(str(file), "utf-8", newline="\n"), 1):
            yield _line(number, (text.removesuffix("\n").removesuffix("\r"),), fields, words, exact)
    except READ_ERRORS as error:
        yield _error(0, f"unreadable ({error})")


def _line(number: int, values: tuple[Any, ...], fields: tuple[str, ...], words: bool, exact: bool) -> Line:
    for i, (field, value) in enumerate(zip(fields, values, strict=True)):
        if fault := _words_fault(value) if words and i == 0 and isinstance(value, list) else _fault(value):
            return _error(number, fault if len(fields) == 1 else f"{field}: {fault}")
    texts = (value if exact or isinstance(value, list) else value.strip() for value in values)
    return Line(number, tuple(tuple(text) if isinstance(text, list) else text for text in texts), None)


def _words_fault(words: list[Any]) -> str | None:
    """Why a list is no list of words."""
    faults = ((number, _fault(word)) for number, word in enumerate(words, 1))
    return next((f"word {number}: {fault}" for number, fault in faults if fault), None if words else BLANK)


def _fault(text: Any) -> str | None:
    if text is None:
        return "null, not text"
    if not isinstance(text, str):
        return f"{type(text).__name__}, not text"
    if not text.strip():
        return BLANK
    return "not valid UTF-8" if clean(text) is None else None


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
