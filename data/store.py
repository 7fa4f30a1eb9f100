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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data.config import UserError
from data.storage import fetch, is_remote, publish, shown, source

GROUP_ROWS = 256  # rows of a Parquet row group: about 100 kB at 128 tokens, the least that is read at once
MANIFEST = "manifest.json"
_SCHEMA = pa.schema([("input_ids", pa.list_(pa.int32()))])


@dataclass(frozen=True)
class Shards:
    """Rows of one part (train or held out), numbered 0 .. num_rows - 1 over all its shards. Pickles small."""

    folder: Path
    names: tuple[str, ...]
    shard_rows: tuple[int, ...]
    length: int
    pad_id: int
    group_rows: np.ndarray = field(init=False, repr=False, compare=False)
    """Rows of each row group over all shards, in order: (G,) int64."""
    _places: np.ndarray = field(init=False, repr=False, compare=False)
    """Shard and group within the shard of each row group: (G, 2) int64."""

    def __post_init__(self) -> None:
        groups: list[int] = []
        places: list[tuple[int, int]] = []
        for shard, rows in enumerate(self.shard_rows):
            for group, start in enumerate(range(0, rows, GROUP_ROWS)):
                groups.append(min(GROUP_ROWS, rows - start))
                places.append((shard, group))
        object.__setattr__(self, "group_rows", np.array(groups, np.int64))
        object.__setattr__(self, "_places", np.array(places, np.int64).reshape(-1, 2))

    @property
    def num_rows(self) -> int:
        return sum(self.shard_rows)

    def rows(self, row_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows in the order of `row_ids` (n,): ids (n, length) int32 padded with pad_id, and lengths (n,) int32.

        Each row group that is needed is read once. Raises IndexError for a number that is no row.
        """
        row_ids = np.asarray(row_ids, np.int64)
        if row_ids.size and (row_ids.min() < 0 or row_ids.max() >= self.num_rows):
            raise IndexError(f"row {row_ids.max()} of {self.num_rows} in {self.folder}")
        ids = np.full((len(row_ids), self.length), self.pad_id, np.int32)
        lengths = np.zeros(len(row_ids), np.int32)
        ends = np.cumsum(self.group_rows)
        groups = np.searchsorted(ends, row_ids, side="right")
        positions = np.arange(self.length)
        for group in np.unique(groups):
            here = np.flatnonzero(groups == group)
            values, starts = self._read_group(int(group))
            within = row_ids[here] - (ends[group] - self.group_rows[group])
            sizes = starts[within + 1] - starts[within]
            filled = positions < sizes[:, None]
            source = np.minimum(starts[within][:, None] + positions, len(values) - 1)
            ids[here] = np.where(filled, values[source], self.pad_id)
            lengths[here] = sizes
        return ids, lengths

    def _read_group(self, group: int) -> tuple[np.ndarray, np.ndarray]:
        """All ids of a row group, and where each row begins in them (one more than there are rows)."""
        shard, place = self._places[group]
        path = self.folder / self.names[shard]
        with pq.ParquetFile(source(path), metadata=_footer(path)) as file:
            column = file.read_row_group(int(place), columns=["input_ids"]).column(0).combine_chunks()
        column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
        starts = column.offsets.to_numpy()
        return column.values.to_numpy()[starts[0] : starts[-1]], starts - starts[0]


@lru_cache(maxsize=1000)
def _footer(path: Path) -> Any:
    """A shard's footer, read once per process: in a bucket each read of it is a request."""
    return pq.read_metadata(source(path))


@dataclass(frozen=True)
class Store:
    """A prepared corpus.

    manifest: documents_read = documents_kept + the sum of documents_skipped (reason -> count); text_bytes, tokens
    (not padding), files, empty_files, empty_file_names; tokenizer (vocab_size, pad_id .. unk_id, special_ids,
    fingerprint); rows (length, packing); shards (part -> name and rows of each).
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
            self.path / part, tuple(shard["name"] for shard in shards), tuple(shard["rows"] for shard in shards),
            self.manifest["rows"]["length"], self.manifest["tokenizer"]["pad_id"],
        )  # fmt: skip


def open_store(path: str | Path) -> Store:
    """Open a prepared corpus. Raises UserError where the folder is none, or was not finished."""
    path = Path(path)
    fetch(path / MANIFEST)
    try:
        store = Store(path, json.loads((path / MANIFEST).read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise UserError(f"{shown(path)}: no prepared corpus (it has no {MANIFEST}); prepare it again") from None
    fetch(store.tokenizer_folder)
    return store


def write_shard(path: Path, rows: list[np.ndarray]) -> None:
    """Write rows as one shard, whole or not at all: a task that is retried replaces what it left."""
    starts = np.zeros(len(rows) + 1, np.int32)
    np.cumsum([len(row) for row in rows], out=starts[1:])
    column = pa.ListArray.from_arrays(pa.array(starts), pa.array(np.concatenate(rows).astype(np.int32)))
    path.parent.mkdir(parents=True, exist_ok=True)  # of a mirror: the driver made that of its own node
    part = path.with_name(path.name + ".part")
    pq.write_table(pa.table([column], schema=_SCHEMA), part, row_group_size=GROUP_ROWS, compression="zstd")
    part.replace(path)
    publish(path, keep=False)


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
    mark = f".part-{socket.gethostname()}-"
    for part in target.parent.glob(f"*{mark}*"):
        try:
            os.kill(int(part.name.rpartition("-")[2]), 0)
        except ProcessLookupError:
            shutil.rmtree(part, ignore_errors=True)
        except (PermissionError, ValueError):
            continue  # another user's, alive; or no folder of ours
    part = target.with_name(f"{target.name}{mark}{os.getpid()}")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        yield part
        if not target.exists():
            part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
