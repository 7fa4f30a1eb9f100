"""Examples -> which of them are copies of others, within a split and across splits. Pure.

In: examples. Out: a key for each, and what is to be said of copies. Case and white space do not count: "A  dog" is a
copy of "a dog". Of an example with several texts all must be the same.
"""

from collections.abc import Mapping
from typing import Any

from data.examples import Examples

Key = tuple[str, ...]


def copy_keys(examples: Examples) -> list[Key]:
    """What copies have in common, by example: its texts, their case folded, a space for all white space."""
    columns: list[list[Any]] = [examples.texts]
    columns += [column for column in (examples.pairs, examples.choices) if column is not None]
    return [
        tuple(" ".join(text.casefold().split()) for cell in cells for text in _texts(cell))
        for cells in zip(*columns, strict=True)
    ]


def _texts(cell: str | list[str]) -> list[str]:
    return [cell] if isinstance(cell, str) else cell


def copies_across(keys: Mapping[str, str], splits: Mapping[str, Examples]) -> list[str]:
    """A line for every two splits that have examples in common; `keys` name the splits in it."""
    known = {split: copy_keys(examples) for split, examples in splits.items()}
    notes: list[str] = []
    for i, (split, own) in enumerate(known.items()):
        for other in list(known)[:i]:
            there = set(known[other])
            if number := sum(key in there for key in own):
                notes.append(
                    f"{keys[split]}: {number} of {len(own)} example{'s' * (len(own) != 1)} ({number / len(own):.1%}) "
                    f"stand in task.{other} too, case and white space aside; they tell little"
                )
    return notes
