"""Sources of a recipe -> files -> documents, one at a time.

In: the corpus section. Out: `SourceFile`s in a stable order, and for each its documents as texts. What cannot be used
comes out as a `Bad` in its place, never as an exception, and a blank text as "": the caller counts both. Knows no Ray.
"""

import glob
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from data.config import Corpus, Source, UserError
from data.records import (
    COMPRESSED,
    MARK,
    READ_ERRORS,
    SUFFIXES,
    Bad,
    Format,
    clean,
    format_of,
    is_text_encoding,
    read_lines,
    read_records,
)
from data.storage import fetch_once

DOCSTRINGS = "docstrings"


@dataclass(frozen=True)
class SourceFile:
    """A file and how it is read; path "docstrings" stands for the embedded corpus until that is built."""

    path: str
    format: Format
    text_field: str = "text"
    document: str = "block"
    encoding: str = "utf-8"
    size_bytes: int = 0
    mtime_ns: int = 0


def find_files(corpus: Corpus) -> list[SourceFile]:
    """Expand sources (file, folder, glob) to files, sorted by path within a source; a file named twice counts once.

    In folders and globs only files of a known suffix are taken (any file if the source gives a format), none whose
    name begins with "." or "_"; folders below whose name begins with "." are left out, and none is read twice through
    links. Raises UserError, a line per source that is missing, cannot be looked at, matches nothing or holds no text.
    """
    files: dict[str, SourceFile] = {}
    faults: list[str] = []
    for number, source in enumerate(corpus.sources):
        try:
            for file in _expand(source):
                files.setdefault(file.path, file)
        except UserError as error:
            faults.append(f"corpus.sources.{number}.path={source.path}: {error}")
    if not faults and not any(file.size_bytes or file.path == DOCSTRINGS for file in files.values()):
        names = ", ".join(list(files)[:3])
        faults.append(f"corpus.sources: all {len(files)} files are empty ({names}); give files that hold text")
    if faults:
        raise UserError("\n".join(faults))
    return list(files.values())


def _expand(source: Source) -> Iterator[SourceFile]:
    """Files of one source; raises UserError without the key, which the caller knows."""
    if source.path == DOCSTRINGS:
        yield SourceFile(DOCSTRINGS, "parquet")
        return
    if "://" in source.path:
        raise UserError("only local and mounted paths are read; copy the files to a folder that every node sees")
    if not is_text_encoding(source.encoding):
        raise UserError(f"encoding={source.encoding!r} is no text encoding; give one such as utf-8 or gb18030")
    path = os.path.abspath(os.path.expanduser(source.path))
    if os.path.isfile(path):
        found = [path]
        if source.format is None and format_of(path) is None:
            raise UserError("its suffix tells no format; give {path: ..., format: text} (or jsonl, csv, tsv, parquet)")
    elif os.path.isdir(path):
        found = [os.path.join(folder, name) for folder, names in _walk(path) for name in names]
    else:
        found = _glob(path)
        if not found:
            what = "the glob matches no file" if glob.has_magic(path) else "no such file or folder"
            raise UserError(f"{what} (looked for {path}); correct the path")
    if len(found) > 1 or not os.path.isfile(path):
        found = [name for name in sorted(found) if not os.path.basename(name).startswith((".", "_"))]
        found = [name for name in found if source.format or format_of(name)]
    if not found:
        known = " ".join(SUFFIXES)
        raise UserError(f"no readable file there; known suffixes are {known}, also with {' '.join(COMPRESSED)}")
    for name in found:
        try:
            status = os.stat(name)
        except OSError as error:
            raise _unreadable(error, name) from None
        format = source.format or format_of(name) or "text"
        yield SourceFile(
            name, format, source.text_field, source.document, source.encoding, status.st_size, status.st_mtime_ns
        )


def _walk(path: str) -> Iterator[tuple[str, list[str]]]:
    """A folder and those below it, each with the names of its files. Raises UserError where one cannot be listed."""

    def refuse(error: OSError) -> None:
        raise _unreadable(error, str(error.filename)) from None

    seen = {os.path.realpath(path)}
    for folder, folders, names in os.walk(path, followlinks=True, onerror=refuse):
        yield folder, names
        below = sorted(name for name in folders if not name.startswith("."))
        folders.clear()
        for name in below:
            real = os.path.realpath(os.path.join(folder, name))
            if real not in seen:
                seen.add(real)
                folders.append(name)


def _glob(path: str) -> list[str]:
    """Files that a glob matches, each by its shortest way if links lead to its folder by several."""
    head, deep, tail = f"{path}/*".partition("/**/") if path.endswith("/**") else path.partition("/**/")
    if deep:  # not left to `glob`, which runs through links in circles
        folders = [folder for base in filter(os.path.isdir, glob.glob(head or "/")) for folder, _ in _walk(base)]
        matches = [name for folder in folders for name in _glob(os.path.join(glob.escape(folder), tail))]
    else:
        matches = [name for name in glob.glob(path) if not os.path.isdir(name)]
    real = cache(os.path.realpath)
    found: dict[tuple[str, str], str] = {}
    for name in sorted(matches, key=lambda name: (name.count(os.sep), name)):
        found.setdefault((real(os.path.dirname(name)), os.path.basename(name)), name)
    return list(found.values())


def _unreadable(error: OSError, name: str) -> UserError:
    what = "is a link to nothing" if os.path.islink(name) else f"cannot be read ({error.strerror})"
    return UserError(f"{name} {what}; repair or remove it")


def read_documents(file: SourceFile) -> Iterator[str | Bad]:
    """Documents of one file in order, as texts without surrounding white space; "" is a record whose text is blank.

    Memory holds one document (or 1,024 Parquet rows) at a time. Raises UserError where the text column is missing.
    """
    if file.size_bytes == 0:
        return
    fetch_once(Path(file.path))  # the embedded corpus may lie in a bucket
    if file.format == "text":
        yield from _read_text(file)
        return
    for record in read_records(file.path, file.format, (file.text_field,), file.encoding):
        if isinstance(record, Bad):
            yield record
            continue
        text = record.values[0]
        if text is None:
            yield ""
        elif not isinstance(text, str):
            yield Bad("not_text", file.path, record.line, f"{file.text_field} is {type(text).__name__}")
        elif clean(text) is None:
            yield Bad("encoding", file.path, record.line, f"not valid {file.encoding}")
        else:
            yield text.strip()


def _read_text(file: SourceFile) -> Iterator[str | Bad]:
    """Documents of a text file; blank lines separate and are no documents."""
    parts: list[str] = []
    first = 1
    try:
        for number, line in enumerate(read_lines(file.path, file.encoding), 1):
            blank = not line.strip()
            if parts and (file.document == "line" or (file.document == "block" and blank)):
                yield _join(parts, first, file)
                parts = []
            if not blank:
                first = first if parts else number
                parts.append(line)
            elif parts:
                parts.append(line)  # a blank line inside a document that is the whole file
    except READ_ERRORS as error:
        # What stands before the break is whole lines; the document at the break is not, and goes with it.
        yield Bad("unreadable", file.path, 0, " ".join(str(error).split())[:200])
        return
    if parts:
        yield _join(parts, first, file)


def _join(parts: list[str], first: int, file: SourceFile) -> str | Bad:
    text = "".join(parts)
    if clean(text) is not None:
        return text.strip()
    line = first + next((i for i, part in enumerate(parts) if MARK in part), 0)
    return Bad("encoding", file.path, line, f"not valid {file.encoding}")


def group_files(files: list[SourceFile], bytes_per_group: int) -> list[list[SourceFile]]:
    """Group neighbours until they weigh `bytes_per_group`, so that many small files make few, well-filled shards."""
    groups: list[list[SourceFile]] = []
    weight = bytes_per_group
    for file in files:
        if weight >= bytes_per_group or weight + file.size_bytes > 2 * bytes_per_group:
            groups.append([])
            weight = 0
        groups[-1].append(file)
        weight += file.size_bytes
    return groups


def describe(path: str) -> str:
    """A path as short as it can be told: relative to the current folder where it lies below it."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path
