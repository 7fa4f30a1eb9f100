"""Files of a word on each line (CoNLL, CoNLL-U) -> tagged sentences.

In: a path. Out: an `Example`, or what is wrong, for each sentence. A blank line ends a sentence; columns stand between
tabs, or else between spaces; the first is the word and the last its tag; -DOCSTART- is no sentence. CoNLL-U names its
columns; there comments begin with #, and lines of several words (1-2) or of none that is written (8.1) are passed over.
Source: https://universaldependencies.org/format.html
"""

from collections.abc import Iterator
from pathlib import Path

from data.config import UserError
from data.examples import Example, Read
from data.formats import COMPRESSED
from data.lines import clean, read_lines

SUFFIXES = (".conll", ".conllu", ".bio", ".iob", ".txt")
UNIVERSAL = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
BETWEEN_DOCUMENTS = "-DOCSTART-"


def suffix_of(name: str) -> str:
    """The suffix of a file's name, that of a compression aside."""
    path = Path(name.lower())
    return Path(path.stem).suffix if path.suffix in COMPRESSED else path.suffix


def read_conll(file: str, path: str, label: str, encoding: str = "utf-8") -> Iterator[Read]:
    """Sentences of a file; `file` names it in places (file:line of the sentence's first word).

    `label`: a column of CoNLL-U ("label" means upos); elsewhere it does not count. Raises UserError for a column that
    CoNLL-U does not have, READ_ERRORS.
    """
    universal = suffix_of(path) == ".conllu"
    column = label.lower() if label != "label" else "upos"
    if universal and column not in UNIVERSAL:
        raise UserError(f"task.label={label}: CoNLL-U has no such column; give one of {' '.join(UNIVERSAL)}")
    for number, lines in enumerate(_sentences(path, universal, encoding), 1):
        words: list[str] = []
        tags: list[str] = []
        fault = None
        for line_number, line in lines:
            found = _columns(line, universal)
            if clean(line) is None:
                fault = "it is not valid text"
            elif universal and len(found) != len(UNIVERSAL):
                fault = f"{len(found)} columns between tabs, not {len(UNIVERSAL)}"
            elif len(found) < 2 or not found[0]:
                fault = f"it holds {'a word without a tag' if found[0] else 'a tag without a word'}"
            if fault is not None:
                yield f"{file}:{line_number}", f"sentence {number}: {fault}"
                break
            words.append(found[1] if universal else found[0])
            tags.append(found[UNIVERSAL.index(column)] if universal else found[-1])
        else:
            yield f"{file}:{lines[0][0]}", Example(" ".join(words), tags, words=words)


def _sentences(path: str, universal: bool, encoding: str) -> Iterator[list[tuple[int, str]]]:
    """Of each sentence the words' lines, with their numbers."""
    lines: list[tuple[int, str]] = []
    for number, line in enumerate(read_lines(path, encoding), 1):
        line = line.replace("\0", "").rstrip("\n")
        if line.strip(" \t"):
            first = _columns(line, universal)[0]
            if not (universal and (first.startswith("#") or not first.isdigit())) and first != BETWEEN_DOCUMENTS:
                lines.append((number, line))
        elif lines:
            yield from _words(lines, universal)
            lines = []
    yield from _words(lines, universal)


def _words(lines: list[tuple[int, str]], universal: bool) -> Iterator[list[tuple[int, str]]]:
    """A sentence without the comments before it: they have another number of columns than its last line, where a word
    "#" has the same."""
    while len(lines) > 1 and lines[0][1].startswith("#"):
        if len(_columns(lines[0][1], universal)) == len(_columns(lines[-1][1], universal)):
            break
        lines = lines[1:]
    if lines:
        yield lines


def _columns(line: str, universal: bool) -> list[str]:
    """Cells of a line. Only spaces and tabs part them: a word may be a no-break or an ideographic space."""
    if universal or "\t" in line:
        return [cell.strip(" ") for cell in (line if universal else line.rstrip(" \t")).split("\t")]
    return [cell for cell in line.split(" ") if cell]
