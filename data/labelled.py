"""One file of labelled examples, of any kind -> `Examples`.

In: a file and the columns that the task section names. Out: its examples in order; whatever is wrong with the file is
one UserError in one line (data/refusals.py). What several files of a task must have in common is data/tasks.py's.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from data.config import Task, UserError
from data.conll import SUFFIXES as SENTENCE_SUFFIXES
from data.conll import read_conll, suffix_of
from data.examples import Example, Examples, Read
from data.formats import read_records
from data.lines import READ_ERRORS, clean
from data.records import Bad
from data.refusals import cannot_go_on, named_by, of_task, path_of, table_format, unreadable
from data.squad import answered, read_squad
from data.words import words_of

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"  # of choices
SECOND = {"answering": "context", "embedding": "passage"}  # the column of the second text where none is named


def read_examples(
    key: str,
    file: str,
    task: Task,
    kind: str,
    loss: str,
    passages: Mapping[str, str] | None = None,
    grouped: bool = False,
) -> Examples:
    """Examples of one file; `key` begins the message of what is wrong. Raises UserError.

    `loss` is an embedding's; `passages` its texts by id, where task.passages gives them. `grouped`: with the values of
    task.group.
    """
    path = path_of(key, file, task.encoding)
    examples: list[tuple[str, Example]] = []
    faults: list[str] = []
    num_blank = 0
    try:
        for place, found in _read(key, file, path, task, kind, loss, passages, task.group if grouped else None):
            if isinstance(found, str):
                faults.append(f"{place}: {found}" if place else found)
            elif found is None:
                num_blank += 1
            else:
                examples.append((place, found))
    except READ_ERRORS as error:
        raise unreadable(key, error) from None
    if faults:
        remedy = "repair or remove them"
        if any("not valid text" in fault or fault.endswith(": encoding") for fault in faults):
            remedy += f", or give task.encoding=NAME of theirs (it is {task.encoding})"
        raise UserError(f"{key}: {len(faults)} examples cannot be used, first {faults[0]}; {remedy}")
    if not examples:
        blank = f" ({num_blank} with a blank text)" if num_blank else ""
        raise UserError(f"{key}: holds no examples{blank}; give a file with {_WANTED.get(kind, 'texts and labels')}")
    return Examples.of(kind, examples, num_blank)


_WANTED = {"tagging": "words and tags", "answering": "questions, contexts and answers", "embedding": "pairs of texts"}


def _read(
    key: str,
    file: str,
    path: str,
    task: Task,
    kind: str,
    loss: str,
    passages: Mapping[str, str] | None,
    group: str | None,
) -> Iterator[Read]:
    """Examples, or what is wrong with them, by the file's form."""
    sentences = task.format == "conll" or (task.format is None and suffix_of(path) in SENTENCE_SUFFIXES)
    found = read_conll(file, path, task.label, task.encoding) if kind == "tagging" and sentences else None
    if kind == "answering" and task.format is None and suffix_of(path) == ".json":
        found = read_squad(file, path, task.encoding)
    if found is not None:
        if group is not None:
            raise UserError(f"task.group={group}: {key} has no columns; leave it out")
        yield from found
        return
    format = table_format(key, path, task, SENTENCE_SUFFIXES if kind == "tagging" else ())
    columns = columns_of(task, kind, loss)
    grouped = {} if group is None else {"group": group}
    fields = tuple(dict.fromkeys((columns | grouped).values()))
    try:
        for record in read_records(path, format, fields, task.encoding):
            if isinstance(record, Bad):
                cannot_go_on(record)
                yield "", of_task(str(record))
                continue
            values = dict(zip(fields, record.values, strict=True))
            try:
                of = {name: values[column] for name, column in columns.items()}
                example = _example(kind, loss if kind == "embedding" else kind, of, columns, passages)
                if isinstance(example, Example) and group is not None:
                    example = example._replace(group=_label(values[group], group))
            except ValueError as error:
                example = str(error)
            yield f"{file}:{record.line}", example
    except UserError as error:
        raise UserError(f"{of_task(str(error))}; {named_by(kind, columns, group)}") from None


def columns_of(task: Task, kind: str, loss: str = "in_batch") -> dict[str, str]:
    """Which column is read as what: {"text": ..., "text_pair": ..., "label": ..., "choices[0]": ...}.

    Raises UserError.
    """
    columns = {"text": task.text}
    pair = task.text_pair or SECOND.get(kind)
    if kind == "embedding" and task.passages is not None:
        pair = None
    if kind in ("tagging", "multiple_choice", "multi_label") and task.text_pair is not None:
        raise UserError(f"task.text_pair={task.text_pair}: a {kind} task has no second text; leave it out")
    if pair is not None:
        columns["text_pair"] = pair
    if kind != "embedding" or loss != "in_batch" or task.passages is not None:
        columns["label"] = task.label
    if kind == "multiple_choice":
        if len(task.choices) < 2:
            raise UserError(
                f"task.choices={list(task.choices)}: a multiple_choice task has two or more; give the columns that "
                f"hold them, task.choices=[COLUMN,COLUMN]"
            )
        if len(set(task.choices)) < len(task.choices):
            raise UserError(f"task.choices={list(task.choices)}: a column stands twice; name each choice's own")
        columns |= {f"choices[{i}]": column for i, column in enumerate(task.choices)}
    return columns


def _example(
    kind: str, target: str, values: Mapping[str, Any], columns: Mapping[str, str], passages: Mapping[str, str] | None
) -> Example | str | None:
    """One example of a table; None where it is blank. Raises ValueError for what is wrong with it."""
    if kind == "answering":
        return answered(values["text"], values["text_pair"], values["label"])
    if kind == "tagging":
        return _tagged(values["text"], values["label"], columns)
    text = _text(values["text"], columns["text"])
    pair = _text(values["text_pair"], columns["text_pair"]) if "text_pair" in values else None
    if kind == "multiple_choice":
        names = [name for name in columns if name.startswith("choices")]
        choices = [_text(values[name], columns[name]) for name in names]
        for name, choice in zip(names, choices, strict=True):
            if text and not choice:
                raise ValueError(f"no {columns[name]}")
        return (
            Example(text, _choice(values["label"], columns["label"], len(choices)), choices=choices) if text else None
        )
    if not text and not pair:
        return None
    if not text or pair == "":
        raise ValueError(f"no {columns['text' if not text else 'text_pair']}, one side of a pair")
    if passages is not None:
        number = _label(values["label"], columns["label"])
        if number not in passages:
            raise ValueError(f"task.passages has no passage with the id {number!r}")
        return Example(text, None, passages[number], passage_id=number)
    return Example(text, _TARGETS[target](values["label"], columns["label"]) if "label" in values else None, pair)


def _text(value: Any, column: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{column} is {type(value).__name__}, not text")
    if clean(value) is None:
        raise ValueError(f"{column} is not valid text")
    return value.strip()


def _label(value: Any, column: str) -> str:
    """A label as its name: 3.0 (a column that held nulls somewhere becomes float) and 3 are one label."""
    if isinstance(value, dict | list):
        raise ValueError(f"{column} is {type(value).__name__}, not one label")
    if value is None or value != value or not str(value).strip():
        raise ValueError(f"no {column}")
    if clean(str(value)) is None:
        raise ValueError(f"{column} is not valid text")
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()


def _labels(value: Any, column: str) -> tuple[str, ...]:
    """Several labels, or none: a list, a JSON list as text, or a text with commas."""
    if isinstance(value, str) and value.strip().startswith("["):
        try:
            value = json.loads(value)
        except (json.JSONDecodeError, RecursionError):
            raise ValueError(f"{column} is {value[:60]!r}, no list in JSON nor labels between commas") from None
    if value is None or value != value:
        return ()
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else [value]
    if len(parts) > len(set(map(str, parts))) and all(str(part) in _FLAGS for part in parts):
        raise ValueError(f"{column} is a vector of 0 and 1; give the names of the labels that an example has")
    return tuple(dict.fromkeys(_label(part, column) for part in parts if part is not None and str(part).strip()))


_FLAGS = ("0", "1", "0.0", "1.0", "False", "True")


def number_of(value: Any, column: str) -> float:
    try:
        number = float(value) if isinstance(value, str | int | float) and "_" not in str(value) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if isinstance(value, bool) or not math.isfinite(number):
        raise ValueError(f"{column} is {str(value)[:60]!r}, not a number")
    return number


def _cosine(value: Any, column: str) -> float:
    number = number_of(value, column)
    if not -1 <= number <= 1:
        raise ValueError(f"{column} is {number:g}, no cosine (-1 to 1); divide all by the largest that there may be")
    return number


def _choice(value: Any, column: str, num_choices: int) -> int:
    name = _label(value, column)
    number = LETTERS.find(name.upper()) if len(name) == 1 and name.isalpha() else int(name) if name.isdecimal() else -1
    if not 0 <= number < num_choices:
        raise ValueError(
            f"{column} is {name!r}, not the number of a choice, 0 to {num_choices - 1}, nor A to "
            f"{LETTERS[num_choices - 1] if num_choices <= len(LETTERS) else 'Z'}"
        )
    return number


_TARGETS = {
    "classification": _label, "multi_label": _labels, "regression": number_of, "softmax": _label, "cosine": _cosine,
}  # fmt: skip


def _tagged(value: Any, tags: Any, columns: Mapping[str, str]) -> Example | None:
    """Words with their tags."""
    if isinstance(value, list):
        words = [str(word) for word in value]
        text = " ".join(words)
    else:
        text = _text(value, columns["text"])
        words = words_of(text)
    if clean(text) is None:
        raise ValueError(f"{columns['text']} is not valid text")
    of = tags.split() if isinstance(tags, str) else [] if tags is None else tags
    if not isinstance(of, Sequence):
        raise ValueError(f"{columns['label']} is {type(tags).__name__}, not a list of tags nor tags between spaces")
    if len(words) != len(of):
        raise ValueError(f"{len(words)} words in {columns['text']}, but {len(of)} tags in {columns['label']}")
    for number, word in enumerate(words, 1):
        if not word:
            raise ValueError(f"word {number} of {columns['text']} is empty")
    return Example(text, [_label(tag, columns["label"]) for tag in of], words=words) if words else None
