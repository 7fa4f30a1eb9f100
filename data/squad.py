"""SQuAD's JSON (versions 1.1 and 2.0) -> questions with their answers.

In: a path. Out: an `Example`, or what is wrong, for each question; None for a file of another shape. Source:
arXiv:1606.05250, arXiv:1806.03822, https://rajpurkar.github.io/SQuAD-explorer/
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from data.config import UserError
from data.examples import Example, Read
from data.lines import clean, open_bytes

FIELDS = ("text", "answer_start")


def read_squad(file: str, path: str, encoding: str = "utf-8") -> Iterator[Read] | None:
    """Questions of a file; `file` names it in places (file:id of the question). None: it is not SQuAD's JSON.

    Raises UserError where it is no JSON, READ_ERRORS.
    """
    with open_bytes(path) as opened:
        try:
            whole = json.loads(opened.read().decode(encoding).removeprefix("\ufeff"))
        except RecursionError:
            raise UserError(f"{file}: no JSON of SQuAD's: nested too deeply; repair the file") from None
        except json.JSONDecodeError as error:
            if error.msg == "Extra data":  # a record on each line
                return None
            raise UserError(f"{file}:{error.lineno}: no JSON: {error.msg}; repair the file") from None
    if not isinstance(whole, dict) or not isinstance(whole.get("data"), list):
        return None
    return _questions(file, whole["data"])


def _questions(file: str, articles: Sequence[Any]) -> Iterator[Read]:
    for number, article in enumerate(articles, 1):
        try:
            paragraphs = [(one["context"], list(one["qas"])) for one in article["paragraphs"]]
        except (KeyError, TypeError):
            yield f"{file}: article {number}", "no paragraphs with context and qas"
            continue
        for context, questions in paragraphs:
            for asked in questions:
                if isinstance(asked, dict) and "question" in asked and ("answers" in asked or "is_impossible" in asked):
                    answers = [] if asked.get("is_impossible") else asked.get("answers", [])
                    yield f"{file}: question {asked.get('id')}", answered(asked["question"], context, answers)
                else:
                    yield f"{file}: article {number}", "a question without question and answers"


def answered(question: Any, context: Any, answers: Any) -> Example | str | None:
    """One example of a question, or what is wrong with it; None where question or context is blank.

    `answers`: [{"text": ..., "answer_start": ...}], {"text": [...], "answer_start": [...]}, or texts alone, which stand
    in the context first; None, "" and [] for no answer.
    """
    if not isinstance(question, str) or not isinstance(context, str):
        return "question or context is not text" if question is not None and context is not None else None
    if clean(question) is None or clean(context) is None:
        return "not valid UTF-8"
    if not question.strip() or not context.strip():
        return None
    listed = _listed(answers)
    if listed is None:
        return "its answers are neither texts nor {text, answer_start}, as many of one as of the other"
    found: list[tuple[int, str]] = []
    for text, start in listed:
        if not isinstance(text, str) or not text.strip():
            return f"the answer {text!r} is no text"
        begin = context.find(text) if start is None else start
        if not isinstance(begin, int) or begin < 0 or context[begin : begin + len(text)] != text:
            there = "" if not isinstance(begin, int) or begin < 0 else f"; there is {context[begin:][: len(text)]!r}"
            where = "" if start is None else f" at character {start}"
            return f"the answer {text[:60]!r} does not stand in the context{where}{there[:80]}"
        stripped = text.strip()
        if (answer := (begin + text.index(stripped), stripped)) not in found:
            found.append(answer)
    return Example(question.strip(), found, context)


def _listed(answers: Any) -> list[tuple[Any, Any]] | None:
    """(text, start or None) of each answer, of all the shapes that there are; None for any other."""
    if isinstance(answers, str) or answers is None:
        return [(answers, None)] if answers and answers.strip() else []
    if isinstance(answers, dict):
        texts, starts = ([one] if isinstance(one, str | int) else one for one in map(answers.get, FIELDS))
        if not isinstance(texts, list) or not isinstance(starts, list | None) or len(starts or texts) != len(texts):
            return None
        return list(zip(texts, starts or [None] * len(texts), strict=True))
    if not isinstance(answers, list):
        return None
    return [tuple(map(one.get, FIELDS)) if isinstance(one, dict) else (one, None) for one in answers]
