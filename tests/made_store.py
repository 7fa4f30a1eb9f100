"""A store written directly, with rows that tests can count: row i holds the token 5 + i mod 90 and its neighbours."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from data.config import Rows
from data.rows import Row
from data.store import MANIFEST, Store, write_shard

TOKENIZER = {
    "vocab_size": 100, "pad_id": 0, "unk_id": 1, "cls_id": 2, "sep_id": 3, "mask_id": 4, "special_ids": [0, 1, 2, 3, 4],
    "fingerprint": "made",
}  # fmt: skip


def made_row(number: int, length: int, packing: str = "document") -> Row:
    """[CLS] tokens [SEP], of 6 to `length` tokens; with a second segment for packings that have one."""
    tokens = 6 + number % (length - 5)
    ids = 5 + (number + np.arange(tokens)) % 90
    ids[0], ids[-1] = 2, 3
    starts: list[int] = []
    if packing != "document":
        starts = [3]
        ids[2 if packing != "packed" else 3] = 3 if packing != "packed" else 2
    label = number % 2 if packing in ("next_sentence", "sentence_order") else -1
    return Row(ids.astype(np.int32), np.ones(tokens, bool), starts, label)


def made_store(
    folder: Path, shard_rows: list[int], held_out: int = 0, length: int = 16, packing: str = "document",
    sources: list[int] | None = None,
) -> Store:  # fmt: skip
    """Write a store of shards; `sources` names the source of each."""
    shards: dict[str, list[dict[str, Any]]] = {"train": [], "held_out": []}
    number = 0
    for part, sizes in (("train", shard_rows), ("held_out", [held_out] if held_out else [])):
        for i, size in enumerate(sizes):
            name = f"shard-{i:06d}.parquet"
            rows = [made_row(number + j, length, packing) for j in range(size)]
            num_bytes = write_shard(folder / part / name, rows)
            source = sources[i] if sources and part == "train" else 0
            shards[part].append({"name": name, "rows": size, "bytes": num_bytes, "source": source})
            number += size
    return made_manifest(folder, shards, length, packing)


def made_manifest(
    folder: Path, shards: dict[str, list[dict[str, Any]]], length: int, packing: str, vocab_size: int = 100
) -> Store:
    """Make shards that lie in `folder` a store."""
    (folder / "tokenizer").mkdir()
    options = Rows(length=length, packing=packing).model_dump()  # pyright: ignore[reportArgumentType]
    manifest = {"tokenizer": {**TOKENIZER, "vocab_size": vocab_size}, "rows": options, "shards": shards}
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return Store(folder, manifest)
