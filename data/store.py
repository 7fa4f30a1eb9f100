"""A prepared corpus on storage: token rows in shards, the tokenizer, and a manifest that says what happened.

In: the folder that `prepare` wrote. Out: the number of rows, and rows by number. Knows numpy and pyarrow only, because
every reader process imports it.

    <cache>/<fingerprint>/   tokenizer/   train/shard-*.parquet   held_out/shard-*.parquet   quarantine.jsonl
                             manifest.json (written last: a folder with it is whole)
"""

import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data.config import UserError
from data.order import GROUP_ROWS
from data.retries import patiently
from data.rows import Row
from data.storage import fetch, is_remote, publish, shown, sizes, source

MANIFEST = "manifest.json"
LEFT_SECONDS = 86400  # a killed pod comes back under another name: what it left is cleared away a day later
_SCHEMA = pa.schema(
    [
        ("input_ids", pa.list_(pa.int32())),
        ("word_starts", pa.list_(pa.bool_())),
        ("starts", pa.list_(pa.int32())),
        ("label", pa.int8()),
    ]
)


@dataclass(frozen=True)
class TokenRows:
    """n rows of at most L tokens, as read from a store; what each column means stands at data/rows.py's Row."""

    input_ids: np.ndarray
    """(n, L) int32, [PAD] behind a row's end."""
    word_starts: np.ndarray
    """(n, L) bool, False behind a row's end."""
    segments: np.ndarray
    """(n, L) int16: number of the document (or segment of a pair) that each token is of; behind a row's end 0."""
    labels: np.ndarray
    """(n,) int8"""
    lengths: np.ndarray
    """(n,) int32: tokens of each row that are not padding."""

    def take(self, places: np.ndarray) -> "TokenRows":
        """Some of the rows, in the order of `places`."""
        return TokenRows(*(getattr(self, field.name)[places] for field in fields(self)))


@dataclass(frozen=True)
class Shards:
    """Rows of one part (train or held out), numbered 0 .. num_rows - 1 over all its shards.

    Row groups of GROUP_ROWS rows are numbered over all shards too; each shard's last one may be shorter.
    """

    folder: Path
    names: tuple[str, ...]
    shard_rows: np.ndarray
    """(S,) int64"""
    shard_sources: np.ndarray
    """(S,) int64, ascending: number of the source that each shard is of."""
    length: int
    pad_id: int

    @property
    def num_rows(self) -> int:
        return int(self.shard_rows.sum())

    def read(self, row_ids: np.ndarray) -> TokenRows:
        """Rows in the order of `row_ids` (n,). Each row group that is needed is read once.

        Raises IndexError for a number that is no row, OSError naming the shard where one cannot be read.
        """
        row_ids = np.asarray(row_ids, np.int64)
        if row_ids.size and (row_ids.min() < 0 or row_ids.max() >= self.num_rows):
            raise IndexError(f"row {row_ids.max()} of {self.num_rows} in {self.folder}")
        size = (len(row_ids), self.length)
        rows = TokenRows(
            np.full(size, self.pad_id, np.int32), np.zeros(size, bool), np.zeros(size, np.int16),
            np.zeros(len(row_ids), np.int8), np.zeros(len(row_ids), np.int32),
        )  # fmt: skip
        ends = np.cumsum(self.shard_rows)
        shards = np.searchsorted(ends, row_ids, side="right")
        in_shard = row_ids - (ends - self.shard_rows)[shards] if len(row_ids) else row_ids
        order = np.lexsort((in_shard // GROUP_ROWS, shards))
        for shard, group, here in _runs(shards, in_shard // GROUP_ROWS, order):
            table = self._read_group(shard, group)
            _fill(rows, here, table, in_shard[here] - group * GROUP_ROWS)
        return rows

    def _read_group(self, shard: int, group: int) -> pa.Table:
        """One row group."""
        path = self.folder / self.names[shard]

        def read() -> pa.Table:
            with pq.ParquetFile(source(path), metadata=_footer(path), page_checksum_verification=True) as file:
                return file.read_row_group(group)

        try:
            return patiently(shown(path), read)
        except (OSError, pa.ArrowException, KeyError, IndexError, ValueError) as error:  # of a damaged footer
            why = f"row group {group} cannot be read ({' '.join(str(error).split())[:200]})"
            raise OSError(f"{shown(path)}: {why}; remove its store and run again") from None


def _runs(shards: np.ndarray, groups: np.ndarray, order: np.ndarray) -> Iterator[tuple[int, int, np.ndarray]]:
    """Each (shard, group) that occurs, with the places where it does."""
    if not len(order):
        return
    changes = np.flatnonzero(np.diff(shards[order]) | np.diff(groups[order])) + 1
    for here in np.split(order, changes):
        yield int(shards[here[0]]), int(groups[here[0]]), here


def _fill(rows: TokenRows, here: np.ndarray, table: pa.Table, within: np.ndarray) -> None:
    """Put rows `within` of a row group at the places `here`."""
    ids, starts = _ragged(table, "input_ids")
    words, _ = _ragged(table, "word_starts")
    cuts, cut_starts = _ragged(table, "starts")
    sizes = starts[within + 1] - starts[within]
    positions = np.arange(rows.input_ids.shape[1])
    filled = positions < sizes[:, None]
    places = (starts[within][:, None] + positions)[filled]
    rows.lengths[here] = sizes
    rows.labels[here] = table["label"].to_numpy()[within]
    for target, values in ((rows.input_ids, ids), (rows.word_starts, words)):
        block = target[here]
        block[filled] = values[places]
        target[here] = block
    num_cuts = cut_starts[within + 1] - cut_starts[within]
    if num_cuts.any():
        row = np.repeat(np.arange(len(within)), num_cuts)
        first = np.repeat(cut_starts[within] - np.cumsum(num_cuts) + num_cuts, num_cuts)
        steps = np.zeros((len(within), rows.segments.shape[1]), np.int16)
        steps[row, cuts[first + np.arange(len(row))]] = 1
        rows.segments[here] = np.cumsum(steps, axis=1, dtype=np.int16) * filled


def _ragged(table: pa.Table, name: str) -> tuple[np.ndarray, np.ndarray]:
    """All values of a list column, and where each row begins in them (one more than there are rows)."""
    column = table.column(name).combine_chunks()
    column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
    starts = column.offsets.to_numpy()
    return column.values.to_numpy(zero_copy_only=False)[starts[0] : starts[-1]], starts - starts[0]


@lru_cache(maxsize=1000)
def _footer(path: Path) -> Any:
    """A shard's footer, read once per process: in a bucket each read of it is a request."""
    return pq.read_metadata(source(path))


@dataclass(frozen=True)
class Store:
    """A prepared corpus.

    manifest: documents_read = documents_kept + _empty + _duplicate + _quarantined (quarantined_by_reason); sources
    (path, files, bytes, fingerprint, documents_*, rows, held_out_rows of each), held_out_sources; text_bytes, tokens
    (not padding), files, empty_files, empty_file_names; tokenizer (vocab_size, pad_id .. unk_id, special_ids,
    fingerprint); rows (length, packing); shards (part -> name, rows, bytes and source of each).
    """

    path: Path
    manifest: dict[str, Any]

    @property
    def train(self) -> Shards:
        return self._shards("train")

    @property
    def held_out(self) -> Shards:
        return self._shards("held_out")

    @property
    def tokenizer_folder(self) -> Path:
        return self.path / "tokenizer"

    def _shards(self, part: str) -> Shards:
        shards = self.manifest["shards"][part]
        return Shards(
            self.path / part, tuple(shard["name"] for shard in shards),
            np.array([shard["rows"] for shard in shards], np.int64),
            np.array([shard["source"] for shard in shards], np.int64),
            self.manifest["rows"]["length"], self.manifest["tokenizer"]["pad_id"],
        )  # fmt: skip


def open_store(path: str | Path) -> Store:
    """Open a prepared corpus. Raises UserError where the folder is none, or was not finished."""
    path = Path(path)
    fetch(path / MANIFEST)
    try:
        store = Store(path, json.loads((path / MANIFEST).read_text(encoding="utf-8")))
    except ValueError as error:
        raise UserError(f"{shown(path / MANIFEST)}: damaged ({error}); remove {shown(path)} and run again") from None
    except FileNotFoundError:
        raise UserError(f"{shown(path)}: no prepared corpus (it has no {MANIFEST}); prepare it again") from None
    fetch(store.tokenizer_folder)
    return store


def check_shards(store: Store) -> None:
    """Raise UserError, naming it, where a shard is not there or has another size than when it was written."""
    for part in ("train", "held_out"):
        there = sizes(store.path / part)
        for shard in store.manifest["shards"][part]:
            if (found := there.get(shard["name"])) != shard["bytes"]:
                what = "is missing" if found is None else f"has {found:,} bytes instead of {shard['bytes']:,}"
                raise UserError(
                    f"{shown(store.path / part / shard['name'])} {what}; remove {shown(store.path)} and run again: "
                    f"the same rows are prepared anew"
                )


def write_shard(path: Path, rows: list[Row]) -> int:
    """Write rows as one shard, whole or not at all: a task that is retried replaces what it left. Returns its bytes."""
    columns = [
        _list_array([row.input_ids for row in rows], pa.int32()),
        _list_array([row.word_starts for row in rows], pa.bool_()),
        _list_array([np.asarray(row.starts, np.int32) for row in rows], pa.int32()),
        pa.array([row.label for row in rows], pa.int8()),
    ]
    path.parent.mkdir(parents=True, exist_ok=True)  # of a mirror: the driver made that of its own node
    part = path.with_name(path.name + ".part")
    table = pa.table(columns, schema=_SCHEMA)
    pq.write_table(table, part, row_group_size=GROUP_ROWS, compression="zstd", write_page_checksum=True)
    num_bytes = part.stat().st_size
    part.replace(path)
    publish(path, keep=False)
    return num_bytes


def _list_array(values: list[np.ndarray], kind: pa.DataType) -> pa.Array:
    """Arrays as one list column."""
    starts = np.zeros(len(values) + 1, np.int32)
    np.cumsum([len(value) for value in values], out=starts[1:])
    return pa.ListArray.from_arrays(pa.array(starts), pa.array(np.concatenate(values), kind))


@contextmanager
def fresh_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `target` at the end: whole or absent, never half, whoever is killed.

    What killed processes of this host left beside it is removed. If another process was first, its folder stays.
    In a bucket, where nothing can be renamed, `target` itself is filled, and whole once its manifest is there.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if is_remote(target):
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        yield target
        publish(target, last=MANIFEST)
        return
    part = part_of(target)
    try:
        yield part
        if not target.exists():
            part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def part_of(target: Path) -> Path:
    """An empty folder beside `target` for what is to become it; what killed processes of this host left is removed."""
    mark = f".part-{socket.gethostname()}-"
    for part in target.parent.glob("*.part-*-*"):
        if _is_left(part, mark):
            shutil.rmtree(part, ignore_errors=True)
    part = target.with_name(f"{target.name}{mark}{os.getpid()}")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    return part


def _is_left(part: Path, mark: str) -> bool:
    """Whether who filled this folder is gone: a process of this host, or another host that did nothing for a day."""
    try:
        if mark not in part.name:
            return time.time() - max(path.stat().st_mtime for path in (part, *part.iterdir())) > LEFT_SECONDS
        os.kill(int(part.name.rpartition("-")[2]), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError):
        return False  # another user's, alive; just removed; or no folder of ours
    return False
