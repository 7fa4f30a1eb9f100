"""Documents of any length in bounded memory, and what each character means."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import data.documents
from data.config import Corpus
from data.corpus import find_files
from data.documents import Piece, hash_text, read_documents
from data.records import Bad

ROOT = Path(data.documents.__file__).parent.parent


def read(path: Path, **source: str) -> list[str | Piece | Bad]:
    (file,) = find_files(Corpus(sources=[{"path": str(path), **source}]))  # type: ignore[list-item]
    return list(read_documents(file))


def joined(documents: list[str | Piece | Bad]) -> list[tuple[str, object]]:
    """Each document's text and its end: a hash, or why it is bad."""
    found: list[tuple[str, object]] = []
    parts: list[str] = []
    for document in documents:
        if isinstance(document, Piece):
            parts.append(document.text)
            if document.end is not None:
                found.append(("".join(parts), document.end))
                parts = []
        elif isinstance(document, Bad):
            found.append(("", document))
        else:
            found.append((document, hash_text(document)))
    assert not parts, "a document without an end"
    return found


WORDS = " ".join(f"w\u00f6rd{i}" for i in range(3000))
LONG = {
    "words": WORDS, "lines": WORDS.replace(" ", "\n"), "blocks-of-blank": WORDS.replace(" ", "  \n \t"),
    "no-white-space": WORDS.replace(" ", "\u4eba"), "ends-blank": f"  {WORDS}   \n", "nul": WORDS.replace(" ", " \0\0"),
    "gap": f"{WORDS}{' ' * 900}{WORDS}",
}  # fmt: skip


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("limit", [64, 100, 1777])
def test_long_document_comes_in_pieces_of_which_none_is_lost(
    tmp_path: Path, name: str, limit: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(data.documents, "PIECE_CHARACTERS", limit)
    text = LONG[name]
    (tmp_path / "a.txt").write_text(f"{text}")
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": text}) + '\n{"text": "short"}\n')
    pq.write_table(pa.table({"text": [text, "short"]}), tmp_path / "a.parquet")
    expected = text.replace("\0", "").strip()
    for file, documents in (
        ("a.txt", read(tmp_path / "a.txt", document="file")),
        ("a.jsonl", read(tmp_path / "a.jsonl")),
        ("a.parquet", read(tmp_path / "a.parquet")),
    ):
        (whole, end), *others = joined(documents)
        if name == "gap" and limit < 900:  # of white space longer than a piece one character is enough
            assert whole.split() == expected.split()
        else:
            assert (whole, end) == (expected, hash_text(expected)), file
        assert [text for text, _ in others] == ([] if file == "a.txt" else ["short"])
        pieces = [document for document in documents if isinstance(document, Piece)]
        assert len(pieces) > len(expected) // (2 * limit) and max(len(piece.text) for piece in pieces) <= 2 * limit
        if name == "words":
            assert all(piece.text[-1:] != " " for piece in pieces)
            assert sorted(word for piece in pieces for word in piece.text.split()) == sorted(WORDS.split())


@pytest.mark.parametrize("document", ["line", "block", "file"])
def test_long_lines_do_not_change_what_a_document_is(tmp_path: Path, document: str, monkeypatch: pytest.MonkeyPatch):
    text = f"short\n{WORDS}\nnext line\n\n \n{WORDS[::-1]}\n\nlast"
    (tmp_path / "a.txt").write_text(text)
    whole = joined(read(tmp_path / "a.txt", document=document))
    monkeypatch.setattr(data.documents, "PIECE_CHARACTERS", 500)
    assert joined(read(tmp_path / "a.txt", document=document)) == whole
    assert len(whole) == {"line": 5, "block": 3, "file": 1}[document]


def test_bad_bytes_anywhere_in_a_long_document_make_it_bad_once_and_name_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(data.documents, "PIECE_CHARACTERS", 500)
    lines = [f"line {i} of it" for i in range(300)]
    for bad in (1, 150, 299):
        text = "\n".join(lines).encode().replace(lines[bad].encode(), b"caf\xe9")
        (tmp_path / "a.txt").write_bytes(b"good\n\n" + text + b"\n\nalso good\n")
        first, (_, end), last = joined(read(tmp_path / "a.txt"))
        assert (first[0], last[0]) == ("good", "also good")
        assert isinstance(end, Bad) and (end.reason, end.line) == ("encoding", bad + 3)


def test_archive_cut_within_a_long_document_is_one_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import gzip

    monkeypatch.setattr(data.documents, "PIECE_CHARACTERS", 5000)
    whole = gzip.compress(f"good\n\n{WORDS}".encode())
    (tmp_path / "a.txt.gz").write_bytes(whole[: len(whole) - 40])
    first, (_, end) = joined(read(tmp_path / "a.txt.gz"))
    assert first[0] == "good" and isinstance(end, Bad) and end.reason == "unreadable"


@pytest.mark.parametrize("form", ["line", "jsonl"])
def test_line_of_200_mb_is_read_in_a_fraction_of_its_size(tmp_path: Path, form: str):
    """Plain text in 100 MB; a record, which must be whole, in three times its size, once."""
    size = 200_000_000
    path = tmp_path / ("a.txt" if form == "line" else "a.jsonl")
    with open(path, "wb") as file:
        file.write(b'{"text": "' if form == "jsonl" else b"")
        for _ in range(200):
            file.write((b"word " * 200_000)[: size // 200])
        file.write(b'end"}\n' if form == "jsonl" else b"end\n")
    script = (
        "import resource, sys; from data.config import Corpus; from data.corpus import find_files;"
        "from data.documents import read_documents;"
        "(file,) = find_files(Corpus(sources=[sys.argv[1]]));"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
        "size = sum(len(piece.text) for piece in read_documents(file));"
        "print(size, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    characters, megabytes = map(int, done.stdout.split())
    assert characters == size + 3
    assert megabytes < (100 if form == "line" else 700), megabytes


@pytest.mark.parametrize(
    ("written", "documents"),
    [
        ("\ufeffone\n", ["one"]),
        ("one\r\ntwo\rthree\nfour", ["one\ntwo\nthree\nfour"]),
        ("one\r\n\r\ntwo\r\rthree\n\nfour", ["one", "two", "three", "four"]),
        ("n\0u\0l\n\0\n\0 \0\nnext", ["nul", "next"]),
        ("\0\n", []),
        ("a\vb\fc\x1cd\x85e\u2028f\u2029g\n", ["a b c d e f g"]),
        ("one\n\f\ntwo\n\u2028\nthree\n\u00a0\nfour", ["one", "two", "three", "four"]),
        ("\u2028\fone\u00a0\n", ["one"]),
        ("\x01bell\x07 \x1b[0m\n", ["\x01bell\x07 \x1b[0m"]),
        ("zero\u200bwidth \u202eright\n", ["zero\u200bwidth \u202eright"]),
    ],
)
def test_what_each_character_means(tmp_path: Path, written: str, documents: list[str]):
    (tmp_path / "a.txt").write_bytes(written.encode())
    assert read(tmp_path / "a.txt") == documents


def test_texts_of_all_formats_have_the_same_line_ends_and_no_nul(tmp_path: Path):
    text = "one\r\ntwo\rthree\0"
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": text}))
    (tmp_path / "a.csv").write_bytes(f'text\r\n"{text}"\r\n'.encode())
    (tmp_path / "a.tsv").write_bytes(f'text\tn\n"{text}"\t1\n"b"\t2\n'.encode())
    pq.write_table(pa.table({"text": [text]}), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.csv", "a.tsv", "a.parquet"):
        assert read(tmp_path / name)[0] == "one\ntwo\nthree", name


def test_utf_16_without_being_told_and_without_a_mark_says_what_to_give(tmp_path: Path):
    (tmp_path / "a.txt").write_bytes("text".encode("utf-16"))
    (marked,) = read(tmp_path / "a.txt")
    assert "give encoding: utf-16" in str(marked)
    for encoding in ("utf-16-le", "utf-16-be"):
        (tmp_path / "a.txt").write_bytes("text".encode(encoding))
        (bare,) = read(tmp_path / "a.txt", encoding="utf-16")
        assert "give encoding: utf-16-le or utf-16-be" in str(bare)
        (tmp_path / "a.txt").write_bytes("\ufefftext".encode(encoding))
        assert read(tmp_path / "a.txt", encoding=encoding) == ["text"]


@pytest.mark.parametrize("limit", [40, 64, 8_000_000])
def test_copies_that_differ_in_white_space_are_one_document_whole_or_in_pieces(
    tmp_path: Path, limit: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(data.documents, "PIECE_CHARACTERS", limit)
    words = [f"w\u00f6rd{i}" for i in range(60)]
    expected = hash_text(" ".join(words))
    for between in (" ", "  ", "\n", " \t ", "\u2028", " \f"):
        path = tmp_path / "a.jsonl"
        path.write_text(json.dumps({"text": between.join(words) + between}) + "\n")
        found = joined(read(path))
        assert [end for _, end in found] == [expected], repr(between)
    assert hash_text("now here") != hash_text("nowhere")
