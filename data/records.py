"""What the readers of all formats give: a `Record`, or a `Bad` for what cannot be used; knows no file.

In: values found in a file. Out: small tuples that travel between processes, and the one message of a missing column.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from data.config import UserError


class Bad(NamedTuple):
    """A record, or a whole file (line 0), that cannot be used, and why."""

    reason: str
    """encoding, broken_json, not_object, missing_field, not_text, broken_row, blank, or unreadable: the rest of a file,
    however many records that may be."""
    file: str
    line: int
    detail: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {self.reason}" + (f" ({self.detail})" if self.detail else "")


class Record(NamedTuple):
    """The values asked for of one record, None where they are null."""

    line: int
    """1-based line (JSON lines, CSV, TSV) or row (Parquet, Arrow, JSON array) at which the record begins."""
    values: tuple[Any, ...]


def lacking(path: str, fields: Iterable[str], there: Iterable[str], hint: str = "") -> UserError:
    """The mistake of asking a table for columns that it has not."""
    there = list(there)
    missing = ", ".join(repr(field) for field in fields if field not in there)
    told = ", ".join(there) or "none"
    return UserError(f"{path}: no column {missing}; the columns there are: {told}{hint or '; name one of them'}")
