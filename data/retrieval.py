"""What queries are to find: the passages to search, and which of them is right for each query. Pure.

In: `Examples` of kind embedding with pairs. Out: texts and numbers. Equal passages are one: each of them is right.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from data.examples import Examples


def search_space(examples: Examples, passages: Mapping[str, str] | None = None) -> tuple[list[str], np.ndarray]:
    """(M texts, (N,) int64 number of each query's right one): those of `passages`, or those beside the queries."""
    pairs = examples.pairs or []
    several: Iterable[str] = pairs if passages is None else [*passages.values(), *pairs]
    texts = list(dict.fromkeys(several))
    numbers = {text: i for i, text in enumerate(texts)}
    return texts, np.array([numbers[text] for text in pairs], np.int64)
