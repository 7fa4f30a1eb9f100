"""The winner's predictions of the validation examples -> where it is wrong: what the report shows of it. Pure.

In: examples with their targets, predictions as data/decoding.py gives them ({"rank"} of retrieval). Out: plain data,
for winner.json. Knows no model, and no files.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from data.examples import NO_ANSWER, Examples
from data.schemes import detect_scheme, entities_of
from data.words import split_words
from tuning.answers import overlap

MOST_CONFUSED = 20  # labels of a confusion matrix that can be read
MOST_ERRORS = 20
MOST_DOTS = 400  # of a chart of numbers
TEXT_CHARACTERS = 300
SHOWN_WORDS = 12  # of a sentence with wrong tags

Prediction = Mapping[str, Any]
# How hard an error is (the largest first), and how it is told; None: the example is right.
Judge = Callable[[Examples, int, Prediction], tuple[tuple[float, ...], dict[str, Any]] | None]


def analyse(
    kind: str, labels: Sequence[str], examples: Examples, predictions: Sequence[Prediction]
) -> dict[str, Any]:
    """Where the predictions of N labelled examples are wrong.

    kind, num_examples, num_wrong (None of numbers), num_cut (longer than what was read). confusion: {labels, counts of
    (target, prediction)} of single labels and of tags that mark no entities, 20 at most, else None. per_label: label,
    precision, recall, f1 and support, the most frequent first; of entities by type; [] where there are no labels.
    dots: (target, prediction) of numbers. hardest: at most 20 errors, each with place, text, pair, target, prediction,
    probability (None where a prediction has none): labels and choices that are wrong with the largest probability,
    numbers with the largest error, sentences with the most wrong words, answers of the least overlap, passages of the
    last ranks.
    """
    way = _way(kind, predictions)
    is_number = _JUDGES[way] is _number
    judged = [(i, found) for i, one in enumerate(predictions) if (found := _JUDGES[way](examples, i, one)) is not None]
    judged.sort(key=lambda one: ([-size for size in one[1][0]], one[0]))
    pairs = _pairs(kind, examples, predictions)
    counts = _counts(kind, labels, examples, predictions)
    told = [_scores(label, *of) for label, of in counts.items()]
    dots = [[float(_target(examples, i)), _value(one)] for i, one in enumerate(predictions)] if is_number else []
    return {
        "kind": kind,
        "num_examples": len(examples),
        "num_wrong": None if is_number else len(judged),
        "num_cut": sum(bool(one.get("cut")) for one in predictions),
        "confusion": _confusion(labels, pairs) if pairs else None,
        "per_label": sorted(told, key=lambda one: (-one["support"], one["label"])),
        "dots": dots[:: -(-len(dots) // MOST_DOTS) or 1],
        "hardest": [{**_shown(examples, i), "probability": None, **why} for i, (_, why) in judged[:MOST_ERRORS]],
    }


def _way(kind: str, predictions: Sequence[Prediction]) -> str:
    """embedding is judged by what its loss and metric ask of it."""
    if kind != "embedding":
        return kind
    return next((way for way in ("rank", "label", "cosine") if predictions and way in predictions[0]), "cosine")


def _shown(examples: Examples, i: int) -> dict[str, Any]:
    """An example as a reader of the report sees it; of an answer's context the part around the right answer."""
    target = (examples.targets or [None] * len(examples))[i]
    around = target[0][0] if examples.kind == "answering" and target else 0
    return {
        "place": examples.places[i] if examples.places is not None else f"example {i + 1}",
        "text": _cut(examples.texts[i]),
        "pair": None if examples.pairs is None else _cut(examples.pairs[i], around),
    }


def _cut(text: str, around: int = 0) -> str:
    start = max(0, min(around - TEXT_CHARACTERS // 2, len(text) - TEXT_CHARACTERS))
    end = start + TEXT_CHARACTERS
    return "…" * (start > 0) + text[start:end] + "…" * (end < len(text))


def _label(examples: Examples, i: int, one: Prediction) -> Any:
    target = _target(examples, i)
    told = {"target": target, "prediction": one["label"], "probability": one["score"]}
    return None if target == one["label"] else ((one["score"],), told)


def _labels(examples: Examples, i: int, one: Prediction) -> Any:
    """As hard as the surest of its wrong decisions."""
    target, found = set(_target(examples, i)), {label["label"] for label in one["labels"]}
    sure = [one["scores"][label] if label in found else 1 - one["scores"].get(label, 0.0) for label in target ^ found]
    if not sure:
        return None
    told = {"target": ", ".join(sorted(target)), "prediction": ", ".join(sorted(found)), "probability": max(sure)}
    return (max(sure),), told


def _number(examples: Examples, i: int, one: Prediction) -> Any:
    target, value = _target(examples, i), _value(one)
    return (abs(target - value),), {"target": target, "prediction": value}


def _value(one: Prediction) -> float:
    return float(one["value"] if "value" in one else one["cosine"])


def _choice(examples: Examples, i: int, one: Prediction) -> Any:
    target, choices = _target(examples, i), (examples.choices or [])[i]
    told = {
        "target": _cut(choices[target]), "prediction": _cut(choices[one["choice"]]), "probability": one["score"]
    }  # fmt: skip
    return None if target == one["choice"] else ((one["score"],), told)


def _tags(examples: Examples, i: int, one: Prediction) -> Any:
    """The words whose tags are wrong, and what they should be."""
    text, target = examples.texts[i], _target(examples, i)
    words = examples.words[i] if examples.words is not None else [text[a:b] for a, b in split_words(text)]
    wrong = [place for place, (a, b) in enumerate(zip(target, one["tags"], strict=True)) if a != b]

    def told(tags: Sequence[str]) -> str:
        return " ".join(f"{words[place]}/{tags[place]}" for place in wrong[:SHOWN_WORDS])

    return ((len(wrong),), {"target": told(target), "prediction": told(one["tags"])}) if wrong else None


def _answer(examples: Examples, i: int, one: Prediction) -> Any:
    rights = list(dict.fromkeys(answer for _, answer in _target(examples, i))) or [""]
    best = max(overlap(one["answer"], right) for right in rights)
    target = " / ".join(rights) or NO_ANSWER
    told = {"target": target, "prediction": one["answer"] or NO_ANSWER, "probability": one["score"]}
    return None if best == 1 else ((-best, one["score"]), told)


def _rank(examples: Examples, i: int, one: Prediction) -> Any:
    """The passage that should be found first is the example's pair."""
    return None if one["rank"] == 1 else ((one["rank"],), {"target": "rank 1", "prediction": f"rank {one['rank']}"})


_JUDGES: dict[str, Judge] = {
    "classification": _label, "label": _label, "multi_label": _labels, "regression": _number, "cosine": _number,
    "multiple_choice": _choice, "tagging": _tags, "answering": _answer, "rank": _rank,
}  # fmt: skip


def _target(examples: Examples, i: int) -> Any:
    assert examples.targets is not None, "errors are found in labelled examples only"
    return examples.targets[i]


def _pairs(kind: str, examples: Examples, predictions: Sequence[Prediction]) -> list[tuple[str, str]]:
    """(target, prediction) of single labels, and of words where tags mark no entities."""
    if kind == "tagging":
        sides = [(_target(examples, i), one["tags"]) for i, one in enumerate(predictions)]
        return [] if _marks_entities(sides) else [pair for a, b in sides for pair in zip(a, b, strict=True)]
    if _way(kind, predictions) in ("classification", "label"):
        return [(_target(examples, i), one["label"]) for i, one in enumerate(predictions)]
    return []


def _marks_entities(sides: Iterable[tuple[Sequence[str], Sequence[str]]]) -> bool:
    return detect_scheme([target for target, _ in sides]) is not None


def _confusion(labels: Sequence[str], pairs: Sequence[tuple[str, str]]) -> dict[str, Any] | None:
    names = list(dict.fromkeys([*labels, *sorted({name for pair in pairs for name in pair})]))
    if len(names) > MOST_CONFUSED:
        return None
    counts = Counter(pairs)
    return {"labels": names, "counts": [[counts[target, found] for found in names] for target in names]}


def _counts(
    kind: str, labels: Sequence[str], examples: Examples, predictions: Sequence[Prediction]
) -> dict[str, tuple[int, int, int]]:
    """label -> how often it was rightly predicted, predicted, and there."""
    sets: list[tuple[set[Any], set[Any]]] = []
    if kind == "multi_label":
        of = [{label["label"] for label in one["labels"]} for one in predictions]
        sets = [({(name,) for name in _target(examples, i)}, {(name,) for name in found}) for i, found in enumerate(of)]
    elif pairs := _pairs(kind, examples, predictions):
        sets = [({(target,)}, {(found,)}) for target, found in pairs]
    elif kind == "tagging":
        sets = [
            (set(entities_of(_target(examples, i))), set(entities_of(one["tags"]))) for i, one in enumerate(predictions)
        ]
        labels = ()
    else:
        return {}
    right, found, there = (
        Counter(name for a, b in sets for name, *_ in choose(a, b))
        for choose in (lambda a, b: a & b, lambda a, b: b, lambda a, b: a)
    )
    return {name: (right[name], found[name], there[name]) for name in {*labels, *found, *there}}


def _scores(label: str, right: int, found: int, there: int) -> dict[str, Any]:
    """Precision, recall, F1; 0 where nothing was found, or there is nothing to find."""
    return {
        "label": label, "precision": right / max(1, found), "recall": right / max(1, there),
        "f1": 2 * right / max(1, found + there), "support": there,
    }  # fmt: skip
