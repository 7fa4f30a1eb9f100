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


def predict(options: argparse.Namespace) -> int:
    """Answer every line of a file with a model that has a head."""
    model = find_model(options.model, options.storage, inside=("best", "export"))
    choices = tuple(name.strip() for name in options.choices.split(",")) if options.choices else ()
    with _logged("predict") as terminal:
        from orchestration.predict import Fields, check
        from orchestration.predict import predict as answer

        fields = Fields(options.text_field, options.pair_field, choices)
        check(model, options.input, options.output, fields, options.allow_pickle)
        with _on_ray(terminal, "predict", options.address) as update:
            output = answer(model, options.input, options.output, update, fields, options.scores, options.allow_pickle)
    print(as_typed(output))
    return 0


def embed(options: argparse.Namespace) -> int:
    """Write the vectors of a file."""
    model = find_model(options.model, options.storage, inside=("export", "best"))
    with _logged("embed") as terminal:
        from orchestration.embed import check
        from orchestration.embed import embed as write_vectors

        text, role, pickled = options.text_field, options.role, options.allow_pickle
        check(model, options.input, options.output, text, role, pickled)
        with _on_ray(terminal, "embed", options.address) as update:
            output = write_vectors(model, options.input, options.output, update, text, role, pickled)
    print(as_typed(output))
    return 0


def fill(options: argparse.Namespace) -> int:
    """Print what a masked language model would write at each [MASK] of a sentence."""
    if not options.top.isdecimal() or not 1 <= int(options.top) <= MOST_TOP:
        raise UserError(f"--top {options.top}: give a number from 1 to {MOST_TOP}")
    model = find_model(options.model, options.storage, inside=("export", "best"))
    with _logged("fill"):
        from orchestration.fill import fill as guess

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
def _on_ray(terminal: Any, verb: str, address: str | None) -> Iterator[Callable[[str, float | None], None]]:
    """Join Ray and show how far the work is; yields what is told of it."""
    with joined(Cluster(address=address)), Progress(terminal.err).stage(verb) as update:
        yield update
