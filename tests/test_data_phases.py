"""Rows of several lengths of one corpus: a store each, one tokenizer, the same held-out documents."""

import random
from pathlib import Path

import numpy as np
import pytest

from data.config import Corpus, Rows, Tokenizer
from data.phases import find_phases, longest, prepare_phases
from data.prepare import prepare
from data.tokenizer import fingerprint_of, load_tokenizer

pytestmark = pytest.mark.usefixtures("ray_4_cpus")


def quiet(text: str, fraction: float | None) -> None:
    pass


def test_phases_share_tokenizer_and_held_out_documents_and_the_longest_is_the_store_of_that_length(tmp_path: Path):
    draw = random.Random(0)
    words = ["cat", "dog", "clerk", "judge", "court", "saw", "heard", "paid"]
    texts = [" ".join(draw.choices(words, k=30)) + f" doc{number:03d}" for number in range(40)]
    (tmp_path / "corpus.txt").write_text("\n\n".join(texts))
    corpus = Corpus(sources=[{"path": str(tmp_path / "corpus.txt")}], held_out=0.2)  # type: ignore[list-item]
    wanted = corpus, Tokenizer(vocab_size=80), Rows(length=(16, 48, 16), packing="document"), tmp_path / "cache"
    assert find_phases(*wanted) is None
    stores = prepare_phases(*wanted, quiet)
    assert [store.train.length for store in stores] == [16, 48, 16]
    assert stores[0].path == stores[2].path != stores[1].path == longest(stores).path
    assert len({store.manifest["tokenizer"]["fingerprint"] for store in stores}) == 1
    assert len({fingerprint_of(store.tokenizer_folder) for store in stores}) == 1
    assert load_tokenizer(stores[1].tokenizer_folder).model_max_length == 48
    for part in ("train", "held_out"):  # the same documents, cut into other rows
        tokens = []
        for store in stores[:2]:
            rows = getattr(store, part).read(np.arange(getattr(store, part).num_rows))
            tokens.append(rows.input_ids[rows.input_ids > 4].tolist())
        assert tokens[0] == tokens[1] and tokens[0]
    again = find_phases(*wanted)
    assert again is not None and [store.path for store in again] == [store.path for store in stores]
    alone = prepare(corpus, Tokenizer(vocab_size=80), Rows(length=48, packing="document"), tmp_path / "cache", quiet)
    assert alone.path == stores[1].path
