"""Scores by known values, their direction, which fit which task, the majority baseline."""

from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.config import Task, UserError
from tuning.scores import FITTING, METRICS, Metric, baseline, choose_metric, rank_passages, score


def test_a_constant_predictor_under_imbalance() -> None:
    labels = np.array([0] * 95 + [1] * 5)
    constant = np.zeros(100, int)
    assert METRICS["accuracy"].compute(labels, constant) == 0.95
    assert METRICS["macro_f1"].compute(labels, constant) == pytest.approx((2 * 0.95 / 1.95) / 2)  # 0.487
    assert METRICS["matthews"].compute(labels, constant) == 0.0
    assert baseline("accuracy", "classification", ["a"] * 19 + ["b"], ["a"] * 95 + ["b"] * 5) == 0.95


@pytest.mark.parametrize("num_classes", [2, 3, 7])
def test_labels_are_scored_as_scikit_learn_scores_them(num_classes: int) -> None:
    """By names: also of labels that stand on one side only, and of several labels at once."""
    from sklearn import metrics

    random = np.random.default_rng(num_classes)
    names = np.array([f"label {i}" for i in range(num_classes)])
    labels, guesses = names[random.integers(0, num_classes, 60)].tolist(), names[random.integers(0, 2, 60)].tolist()
    found = {name: score(name, "classification", labels, [{"label": guess} for guess in guesses])
             for name in FITTING["classification"]}  # fmt: skip
    assert found == pytest.approx({
        "accuracy": metrics.accuracy_score(labels, guesses),
        "macro_f1": metrics.f1_score(labels, guesses, average="macro", zero_division=0),
        "micro_f1": metrics.f1_score(labels, guesses, average="micro"),
        "matthews": metrics.matthews_corrcoef(labels, guesses),
    })  # fmt: skip
    tables = random.random((2, 60, num_classes)) < 0.4
    targets, sets = ([tuple(names[row].tolist()) for row in table] for table in tables)
    several = [{"labels": [{"label": name} for name in some]} for some in sets]
    right = {name: score(name, "multi_label", targets, several) for name in FITTING["multi_label"]}
    assert right == pytest.approx({
        "micro_f1": metrics.f1_score(*tables, average="micro"),
        "macro_f1": metrics.f1_score(*tables, average="macro"),
        "accuracy": metrics.accuracy_score(*tables),
    })  # fmt: skip


def test_several_classes_by_hand() -> None:
    labels = np.array([0, 0, 1, 1, 2, 2])
    predictions = np.array([0, 1, 1, 1, 2, 0])
    assert METRICS["accuracy"].compute(labels, predictions) == pytest.approx(4 / 6)
    assert METRICS["macro_f1"].compute(labels, predictions) == pytest.approx((1 / 2 + 4 / 5 + 2 / 3) / 3)
    # (4 * 6 - (2*2 + 2*3 + 2*1)) / sqrt((36 - 14) * (36 - 12))
    assert METRICS["matthews"].compute(labels, predictions) == pytest.approx(12 / np.sqrt(22 * 24))


@pytest.mark.parametrize("higher", [True, False])
def test_direction(higher: bool) -> None:
    metric = Metric(METRICS["accuracy"].compute, higher)
    assert metric.beats(0.6, 0.5) is higher and metric.beats(0.5, 0.6) is not higher
    assert metric.beats(0.1, None) and not metric.beats(0.5, 0.5) and not metric.beats(float("nan"), None)
    assert sorted([0.2, None, 0.9], key=metric.rank_key) == ([0.9, 0.2, None] if higher else [0.2, 0.9, None])


def test_correlations_equal_scipys_and_say_nothing_of_a_constant() -> None:
    from scipy import stats

    random = np.random.default_rng(0)
    labels = random.integers(0, 5, 200).astype(float)
    predictions = labels + random.normal(0, 2, 200).round(1)
    assert METRICS["pearson"].compute(labels, predictions) == pytest.approx(stats.pearsonr(labels, predictions)[0])
    assert METRICS["spearman"].compute(labels, predictions) == pytest.approx(stats.spearmanr(labels, predictions)[0])
    for metric in ("pearson", "spearman"):
        assert METRICS[metric].compute(labels, labels * -3 + 7) == pytest.approx(-1)
        for broken in (np.full(200, 0.1), np.where(labels > 3, np.nan, labels)):
            value = METRICS[metric].compute(labels, broken)
            assert np.isnan(value) and not METRICS[metric].beats(value, None)
            assert sorted([value, -0.5, 0.5], key=METRICS[metric].rank_key)[:2] == [0.5, -0.5]
        assert score(metric, "regression", [1.0, 2.0], [{"value": 3.0}] * 2) is None
        assert score(metric, "regression", [1.0, 1.0], [{"value": 3.0}, {"value": 4.0}]) is None
        assert baseline(metric, "regression", [1.0, 2.0], [1.0, 2.0]) is None


TAGS = ["O", *(f"{letter}-{type_}" for letter in "BIES" for type_ in ("X", "Y"))]
SENTENCES = st.lists(st.tuples(*[st.lists(st.sampled_from(TAGS), min_size=3, max_size=8)] * 2), min_size=1, max_size=5)


@settings(max_examples=200)
@given(SENTENCES)
def test_entity_f1_is_seqevals(pairs: list[tuple[list[str], list[str]]]) -> None:
    from seqeval.metrics import f1_score

    pairs = [(a[: len(b)], b[: len(a)]) for a, b in pairs]
    gold, found = [a for a, _ in pairs], [b for _, b in pairs]
    assert METRICS["entity_f1"].compute(gold, found) == pytest.approx(f1_score(gold, found, zero_division=0))


def test_entities_that_were_not_read_count_as_missed() -> None:
    gold = [["B-X", "O", "B-X"], ["B-Y", "I-Y"]]
    predictions = [{"tags": ["B-X", "O", "O"]}, {"tags": ["B-Y", "I-Y"]}]
    assert score("entity_f1", "tagging", gold, predictions) == pytest.approx(2 * 2 / (3 + 2))
    assert score("accuracy", "tagging", gold, predictions) == 4 / 5
    assert baseline("accuracy", "tagging", gold, gold) == pytest.approx(2 / 5)  # B-X twice, as any other at most
    assert baseline("entity_f1", "tagging", [["O", "O", "B-X"]], gold) == 0.0


def test_scores_of_the_other_kinds_by_hand() -> None:
    labels = [{"label": "a"}, {"label": "b"}, {"label": "a"}]
    assert score("accuracy", "classification", ["a", "b", "b"], labels) == pytest.approx(2 / 3)
    assert score("macro_f1", "classification", ["a", "b", "b"], labels) == pytest.approx(2 / 3)
    assert score("micro_f1", "classification", ["a", "b", "b"], labels) == pytest.approx(2 / 3)
    assert baseline("accuracy", "classification", ["b", "a", "b"], ["a", "b", "b"]) == pytest.approx(2 / 3)
    several = [{"labels": [{"label": "a"}, {"label": "b"}]}, {"labels": []}, {"labels": [{"label": "c"}]}]
    targets = [("a",), (), ("c", "a")]
    assert score("micro_f1", "multi_label", targets, several) == pytest.approx(2 * 2 / (3 + 3))
    assert score("accuracy", "multi_label", targets, several) == pytest.approx(1 / 3)
    assert score("macro_f1", "multi_label", targets, several) == pytest.approx((2 / 3 + 0 + 1) / 3)
    assert baseline("accuracy", "multi_label", [("b", "a"), ("a", "b"), ()], [("a", "b"), ()]) == 0.5
    assert score("micro_f1", "multi_label", [()], [{"labels": []}]) == 0.0
    only = [{"labels": [{"label": "a"}]}, {"labels": []}, {"labels": []}]  # one label alone is no pair of classes
    assert score("micro_f1", "multi_label", [("a",), ("a",), ()], only) == pytest.approx(2 / 3)
    assert score("macro_f1", "multi_label", [("a",), ("a",), ()], only) == pytest.approx(2 / 3)
    assert score("accuracy", "multiple_choice", [1, 0], [{"choice": 1}, {"choice": 1}]) == 0.5
    assert baseline("accuracy", "multiple_choice", [1, 1, 0], [1, 0]) == 0.5
    answers = [{"answer": "the dog"}, {"answer": ""}]
    assert score("exact_match", "answering", [[(0, "cat"), (5, "dog")], []], answers) == 1.0
    assert score("answer_f1", "answering", [[(0, "black dog")], [(0, "x")]], answers) == pytest.approx(1 / 3)
    assert baseline("exact_match", "answering", [], [[(0, "dog")], []]) == 0.5
    assert score("spearman", "embedding", [1.0, 5.0], [{"cosine": 0.1}, {"cosine": 0.2}]) == pytest.approx(1)
    assert score("accuracy", "embedding", ["a", "b"], [{"label": "a"}, {"label": "a"}]) == 0.5


def test_retrieval_by_ranks() -> None:
    random = np.random.default_rng(0)
    queries, passages = random.normal(size=(600, 8)), random.normal(size=(40, 8))  # more than one block of queries
    right = random.integers(0, 40, 600)
    ranks = rank_passages(queries, passages, right)
    order = (-queries @ passages.T).argsort(1)
    assert ranks.tolist() == [order[i].tolist().index(right[i]) + 1 for i in range(600)]
    assert rank_passages(np.ones((2, 8)), np.ones((5, 8)), np.array([0, 3])).tolist() == [5, 5]
    few = [{"rank": rank} for rank in (1, 3, 10, 11)]
    assert score("recall_at_1", "embedding", [None] * 4, few) == 0.25
    assert score("recall_at_10", "embedding", [None] * 4, few) == 0.75
    assert score("mrr", "embedding", [None] * 4, few) == pytest.approx((1 + 1 / 3 + 1 / 10 + 1 / 11) / 4)
    assert score("ndcg_at_10", "embedding", [None] * 4, few) == pytest.approx((1 + 1 / 2 + 1 / np.log2(11)) / 4)
    assert baseline("mrr", "embedding", [None], [None]) is None


def test_metrics_fit_their_kinds() -> None:
    assert {metric for metrics in FITTING.values() for metric in metrics} == METRICS.keys()
    assert set(METRICS) == set(get_args(get_args(Task.model_fields["metric"].annotation)[0]))
    assert choose_metric(None, "tagging") == "accuracy" and choose_metric(None, "tagging", "bio") == "entity_f1"
    assert choose_metric(None, "embedding", loss="cosine") == "spearman" and choose_metric("mrr", "embedding") == "mrr"
    assert choose_metric(None, "classification") == "accuracy"
    for metric, kind, scheme, told in [
        ("pearson", "classification", None, "is not for kind classification; give one of accuracy, macro_f1"),
        ("entity_f1", "tagging", None, "is not for tags that mark no entities"),
        ("accuracy", "embedding", None, "is not for kind embedding with head.loss=in_batch; give one of mrr"),
    ]:
        with pytest.raises(UserError, match=f"task.metric={metric}: {told}"):
            choose_metric(metric, kind, scheme)
