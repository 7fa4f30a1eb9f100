"""Text that came from elsewhere -> text that may reach a terminal.

In: labels, tokens, texts, names from the files of others. Out: the same with every control character written out: an
escape sequence in a label would else colour, move or retitle the terminal, and a mark of direction turn a line around.
"""

import json
import unicodedata
from typing import Any


def printable(text: str) -> str:
    """The text, each of its control, format and unassigned characters as an escape such as \\u001b."""
    return "".join(
        json.dumps(character)[1:-1] if unicodedata.category(character)[0] == "C" else character for character in text
    )


def printable_json(value: Any) -> str:
    """A JSON text on one line that reads back as `value`, with no control character in it."""
    return printable(json.dumps(value, ensure_ascii=False))
