"""Transformers' own talk, switched off: progress bars and warnings about weights that are meant to be new.

In: nothing. Out: a context in which transformers reports errors only. Knows nothing of models.
"""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers' progress bars and its warnings about new weights from the user: they are meant to be new."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
