"""A CSV or TSV file -> records, under the names of its first line.

In: a path, the columns asked for, an encoding. Out: `Record`s and `Bad`s. A broken row costs one line: an open quote
does not take the lines after it along. Memory holds one row.
"""

import csv
import itertools
from collections import deque
from collections.abc import Iterator

from data.lines import read_lines
from data.records import Bad, Record, lacking

SNIFFED_ROWS = 20_000  # of a TSV, to tell whether its fields are quoted
FIELD_CHARACTERS = 64_000_000  # of one field: long documents pass, an open quote does not swallow the whole file
OTHER_DELIMITERS = {";": "semicolons", "\t": "tabs", "|": "vertical bars", ",": "commas"}
csv.field_size_limit(FIELD_CHARACTERS)


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


class _Lines:
    """Lines of a file, those of the row at hand kept so that they can be given again."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines
        self._again: deque[str] = deque()
        self._row: list[str] = []
        self.number = 1
        """Line at which the row at hand begins."""

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        line = self._again.popleft() if self._again else next(self._lines)
        self._row.append(line)
        return line

    def end_row(self, kept: int | None = None) -> None:
        """The row at hand is done; of its lines only the first `kept` were of it, the others come again."""
        if kept is not None:
            self._again.extendleft(reversed(self._row[kept:]))
            del self._row[kept:]
        self.number += len(self._row)
        self._row.clear()


def _open(path: str, encoding: str, delimiter: str) -> tuple[_Lines, Iterator[list[str]]]:
    """The lines of a table and its rows, which take from them."""
    quoted = delimiter == "," or is_quoted(path, encoding)
    lines = _Lines(read_lines(path, encoding, newline="" if quoted else None))
    quoting = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    return lines, csv.reader(lines, delimiter=delimiter, strict=quoted, quoting=quoting)


def table_columns(path: str, encoding: str, delimiter: str) -> list[str]:
    """The first row of a CSV or TSV, empty where there is none. Raises READ_ERRORS, csv.Error."""
    return next(_open(path, encoding, delimiter)[1], [])


def read_table(path: str, fields: tuple[str, ...], encoding: str, delimiter: str) -> Iterator[Record | Bad]:
    """Rows of a CSV or TSV. Raises UserError where a column is missing, or where another delimiter explains that."""
    lines, rows = _open(path, encoding, delimiter)
    header = next(rows, None)
    if header is None:
        return
    lines.end_row()
    if any(field not in header for field in fields):
        raise lacking(path, fields, header, _hint(header, delimiter))
    columns = [header.index(field) for field in fields]
    while True:
        try:
            row = next(rows, None)
        except csv.Error as error:
            yield Bad("broken_row", path, lines.number, str(error))
            lines.end_row(kept=1)
            continue
        if row is None:
            return
        if len(row) == len(header):
            yield Record(lines.number, tuple(row[column] for column in columns))
        elif row:
            yield Bad("broken_row", path, lines.number, f"{len(row)} fields, the header has {len(header)}")
        else:
            yield Bad("blank", path, lines.number)
        lines.end_row()


def _hint(header: list[str], delimiter: str) -> str:
    """What a header of a single column most likely is instead."""
    for other, name in OTHER_DELIMITERS.items():
        if len(header) == 1 and other != delimiter and other in header[0]:
            remedy = {"\t": "give format: tsv", ",": "give format: csv"}.get(other, "write it with commas instead")
            return f"; it seems to be delimited by {name} ({other!r}): {remedy}"
    return ""
