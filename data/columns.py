"""A Parquet or Arrow file -> records, of which only the columns asked for are decoded.

In: a path, column names (a.b is the field b of the struct a), the encoding of columns of bytes. Out: `Record`s. Arrow
is IPC, as a stream (what `datasets.save_to_disk` writes) or a file, told by content. Memory holds one batch.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from data.config import UserError
from data.lines import open_anywhere, open_bytes
from data.records import Record, lacking

BATCH_ROWS = 1024  # of a Parquet file, decoded at once: 1,000 web pages are a few MB
BATCH_BYTES = 16_000_000  # where rows are longer than that, fewer


def read_parquet(path: str, fields: tuple[str, ...], encoding: str) -> Iterator[Record]:
    """Rows of a Parquet file. Raises UserError where a column is missing."""
    with pq.ParquetFile(open_anywhere(path)) as file:
        _check(path, file.schema_arrow, fields)
        number = 1
        for batch in file.iter_batches(_batch_rows(file, fields), columns=list(fields)):
            for values in _values(batch, fields, encoding):
                yield Record(number, values)
                number += 1


def _batch_rows(file: Any, fields: tuple[str, ...]) -> int:
    """Rows decoded at once, fewer where a row group says that its texts are long."""
    longest = 1
    for i in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(i)
        columns = [group.column(j) for j in range(group.num_columns)]
        asked = [c for c in columns if any(f"{c.path_in_schema}.".startswith(f"{field}.") for field in fields)]
        longest = max(longest, sum(c.total_uncompressed_size for c in asked) // max(1, group.num_rows))
    return max(1, min(BATCH_ROWS, BATCH_BYTES // longest))


def read_arrow(path: str, fields: tuple[str, ...], encoding: str) -> Iterator[Record]:
    """Rows of an Arrow IPC stream or file. Raises UserError where a column is missing."""
    schema = _arrow_schema(path)
    _check(path, schema, fields)
    tops = {field if field in schema.names else field.split(".")[0] for field in fields}
    options = pa.ipc.IpcReadOptions(included_fields=sorted(schema.names.index(top) for top in tops))
    number = 1
    for batch in _batches(path, options):
        for start in range(0, batch.num_rows, BATCH_ROWS):
            for values in _values(batch.slice(start, BATCH_ROWS), fields, encoding):
                yield Record(number, values)
                number += 1


def _arrow_schema(path: str) -> Any:
    with open_bytes(path) as opened:
        is_file = opened.peek(6)[:6] == b"ARROW1"  # type: ignore[attr-defined]
        return (pa.ipc.open_file(open_anywhere(path)) if is_file else pa.ipc.open_stream(opened)).schema


def column_names(path: str, is_parquet: bool) -> list[str]:
    """Columns of a file. Raises READ_ERRORS, pyarrow's exceptions."""
    return list((pq.read_schema(open_anywhere(path)) if is_parquet else _arrow_schema(path)).names)


def count_rows(path: str, is_parquet: bool) -> int:
    """Rows of a file. Raises READ_ERRORS, pyarrow's exceptions."""
    if is_parquet:
        return pq.read_metadata(open_anywhere(path)).num_rows
    return sum(batch.num_rows for batch in _batches(path, pa.ipc.IpcReadOptions()))


def _batches(path: str, options: Any) -> Iterator[Any]:
    """Record batches of an Arrow stream or file."""
    with open_bytes(path) as opened:
        if opened.peek(6)[:6] != b"ARROW1":  # type: ignore[attr-defined]
            yield from pa.ipc.open_stream(opened, options=options)
            return
    reader = pa.ipc.open_file(open_anywhere(path), options=options)
    for i in range(reader.num_record_batches):
        yield reader.get_batch(i)


def _check(path: str, schema: Any, fields: tuple[str, ...]) -> None:
    """Raise UserError for a field that is neither a column nor reached through structs."""
    for field in fields:
        if schema.names.count(field) > 1:
            raise UserError(f"{path}: {schema.names.count(field)} columns are named {field!r}; rename them")
        if field in schema.names:
            continue
        first, *rest = field.split(".")
        kind = schema.field(first).type if first in schema.names else None
        place = first
        for part in rest:
            if kind is None or not pa.types.is_struct(kind):
                break
            kind = kind.field(part).type if kind.get_field_index(part) >= 0 else None
            place = f"{place}.{part}"
        if kind is None or place != field:
            inside = "" if kind is None else f"; {place} is {kind}, not a struct: nothing in it has a name"
            raise lacking(path, [field], schema.names, inside)


def _values(batch: Any, fields: tuple[str, ...], encoding: str) -> Iterator[tuple[Any, ...]]:
    return zip(*(_column(batch, field, encoding) for field in fields), strict=True)


def _column(batch: Any, field: str, encoding: str) -> list[Any]:
    """Python values of a column or of a dotted path into a struct."""
    if field in batch.schema.names:
        column = batch.column(field)
    else:
        first, *rest = field.split(".")
        column = pc.struct_field(batch.column(first), rest)  # pyright: ignore[reportAttributeAccessIssue]
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        try:
            return column.to_pylist()
        except UnicodeDecodeError:  # whoever wrote the file did not check its bytes; a bad one costs its row only
            column = column.cast(pa.binary() if pa.types.is_string(column.type) else pa.large_binary())
            encoding = "utf-8"
    values = column.to_pylist()
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        values = [None if value is None else value.decode(encoding, errors="mark") for value in values]
    return values
