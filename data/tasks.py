"""The task section -> training, validation and test examples that fit together, of any kind.

In: files of labelled examples, or "docstrings", the built-in task. Out: `TaskData`, with labels in a stable order.
Whatever is wrong with the files is a UserError, one line per fault, before anything starts. How one file is read is
data/labelled.py's.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from data import docstrings
from data.config import Task, UserError
from data.corpus import DOCSTRINGS
from data.examples import NO_ANSWER, Examples, TaskData
from data.formats import format_of, read_records
from data.labelled import read_examples
from data.lines import clean
from data.records import Bad
from data.schemes import breaks_of, detect_scheme, letters_of, repair

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

    task.train_size keeps the first n training examples of a shuffle by `seed`. Raises UserError, one line per fault: a
    file missing, empty or unreadable, a column missing, examples that cannot be used, one label only, a label that the
    training file has not.
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
        passages = _read_passages(task.passages)
    splits: dict[str, Examples] = {}
    faults: dict[str, None] = {}
    for split, key in keys.items():
        progress(f"task: reading {split}", None)
        try:
            splits[split] = read_examples(key, str(files[split]), task, kind, loss, passages)
        except UserError as error:
            faults[str(error)] = None
    if faults:
        raise UserError("\n".join(faults))
    notes: list[str] = []
    scheme = None
    if kind == "tagging":
        scheme = _scheme(task.scheme, keys["train"], splits["train"])
        for split, examples in splits.items():
            splits[split] = _repaired(keys[split], examples, scheme, notes)
    labels = _label_names(kind, loss, keys, splits, task.label, notes)
    _note_copies(keys, splits, notes)
    train = splits["train"]
    if task.train_size is not None and task.train_size < len(train):
        chosen = np.random.default_rng(seed).permutation(len(train))[: task.train_size]
        train = train.take(chosen.tolist())
    return TaskData(kind, labels, scheme, train, splits["validation"], splits.get("test"), passages, tuple(notes))


def _read_passages(file: str) -> dict[str, str]:
    """Texts by id. Raises UserError."""
    key, path = f"task.passages={file}", Path(file).expanduser()
    format = format_of(path.name)
    if not path.is_file() or format is None or format == "text":
        raise UserError(f"{key}: {'no such file' if not path.is_file() else 'its suffix tells no format'}; give a CSV, "
                        f"TSV, JSONL, Parquet or Arrow file with the columns id and text")  # fmt: skip
    passages: dict[str, str] = {}
    faults: list[str] = []
    for record in read_records(str(path), format, ("id", "text")):
        if isinstance(record, Bad):
            faults.append(str(record))
            continue
        number, text = record.values
        number = str(int(number)) if isinstance(number, float) and number.is_integer() else str(number or "").strip()
        if not number or not isinstance(text, str) or not text.strip() or clean(text) is None:
            faults.append(f"{file}:{record.line}: no {'valid text' if number else 'id'}")
        elif passages.setdefault(number, text.strip()) != text.strip():
            faults.append(f"{file}:{record.line}: another text for the id {number!r}")
    if faults:
        raise UserError(f"{key}: {len(faults)} passages cannot be used, first {faults[0]}; repair or remove them")
    if not passages:
        raise UserError(f"{key}: holds no passages; give a file with the columns id and text")
    return passages


def _scheme(given: str | None, key: str, train: Examples) -> str | None:
    """How tags mark entities, None where they mark none. Raises UserError where they cannot be of the scheme given."""
    sentences: list[list[str]] = train.targets or []
    if given is None or given == "io":
        return given or detect_scheme(sentences)
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


def _repaired(key: str, examples: Examples, scheme: str | None, notes: list[str]) -> Examples:
    """Examples whose tags keep to the scheme, by the rule of data/schemes.py."""
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
    letters = letters_of(examples.targets)
    targets = [repair(tags, scheme, letters) if at else tags for tags, at in zip(examples.targets, broken, strict=True)]
    return replace(examples, targets=targets)


def _names(kind: str, target: Any) -> Iterable[str]:
    """The labels in one target."""
    return (target,) if kind == "classification" else target


def _label_names(
    kind: str, loss: str, keys: dict[str, str], splits: dict[str, Examples], column: str, notes: list[str]
) -> list[str]:
    """The labels of a task (see TaskData), of which no split may hold others. Raises UserError."""
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
            faults.append(
                f"{key}: {_counted(number)} with labels that task.train has not: {_named(names)} (it has "
                f"{_named(labels)}); add examples of them to the training file or remove these"
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


def _note_copies(keys: dict[str, str], splits: dict[str, Examples], notes: list[str]) -> None:
    """Count the examples that stand in the training file too."""
    known = set(_texts_of(splits["train"]))
    for split in ("validation", "test"):
        if split in splits and (number := sum(texts in known for texts in _texts_of(splits[split]))):
            of = len(splits[split])
            notes.append(f"{keys[split]}: {number} of {_counted(of)} stand in task.train too; they tell little")


def _texts_of(examples: Examples) -> list[tuple[Any, ...]]:
    columns = [column for column in (examples.texts, examples.pairs, examples.choices) if column is not None]
    return [tuple(tuple(c) if isinstance(c, list) else c for c in texts) for texts in zip(*columns, strict=True)]


def _counted(examples: int) -> str:
    return f"{examples} example{'s' * (examples != 1)}"


def _named(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names[:NAMED]) + (", ..." if len(names) > NAMED else "")
