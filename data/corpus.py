"""Sources of a recipe -> files, each with the number of its source and how it is read.

In: the corpus section. Out: `SourceFile`s in a stable order, and groups of them. Opens none of them; knows no Ray.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from data.config import Corpus, Source, UserError
from data.files import list_files
from data.formats import COMPRESSED, SUFFIXES, Format, format_of
from data.lines import is_text_encoding

DOCSTRINGS = "docstrings"
HELD_OUT = -1  # number of the source of all files of corpus.held_out_sources
UNPACKED = 4  # what text of another format than plain text weighs, as a multiple of its file's size: about zstd's


@dataclass(frozen=True)
class SourceFile:
    """A file and how it is read; path "docstrings" stands for the embedded corpus until that is built."""

    path: str
    """Absolute path, or URI of a file in a bucket."""
    format: Format
    text_field: str = "text"
    document: str = "block"
    encoding: str = "utf-8"
    size_bytes: int = 0
    mtime_ns: int = 0
    source: int = 0
    """Place in corpus.sources, or HELD_OUT."""

    @property
    def text_bytes(self) -> int:
        """About how much text it holds."""
        return self.size_bytes * (1 if self.format == "text" and not self.path.endswith(COMPRESSED) else UNPACKED)


def find_files(corpus: Corpus) -> list[SourceFile]:
    """Expand sources (file, folder, glob) to files, sorted by path within a source; held-out sources come first.

    A file that several sources name is of the first of them, of a held-out one before all others. In folders and globs
    only files of a known suffix are taken (any file if the source gives a format). Raises UserError, a line per source
    that is missing, cannot be looked at, matches nothing, has no file of its own, or holds no text.
    """
    files: dict[str, SourceFile] = {}
    faults: list[str] = []
    sources = [("held_out_sources", i, HELD_OUT, source) for i, source in enumerate(corpus.held_out_sources)]
    sources += [("sources", i, i, source) for i, source in enumerate(corpus.sources)]
    for section, place, number, source in sources:
        key = f"corpus.{section}.{place}.path={source.path}"
        try:
            found = list(_expand(source, number))
            for file in found:
                files.setdefault(file.path, file)
            if all(files[file.path] is not file for file in found):
                raise UserError("all its files are read by a source before it, or by held_out_sources; remove one")
            if not any(file.size_bytes or file.path == DOCSTRINGS for file in found):
                names = ", ".join(file.path for file in found[:3])
                raise UserError(f"all {len(found)} files are empty ({names}); give files that hold text")
        except UserError as error:
            faults.append(f"{key}: {error}")
    if faults:
        raise UserError("\n".join(faults))
    return list(files.values())


def _expand(source: Source, number: int) -> Iterator[SourceFile]:
    """Files of one source; raises UserError without the key, which the caller knows."""
    if source.path == DOCSTRINGS:
        yield SourceFile(DOCSTRINGS, "parquet", source=number)
        return
    if not is_text_encoding(source.encoding):
        raise UserError(f"encoding={source.encoding!r} is no text encoding; give one such as utf-8 or gb18030")
    found, is_file = list_files(source.path)
    if is_file and source.format is None and format_of(found[0].path) is None:
        raise UserError(
            "its suffix tells no format; give {path: ..., format: text} (or jsonl, csv, tsv, parquet, arrow)"
        )
    found = [file for file in found if source.format or format_of(file.path)]
    if not found:
        known = " ".join(SUFFIXES)
        raise UserError(f"no readable file there; known suffixes are {known}, also with {' '.join(COMPRESSED)}")
    for file in found:
        format = source.format or format_of(file.path) or "text"
        yield SourceFile(
            file.path, format, source.text_field, source.document, source.encoding, file.size_bytes, file.mtime_ns,
            number,
        )  # fmt: skip


def group_files(files: list[SourceFile], bytes_per_group: int) -> list[list[SourceFile]]:
    """Group neighbours of one source until they weigh `bytes_per_group`: many small files make few, full shards."""
    groups: list[list[SourceFile]] = []
    weight = bytes_per_group
    for file in files:
        is_full = weight >= bytes_per_group or weight + file.size_bytes > 2 * bytes_per_group
        if is_full or groups[-1][-1].source != file.source:
            groups.append([])
            weight = 0
        groups[-1].append(file)
        weight += file.size_bytes
    return groups


def describe(path: str) -> str:
    """A path as short as it can be told: relative to the current folder where it lies below it."""
    try:
        return str(Path(path).relative_to(Path.cwd())) if "://" not in path else path
    except ValueError:
        return path
