"""A store of a few rows with a real tokenizer: words that tests can read, and the counts that a manifest has."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from made_store import made_manifest

from data.rows import Row
from data.store import Store, write_shard

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "em", "##bed", "##ding", "кот", "中")
FACTS = {
    "documents_read": 10, "documents_kept": 6, "documents_empty": 1, "documents_duplicate": 1,
    "documents_quarantined": 2, "quarantined_by_reason": {"encoding": 2}, "files": 3, "tokens": 27,
}  # fmt: skip


def row(*words: str, starts: tuple[int, ...] = (), label: int = -1) -> Row:
    begins = np.array([not word.startswith("##") for word in words])
    return Row(np.array([WORDS.index(word) for word in words], np.int32), begins, starts, label)


def store_of(folder: Path, rows: list[Row], packing: str = "full_sentences", backend: Any = None) -> Store:
    """A store of two shards of two sources, and one held-out row."""
    from tokenizers import Tokenizer, decoders, models

    shards: dict[str, list[dict[str, Any]]] = {"train": [], "held_out": []}
    for part, here, source in (("train", rows[:1], 0), ("train", rows[1:-1], 1), ("held_out", rows[-1:], 1)):
        name = f"shard-{source}.parquet"
        num_bytes = write_shard(folder / part / name, here)
        shards[part].append({"name": name, "rows": len(here), "bytes": num_bytes, "source": source})
    store = made_manifest(folder, shards, length=10, packing=packing, vocab_size=len(WORDS))
    if backend is None:
        backend = Tokenizer(models.WordPiece({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
        backend.decoder = decoders.WordPiece(prefix="##")
        backend.add_special_tokens(list(WORDS[:5]))
    backend.save(str(folder / "tokenizer" / "tokenizer.json"))
    return dataclasses.replace(store, manifest={**store.manifest, **FACTS})


ROWS = [
    row("[CLS]", "the", "cat", "sat", "[SEP]", "em", "##bed", "##ding", "[SEP]", starts=(5,)),
    row("[CLS]", "кот", "[UNK]", "中", "[SEP]"),
    row("[CLS]", "cat", "[SEP]"),
    row("[CLS]", "the", "em", "##bed", "[SEP]"),
    row("[CLS]", "sat", "cat", "the", "[SEP]"),
]
