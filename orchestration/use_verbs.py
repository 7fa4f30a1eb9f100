"""The verbs that use a model: predict, embed, fill.

In: a verb's parsed options. Out: its exit code, answers in a file or on the terminal. What is checked before Ray starts
leaves nothing behind. Public functions of the same work stand in orchestration/predict.py, embed.py and fill.py.
"""

import argparse
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from data.config import UserError
from orchestration.cluster import joined
from orchestration.config import Cluster
from orchestration.places import find_model
from orchestration.progress import Progress
from orchestration.terminal import printable, printable_json
from orchestration.verbs import as_typed, log_of

MOST_TOP = 1000  # tokens that fill tells of; more is nothing to look at


def embed(options: argparse.Namespace) -> int:
    """Write the vectors of a file."""
    from orchestration.embed import check
    from orchestration.embed import embed as write_vectors

    model = find_model(options.model, options.storage, inside=("best", "export"))
    check(model, options.input, options.output, options.text_field, options.role, options.allow_pickle)
    with _on_ray("embed", options.address) as update:
        output = write_vectors(
            model, options.input, options.output, update, options.text_field, options.role, options.allow_pickle
        )
    print(as_typed(output))
    return 0


def fill(options: argparse.Namespace) -> int:
    """Print what a masked language model would write at each [MASK] of a sentence."""
    if not options.top.isdecimal() or not 1 <= int(options.top) <= MOST_TOP:
        raise UserError(f"--top {options.top}: give a number from 1 to {MOST_TOP}")
    model = find_model(options.model, options.storage, inside=("export",))
    from orchestration.fill import check
    from orchestration.fill import fill as guess

    check(model, options.text, options.allow_pickle)
    with _logged("fill"):
        masks = guess(model, options.text, int(options.top), options.allow_pickle)
    if options.json:
        print(printable_json([[one._asdict() for one in guesses] for guesses in masks]))
        return 0
    for number, guesses in enumerate(masks, 1):
        if len(masks) > 1:
            print(f"{'' if number == 1 else chr(10)}mask {number}")
        width = max(len(printable(one.token)) for one in guesses)
        for one in guesses:
            print(f"{one.probability:6.1%}  {printable(one.token):{width}}  {printable(one.text)}")
    return 0


@contextmanager
def _logged(verb: str) -> Iterator[Any]:
    """Send the libraries' chatter to a log, which is kept only where something of ours goes wrong."""
    folder = Path(tempfile.mkdtemp(prefix=f"cloze-{verb}-"))
    try:
        with log_of(folder) as terminal:
            yield terminal
    except UserError:
        shutil.rmtree(folder)
        raise
    shutil.rmtree(folder)


@contextmanager
def _on_ray(verb: str, address: str | None) -> Iterator[Callable[[str, float | None], None]]:
    """Join Ray and show how far the work is; yields what is told of it."""
    with _logged(verb) as terminal, joined(Cluster(address=address)), Progress(terminal.err).stage(verb) as update:
        yield update
