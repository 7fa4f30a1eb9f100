"""Answers to questions, compared as SQuAD compares them. Pure.

In: an answer and the right ones. Out: 0 to 1. Source: evaluate-v1.1.py and evaluate-v2.0.py,
https://rajpurkar.github.io/SQuAD-explorer/ (XQuAD, arXiv:1910.11856, takes the same for all languages: Chinese answers,
which have no spaces, are then one word each, so that their F1 is their exact match unless digits stand apart).
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalise(answer: str) -> str:
    """Lower case, without ASCII punctuation and English articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def is_equal(answer: str, right: str) -> float:
    """Exact match of one answer with one right one, both normalised."""
    return float(normalise(answer) == normalise(right))


def overlap(answer: str, right: str) -> float:
    """F1 of the words of one answer and one right one; where one of them has none, whether neither has."""
    words, others = normalise(answer).split(), normalise(right).split()
    if not words or not others:
        return float(words == others)
    common = sum((Counter(words) & Counter(others)).values())
    return 2 * common / (len(words) + len(others))


def mean_of_best(
    compare: Callable[[str, str], float], answers: Sequence[str], rights: Sequence[Sequence[str]]
) -> float:
    """Mean over questions of the comparison with the nearest right answer; where there is none, with an empty one."""
    best = [max(compare(answer, right) for right in some or [""]) for answer, some in zip(answers, rights, strict=True)]
    return sum(best) / len(best)
