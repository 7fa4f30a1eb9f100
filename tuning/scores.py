"""Scores of predictions: the table of metrics, which of them fit which task, and what a majority answer scores.

In: integer labels and predictions; targets and predictions of any kind of task. Out: floats. Pure; scikit-learn and
scipy are imported when first asked.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from data.config import UserError
from data.schemes import entities_of
from tuning.answers import is_equal, mean_of_best, overlap

QUERIES_AT_ONCE = 256  # a block of 256 queries x 10^6 passages is 2 GB of float64


@dataclass(frozen=True)
class Metric:
    """How a score is computed and which way is up."""

    compute: Callable[[Any, Any], float]
    """(labels (N,), predictions (N,)) -> score, NaN where it says nothing; several labels: (N, C) of 0 and 1; entities:
    tags of sentences; answers: (the right texts of each question, texts); retrieval: (anything, ranks (N,))."""
    higher_is_better: bool = True

    def beats(self, new: float, old: float | None) -> bool:
        """Is `new` strictly better than `old`? Anything finite beats None."""
        if not np.isfinite(new):
            return False
        return old is None or (new > old if self.higher_is_better else new < old)

    def rank_key(self, score: float | None) -> tuple[bool, float]:
        """Sorts best first, None and NaN last."""
        if score is None or not np.isfinite(score):
            return (True, 0.0)
        return (False, -score if self.higher_is_better else score)


def accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Share of equal pairs; of several labels all must be right."""
    equal = labels == predictions
    return float((equal.all(1) if equal.ndim > 1 else equal).mean())


def macro_f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Mean of the classes' F1 scores, each class counting alike; a class never predicted has 0."""
    from sklearn.metrics import f1_score

    if labels.ndim > 1:
        return float(_f1((labels & predictions).sum(0), labels.sum(0) + predictions.sum(0)).mean())
    return float(f1_score(labels, predictions, average="macro", zero_division=0))  # pyright: ignore[reportArgumentType]


def matthews(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Matthews correlation, -1 to 1; 0 for constant predictions, however common the class.

    Source: Gorodkin 2004, doi:10.1016/j.compbiolchem.2004.09.006 (several classes).
    """
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(labels, predictions))


def micro_f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """F1 of all decisions together; of single labels the same as accuracy."""
    if labels.ndim == 1:
        return accuracy(labels, predictions)
    return float(_f1((labels & predictions).sum(), labels.sum() + predictions.sum()))


def _f1(right: np.ndarray, said: np.ndarray) -> np.ndarray:
    """F1 from the number of right ones, and that of labels and predictions together; 0 where there is neither.

    scikit-learn would take (N, 1) for two classes, and count those without the one label too.
    """
    return 2 * right / np.maximum(said, 1)


def pearson(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Linear correlation, -1 to 1; NaN where either side is constant (or not finite): nothing can be said of it."""
    a, b = (np.asarray(values, np.float64) - np.mean(values) for values in (labels, predictions))
    norm = float(np.sqrt((a @ a) * (b @ b)))
    is_constant = any(len(values) < 2 or np.ptp(values) == 0 for values in (labels, predictions))
    return float("nan") if is_constant or not np.isfinite(norm) or norm == 0 else float(np.clip(a @ b / norm, -1, 1))


def spearman(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Correlation of ranks, equal values sharing theirs; NaN as in pearson."""
    from scipy.stats import rankdata

    if not np.isfinite(predictions).all():
        return float("nan")
    return pearson(rankdata(labels), rankdata(predictions))


def entity_f1(tags: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]) -> float:
    """F1 of entities: type, first and last word must be right. Tags are read by conlleval's rule (data/schemes.py)."""
    right, found = (
        {(i, *entity) for i, sentence in enumerate(some) for entity in entities_of(sentence)}
        for some in (tags, predictions)
    )
    return 2 * len(right & found) / (len(right) + len(found)) if right or found else 0.0


def recall_at(most: int) -> Callable[[Any, np.ndarray], float]:
    """Share of queries whose passage is among the first `most`, of its ranks (N,) counted from 1."""
    return lambda _, ranks: float((ranks <= most).mean())


def reciprocal_rank(_: Any, ranks: np.ndarray) -> float:
    """Mean of 1 / rank. Source: Voorhees 1999, TREC-8 question answering track report."""
    return float((1 / ranks).mean())


def discounted_gain(_: Any, ranks: np.ndarray) -> float:
    """nDCG of the first 10, one passage being right: 1 / log2(1 + rank). Source: doi:10.1145/582415.582418."""
    return float(np.where(ranks <= 10, 1 / np.log2(1 + ranks), 0).mean())


METRICS = {
    "accuracy": Metric(accuracy),
    "macro_f1": Metric(macro_f1),
    "micro_f1": Metric(micro_f1),
    "matthews": Metric(matthews),
    "pearson": Metric(pearson),
    "spearman": Metric(spearman),
    "entity_f1": Metric(entity_f1),
    "exact_match": Metric(lambda rights, answers: mean_of_best(is_equal, answers, rights)),
    "answer_f1": Metric(lambda rights, answers: mean_of_best(overlap, answers, rights)),
    "recall_at_1": Metric(recall_at(1)),
    "recall_at_10": Metric(recall_at(10)),
    "mrr": Metric(reciprocal_rank),
    "ndcg_at_10": Metric(discounted_gain),
}
RANKED = ("recall_at_1", "recall_at_10", "mrr", "ndcg_at_10")

# What a kind is scored by, the usual metric first; of embeddings by their loss, of tags by whether they mark entities.
LABELLED = ("accuracy", "macro_f1", "micro_f1", "matthews")
FITTING = {
    "classification": LABELLED,
    "multi_label": ("micro_f1", "macro_f1", "accuracy"),
    "regression": ("spearman", "pearson"),
    "tagging": ("accuracy", "macro_f1", "micro_f1", "matthews"),
    "entities": ("entity_f1", *LABELLED),
    "answering": ("answer_f1", "exact_match"),
    "multiple_choice": ("accuracy",),
    "softmax": LABELLED,
    "cosine": ("spearman", "pearson"),
    "in_batch": ("mrr", "recall_at_1", "recall_at_10", "ndcg_at_10"),
}


def choose_metric(metric: str | None, kind: str, scheme: str | None = None, loss: str = "in_batch") -> str:
    """The metric asked for, or the kind's usual one. Raises UserError where it does not fit."""
    of = loss if kind == "embedding" else "entities" if kind == "tagging" and scheme is not None else kind
    if metric is None:
        return FITTING[of][0]
    if metric not in FITTING[of]:
        what = {"entities": "tags of entities", "tagging": "tags that mark no entities"}.get(of, f"kind {kind}")
        what += f" with head.loss={loss}" if kind == "embedding" else ""
        raise UserError(
            f"task.metric={metric}: is not for {what}; give one of {', '.join(FITTING[of])}, or leave it out"
        )
    return metric


def score(metric: str, kind: str, targets: Sequence[Any], predictions: Sequence[Mapping[str, Any]]) -> float | None:
    """Score of predictions (as data/decoding.py gives them) of N examples with targets (as in data/examples.py).

    The metrics of retrieval take {"rank": rank_passages(...)[i]}. None where the score is no number.
    """
    if metric in RANKED:
        pair: tuple[Any, Any] = (targets, np.array([one["rank"] for one in predictions]))
    else:
        pair = _COMPARED[kind](metric, targets, predictions)
    value = METRICS[metric].compute(*pair)
    return value if np.isfinite(value) else None


def _tags(metric: str, targets: Sequence[Any], predictions: Sequence[Mapping[str, Any]]) -> tuple[Any, Any]:
    tags = [one["tags"] for one in predictions]
    if metric == "entity_f1":
        return targets, tags
    return tuple(np.array([tag for some in sentences for tag in some]) for sentences in (targets, tags))  # type: ignore[return-value]


def _sets(_: str, targets: Sequence[Any], predictions: Sequence[Mapping[str, Any]]) -> tuple[Any, Any]:
    """(N, C) of 0 and 1, for the labels that occur."""
    found = [[label["label"] for label in one["labels"]] for one in predictions]
    places = {name: i for i, name in enumerate(sorted({name for some in (*targets, *found) for name in some}))}
    tables = []
    for several in (targets, found):
        table = np.zeros((len(several), max(1, len(places))), np.int64)
        for row, names in zip(table, several, strict=True):
            row[[places[name] for name in names]] = 1
        tables.append(table)
    return tables[0], tables[1]


def _values(name: str) -> Callable[[str, Sequence[Any], Sequence[Mapping[str, Any]]], tuple[Any, Any]]:
    return lambda _, targets, predictions: (np.array(targets), np.array([one[name] for one in predictions]))


_COMPARED: dict[str, Callable[[str, Sequence[Any], Sequence[Mapping[str, Any]]], tuple[Any, Any]]] = {
    "classification": _values("label"),
    "multi_label": _sets,
    "regression": _values("value"),
    "tagging": _tags,
    "answering": lambda _, targets, predictions: (
        [[answer for _, answer in some] for some in targets], [one["answer"] for one in predictions]
    ),
    "multiple_choice": _values("choice"),
    "embedding": lambda metric, targets, predictions: _values("label" if metric in LABELLED else "cosine")(
        metric, targets, predictions
    ),
}  # fmt: skip


def rank_passages(queries: np.ndarray, passages: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Rank from 1 (N,) of each query's right passage by the product of vectors (N, D) and (M, D).

    Passages as near as the right one stand before it, so that equal vectors for all find nothing.
    """
    ranks = np.zeros(len(queries), np.int64)
    for start in range(0, len(queries), QUERIES_AT_ONCE):
        part = slice(start, start + QUERIES_AT_ONCE)
        nearness = queries[part].astype(np.float64) @ passages.astype(np.float64).T
        own = nearness[np.arange(len(nearness)), right[part]]
        ranks[part] = (nearness >= own[:, None]).sum(1)
    return ranks


def baseline(metric: str, kind: str, train_targets: Sequence[Any], targets: Sequence[Any]) -> float | None:
    """Score of always answering what is most frequent in training: label, set of labels, tag, number of a choice.

    No answer to every question. None where that says nothing: correlations of a constant, retrieval.
    """
    if metric in RANKED or kind == "regression" or metric in ("pearson", "spearman"):
        return None
    each = [tag for tags in train_targets for tag in tags] if kind == "tagging" else train_targets
    if kind == "answering":
        return score(metric, kind, targets, [{"answer": ""}] * len(targets))
    counts = Counter(tuple(sorted(one)) for one in each) if kind == "multi_label" else Counter(each)
    most = min(counts, key=lambda one: (-counts[one], one))
    return score(metric, kind, targets, [_constant(kind, most, target) for target in targets])


def _constant(kind: str, most: Any, target: Any) -> dict[str, Any]:
    if kind == "tagging":
        return {"tags": [most] * len(target)}
    if kind == "multi_label":
        return {"labels": [{"label": label} for label in most]}
    return {"choice" if kind == "multiple_choice" else "label": most}
