"""Where answers go: the file that a command writes, checked before any work, whole or not there.

In: the input, what the user asked for. Out: the path; and a file beside it that takes its place at the end.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from data.config import UserError

Progress = Callable[[str, float | None], None]
"""Told what is done, and its share of the whole, None where nobody knows."""


def silent(text: str, share: float | None) -> None:
    """For those who do not care."""


def check_output(source: Path, output: Path | str | None, suffix: str) -> Path:
    """The absolute path to write (None: INPUT with `suffix` behind it). Raises UserError where it cannot be."""
    target = source.with_name(source.name + suffix) if output is None else Path(os.path.abspath(output))
    if target == source:
        raise UserError(f"-o {output}: is the input itself; give another file")
    if target.is_dir():
        raise UserError(f"-o {output}: is a folder; give a file in it")
    if target.exists() and not target.is_file():
        raise UserError(f"-o {output}: is no regular file, and would be replaced; give another")
    if not target.parent.is_dir():
        raise UserError(f"-o {output}: {target.parent} does not exist; make it, or give a file elsewhere")
    if not os.access(target.parent, os.W_OK):
        raise UserError(f"{target.parent}: cannot be written to; give -o FILE elsewhere")
    return target


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A path beside `target` to write to, which replaces it once the block ends without an error, and goes if not."""
    part = target.with_name(target.name + ".part")
    try:
        yield part
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
