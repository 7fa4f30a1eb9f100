"""A corpus as token rows of several lengths: a store for each phase of a run, and one tokenizer for all of them.

In: what data/prepare.py takes, with one length of rows or several. Out: open stores, in the order of the phases.
The store of the longest rows comes first, for it trains the tokenizer (and is the one that a run of that length alone
has); the others take the tokenizer from it. Phases of equal length share a store.
"""

from collections.abc import Callable
from pathlib import Path

from data.config import Corpus, Rows, Tokenizer
from data.passes import Progress
from data.prepare import find_prepared, prepare
from data.store import Store


def prepare_phases(
    corpus: Corpus,
    tokenizer: Tokenizer,
    rows: Rows,
    cache: Path,
    progress: Progress,
    run: str = "cloze",
    autoscales: bool = False,
) -> list[Store]:
    """The store of each phase, prepared or opened. Raises UserError as `prepare` does."""
    stores = _in_turn(
        tokenizer, rows,
        lambda tokenizer, rows: prepare(corpus, tokenizer, rows, cache, progress, run=run, autoscales=autoscales),
    )  # fmt: skip
    assert stores is not None  # `prepare` makes what is not there
    return stores


def find_phases(corpus: Corpus, tokenizer: Tokenizer, rows: Rows, cache: Path) -> list[Store] | None:
    """The store of each phase if all were prepared; needs no Ray. Raises UserError as `prepare` does."""
    return _in_turn(tokenizer, rows, lambda tokenizer, rows: find_prepared(corpus, tokenizer, rows, cache))


def _in_turn(
    tokenizer: Tokenizer, rows: Rows, get: Callable[[Tokenizer, Rows], Store | None]
) -> list[Store] | None:
    """What `get` has for each phase, asked once for each length, the longest first; None where it lacks one."""
    stores: dict[int, Store] = {}
    for length in sorted(set(rows.lengths), reverse=True):
        if (store := get(tokenizer, rows.of_length(length))) is None:
            return None
        stores[length] = store
        tokenizer = _taken_from(store, tokenizer)
    return [stores[length] for length in rows.lengths]


def longest(stores: list[Store]) -> Store:
    """The store of the longest rows, whose tokenizer is that of all."""
    return max(stores, key=lambda store: store.train.length)


def _taken_from(store: Store, tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer section that takes the tokenizer of a store, where none was given."""
    if tokenizer.path is not None:
        return tokenizer
    return tokenizer.model_copy(update={"path": str(store.tokenizer_folder)})
