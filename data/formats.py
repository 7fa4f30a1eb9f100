"""Which formats there are, how a file's name tells its own, and who reads it.

In: a path, its format, the fields asked for, an encoding. Out: `Record`s (line number and values) and `Bad`s for what
cannot be read. Knows no more of a format than the name of its reader.
"""

import csv
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Literal

from data.columns import column_names, read_arrow, read_parquet
from data.config import UserError
from data.lines import READ_ERRORS
from data.objects import object_keys, read_objects
from data.records import Bad, Record
from data.tables import read_table, table_columns

Format = Literal["text", "jsonl", "csv", "tsv", "parquet", "arrow"]
SUFFIXES: dict[str, Format] = {
    ".txt": "text", ".text": "text", ".md": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
    ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet", ".arrow": "arrow",
}  # fmt: skip
READERS: dict[str, Callable[[str, tuple[str, ...], str], Iterator[Record | Bad]]] = {
    "jsonl": read_objects,
    "csv": partial(read_table, delimiter=","),
    "tsv": partial(read_table, delimiter="\t"),
    "parquet": read_parquet,
    "arrow": read_arrow,
}
NAMES: dict[str, Callable[[str, str], list[str]]] = {
    "jsonl": object_keys,
    "csv": partial(table_columns, delimiter=","),
    "tsv": partial(table_columns, delimiter="\t"),
    "parquet": lambda path, _: column_names(path, is_parquet=True),
    "arrow": lambda path, _: column_names(path, is_parquet=False),
}
"""Of each format, who tells the columns of a file (path, encoding), of JSON the keys of its first record."""
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")


def format_of(name: str) -> Format | None:
    """Format told by the suffix, a compression suffix aside; None where it tells nothing."""
    path = Path(name.lower())
    return SUFFIXES.get(Path(path.stem).suffix if path.suffix in COMPRESSED else path.suffix)


def columns_in(path: str, format: Format, encoding: str = "utf-8") -> list[str]:
    """The columns of a file, of JSON the keys of its first record; none where it cannot be read, which `read_records`
    will say."""
    try:
        return NAMES[format](path, encoding)
    except (*READ_ERRORS, csv.Error, ValueError):
        return []


def read_records(
    path: str, format: Format, fields: tuple[str, ...], encoding: str = "utf-8", keep_blank: bool = False
) -> Iterator[Record | Bad]:
    """Records of a JSON, CSV, TSV, Parquet or Arrow file, only `fields` of each.

    A blank line is no record; `keep_blank` makes it a Bad, for those who owe an answer to every line.
    Raises UserError where a CSV, TSV, Parquet or Arrow file lacks a field, naming those it has. A file that breaks off
    (cut archive, damaged Parquet, no permission) ends with one Bad of line 0.
    """
    try:
        for record in READERS[format](path, fields, encoding):
            if keep_blank or not (isinstance(record, Bad) and record.reason == "blank"):
                yield record
    except (*READ_ERRORS, csv.Error, ValueError) as error:
        if isinstance(error, UserError):
            raise
        yield Bad("unreadable", path, 0, " ".join(str(error).split())[:200])
