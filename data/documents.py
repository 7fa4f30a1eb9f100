"""One file -> its documents, one at a time.

In: a `SourceFile`. Out: texts without white space around them, "" for a record whose text is blank, a `Bad` in place of
what cannot be used (the caller counts both), and of a document too long to be held whole its `Piece`s. Never an
exception but UserError. Knows neither tokens nor Ray.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from data.corpus import SourceFile
from data.formats import read_records
from data.lines import MARK, READ_ERRORS, clean, read_lines
from data.records import Bad

# Most that is held of a document at once: 8 MB of English, 24 of Chinese. The longest novels have 5 million characters.
PIECE_CHARACTERS = 8_000_000
HASHED_CHARACTERS = 100_000  # at once: a text's words as objects take ten times its memory


# Removed (NUL) or turned into spaces: see the table of characters in data/lines.py.
RARE = re.compile("[\0\v\f\x1c-\x1e\x85\u2028\u2029]")


class Piece(NamedTuple):
    """A part of a document of more than PIECE_CHARACTERS, cut at white space; all parts joined are its text.

    It counts as one document and is kept, dropped or held out whole: `end` of the last piece says which document it
    was (the hash of the whole text) or why it is none; before that it is None.
    """

    text: str
    end: "int | Bad | None"


def hash_text(text: str) -> int:
    """64 bits of the hash of a text's words: which documents are equal, and which are held out.

    White space does not count: tokenizers see a line break where another copy has a space as the same text.
    """
    digest = _Digest()
    digest.update(text)
    return digest.number


class _Digest:
    """The hash of a text that comes in parts, wherever they are cut: its words with one space between."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=8)
        self._begun = self._spaced = False

    def update(self, text: str) -> None:
        """Take the next part in."""
        for start in range(0, len(text), HASHED_CHARACTERS):
            part = text[start : start + HASHED_CHARACTERS]
            words = part.split()
            apart = self._spaced or part[0].isspace()
            if words:
                self._hash.update((" " * (apart and self._begun) + " ".join(words)).encode())
                self._begun = True
            self._spaced = part[-1].isspace() if words else apart

    @property
    def number(self) -> int:
        return int.from_bytes(self._hash.digest(), "little")


def read_documents(file: SourceFile) -> Iterator[str | Piece | Bad]:
    """Documents of one file in order. Memory holds PIECE_CHARACTERS (of a record: the record) at a time.

    Raises UserError where the text column is missing.
    """
    if file.size_bytes == 0:
        return
    if file.format == "text":
        yield from _read_text(file)
        return
    for record in read_records(file.path, file.format, (file.text_field,), file.encoding):
        if isinstance(record, Bad):
            yield record
        elif record.values[0] is None:
            yield ""
        elif not isinstance(record.values[0], str):
            kind = type(record.values[0]).__name__
            yield Bad("not_text", file.path, record.line, f"{file.text_field} is {kind}")
        else:
            yield from _cut(file, record.line, record.values[0])


def _cut(file: SourceFile, line: int, text: str) -> Iterator[str | Piece | Bad]:
    """The text of a record as one document."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if len(text) <= PIECE_CHARACTERS:
        yield _whole(file, line, text)
        return
    document = _Growing(file, line)
    for start in range(0, len(text), PIECE_CHARACTERS):
        yield from document.add(text[start : start + PIECE_CHARACTERS])
    yield document.close()


def _whole(file: SourceFile, line: int, text: str) -> str | Bad:
    """A text as a document; `line` is where it begins."""
    if not text.isascii() and clean(text) is None:
        return _undecoded(file, line, text)
    return _plain(text).strip()


def _plain(text: str) -> str:
    """A text without NUL, with a space for each of the rare characters that end pages and lines elsewhere."""
    if RARE.search(text) is None:
        return text
    return RARE.sub(lambda found: "" if found[0] == "\0" else " ", text)


def _undecoded(file: SourceFile, line: int, text: str) -> Bad:
    before = text.partition(MARK)[0] if MARK in text and file.format == "text" else ""
    detail = f"not valid {file.encoding}; give the source its encoding"
    return Bad("encoding", file.path, line + before.count("\n"), detail)


@dataclass
class _Growing:
    """A document while its text comes in."""

    file: SourceFile
    line: int
    """Line of the file at which what is held begins."""
    parts: list[str] = field(default_factory=list)
    num_characters: int = 0
    digest: _Digest | None = None
    """Of the pieces that are already given; None: there are none."""
    bad: Bad | None = None

    def add(self, text: str) -> Iterator[Piece]:
        """Take more text in, give all but the last word of what is held if that is too much."""
        self.parts.append(_plain(text))
        self.num_characters += len(text)
        if self.num_characters >= PIECE_CHARACTERS:
            yield from self._shorten()

    def _shorten(self) -> Iterator[Piece]:
        held = "".join(self.parts)
        if self.digest is None:
            held = held.lstrip()
        words = held.rsplit(None, 1)
        # Without white space in its last half the text is cut anywhere; white space alone becomes a single one.
        body = words[0] if len(words) == 2 and len(words[0]) > len(held) // 2 else held.rstrip()
        rest = held[len(body) :] if words else held[:1]
        self.parts, self.num_characters = [rest], len(rest)
        if body:
            yield Piece(self._take(body), None)
        if self.file.format == "text":
            self.line += body.count("\n")

    def _take(self, text: str) -> str:
        """A text as it is given; nothing of what does not decode."""
        self.digest = self.digest or _Digest()
        if clean(text) is None:
            self.bad = self.bad or _undecoded(self.file, self.line, text)
            return ""
        self.digest.update(text)
        return text

    def close(self, broken: Bad | None = None) -> str | Piece | Bad:
        """The rest of the document; `broken`: why there is no more of it."""
        text = "".join(self.parts)
        if self.digest is None:
            return broken or _whole(self.file, self.line, text)
        text = self._take(text.rstrip())
        return Piece(text, broken or self.bad or self.digest.number)


def _read_text(file: SourceFile) -> Iterator[str | Piece | Bad]:
    """Documents of a text file; blank lines separate and are no documents."""
    document: _Growing | None = None
    number = 1
    within = False  # a line of which only a part was read
    try:
        for line in read_lines(file.path, file.encoding, longest=PIECE_CHARACTERS):
            ends = line.endswith("\n")
            blank = not within and len(line) < PIECE_CHARACTERS and not line.replace("\0", "").strip()
            if document and not within and (file.document == "line" or (file.document == "block" and blank)):
                yield document.close()
                document = None
            if document is None and not blank:
                document = _Growing(file, number)
            if document is not None:
                yield from document.add(line)  # also a blank line inside a document that is the whole file
            within, number = not ends, number + ends
    except READ_ERRORS as error:
        # What stands before the break is whole lines; the document at the break is not, and goes with it.
        broken = Bad("unreadable", file.path, 0, " ".join(str(error).split())[:200])
        yield document.close(broken) if document else broken
        return
    if document:
        yield document.close()
