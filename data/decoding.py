"""What a head puts out for units -> one prediction for each example, windows merged.

In: `Encoded`, arrays of outputs as model/heads writes them (numpy), the examples. Out: plain dicts. How windows merge:

    classification, multi_label,  the mean over an example's windows of logits or values, each window counting alike
    regression
    tagging                       a word is taken from the window where its first token is farthest from an edge (of
                                  equals the first); a word that was not read is O
    answering                     the best span of all windows; or no answer, where some training questions have none
                                  and the least score of the windows' first tokens is higher

Every prediction says `cut`: the example is longer than what was read.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from data.examples import NO_ANSWER, Encoded, Examples
from data.schemes import OUTSIDE, entities_of
from data.words import find_words, split_words

ANSWER_TOKENS = 30  # longest answer. Source: max_answer_length of run_squad.py, github.com/google-research/bert
OUTPUTS = ("starts", "ends")
LIKELY = 0.5  # a label of several is given from this probability on

Outputs = Mapping[str, np.ndarray]


def decode(
    encoded: Encoded,
    outputs: Outputs,
    examples: Examples,
    labels: Sequence[str],
    scheme: str | None = None,
    answer_tokens: int = ANSWER_TOKENS,
) -> list[dict[str, Any]]:
    """One dict for each of the N examples, in order, with `cut` and by kind:

    classification: label, score, scores {label: probability}; multi_label: labels [{label, score}] from 0.5 on, likely
    ones first, scores; regression: value; tagging: tags (one per word), entities [{label, text, start, end, score}]
    with characters of examples.texts and the mean score of their words; answering: answer, start, end (characters of
    the context; 0, 0 and "" for no answer), score (probability among all spans); multiple_choice: choice, score;
    embedding: cosine (pairs; and label, score, scores where there are logits) or vector.

    outputs: logits (U, C); value (U,); tags and scores (U, T); starts and ends (U, T); vectors (U * group, D).
    """
    decoders = {
        "tagging": lambda: _tagging(encoded, outputs, examples, labels, scheme),
        "answering": lambda: _answering(encoded, outputs, examples, NO_ANSWER in labels, answer_tokens),
        "embedding": lambda: _embedding(encoded, outputs, len(examples), labels),
        "regression": lambda: [{"value": float(value)} for value in _mean(encoded, outputs["value"], len(examples))],
        "multiple_choice": lambda: [
            {"choice": int(row.argmax()), "score": float(row.max())}
            for row in _softmax(_mean(encoded, outputs["logits"], len(examples)))
        ],
        "multi_label": lambda: _multi_label(_mean(encoded, outputs["logits"], len(examples)), labels),
        "classification": lambda: _classes(_mean(encoded, outputs["logits"], len(examples)), labels),
    }
    found = decoders[examples.kind]()
    return [{**one, "cut": bool(cut)} for one, cut in zip(found, encoded.cuts, strict=True)]


def _mean(encoded: Encoded, values: np.ndarray, num_examples: int) -> np.ndarray:
    """Mean over the units of each example, float64."""
    total = np.zeros((num_examples, *values.shape[1:]))
    np.add.at(total, encoded.examples, values.astype(np.float64))
    counts = np.bincount(encoded.examples, minlength=num_examples)
    return total / counts.reshape(-1, *[1] * (values.ndim - 1))


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def _classes(logits: np.ndarray, labels: Sequence[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for row in _softmax(logits):
        best = int(row.argmax())
        scores = dict(zip(labels, row.tolist(), strict=True))
        found.append({"label": labels[best], "score": float(row[best]), "scores": scores})
    return found


def _multi_label(logits: np.ndarray, labels: Sequence[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for row in 0.5 * (1 + np.tanh(logits / 2)):  # the sigmoid, which does not overflow so
        scores = dict(zip(labels, row.tolist(), strict=True))
        likely = sorted((label for label in labels if scores[label] >= LIKELY), key=lambda label: -scores[label])
        found.append({"labels": [{"label": label, "score": scores[label]} for label in likely], "scores": scores})
    return found


def _embedding(encoded: Encoded, outputs: Outputs, num_examples: int, labels: Sequence[str]) -> list[dict[str, Any]]:
    vectors = outputs["vectors"].astype(np.float64)
    if encoded.group == 1:
        return [{"vector": vector.tolist()} for vector in vectors]
    cosines = (vectors[0::2] * vectors[1::2]).sum(-1)
    classes = _classes(_mean(encoded, outputs["logits"], num_examples), labels) if "logits" in outputs else None
    return [{"cosine": float(cosine), **(classes[i] if classes else {})} for i, cosine in enumerate(cosines)]


def _tagging(
    encoded: Encoded, outputs: Outputs, examples: Examples, labels: Sequence[str], scheme: str | None
) -> list[dict[str, Any]]:
    places = _places(examples)
    tags = [[OUTSIDE] * len(words) for words in places]
    scores = [np.zeros(len(words)) for words in places]
    margins = [np.full(len(words), -1) for words in places]
    assert encoded.word_ids is not None, "tagging is decoded by word_ids"
    for unit, example in enumerate(encoded.examples):
        read = np.flatnonzero(encoded.word_ids[unit] >= 0)
        words = encoded.word_ids[unit, read]
        # Of a word whose first token stands in the window before, the first one here has margin 0: the other one wins.
        first = np.flatnonzero(np.diff(words, prepend=-1))
        margin = np.minimum(first, len(read) - 1 - first)
        better = margin > margins[example][words[first]]
        taken, at = words[first[better]], read[first[better]]
        margins[example][taken] = margin[better]
        scores[example][taken] = outputs["scores"][unit, at]
        for word, number in zip(taken, outputs["tags"][unit, at], strict=True):
            tags[example][word] = labels[number]
    found: list[dict[str, Any]] = []
    for text, words, of, score in zip(examples.texts, places, tags, scores, strict=True):
        entities = entities_of(of) if scheme is not None else []
        shown = [
            {
                "label": label, "text": text[words[start][0] : words[end - 1][1]], "start": words[start][0],
                "end": words[end - 1][1], "score": float(score[start:end].mean()),
            }
            for label, start, end in entities
        ]  # fmt: skip
        found.append({"tags": of, "entities": shown})
    return found


def _places(examples: Examples) -> list[list[tuple[int, int]]]:
    """(first, behind the last) character in its text of each word of each example."""
    if examples.words is None:
        return [split_words(text) for text in examples.texts]
    return [find_words(words, text) for words, text in zip(examples.words, examples.texts, strict=True)]


def _answering(
    encoded: Encoded, outputs: Outputs, examples: Examples, may_lack: bool, answer_tokens: int
) -> list[dict[str, Any]]:
    """Scores of spans are sums of two logits; probabilities are over all tokens of an example's windows, twice."""
    assert encoded.offsets is not None and examples.pairs is not None, "answers are places in a context"
    width = int(encoded.lengths.max(initial=1))
    offsets = encoded.offsets[:, :width]
    in_context = offsets[..., 0] >= 0
    allowed = in_context | (np.arange(width) == 0) if may_lack else in_context
    starts, ends = (np.where(in_context, outputs[name][:, :width].astype(np.float64), -np.inf) for name in OUTPUTS)
    first, length, best = _best_spans(starts, ends, answer_tokens)
    none = np.sum([outputs[name][:, 0].astype(np.float64) for name in OUTPUTS], axis=0)
    norms = _norms(encoded, [np.where(allowed, outputs[name][:, :width], -np.inf) for name in OUTPUTS], len(examples))
    nones, bests = np.full(len(examples), np.inf), np.full(len(examples), -np.inf)
    np.minimum.at(nones, encoded.examples, none)
    chosen: dict[int, int] = {}
    for unit, example in enumerate(encoded.examples):
        if best[unit] > bests[example]:
            bests[example], chosen[int(example)] = best[unit], unit
    found: list[dict[str, Any]] = []
    for example, context in enumerate(examples.pairs):
        lacks = example not in chosen or (may_lack and nones[example] >= bests[example])
        score = nones[example] if lacks and may_lack else bests[example]
        answer, start = "", 0
        if not lacks:
            unit = chosen[example]
            start = int(offsets[unit, first[unit], 0])
            whole = context[start : int(offsets[unit, first[unit] + length[unit], 1])]
            answer = whole.strip()  # byte-level tokens hold the space before them
            start += len(whole) - len(whole.lstrip())
        score = float(np.exp(score - norms[example])) if np.isfinite(score) else 0.0
        found.append({"answer": answer, "start": start, "end": start + len(answer), "score": score})
    return found


def _best_spans(starts: np.ndarray, ends: np.ndarray, longest: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First token, tokens behind it, and score (U,) of the best span of each unit, of at most `longest` tokens."""
    units, width = starts.shape
    best, first, length = np.full(units, -np.inf), np.zeros(units, np.int64), np.zeros(units, np.int64)
    for behind in range(min(longest, width)):
        sums = starts[:, : width - behind] + ends[:, behind:]
        place = sums.argmax(1)
        score = sums[np.arange(units), place]
        better = score > best
        best[better], first[better], length[better] = score[better], place[better], behind
    return first, length, best


def _norms(encoded: Encoded, logits: Sequence[np.ndarray], num_examples: int) -> np.ndarray:
    """Logarithm of the sum of exponentials over all tokens of each example, of starts and of ends together."""
    norms = np.zeros(num_examples)
    for values in logits:
        highest = np.full(num_examples, -np.inf)
        np.maximum.at(highest, encoded.examples, values.max(1))
        finite = np.where(np.isfinite(highest), highest, 0)
        total = np.zeros(num_examples)
        np.add.at(total, encoded.examples, np.exp(values - finite[encoded.examples][:, None]).sum(1))
        with np.errstate(divide="ignore"):
            norms += np.log(total) + finite
    return norms
