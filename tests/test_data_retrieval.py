"""What queries have to find: each text once, and which of them is right."""

import numpy as np

from data.examples import Examples
from data.retrieval import search_space


def test_passages_beside_the_queries_are_searched_each_once() -> None:
    texts, right = search_space(Examples("embedding", ["a?", "b?", "c?"], ["x", "y", "x"]))
    assert texts == ["x", "y"] and np.array_equal(right, [0, 1, 0])


def test_a_file_of_passages_is_searched_whole() -> None:
    passages = {"1": "w", "2": "x", "3": "w", "4": "y"}
    texts, right = search_space(Examples("embedding", ["a?", "b?"], ["w", "y"]), passages)
    assert texts == ["w", "x", "y"] and np.array_equal(right, [0, 2])  # an equal text under another id is as right
