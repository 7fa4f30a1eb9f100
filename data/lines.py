"""One file, here or in a bucket -> its bytes, decompressed -> its lines, decoded.

In: a path or URI and an encoding. Out: bytes, or lines of text; bytes that do not decode stay visible as MARK, and
whoever wants a text asks `clean` for it. Compression is told by content, nothing else is guessed. What each character
means to all readers:

    byte order mark           dropped at the start of a file; one of UTF-16 in a file said to be UTF-8, and none in one
                              said to be UTF-16 (not -LE, -BE): unreadable
    \\n, \\r\\n, \\r          end a line, alike and mixed, also inside a JSON, CSV or Parquet text: all become \\n
    NUL                       removed from texts: it is filling, of C strings and of UTF-16 read as something else;
                              BERT's tokenizer drops it too, and so a text is one whatever the tokenizer
    \\v, \\f, \\x1c-\\x1e     a space inside a document, never the end of a line (which they are to str.splitlines): a
    NEL, U+2028, U+2029       page break or a word processor's line end does not cut a document in two; and a space, as
                              some tokenizers drop such characters and would glue the words beside them
    a line of white space     is blank: between blocks, and no document, whatever white space it is of (also U+00A0)
    white space around a text is stripped, whatever it is of
    other control characters  kept: what they mean is the tokenizer's business
    bytes that do not decode  quarantine their document, and no other
    half a surrogate pair     (a JSON escape such as \\ud800) is no character: the record is quarantined
"""

import bz2
import codecs
import gzip
import io
import lzma
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from functools import partial
from typing import IO, Any

import pyarrow as pa

from data.storage import open_stream, source

MARK = "\udc80"  # stands for undecodable bytes: a lone surrogate, which no valid text holds
# What reading a file that is cut, damaged, not permitted or not in its encoding may raise, whatever compressed it.
READ_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError, UnicodeError, pa.ArrowException)
UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
codecs.register_error("mark", lambda error: (MARK, error.end))  # type: ignore[attr-defined]


def open_bytes(path: str) -> IO[bytes]:
    """Open a file for reading, decompressed if its first bytes say gzip, bzip2, xz or zstd. Raises OSError."""
    return _unpacked(open_stream(path))


def _unpacked(file: IO[bytes]) -> IO[bytes]:
    """A file's decompressor, or the file itself where its first bytes are of no archive."""
    magic = file.peek(6)[:6]  # type: ignore[attr-defined]
    if magic.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=file)  # type: ignore[return-value]
    if magic.startswith(b"BZh"):
        return bz2.BZ2File(file)
    if magic.startswith(b"\xfd7zXZ\x00"):
        return lzma.LZMAFile(file)
    if magic.startswith(b"\x28\xb5\x2f\xfd"):
        # 128 kB at once: where the archive is cut, what was unpacked of the last of these is lost too.
        return io.BufferedReader(pa.CompressedInputStream(file, "zstd"), 1 << 17)  # type: ignore[arg-type]
    return file


def open_anywhere(path: str) -> Any:
    """What pyarrow reads at any place: the file where it lies, or an unpacked copy without a name."""
    with open_stream(path) as file:
        unpacked = _unpacked(file)
        if unpacked is file:
            return source(path)
        copy = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the reader that gets it
        shutil.copyfileobj(unpacked, copy, 1 << 20)
    copy.seek(0)
    return copy


def read_lines(path: str, encoding: str, newline: str | None = None, longest: int = -1) -> Iterator[str]:
    """Lines of a text file, each with its "\\n": CR and CRLF become "\\n", a BOM is dropped, bad bytes become MARK.

    A line of more than `longest` characters comes in several strings, of which only the last ends with "\\n".
    Raises READ_ERRORS.
    """
    opened = open_bytes(path)
    name, start = codecs.lookup(encoding).name, opened.peek(2)[:2]  # type: ignore[attr-defined]
    if name == "utf-8" and start in UTF16_MARKS:
        raise UnicodeError("it begins with a byte order mark of UTF-16; give encoding: utf-16")
    if name == "utf-16" and start and start not in UTF16_MARKS:
        raise UnicodeError("it begins with no byte order mark; give encoding: utf-16-le or utf-16-be")
    with io.TextIOWrapper(opened, encoding=encoding, errors="mark", newline=newline) as lines:
        if first := lines.readline(longest).removeprefix("\ufeff"):
            yield first
        yield from lines if longest < 0 else iter(partial(lines.readline, longest), "")


def is_text_encoding(encoding: str) -> bool:
    """Whether `read_lines` can read in it: Python also knows codecs of bytes (rot13) and of host names (idna)."""
    try:
        io.TextIOWrapper(io.BytesIO(b"a"), encoding=encoding, errors="mark").read()
    except (LookupError, ValueError):
        return False
    return True


def clean(text: str) -> bytes | None:
    """UTF-8 of a text; None if it holds bytes that did not decode, or half a surrogate pair from a JSON escape."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return None
