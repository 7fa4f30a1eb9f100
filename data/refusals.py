"""A labelled file that cannot be read as it should -> the one line that says why, and what to do.

In: a file's name, the task section, what its reader found. Out: paths and formats that are sure, or a UserError.
"""

import re
from collections.abc import Mapping, Sequence

from data.config import Task, UserError
from data.files import one_file
from data.formats import COMPRESSED, SUFFIXES, Format, format_of
from data.lines import is_text_encoding
from data.records import Bad


def path_of(key: str, file: str, encoding: str) -> str:
    """Where a file lies. Raises UserError for one that is not there, or in no encoding."""
    if not is_text_encoding(encoding):
        raise UserError(f"task.encoding={encoding}: no text encoding; give one such as utf-8 or cp1252")
    return one_file(key, file)


def table_format(key: str, path: str, task: Task, others: Sequence[str] = ()) -> Format:
    """The format of a file of columns. Raises UserError where neither task.format nor its suffix tells one.

    `others`: suffixes that would do too.
    """
    format = task.format if task.format not in (None, "conll") else format_of(path)
    if format is None or format == "text" or task.format == "conll":
        known = [*(suffix for suffix, name in SUFFIXES.items() if name != "text"), *others]
        what = "task.format=conll is for kind tagging" if task.format == "conll" else "its suffix tells no format"
        raise UserError(f"{key}: {what}; give one of {' '.join(known)}, also with {' '.join(COMPRESSED)}, or "
                        f"task.format=FORMAT")  # fmt: skip
    return format  # pyright: ignore[reportReturnType]


def named_by(kind: str, columns: Mapping[str, str], group: str | None = None) -> str:
    """How a user names the columns of a file."""
    names = [f"task.{name}=COLUMN" for name in columns if "[" not in name]
    names += ["task.choices=[COLUMN,...]"] if any("[" in name for name in columns) else []
    names += ["task.group=COLUMN"] if group is not None else []
    has_pair = kind not in ("classification", "regression") or "text_pair" in columns
    return f"name them with {', '.join(names)}{'' if has_pair else ' (a second text with task.text_pair=COLUMN)'}"


def unreadable(key: str, error: Exception) -> UserError:
    """The mistake of a file that is cut, damaged or in another encoding."""
    return UserError(f"{key}: cannot be read: {of_task(' '.join(str(error).split())[:160])}; repair the file")


def cannot_go_on(bad: Bad) -> None:
    """Raise OSError where what is bad is not one record but the rest of the file."""
    if not bad.line:
        raise OSError(bad.detail)


def of_task(remedy: str) -> str:
    """What the readers advise for a corpus, said for a task."""
    return re.sub(r"give (format|encoding): ", r"give task.\1=", remedy).removesuffix("; name one of them")
