"""The task section -> training, validation and test examples that fit together, of any kind.

In: files of labelled examples, or "docstrings", the built-in task. Out: `TaskData`, with labels in a stable order.
Whatever is wrong with the files is a UserError, one line per fault, before anything starts. How one file is read is
data/labelled.py's.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from data import docstrings
from data.config import Task, UserError
from data.copies import copies_across
from data.corpus import DOCSTRINGS
from data.examples import NO_ANSWER, Examples, TaskData
from data.holdout import LEAST_SPLIT, count_units, hold_out
from data.labelled import read_examples
from data.passages import read_passages
from data.schemes import breaks_of, detect_scheme, letters_of, marks_entity, repair

NAMED = 5  # values named in a message before it says "..."


def load_task(
    task: Task,
    kind: str,
    seed: int,
    cache: Path,
    progress: Callable[[str, float | None], None],
    run: str = "cloze",
    loss: str = "in_batch",
) -> TaskData:
    """Read a task of a head's kind; `loss` is an embedding head's. Labels are those of the whole training file.

    Splits without a file are made of the training file by `seed` (data/holdout.py); task.train_size then keeps the
    first n training examples of a shuffle by it. Raises UserError, one line per fault: a file missing, empty or
    unreadable, a column missing, examples that cannot be used or divided, one label only, a label that the training
    file has not.
    """
    files: dict[str, str | None] = {"train": task.train, "validation": task.validation, "test": task.test}
    if task.train == DOCSTRINGS:
        if kind != "classification":
            raise UserError(f"task.train=docstrings: the built-in task is of kind classification, head.kind is {kind}; "
                            f"give task.train=FILE")  # fmt: skip
        built_in = docstrings.docstring_task(cache, progress, run=run)
        for split, path in built_in.items():
            files[split] = str(path) if split == "train" else files[split] or str(path)
        task = Task(**{**task.model_dump(), "text": "text", "label": "label", "text_pair": None})
    keys = {split: f"task.{split}={file}" for split, file in files.items() if file is not None}
    passages = None
    if task.passages is not None and kind == "embedding":
        progress("task: reading passages", None)
        passages = read_passages(task.passages, task.encoding)
    splits: dict[str, Examples] = {}
    faults: dict[str, None] = {}
    for split, key in keys.items():
        progress(f"task: reading {split}", None)
        try:
            grouped = split == "train" and task.group is not None
            splits[split] = read_examples(key, str(files[split]), task, kind, loss, passages, grouped)
        except UserError as error:
            faults[str(error)] = None
    if faults:
        raise UserError("\n".join(faults))
    notes = [
        f"{keys[split]}: {_counted(examples.num_blank)} with a blank text left out"
        for split, examples in splits.items() if examples.num_blank
    ]  # fmt: skip
    scheme = None
    if kind == "tagging":
        scheme = _scheme(task.scheme, keys["train"], splits["train"])
        letters = letters_of(splits["train"].targets or [])
        for split, examples in splits.items():
            splits[split] = _repaired(keys[split], examples, scheme, letters, notes)
    labels = _label_names(kind, loss, keys, splits, task, notes)
    labelled = kind == "classification" or (kind == "embedding" and loss == "softmax")
    splits = _divided(keys["train"], task, splits, seed, labelled, notes)
    notes += copies_across({split: keys.get(split, f"task.{split}") for split in splits}, splits)
    train = splits["train"]
    if task.train_size is not None and task.train_size < len(train):
        chosen = np.random.default_rng(seed).permutation(len(train))[: task.train_size]
        train = train.take(chosen.tolist())
    return TaskData(
        kind, labels, scheme, train, splits["validation"], splits.get("test"), passages,
        task.unseen_labels == "count_wrong", tuple(notes),
    )  # fmt: skip


def _scheme(given: str | None, key: str, train: Examples) -> str | None:
    """How tags mark entities, None where they mark none. Raises UserError where they cannot be of the scheme given."""
    sentences: list[list[str]] = train.targets or []
    if given is None or given == "io":
        found = given or detect_scheme(sentences)
        if found is None and (odd := _odd(sentences)):
            raise UserError(
                f"{key}: most tags mark entities, but {_named(odd)} {'is' if len(odd) == 1 else 'are'} of no scheme; "
                f"repair the file"
            )
        return found
    if detect_scheme(sentences) is None:
        plain = sorted(
            {tag for tags in sentences for tag in tags if tag != "O" and "-" not in tag and tag not in "BIES"}
        )
        if plain:
            raise UserError(
                f"task.scheme={given}: tags of {key} begin with no letter of a scheme: {_named(plain)}; leave it out "
                f"where tags mark no entities"
            )
    return given


def _odd(sentences: list[list[str]]) -> list[str]:
    """Tags that mark no entity, where nine of ten that are not O do: slips, not parts of speech."""
    times = Counter(tag for tags in sentences for tag in tags if tag != "O")
    odd = sorted(tag for tag in times if not marks_entity(tag))
    return odd if sum(times[tag] for tag in odd) <= times.total() / 10 else []


def _repaired(
    key: str, examples: Examples, scheme: str | None, letters: Mapping[str, str], notes: list[str]
) -> Examples:
    """Examples whose tags keep to the scheme, by the rule of data/schemes.py; `letters`: those of the training tags."""
    if scheme is None or examples.targets is None:
        return examples
    broken = [breaks_of(tags, scheme) for tags in examples.targets]
    first = next((i for i, places in enumerate(broken) if places), None)
    if first is None:
        return examples
    tags, at = examples.targets[first], broken[first][0]
    before = f"behind {tags[at - 1]}" if at else "at the beginning"
    place = examples.places[first] if examples.places else ""
    notes.append(
        f"{key}: {sum(map(len, broken))} tags in {sum(map(bool, broken))} sentences break the scheme {scheme}, first "
        f"{place} word {at + 1}: {tags[at]} {before}; read as conlleval reads them"
    )
    targets = [repair(tags, scheme, letters) if at else tags for tags, at in zip(examples.targets, broken, strict=True)]
    return replace(examples, targets=targets)


def _names(kind: str, target: Any) -> Iterable[str]:
    """The labels in one target."""
    return (target,) if kind == "classification" else target


def _label_names(
    kind: str, loss: str, keys: dict[str, str], splits: dict[str, Examples], task: Task, notes: list[str]
) -> list[str]:
    """The labels of a task (see TaskData), and whether a split may hold others. Raises UserError."""
    column = task.label
    if kind == "answering":
        return _answer_labels(keys, splits, notes)
    kind = "classification" if kind == "embedding" and loss == "softmax" else kind
    targets = {split: examples.targets or [] for split, examples in splits.items()}
    if kind == "regression" and len(set(targets["train"])) == 1:
        notes.append(f"{keys['train']}: {column} is {targets['train'][0]:g} in all examples: there is nothing to learn")
    if kind not in ("classification", "multi_label", "tagging"):
        return []
    labels = sorted({name for target in targets["train"] for name in _names(kind, target)})
    least = 1 if kind == "multi_label" else 2
    if len(labels) < least:
        needs = {"classification": "a classifier needs two or more", "multi_label": "a head needs one or more"}
        what = f"all have the label {labels[0]!r}" if labels else "have no label at all"
        raise UserError(
            f"{keys['train']}: its {_counted(len(targets['train']))} {what} in column {column!r}; "
            f"{needs.get(kind, 'a tagger needs two or more')}, or another task.label=COLUMN"
        )
    faults: list[str] = []
    for split, key in keys.items():
        unknown = [sorted(set(_names(kind, target)) - set(labels)) for target in targets[split]]
        if number := sum(map(bool, unknown)):
            names = sorted({name for some in unknown for name in some})
            told = f"{key}: {_counted(number)} with labels that task.train has not: {_named(names)} (it has "
            told += f"{_named(labels)}); "
            if task.unseen_labels == "count_wrong":
                notes.append(f"{told}they count as wrong")
                continue
            faults.append(
                f"{told}add examples of them to the training file, remove these, or give task.unseen_labels=count_wrong"
            )
    if faults:
        raise UserError("\n".join(faults))
    return labels


def _answer_labels(keys: dict[str, str], splits: dict[str, Examples], notes: list[str]) -> list[str]:
    lacking = {split: sum(not answers for answers in examples.targets or []) for split, examples in splits.items()}
    if lacking["train"] == len(splits["train"]):
        raise UserError(f"{keys['train']}: none of its {len(splits['train'])} questions has an answer; give others")
    for split, number in lacking.items():
        if number and not lacking["train"]:
            notes.append(f"{keys[split]}: {number} questions have no answer, in training all have: each will get one")
    return [NO_ANSWER] if lacking["train"] else []


def _divided(
    key: str, task: Task, splits: dict[str, Examples], seed: int, labelled: bool, notes: list[str]
) -> dict[str, Examples]:
    """All splits: those for which no file is given are held out of the training examples. Raises UserError.

    `labelled`: targets are one label each.
    """
    shares = {"validation": task.validation_fraction, "test": task.made_test_fraction}
    shares = {split: share for split, share in shares.items() if split not in splits and share is not None}
    if not shares:
        if task.group is not None:
            notes.append(f"task.group={task.group}: no split is made, so it decides nothing")
        return splits
    examples = splits["train"]
    made = hold_out(examples, shares, seed, labelled)
    for split, numbers in made.items():
        if not numbers and (split == "validation" or task.test_fraction is not None):
            raise _undivided(key, task, examples, split, shares[split])
    made = {split: numbers for split, numbers in made.items() if numbers}
    held = {number for numbers in made.values() for number in numbers}
    parts = {"train": [number for number in range(len(examples)) if number not in held], **made}
    counts = " and ".join(f"{len(numbers)} for {split}" for split, numbers in made.items())
    notes.append(f"{key}: of its {_counted(len(examples))} {counts} are held out, {len(parts['train'])} train")
    for split, numbers in made.items():
        asked = shares[split] * len(examples)
        if task.group is not None and not asked / 2 <= len(numbers) <= 2 * asked:
            notes.append(
                f"task.group={task.group}: {len(set(examples.groups or []))} groups, so {split} cannot have the "
                f"{asked:.0f} examples that it should"
            )
    if labelled and "validation" in made and examples.targets is not None:
        there = {examples.targets[number] for number in made["validation"]}
        times = Counter(examples.targets)
        if lacking := sorted(label for label in times if times[label] >= LEAST_SPLIT and label not in there):
            notes.append(f"{key}: all examples of the label {_named(lacking)} are of one group, or copies: none is in "
                         f"validation")  # fmt: skip
    divided = splits | {split: examples.take(numbers) for split, numbers in parts.items()}
    return {split: divided[split] for split in ("train", "validation", "test") if split in divided}


def _undivided(key: str, task: Task, examples: Examples, split: str, share: float) -> UserError:
    """Why nothing can be held out for a split."""
    remedy = f"give task.{split}=FILE"
    if share * len(examples) < 0.5:
        return UserError(f"task.{split}_fraction={share:g}: of the {_counted(len(examples))} of {key} that is none; "
                         f"{remedy}, more examples or a larger fraction")  # fmt: skip
    if task.group is not None:
        return UserError(
            f"task.group={task.group}: the {count_units(examples)} groups of {key} (those that share a text are one) "
            f"are too few to hold one out for {split} and leave all labels in training; {remedy}, or leave it out"
        )
    return UserError(
        f"{key}: no example can be held out for {split} without taking the last one of a label from training "
        f"(copies of a text stay together); {remedy}, or more examples"
    )


def _counted(examples: int) -> str:
    return f"{examples} example{'s' * (examples != 1)}"


def _named(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names[:NAMED]) + (", ..." if len(names) > NAMED else "")
