"""Shards: every token of the text is in them, also of a text of 20 MB or of five words, and what is not is counted."""

import math
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from test_data_encoding import BACKENDS, TEXTS

from data.config import Rows
from data.encoding import open_encoder
from data.rows import PACKINGS
from data.tokens import Written, tokenise, write_rows

CLS, SEP = 2, 3


@pytest.fixture(params=["wordpiece", "bpe", "unigram"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    BACKENDS[request.param].save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def write(documents: list[str], folder: Path, **rows: object) -> Written:
    return write_rows(documents, folder / "shard-0.parquet", folder, Rows.model_validate(rows), CLS, SEP)


def ordinary(folder: Path) -> list[int]:
    """All token ids of the shard but [CLS] and [SEP]."""
    column = pq.read_table(folder / "shard-0.parquet")["input_ids"].combine_chunks().values.to_numpy()
    return [int(token) for token in column if token not in (CLS, SEP)]


@pytest.mark.parametrize("packing", ["full_sentences", "document", "line"])
def test_tokens_of_the_shard_are_those_of_the_texts(folder: Path, packing: str):
    documents = ["One sentence. Another one.", "北京天安门在中国。我爱它。", "Three\nlines of\n\ntext"]
    written = write(documents, folder, packing=packing)
    encoder = open_encoder(folder)
    lines = [line for document in documents for line in document.split("\n") if line]
    texts = lines if packing == "line" else documents
    assert ordinary(folder) == tokenise(texts, encoder).input_ids.tolist()
    assert written.rows == pq.read_metadata(folder / "shard-0.parquet").num_rows
    assert written.rows == {"full_sentences": written.rows, "document": 3, "line": 5}[packing]
    assert written.bytes == (folder / "shard-0.parquet").stat().st_size
    assert (written.dropped_tokens, written.empty_documents, written.following_rows) == (0, 0, 0)


def test_sentence_ends_are_where_the_tokens_of_sentences_end(folder: Path):
    documents = tokenise(["One two. Three.", "", "Four"], open_encoder(folder))
    sizes = np.diff(documents.sentence_ends, prepend=0)
    expected = [len(tokenise([text], open_encoder(folder)).input_ids) for text in ("One two.", " Three.", "Four")]
    assert sizes.tolist() == expected
    assert documents.document_ends.tolist() == [expected[0] + expected[1], sum(expected)]


@pytest.mark.parametrize("packing", sorted(PACKINGS))
def test_text_of_which_no_token_is_left_is_no_row_and_counted(folder: Path, packing: str):
    BACKENDS["wordpiece"].save(str(folder / "tokenizer.json"))  # drops white space and control characters
    assert write(["\u200b", " \u200b "], folder, packing=packing) == Written(0, 0, 0, 0, 2, 0)
    assert not (folder / "shard-0.parquet").exists()
    written = write(["\u200b", "some words here.", "\x00"], folder, packing=packing)
    assert (written.rows >= 1, written.empty_documents) == (True, 2)


@pytest.mark.parametrize("packing", sorted(PACKINGS))
def test_five_words_are_a_row(folder: Path, packing: str):
    written = write(["five words are quite enough"], folder, packing=packing)
    assert written.rows >= 1
    assert written.dropped_tokens == 0
    assert written.following_rows == (written.rows if packing == "next_sentence" else 0)
    assert sorted(ordinary(folder)) == sorted(
        tokenise(["five words are quite enough"], open_encoder(folder)).input_ids.tolist()
    )


def test_tokens_that_make_no_pair_are_counted(folder: Path):
    BACKENDS["wordpiece"].save(str(folder / "tokenizer.json"))
    assert write(["a", "b", "the lobsters"], folder, packing="sentence_order").dropped_tokens == 2
    assert write(["a"], folder, packing="next_sentence") == Written(0, 0, 1, 0, 0, 0)


def test_pairs_are_drawn_by_the_name_of_the_shard(folder: Path):
    rows = Rows(packing="sentence_order", length=16)
    labels = []
    for name in ("shard-1.parquet", "shard-2.parquet", "shard-1.parquet"):
        write_rows(TEXTS, folder / name, folder, rows, CLS, SEP)
        labels.append(pq.read_table(folder / name)["label"].to_pylist())
    assert labels[0] == labels[2] != labels[1]


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads a process's peak memory from /proc")
def test_a_line_of_20_MB_is_rows_like_any_other_text_within_a_gigabyte(tmp_path: Path):
    BACKENDS["wordpiece"].save(str(tmp_path / "tokenizer.json"))
    line = "the lobsters are blue only becoming red on cooking " * 400_000
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _peak_bytes()
    written = write([line, *TEXTS[:3]], tmp_path)
    assert _peak_bytes() - before < 1_000_000_000
    tokens = len(ordinary(tmp_path))
    assert written.dropped_tokens == 0
    assert tokens == 400_000 * len(tokenise([line[:51]], open_encoder(tmp_path)).input_ids) + len(
        tokenise(TEXTS[:3], open_encoder(tmp_path)).input_ids
    )
    assert written.rows < 1.01 * math.ceil(tokens / 126)


def _peak_bytes() -> int:
    """The most memory this process held."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024


@pytest.mark.shared
@pytest.mark.parametrize("packing", sorted(PACKINGS))
def test_no_token_of_real_text_is_lost(shared: Path, tmp_path: Path, packing: str):
    BACKENDS["bpe"].save(str(tmp_path / "tokenizer.json"))
    documents = (shared / "pre_zh_debian_docs" / "install_zh_CN.txt").read_text(encoding="utf-8").split("\n\n")
    documents = [document for document in documents if document.strip()]
    written = write(documents, tmp_path, packing=packing)
    if packing == "line":
        documents = [line for document in documents for line in document.split("\n") if line.strip()]
    expected = tokenise(documents, open_encoder(tmp_path)).input_ids.tolist()
    got = ordinary(tmp_path)
    if packing == "next_sentence":  # half of the B are copies
        assert not set(expected) - set(got)
        assert len(got) > len(expected)
    else:
        assert sorted(got) == sorted(expected) or written.dropped_tokens
        assert len(got) + written.dropped_tokens == len(expected)
