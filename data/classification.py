"""Files of labelled texts (or the built-in task) -> texts and integer labels, and their tokens.

In: CSV, TSV, JSONL or Parquet files with a text and a label column; "docstrings" stands for the built-in task.
Out: `TaskData` with the labels in a stable order; padded token arrays. What is wrong with a file is a UserError.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data import docstrings
from data.config import UserError
from data.corpus import DOCSTRINGS
from data.formats import COMPRESSED, SUFFIXES, format_of, read_records
from data.lines import clean
from data.records import Bad
from data.tokenizer import load_tokenizer

NAMED = 5  # values named in a message before it says "..."


@dataclass(frozen=True)
class Split:
    """Labelled texts: `labels` (N,) int64 are places in TaskData.labels."""

    texts: list[str]
    labels: np.ndarray
    num_blank: int = 0
    """Examples left out because their text is blank."""


@dataclass(frozen=True)
class TaskData:
    """A classification task; `labels` are the names, sorted, so that a label's number does not depend on file order."""

    labels: list[str]
    train: Split
    validation: Split
    test: Split | None


def load_task(
    train: str,
    validation: str | None,
    test: str | None,
    text: str,
    label: str,
    seed: int,
    train_size: int | None,
    cache: Path,
    progress: Callable[[str, float | None], None],
    run: str = "cloze",
) -> TaskData:
    """Read a task. Labels are the texts of the label column, named by the training file before `train_size` cuts it.

    `train_size` keeps the first n training examples of a shuffle by `seed`. Raises UserError, one line per fault: file
    missing or empty, column missing, examples unreadable or without a label, one label only, a label that the
    training file has not.
    """
    files: dict[str, str | None] = {"train": train, "validation": validation, "test": test}
    if train == DOCSTRINGS:
        built_in = {split: str(path) for split, path in docstrings.docstring_task(cache, progress, run=run).items()}
        files = {split: built_in[split] if split == "train" else files[split] or built_in[split] for split in files}
        text, label = "text", "label"
    read: dict[str, tuple[list[str], list[str], int]] = {}
    faults: list[str] = []
    for split, file in files.items():
        if file is not None:
            progress(f"task: reading {split}", None)
            try:
                read[split] = _read(f"task.{split}={file}", file, text, label)
            except UserError as error:
                faults.append(str(error))
    if faults:
        raise UserError("\n".join(faults))
    labels = sorted(set(read["train"][1]))
    if len(labels) < 2:
        raise UserError(
            f"task.train={files['train']}: its {len(read['train'][1])} examples all have the label {labels[0]!r} in "
            f"column {label!r}; a classifier needs two or more, or another task.label=COLUMN"
        )
    splits = {split: _number(f"task.{split}={files[split]}", labels, *parts) for split, parts in read.items()}
    whole = splits["train"]
    if train_size is not None and train_size < len(whole.texts):
        chosen = np.random.default_rng(seed).permutation(len(whole.texts))[:train_size]
        splits["train"] = Split([whole.texts[i] for i in chosen], whole.labels[chosen], whole.num_blank)
    return TaskData(labels, splits["train"], splits["validation"], splits.get("test"))


def _read(key: str, file: str, text: str, label: str) -> tuple[list[str], list[str], int]:
    """Texts, labels (as written) and the number of blank texts of one file; `key` begins each message."""
    path = Path(file).expanduser()
    format = format_of(path.name)
    if not path.is_file():
        raise UserError(f"{key}: no such file; correct the path")
    if format is None or format == "text":
        known = " ".join(suffix for suffix, name in SUFFIXES.items() if name != "text")
        raise UserError(f"{key}: its suffix tells no format; give one of {known}, also with {' '.join(COMPRESSED)}")
    texts: list[str] = []
    labels: list[str] = []
    num_blank = 0
    bads: list[str] = []
    try:
        for record in read_records(str(path), format, (text, label)):
            place = f"{file}:{record.line}"
            fault = str(record) if isinstance(record, Bad) else _fault(place, record.values, text, label)
            if fault is not None:
                bads.append(fault)
            elif record.values[0] is None or not record.values[0].strip():  # type: ignore[union-attr]
                num_blank += 1
            else:
                texts.append(record.values[0].strip())  # type: ignore[union-attr]
                labels.append(_name(record.values[1]))  # type: ignore[union-attr]
    except UserError as error:
        raise UserError(f"{error}; name them with task.text=COLUMN and task.label=COLUMN") from None
    if bads:
        raise UserError(f"{key}: {len(bads)} examples cannot be used, first {bads[0]}; repair or remove them")
    if not texts:
        blank = f" ({num_blank} with a blank text)" if num_blank else ""
        raise UserError(f"{key}: holds no examples{blank}; give a file with texts and labels")
    return texts, labels, num_blank


def _fault(place: str, values: tuple[object, ...], text: str, label: str) -> str | None:
    """What is wrong with one example, None if nothing is. A blank text is no fault."""
    if values[0] is not None and not isinstance(values[0], str):
        return f"{place}: {text} is {type(values[0]).__name__}, not text"
    if isinstance(values[0], str) and clean(values[0]) is None:
        return f"{place}: {text} is not valid UTF-8"
    if isinstance(values[1], dict | list):
        return f"{place}: {label} is {type(values[1]).__name__}, not one label"
    if (values[1] is None or not str(values[1]).strip() or values[1] != values[1]) and str(values[0] or "").strip():
        return f"{place}: no {label}"
    return None


def _name(label: object) -> str:
    """A label as its name: 3.0 (a column that held nulls somewhere becomes float) and 3 are one label."""
    return str(int(label)) if isinstance(label, float) and label.is_integer() else str(label).strip()


def _number(key: str, labels: list[str], texts: list[str], names: list[str], num_blank: int) -> Split:
    places = {label: i for i, label in enumerate(labels)}
    unknown = Counter(name for name in names if name not in places)
    if unknown:
        named = ", ".join(repr(name) for name in sorted(unknown)[:NAMED]) + (", ..." if len(unknown) > NAMED else "")
        known = ", ".join(repr(name) for name in labels[:NAMED]) + (", ..." if len(labels) > NAMED else "")
        raise UserError(
            f"{key}: {unknown.total()} examples have labels that task.train has not: {named} (it has {known}); "
            f"add examples of them to the training file or remove these"
        )
    return Split(texts, np.array([places[name] for name in names], np.int64), num_blank)


def tokenise(texts: Sequence[str], tokenizer_folder: str | Path, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Token ids of texts with special tokens, cut to `length`: ids (N, T) int32 padded with the pad id, lengths (N,).

    T is the longest text's, at most `length`.
    """
    tokenizer = load_tokenizer(tokenizer_folder)
    encoded = tokenizer(list(texts), truncation=True, max_length=length, return_attention_mask=False)["input_ids"]
    lengths = np.array([len(ids) for ids in encoded], np.int32)
    padded = np.full((len(texts), lengths.max(initial=1)), tokenizer.pad_token_id, np.int32)
    for row, ids in zip(padded, encoded, strict=True):
        row[: len(ids)] = ids
    return padded, lengths
