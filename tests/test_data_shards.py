"""Rows on storage: they come back as they were written, in any order, each row group read once."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_store import made_store

from data.config import UserError
from data.order import GROUP_ROWS
from data.rows import Row
from data.store import Shards, check_shards, write_shard


def shards_of(folder: Path, sizes: list[int], length: int = 12) -> tuple[Shards, list[Row]]:
    draw = np.random.default_rng(0)
    rows = []
    for _ in range(sum(sizes)):
        tokens = int(draw.integers(3, length + 1))
        starts = sorted(draw.choice(np.arange(1, tokens), draw.integers(0, 3), replace=False).tolist())
        ids, words = draw.integers(5, 99, tokens).astype(np.int32), draw.random(tokens) < 0.6
        rows.append(Row(ids, words, starts, int(draw.integers(-1, 2))))
    start = 0
    for i, size in enumerate(sizes):
        num_bytes = write_shard(folder / f"{i}.parquet", rows[start : start + size])
        assert num_bytes == (folder / f"{i}.parquet").stat().st_size
        start += size
    names = tuple(f"{i}.parquet" for i in range(len(sizes)))
    return Shards(folder, names, np.array(sizes), np.zeros(len(sizes), np.int64), length, 0), rows


def test_rows_come_in_the_order_asked_for_as_they_were_written(tmp_path: Path):
    shards, rows = shards_of(tmp_path, [600, 1, 256, 300])
    assert (shards.num_rows, GROUP_ROWS) == (1157, 256)
    wanted = np.random.default_rng(1).permutation(1157)[:500]
    wanted = np.concatenate([wanted, wanted[:3], [0, 1156, 600]])
    got = pickle.loads(pickle.dumps(shards)).read(wanted)
    for i, row_id in enumerate(wanted):
        row, tokens = rows[row_id], got.lengths[i]
        assert got.input_ids[i, :tokens].tolist() == row.input_ids.tolist() and not got.input_ids[i, tokens:].any()
        assert got.word_starts[i, :tokens].tolist() == row.word_starts.tolist()
        assert not got.word_starts[i, tokens:].any()
        segments = [sum(place >= start for start in row.starts) for place in range(tokens)]
        assert got.segments[i, :tokens].tolist() == segments and not got.segments[i, tokens:].any()
        assert got.labels[i] == row.label
    some = got.take(np.array([4, 2]))
    assert np.array_equal(some.input_ids, got.input_ids[[4, 2]])
    assert np.array_equal(some.lengths, got.lengths[[4, 2]])


def test_no_rows_asked_for_are_none(tmp_path: Path):
    shards, _ = shards_of(tmp_path, [3])
    assert shards.read(np.array([], np.int64)).input_ids.shape == (0, 12)


def test_each_row_group_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shards, _ = shards_of(tmp_path, [600, 300])
    reads: list[tuple[int, int]] = []
    read_group: Callable[..., Any] = Shards._read_group
    monkeypatch.setattr(Shards, "_read_group", lambda self, *place: reads.append(place) or read_group(self, *place))
    shards.read(np.array([899, 0, 300, 1, 898, 2]))
    assert sorted(reads) == [(0, 0), (0, 1), (1, 1)]


@pytest.mark.parametrize("row_id", [-1, 901])
def test_a_row_that_does_not_exist_is_refused(tmp_path: Path, row_id: int):
    shards, _ = shards_of(tmp_path, [601, 300])
    with pytest.raises(IndexError):
        shards.read(np.array([0, row_id]))


@pytest.mark.parametrize("damage", ["gone", "cut", "overwritten"])
def test_a_damaged_shard_is_named(tmp_path: Path, damage: str):
    shards, _ = shards_of(tmp_path, [300, 300])
    path = tmp_path / "1.parquet"
    whole = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(whole[:100] if damage == "cut" else whole[:50] + b"x" * 900 + whole[950:])
    shards.read(np.array([0, 299]))
    with pytest.raises(OSError, match="1.parquet"):
        shards.read(np.array([0, 300]))


@pytest.mark.parametrize("part", ["train", "held_out"])
def test_a_missing_or_cut_shard_is_named_before_anything_starts(tmp_path: Path, part: str):
    store = made_store(tmp_path / "store", [300, 20], held_out=10)
    check_shards(store)
    path = tmp_path / "store" / part / "shard-000000.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    with pytest.raises(UserError, match=f"{part}/shard-000000.parquet has 100 bytes instead of {len(whole):,}; remove"):
        check_shards(store)
    path.unlink()
    with pytest.raises(UserError, match=f"{part}/shard-000000.parquet is missing; remove .*store and run again"):
        check_shards(store)
