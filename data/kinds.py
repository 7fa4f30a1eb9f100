"""The files of a task whose head.kind is left open -> the kind that they are of, and the columns of their texts.

In: the task section. Out: what was found and what tells it, or a UserError: what could be of two kinds is asked for,
not guessed. Reads labels and words of the training file; examples are data/labelled.py's.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from data.config import Task, UserError
from data.conll import SUFFIXES as SENTENCE_SUFFIXES
from data.conll import suffix_of
from data.corpus import DOCSTRINGS
from data.formats import Format, columns_in, read_records
from data.labelled import number_of
from data.lines import READ_ERRORS
from data.records import Bad, lacking
from data.refusals import cannot_go_on, named_by, of_task, path_of, table_format, unreadable
from data.squad import FIELDS, read_squad
from data.words import words_of

MANY = 20  # so many different numbers are classes at most; more are measurements
PAIRS = {"sentence1": "sentence2", "premise": "hypothesis", "sentence_A": "sentence_B", "question1": "question2"}
"""Columns of two texts, as the sets in use call them."""
BESIDE_TEXT = ("text_pair", "text2")  # what the second text is called where the first is `text`
NO_TEXT = ("id", "idx", "index")  # may stand beside a `sentence`; a question there would make it a second text


@dataclass(frozen=True)
class Found:
    """How the files of a task are read."""

    kind: str
    text: str
    """Column of the text."""
    text_pair: str | None
    """Column of the second text, where there is one."""
    note: str
    """What was found, from what, and how to say otherwise; empty for the built-in task."""


def find_kind(task: Task, implied: str | None = None) -> Found:
    """The kind of a task by its training file; `implied`: that for which alone the head's settings are.

    SQuAD's JSON is answering; CoNLL, or as many tags as words in every row, tagging; lists of labels are multi_label;
    task.choices says multiple_choice, task.passages embedding; numbers with fractions, or more than MANY different
    ones, are regression; anything else is classification. Raises UserError where the file cannot be read, lacks the
    columns, or holds labels most of which stand once.
    """
    if task.train == DOCSTRINGS and implied is None:
        return Found("classification", task.text, task.text_pair, "")
    told = "task.choices" if task.choices else "task.passages" if task.passages else None
    if implied is not None or told is not None:
        kind = implied or ("multiple_choice" if task.choices else "embedding")
        return Found(kind, task.text, task.text_pair, _note(kind, told or "the settings of head"))
    key = f"task.train={task.train}"
    path = path_of(key, task.train, task.encoding)
    suffix = suffix_of(path) if task.format is None else task.format
    try:
        if suffix == ".json" and read_squad(task.train, path, task.encoding) is not None:
            return Found("answering", task.text, task.text_pair, _note("answering", f"{key} (SQuAD's JSON)"))
        if suffix == "conll" or (suffix in SENTENCE_SUFFIXES and suffix != ".txt"):
            return Found("tagging", task.text, task.text_pair, _note("tagging", f"{key} (a word on each line)"))
        return _of_table(key, path, table_format(key, path, task, (".conll", ".conllu")), task)
    except READ_ERRORS as error:
        raise unreadable(key, error) from None


def _note(kind: str, source: str) -> str:
    return f"kind {kind}, found from {source}; give head.kind=KIND for another"


def _of_table(key: str, path: str, format: Format, task: Task) -> Found:
    columns = columns_in(path, format, task.encoding)
    text, pair = _text_columns(task, columns)
    named = named_by("classification", {"text": text, "label": task.label})
    named += ", or give head.kind=embedding for pairs without a label"
    lacks = [name for name in (text, task.label) if not {name, name.split(".")[0]} & set(columns)]
    if format == "jsonl" and columns and lacks:  # tables say so themselves, and what may be the cause
        raise UserError(f"{of_task(str(lacking(path, lacks, columns)))}; {named}")
    labels: list[Any] = []
    tags_fit, most_tags = True, 0
    try:
        for record in read_records(path, format, (text, task.label), task.encoding):
            if isinstance(record, Bad):
                cannot_go_on(record)
                continue  # reading the examples will say so
            label = _parsed(record.values[1])
            if label is None or label != label or label == "":
                continue
            labels.append(label)
            if tags_fit:
                tags = label.split() if isinstance(label, str) else _words(label)
                tags_fit, most_tags = len(tags) == len(_words(record.values[0])), max(most_tags, len(tags))
    except UserError as error:
        raise UserError(f"{of_task(str(error))}; {named}") from None
    kind, why = _by_labels(key, task.label, labels, tags_fit and most_tags > 1)
    pair = pair if kind in ("classification", "regression") else task.text_pair
    if (text, pair) != (task.text, task.text_pair):
        why += f"; texts in {text}" + f" and {pair}" * (pair is not None)
    return Found(kind, text, pair, _note(kind, f"{key} ({why})"))


def _text_columns(task: Task, columns: Sequence[str]) -> tuple[str, str | None]:
    """Columns of the text and of the second one; what the config leaves open is told by their names."""
    if task.text != "text" or task.text_pair is not None:
        return task.text, task.text_pair
    if "text" in columns:
        return "text", next((name for name in BESIDE_TEXT if name in columns), None)
    pairs = [(first, second) for first, second in PAIRS.items() if {first, second} <= set(columns)]
    if not pairs and set(columns) - {task.label, *NO_TEXT} == {"sentence"}:
        return "sentence", None
    return pairs[0] if len(pairs) == 1 else ("text", None)


def _parsed(label: Any) -> Any:
    """A label as it stands in a file; a list in JSON, of a CSV, as the list."""
    if isinstance(label, str):
        label = label.strip()
        if label.startswith("["):
            try:
                return json.loads(label)
            except (ValueError, RecursionError):
                return label
    return label


def _words(value: Any) -> list[Any]:
    return value if isinstance(value, list) else words_of(value) if isinstance(value, str) else [value]


def _by_labels(key: str, column: str, labels: Sequence[Any], are_tags: bool) -> tuple[str, str]:
    """The kind, and the reason. Raises UserError where labels are no classes."""
    if labels and all(_is_answer(label) for label in labels):
        return "answering", f"{' and '.join(FIELDS)} in {column}"
    if are_tags:
        return "tagging", f"as many tags in {column} as words"
    if any(isinstance(label, list) for label in labels):
        return "multi_label", f"lists of labels in {column}"
    numbers = {_number(label) for label in labels}
    if numbers and None not in numbers:
        if any(not number.is_integer() for number in numbers if number is not None):
            return "regression", f"numbers with fractions in {column}"
        if len(numbers) > MANY:
            return "regression", f"{len(numbers)} different numbers in {column}"
    counts = Counter(map(str, labels))
    once = sum(count == 1 for count in counts.values())
    if len(counts) > MANY and 2 * once > len(counts):
        raise UserError(
            f"{key}: {once} of {len(counts)} different labels in column {column!r} stand once, so they seem to be no "
            f"classes; give head.kind=KIND, or another task.label=COLUMN"
        )
    commas = sum("," in label for label in counts)
    why = f"{len(counts)} different labels in {column}"
    return "classification", why + f", {commas} of them with commas: not read as several" * bool(commas)


def _is_answer(label: Any) -> bool:
    """Is it an answer with its place, or some of them, as SQuAD has them?"""
    each = label if isinstance(label, list) and label else [label]
    return all(isinstance(one, dict) and set(FIELDS) <= one.keys() for one in each)


def _number(label: Any) -> float | None:
    try:
        return number_of(label, "")
    except ValueError:
        return None
