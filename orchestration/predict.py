"""A model with a head and a file of texts -> a file of answers, one line per input line, in order.

    ray.init()
    predict("runs/law-sweep/best", "letters.txt")

Out: JSONL. What stands in a line, by the kind of head (numbers rounded to 6 digits; beyond, they depend on how rows
were batched), or {"error": ...} for a line that is blank or cannot be read:

    classification   label, score; scores {label: probability} where asked for
    multi_label      labels [{label, score}] from 0.5 on; scores where asked for
    regression       value
    tagging          words, tags (one each), entities [{label, text, start, end, score}]: characters (code points) of
                     the line's text, or of the words joined by spaces where they came as a list
    answering        answer, start, end (characters of the context), score; "", 0, 0 where the text has none
    multiple_choice  choice (the number of its column, from 0), score
    embedding        of two texts: cosine, and where it was trained on labels label, score

What a line is stands in data/texts.py, what a head is in model/heads. Ray is joined by the caller.
"""

import json
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from data.config import UserError
from data.decoding import decode
from data.examples import Examples
from data.formats import Format
from data.texts import Value, check_input, count_lines, read_texts
from data.words import split_words
from model.encoder import check_folder
from model.heads.description import LARGEST_LENGTH, Description, describe_folder, read_description
from model.heads.loading import load_head
from model.opening import check_files, check_tokenizer
from orchestration.inference import Loaded, load, outputs_of
from orchestration.output import Progress, check_output, replacing, silent
from orchestration.places import blaming
from orchestration.pool import answer_lines

# Kind -> the columns it reads where none are named. The second text of the others is read where it is named.
COLUMNS: dict[str, tuple[str, str | None]] = {"answering": ("question", "context")}
PAIRED = ("classification", "multi_label", "regression", "answering", "embedding")
PLACES = ("tagging", "answering")  # answers tell characters of the text as it stands in the input
DIGITS = 6


class Fields(NamedTuple):
    """Columns of the input, None: those that the head was trained on, else the kind's own."""

    text: str | None = None
    """The text, the question, the words ("text"; "question")."""
    pair: str | None = None
    """The second text, the context that holds the answer (none; "context")."""
    choices: tuple[str, ...] = ()
    """multiple_choice: the choices."""


NO_FIELDS = Fields()


def check(
    model: Path | str,
    input: Path | str,
    output: Path | str | None = None,
    fields: Fields = NO_FIELDS,
    pickled: bool = False,
) -> tuple[Description, Format, Path]:
    """What small files tell, before weights are read and Ray starts: what the model is, the input's format, where the
    answers go.

    `predict` checks it again. Raises UserError: the model is none with a head; the input is missing, empty, of no known
    format or without a column that the head reads; the output cannot be written.
    """
    folder, source = Path(os.path.abspath(model)), Path(os.path.abspath(input))
    with blaming(model):
        config = check_files(folder, pickled)
        check_tokenizer(folder)
        about = read_description(folder)
        if about is None:
            about = describe_folder(folder, config, check_folder(folder, pickled), LARGEST_LENGTH)
    format = check_input(source, columns_of(about, fields), about.kind == "tagging")
    return about, format, check_output(source, output, ".predictions.jsonl")


def predict(
    model: Path | str,
    input: Path | str,
    output: Path | str | None = None,
    progress: Progress = silent,
    fields: Fields = NO_FIELDS,
    scores: bool = False,
    pickled: bool = False,
) -> Path:
    """Answer every line of `input`; returns the file written (None: INPUT.predictions.jsonl beside the input).

    `scores`: write the probability of every label. `pickled`: open pickled weights, which can run code. The file
    replaces an older one once it is whole. `progress` is told (what is done, share). Raises UserError before any work,
    for what `check` sees and for weights that cannot be loaded.
    """
    _, format, target = check(model, input, output, fields, pickled)
    folder, source = Path(os.path.abspath(model)), Path(os.path.abspath(input))
    progress("loading the model", None)
    with blaming(model):
        module, about = load_head(folder, pickled)
        loaded = load(module, about, folder)
    columns = columns_of(about, fields)
    if about.kind == "multiple_choice":
        module.group = len(columns) - 1
    num_lines = count_lines(source, format)
    lines = partial(read_texts, source, format, columns, about.kind == "tagging", about.kind in PLACES)

    done = errors = cut = 0
    with replacing(target) as part, part.open("w", encoding="utf-8") as file:
        for line in answer_lines(loaded, answer_texts, lines, num_lines, "cloze-predict"):
            done += 1
            errors += line.error is not None
            cut += line.error is None and line.answer["cut"]
            answer = {"error": line.error} if line.error is not None else shown(line.answer, scores)
            file.write(json.dumps(answer, ensure_ascii=False) + "\n")
            if done % 100 == 0:
                progress(f"{done:,} lines", min(line.number / num_lines, 1.0))
    notes = [f"{done - errors:,} lines labelled"]
    notes += [f"{errors:,} with an error instead"] if errors else []
    notes += [f"{cut:,} cut at {about.length} tokens"] if cut else []
    progress(", ".join(notes), 1.0)
    return target


def columns_of(about: Description, fields: Fields) -> tuple[str, ...]:
    """Columns of the input, the first text's first: those given, else those of the task that the head was trained on,
    else the kind's own. Raises UserError for those that the kind of head does not read."""
    kind, trained = about.kind, about.columns
    text, pair = COLUMNS.get(kind, ("text", None))
    text = trained[0] if trained else text
    if kind == "multiple_choice":
        fields = fields._replace(choices=fields.choices or trained[1:])
    elif len(trained) > 1 and kind in PAIRED:
        pair = trained[1]
    pair = fields.pair or pair
    if fields.choices and kind != "multiple_choice":
        raise UserError(f"--choices {','.join(fields.choices)}: this model's kind is {kind}; leave it out")
    if pair is not None and kind not in PAIRED:
        raise UserError(f"--pair-field {pair}: {kind} reads one text; leave it out")
    if kind == "multiple_choice" and len(fields.choices) != (about.num_choices or max(2, len(fields.choices))):
        given = f"--choices {','.join(fields.choices)}" if fields.choices else "--choices is missing"
        wanted = about.num_choices or "two or more"
        raise UserError(f"{given}: this model reads a column for each of {wanted} choices; name them")
    if kind == "embedding" and pair is None:
        raise UserError(
            "--pair-field is missing: an embedding tells how alike two texts are; name the second one's column, or "
            "write vectors with `cloze embed`"
        )
    return (fields.text or text, *([pair] if pair else []), *fields.choices)


def answer_texts(loaded: Loaded, lines: list[tuple[Value, ...]], device: str) -> list[dict[str, Any]]:
    """Answers to the lines, in their order: what data/decoding.py makes of them, and `words` of tagging."""
    about = loaded.about
    examples = examples_of(about.kind, lines)
    encoded = loaded.read(examples)
    found = decode(encoded, outputs_of(loaded.module, encoded, device), examples, about.labels, about.scheme)
    if examples.words is not None:
        return [{"words": words, **one} for words, one in zip(examples.words, found, strict=True)]
    return found


def examples_of(kind: str, lines: Sequence[tuple[Value, ...]]) -> Examples:
    """Lines as unlabelled examples of a kind."""
    if kind == "tagging":
        listed = [values[0] for values in lines]
        texts = [one if isinstance(one, str) else " ".join(one) for one in listed]
        words = [
            [one[start:end] for start, end in split_words(one)] if isinstance(one, str) else list(one) for one in listed
        ]
        return Examples(kind, texts, words=words)
    columns: list[list[str]] = [[str(value) for value in column] for column in zip(*lines, strict=True)]
    if kind == "multiple_choice":
        return Examples(kind, columns[0], choices=[list(row) for row in zip(*columns[1:], strict=True)])
    return Examples(kind, columns[0], columns[1] if len(columns) > 1 else None)


def shown(answer: Mapping[str, Any], scores: bool) -> dict[str, Any]:
    """What is written of an answer; `cut` only where not all of the text was read: then what is said of the rest (a
    tag "O") is no answer."""
    hidden = () if scores else ("scores",)
    told = {name: _rounded(value) for name, value in answer.items() if name not in (*hidden, "cut")}
    return {**told, "cut": True} if answer["cut"] else told


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list) else value
