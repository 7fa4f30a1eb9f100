"""Damaged files: whatever breaks, in whatever compression, is a Bad or a line's error, never an exception."""

import gzip
import lzma
import os
from bz2 import compress as bz2
from pathlib import Path

import pyarrow as pa
import pytest

from data.config import Corpus, UserError
from data.corpus import find_files
from data.documents import read_documents
from data.records import Bad
from data.texts import count_lines, read_texts

LINES = b'{"text": "one"}\n{"text": "two"}\n'


def read(path: Path, **source: str) -> list[str | Bad]:
    (file,) = find_files(Corpus(sources=[{"path": str(path), **source}]))  # type: ignore[list-item]
    return list(read_documents(file))


def reasons(documents: list[str | Bad]) -> list[tuple[str, int]]:
    return [(document.reason, document.line) for document in documents if isinstance(document, Bad)]


@pytest.mark.parametrize("pack", ["gz", "bz2", "xz", "zst"])
@pytest.mark.parametrize("suffix", ["txt", "jsonl", "csv", "tsv"])
def test_damaged_archive_is_unreadable_for_every_reader(tmp_path: Path, pack: str, suffix: str):
    packs = {"gz": gzip.compress, "bz2": bz2, "xz": lzma.compress}
    whole = packs.get(pack, lambda data: pa.compress(data, "zstd", asbytes=True))(os.urandom(1 << 12).hex().encode())
    path = tmp_path / f"a.{suffix}.{pack}"
    for start in (8, 20, 40, len(whole) // 2, len(whole) - 12):
        path.write_bytes(whole[:start] + b"\xff" * 8 + whole[start + 8 :])
        (file,) = find_files(Corpus(sources=[str(path)]))  # type: ignore[arg-type]
        try:
            list(read_documents(file))
            lines = list(read_texts(path, file.format, ("text",)))
        except UserError as error:  # a checksum that nobody asked for: the header was read, and is random
            assert "no column 'text'" in str(error)
            continue
        assert len(lines) >= 1 and count_lines(path, file.format) >= 1


@pytest.mark.parametrize(("pack", "place"), [("gz", 40), ("xz", 40)])
def test_damage_that_is_no_os_error_is_one_bad(tmp_path: Path, pack: str, place: int):
    whole = {"gz": gzip.compress, "xz": lzma.compress}[pack](LINES * 20 + os.urandom(1000).hex().encode())
    for suffix in ("txt", "jsonl"):
        path = tmp_path / f"a.{suffix}.{pack}"
        path.write_bytes(whole[:place] + b"\xff" * 30 + whole[place + 30 :])
        assert reasons(read(path))[-1] == ("unreadable", 0)
        (*_, last) = read_texts(path, "text" if suffix == "txt" else "jsonl", ("text",))
        assert last.error and last.error.startswith("the rest of the file: unreadable")


def test_text_that_is_not_in_its_encoding_at_all_is_unreadable(tmp_path: Path):
    (tmp_path / "a.txt").write_text("no byte order mark")
    assert reasons(read(tmp_path / "a.txt", encoding="utf-16")) == [("unreadable", 0)]
