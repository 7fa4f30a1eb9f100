"""A JSON file -> records: a record on each line, or one array of records, or whole objects one after another.

In: a path, the fields asked for (a.b is b inside a), an encoding. Out: `Record`s and `Bad`s. Memory holds one record,
of an array too: it is parsed as it comes. One grammar for all: Python's, less NaN and Infinity, which are no JSON.
"""

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

from data.lines import MARK, read_lines
from data.records import Bad, Record

BLANK = "\ufeff\0 \t\n"
BLOCK_CHARACTERS = 1 << 20  # of an array, read at once
SNIFFED_LINES, SNIFFED_CHARACTERS = 10, 1 << 26  # of a .json file, to tell lines from an array or an object
# An error so near to the end of what was read may be that of a record that was cut there: of a literal or an escape.
NEAR_END = 12
LOST = " here, and what follows is lost"


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


DECODER = json.JSONDecoder(parse_constant=_refuse)


def read_objects(path: str, fields: tuple[str, ...], encoding: str) -> Iterator[Record | Bad]:
    """Records of a JSON file. Of an array or of objects over several lines `line` is the record's number.

    A string in place of an array's record is its one field. A line that is broken costs that line; an array that is
    broken costs all that follows, as one Bad "unreadable".
    """
    if _is_lines(path, encoding):
        for number, line in enumerate(read_lines(path, encoding), 1):
            yield _parse_line(path, number, line, fields)
        return
    for number, value in enumerate(_read_values(path, encoding), 1):
        if isinstance(value, str) and len(fields) == 1:  # a plain list of texts
            yield Record(number, (value,))
        else:
            yield value._replace(line=number) if isinstance(value, Bad) else _pick(path, number, value, fields)


def object_keys(path: str, encoding: str) -> list[str]:
    """The keys of a file's first record, empty where that is none. Raises READ_ERRORS."""
    values = _read_values(path, encoding)
    if _is_lines(path, encoding):
        lines = (line.strip(BLANK) for line in read_lines(path, encoding))
        values = (_decoded(line) for line in lines if line)
    first = next(values, None)
    return list(first) if isinstance(first, dict) else []


def _decoded(line: str) -> Any:
    """The value of a line, None where it is broken."""
    try:
        return DECODER.decode(line)
    except (ValueError, RecursionError):
        return None


def _is_lines(path: str, encoding: str) -> bool:
    """Whether a file holds a record on each line: its name says so, or one of its first lines is an object."""
    name = path.lower().rpartition("/")[2]
    if any(f"{suffix}." in f"{name}." for suffix in (".jsonl", ".ndjson")):
        return True
    pieces = (piece.strip(BLANK) for piece in read_lines(path, encoding, longest=1000))
    if next(filter(None, pieces), "").startswith("["):  # maybe a whole array in one line, not to be read for this
        return False
    lines = (line.strip(BLANK) for line in read_lines(path, encoding, longest=SNIFFED_CHARACTERS))
    for line in islice(filter(None, lines), SNIFFED_LINES):
        try:
            if isinstance(DECODER.decode(line), dict):
                return True
        except (ValueError, RecursionError):
            if line[-1] in "{[,:":  # an object that goes on in the next line
                return False
    return False


def _parse_line(path: str, number: int, line: str, fields: tuple[str, ...]) -> Record | Bad:
    if not line.strip(BLANK):
        return Bad("blank", path, number)
    try:
        return _pick(path, number, DECODER.decode(line.rstrip("\n")), fields)
    except (ValueError, RecursionError) as error:
        return _broken(path, number, line, error)


def _broken(path: str, number: int, text: str, error: Exception) -> Bad:
    if MARK in text:
        return Bad("encoding", path, number)
    return Bad("broken_json", path, number, str(error)[:100])


def _pick(path: str, number: int, record: Any, fields: tuple[str, ...]) -> Record | Bad:
    """The fields of a record."""
    if not isinstance(record, dict):
        return Bad("not_object", path, number, f"{type(record).__name__}, not an object")
    try:
        return Record(number, tuple(_look_up(record, field) for field in fields))
    except KeyError as error:
        return Bad("missing_field", path, number, f"no {error.args[0]!r} among {', '.join(record)[:80]}")


def _look_up(record: dict[str, Any], field: str) -> Any:
    """Value of a key, or of a dotted path into nested objects; raises KeyError."""
    if field in record:
        return record[field]
    value: Any = record
    for part in field.split("."):
        if not isinstance(value, dict) or part not in value:
            raise KeyError(field)
        value = value[part]
    return value


def _read_values(path: str, encoding: str) -> Iterator[Any]:
    """Elements of the array that a file is, or the values that stand in it one after another; a Bad where it breaks."""
    text = _Text(read_lines(path, encoding, longest=BLOCK_CHARACTERS))
    if not text.skip_blank():
        return
    is_array = text.peek() == "["
    separator = "["  # what stands before the next value; of values without an array nothing does
    while True:
        if is_array:
            text.take()
            ends = text.skip_blank() and text.peek() == "]"
            if separator == "[" and ends:
                text.take()
                break
        try:
            yield text.value()
        except (ValueError, RecursionError) as error:
            yield Bad("unreadable", path, 0, f"{_broken(path, 0, text.rest(), error).reason}{LOST}: {str(error)[:100]}")
            return
        separator = text.peek() if text.skip_blank() else ""
        if is_array and separator == "]":
            text.take()
            break
        if is_array and separator != ",":
            yield Bad("unreadable", path, 0, f"broken_json{LOST}: neither , nor ] after a value")
            return
        if not separator:
            return
    if text.skip_blank():
        yield Bad("unreadable", path, 0, f"broken_json{LOST}: it stands after the end of the array")


class _Text:
    """A window on a text that comes in blocks: as much as the value at hand needs."""

    def __init__(self, blocks: Iterator[str]) -> None:
        self._blocks = blocks
        self._text = ""
        self._place = 0

    def _grow(self, least: int) -> bool:
        """Read on by `least` characters; False at the end."""
        parts, size = [self._text[self._place :]], 0
        for block in self._blocks:
            parts.append(block)
            size += len(block)
            if size >= least:
                break
        self._text, self._place = "".join(parts), 0
        return size > 0

    def skip_blank(self) -> bool:
        """Go to the next character that is not blank; False where there is none."""
        while True:
            while self._place < len(self._text) and self._text[self._place] in " \t\n\r":
                self._place += 1
            if self._place < len(self._text):
                return True
            if not self._grow(BLOCK_CHARACTERS):
                return False

    def peek(self) -> str:
        return self._text[self._place]

    def take(self) -> None:
        self._place += 1

    def rest(self) -> str:
        return self._text[self._place : self._place + BLOCK_CHARACTERS]

    def value(self) -> Any:
        """The value that begins here, and go behind it. Raises ValueError, RecursionError."""
        while True:
            try:
                value, end = DECODER.raw_decode(self._text, self._place)
                if end == len(self._text) and self._grow(BLOCK_CHARACTERS):
                    continue  # 12 may be the start of 123
                self._place = min(end, len(self._text))
                return value
            except json.JSONDecodeError as error:
                is_cut = error.pos >= len(self._text) - NEAR_END or error.msg.startswith("Unterminated string")
                # Twice as much each time: a record of n characters is parsed as often as 2n would be.
                if not is_cut or not self._grow(max(BLOCK_CHARACTERS, len(self._text) - self._place)):
                    raise
