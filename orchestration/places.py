"""Where a model lies that the user names: a folder, a run, or a place in a bucket.

In: a word of the user. Out: the folder on this machine; faults that a folder causes name it. Knows of models only that
their folders hold a config.json.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from data.config import UserError
from data.storage import children, fetch, place, shown


def find_model(name: str, storage: str, inside: tuple[str, ...]) -> Path:
    """The folder of a model: `name` itself, or one of `inside` in it, or in a run or sweep of that name, the first of
    `inside` that is anywhere.

    What lies in a bucket is brought here. A folder that is none of these is returned as it is: what is wrong with it is
    told by whoever opens it.
    """
    runs = [place(storage) / name, place(storage) / f"{name}-sweep"] if "://" not in name else []
    homes = [place(name), *runs]
    for folder in (homes[0], *(home / part for part in inside for home in homes)):
        if "config.json" in children(folder):
            fetch(folder)
            return folder
    return homes[0]


@contextmanager
def blaming(folder: Path | str) -> Iterator[None]:
    """Make a mistake of the user, which names the folder, of a ValueError."""
    try:
        yield
    except UserError:
        raise
    except ValueError as error:  # of which some name the folder themselves
        text = str(error).removeprefix(f"{folder}: ").removeprefix(f"{os.path.abspath(folder)}: ")
        raise UserError(f"{shown(os.path.abspath(folder))}: {text}") from error
