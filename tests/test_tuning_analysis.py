"""Where a winner is wrong: confusion and F1 by hand and as scikit-learn has them, the hardest errors of every kind."""

import json

import numpy as np
import pytest

from data.examples import NO_ANSWER, Examples
from tuning.analysis import analyse

LABELS = ("a", "b", "c")


def classified(found: str, score: float, **more) -> dict:
    return {"label": found, "score": score, "scores": {found: score}, "cut": False, **more}


def test_labels_by_hand() -> None:
    texts = ["one", "two", "three", "four", "x" * 400]
    examples = Examples("classification", texts, targets=["a", "a", "b", "c", "b"], places=[f"f:{i}" for i in range(5)])
    found = [("a", 0.9), ("b", 0.6), ("b", 0.7), ("a", 0.99), ("a", 0.8)]
    predictions = [classified(label, score, cut=i == 4) for i, (label, score) in enumerate(found)]
    told = analyse("classification", LABELS, examples, predictions)
    assert (told["num_examples"], told["num_wrong"], told["num_cut"]) == (5, 3, 1)
    assert told["confusion"] == {"labels": ["a", "b", "c"], "counts": [[1, 1, 0], [1, 1, 0], [1, 0, 0]]}
    assert [(one["label"], one["support"]) for one in told["per_label"]] == [("a", 2), ("b", 2), ("c", 1)]
    a, _, c = told["per_label"]
    assert (a["precision"], a["recall"], a["f1"]) == (1 / 3, 1 / 2, 2 / 5)
    assert (c["precision"], c["recall"], c["f1"]) == (0, 0, 0)
    hardest = [(one["place"], one["target"], one["prediction"], one["probability"]) for one in told["hardest"]]
    assert hardest == [("f:3", "c", "a", 0.99), ("f:4", "b", "a", 0.8), ("f:1", "a", "b", 0.6)]
    assert told["hardest"][1]["text"] == "x" * 300 + "…" and told["hardest"][0]["pair"] is None
    json.dumps(told, allow_nan=False)


def test_per_label_scores_are_scikit_learns() -> None:
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    draw = np.random.default_rng(0)
    names = [f"label {i:02}" for i in range(12)]
    targets, found = (draw.choice(names[:11], 500).tolist() for _ in range(2))  # the last one never occurs
    examples = Examples("classification", ["x"] * 500, targets=targets)
    told = analyse("classification", names, examples, [classified(label, 0.5) for label in found])
    expected = precision_recall_fscore_support(targets, found, labels=names, zero_division=0)  # pyright: ignore
    ours = {one["label"]: [one[key] for key in ("precision", "recall", "f1", "support")] for one in told["per_label"]}
    assert [ours[name] for name in names] == [pytest.approx(row) for row in np.array(expected).T.tolist()]
    assert told["confusion"]["counts"] == confusion_matrix(targets, found, labels=names).tolist()
    assert len(told["hardest"]) == 20 and told["hardest"][0]["place"].startswith("example ")


def test_more_labels_than_can_be_read_have_no_matrix() -> None:
    names = [f"{i:02}" for i in range(21)]
    examples = Examples("classification", ["x"] * 21, targets=names)
    told = analyse("classification", names, examples, [classified(name, 0.9) for name in names])
    assert told["confusion"] is None and len(told["per_label"]) == 21 and told["hardest"] == []


def test_several_labels() -> None:
    examples = Examples("multi_label", ["x", "y", "z"], targets=[("a", "b"), (), ("c",)])
    predictions = [
        {"labels": [{"label": "a", "score": 0.9}], "scores": {"a": 0.9, "b": 0.3, "c": 0.1}},
        {"labels": [{"label": "c", "score": 0.6}], "scores": {"a": 0.1, "b": 0.1, "c": 0.6}},
        {"labels": [{"label": "c", "score": 0.8}], "scores": {"a": 0.1, "b": 0.1, "c": 0.8}},
    ]
    told = analyse("multi_label", LABELS, examples, predictions)
    assert told["confusion"] is None and told["num_wrong"] == 2
    assert {one["label"]: (one["precision"], one["recall"]) for one in told["per_label"]} == {
        "a": (1, 1), "b": (0, 0), "c": (0.5, 1)
    }  # fmt: skip
    assert [(one["target"], one["prediction"], one["probability"]) for one in told["hardest"]] == [
        ("a, b", "a", 0.7), ("", "c", 0.6)
    ]  # fmt: skip


def test_numbers() -> None:
    examples = Examples("regression", ["x", "y", "z"], pairs=["p", "q", "r"], targets=[1.0, 2.0, 3.0])
    told = analyse("regression", (), examples, [{"value": 1.5}, {"value": 0.0}, {"value": 3.0}])
    assert told["dots"] == [[1.0, 1.5], [2.0, 0.0], [3.0, 3.0]] and told["num_wrong"] is None
    assert told["per_label"] == [] and told["confusion"] is None
    assert [(one["text"], one["pair"], one["target"], one["prediction"]) for one in told["hardest"]][:2] == [
        ("y", "q", 2.0, 0.0), ("x", "p", 1.0, 1.5)
    ]  # fmt: skip
    many = Examples("regression", ["x"] * 1001, targets=[0.0] * 1001)
    assert 300 < len(analyse("regression", (), many, [{"value": 0.0}] * 1001)["dots"]) <= 400


def test_entities_are_counted_by_type_and_tags_without_entities_as_labels() -> None:
    words = [["Ann", "Lee", "in", "Rome"], ["Bob", "ran"]]
    targets = [["B-PER", "I-PER", "O", "B-LOC"], ["B-PER", "O"]]
    examples = Examples("tagging", [" ".join(some) for some in words], words=words, targets=targets)
    found = [{"tags": ["B-PER", "O", "O", "B-LOC"]}, {"tags": ["B-PER", "B-LOC"]}]
    told = analyse("tagging", sorted({tag for tags in targets for tag in tags}), examples, found)
    assert {one["label"]: (one["precision"], one["recall"], one["support"]) for one in told["per_label"]} == {
        "PER": (0.5, 0.5, 2), "LOC": (0.5, 1.0, 1)
    }  # fmt: skip
    assert told["confusion"] is None and told["num_wrong"] == 2
    assert [(one["target"], one["prediction"]) for one in told["hardest"]] == [
        ("Lee/I-PER", "Lee/O"), ("ran/O", "ran/B-LOC")
    ]  # fmt: skip

    plain = Examples("tagging", ["Ann runs", "Bob runs"], targets=[["NOUN", "VERB"], ["NOUN", "VERB"]])
    told = analyse("tagging", ["NOUN", "VERB"], plain, [{"tags": ["NOUN", "NOUN"]}, {"tags": ["NOUN", "VERB"]}])
    assert told["confusion"] == {"labels": ["NOUN", "VERB"], "counts": [[2, 0], [1, 1]]}
    assert told["hardest"][0]["target"] == "runs/VERB"  # words are told from the text


def test_answers_show_the_context_around_the_right_one() -> None:
    context = "far away " * 60 + "the answer is Rome here. " + "behind it " * 60
    start = context.index("Rome")
    targets = [[(start, "Rome"), (start, "Rome here")], [], [(0, "far away")]]
    examples = Examples("answering", ["where?", "who?", "how far?"], pairs=[context] * 3, targets=targets)
    answers = {"in Rome": 0.4, "behind": 0.9, "Far away!": 1.0}
    found = [{"answer": answer, "score": score} for answer, score in answers.items()]
    told = analyse("answering", (), examples, found)
    assert [(one["target"], one["prediction"], one["probability"]) for one in told["hardest"]] == [
        (NO_ANSWER, "behind", 0.9), ("Rome / Rome here", "in Rome", 0.4)
    ]  # fmt: skip
    shown = told["hardest"][1]["pair"]
    assert "Rome" in shown and shown[0] == shown[-1] == "…" and len(shown) == 302


def test_choices_ranks_and_pairs() -> None:
    examples = Examples("multiple_choice", ["it was"], choices=[["good", "bad"]], targets=[1])
    told = analyse("multiple_choice", (), examples, [{"choice": 0, "score": 0.7}])["hardest"]
    assert [(one["target"], one["prediction"], one["probability"]) for one in told] == [("bad", "good", 0.7)]
    queries = Examples("embedding", ["q", "r", "s"], pairs=["p1", "p2", "p3"], targets=[None] * 3)
    told = analyse("embedding", (), queries, [{"rank": 1}, {"rank": 3}, {"rank": 17}])
    assert [(one["text"], one["prediction"]) for one in told["hardest"]] == [("s", "rank 17"), ("r", "rank 3")]
    alike = Examples("embedding", ["q", "r"], pairs=["p1", "p2"], targets=[0.9, 0.1])
    told = analyse("embedding", (), alike, [{"cosine": 0.8}, {"cosine": 0.7}])
    assert [one["text"] for one in told["hardest"]] == ["r", "q"] and told["num_wrong"] is None
    assert told["dots"] == [[0.9, 0.8], [0.1, 0.7]]
    labelled = Examples("embedding", ["q", "r"], pairs=["p1", "p2"], targets=["a", "b"])
    told = analyse("embedding", ("a", "b"), labelled, [classified("a", 0.6), classified("a", 0.7)])
    assert told["confusion"]["counts"] == [[1, 0], [1, 0]] and told["hardest"][0]["text"] == "r"
