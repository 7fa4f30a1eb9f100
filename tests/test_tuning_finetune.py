"""One trial alone: it learns, repeats exactly, keeps its best epoch, sees the same order in every mode, ends on NaN."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_encoder import GOAL, LABELS, make_examples, read, write_encoder

from data.alignment import encode_examples
from data.examples import Encoded, Examples
from data.retrieval import search_space
from model.config import Head
from model.heads.building import build_head
from model.heads.states import open_encoder, pooled_states
from orchestration.inference import outputs_of
from tuning.config import Finetune
from tuning.finetune import Goal, Part, Work, epoch_order, predicted, run_trial, tensors

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return write_encoder(tmp_path_factory.mktemp("encoder"), width=32)


@pytest.fixture(scope="module")
def splits(encoder) -> tuple[Part, Part]:
    return read(make_examples(150, 1), encoder), read(make_examples(80, 2), encoder)


def run(encoder, splits, seed: int = 0, **settings) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    values = {"mode": "full", "learning_rate": 3e-3, "epochs": 6, "length": 16, "global_batch": 16, **settings}
    train, validation = splits
    work = Work(Finetune(**values), Head(), encoder, GOAL, train.encoded, validation, seed)
    return run_trial(work, lambda record: None)


def test_a_full_trial_learns_and_hands_back_its_best_epoch(encoder, splits) -> None:
    reports = []
    settings = Finetune(mode="full", learning_rate=3e-3, epochs=6, length=16, global_batch=16)
    train, validation = splits
    outcome, weights = run_trial(Work(settings, Head(), encoder, GOAL, train.encoded, validation, 0), reports.append)
    assert outcome["status"] == "done"
    assert [{key: one[key] for key in outcome["epochs"][0]} for one in reports] == outcome["epochs"]
    assert [one["seconds"] for one in reports] == sorted(one["seconds"] for one in reports)
    assert [record["epoch"] for record in reports] == [1, 2, 3, 4, 5, 6]
    assert reports[-1]["train_loss"] < 0.5 * reports[0]["train_loss"]
    scores = [record["score"] for record in reports]
    assert outcome["score"] == max(scores) > 0.8  # by chance 0.33
    assert outcome["best_epoch"] == scores.index(max(scores)) + 1
    objective = build_head(encoder, Head(), LABELS, seed=5)
    model = objective.model
    model.load_state_dict(weights, strict=False)
    found = predicted(objective.eval(), GOAL, validation, "cpu")
    right = [one["label"] == target for one, target in zip(found, validation.examples.targets, strict=True)]
    assert np.mean(right) == outcome["score"]
    assert outcome["trained_parameters"] == outcome["total_parameters"] == sum(p.numel() for p in model.parameters())


def test_the_same_seed_is_the_same_trial_and_another_is_not(encoder, splits) -> None:
    (first, weights), (second, same), (third, other) = (run(encoder, splits, seed, epochs=2) for seed in (0, 0, 1))
    assert first["epochs"] == second["epochs"] and first["epochs"] != third["epochs"]
    assert all(torch.equal(weights[name], same[name]) for name in weights)
    assert not torch.equal(weights["classifier.weight"], other["classifier.weight"])


def test_a_trial_leaves_the_callers_generator_alone(encoder, splits) -> None:
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    run(encoder, splits, epochs=1)
    assert torch.equal(torch.rand(1), expected)


CACHED = {
    "classification": Head(), "tagging": Head(kind="tagging"), "crf": Head(kind="tagging", crf=True),
    "answering": Head(kind="answering"), "multiple_choice": Head(kind="multiple_choice"),
    "embedding": Head(kind="embedding", layers="linear", pooling="mean"),
}  # fmt: skip


@pytest.mark.parametrize("name", CACHED)
def test_cached_features_train_the_same_head_as_the_frozen_encoder_in_the_loop(encoder, name: str) -> None:
    head = CACHED[name]
    examples, goal = task_of(head.kind)
    parts = {}
    for split, some in (("train", np.arange(40)), ("validation", np.arange(40, 60))):
        taken = examples.take([int(n) for n in some])
        encoded = encode_examples(taken, goal.labels, encoder, 16, 4 if head.kind != "multiple_choice" else None)
        parts[split] = Part(taken, encoded)
        if head.kind == "embedding":
            texts, right = search_space(taken)
            passages = encode_examples(Examples("embedding", texts), (), encoder, 16)
            parts[split] = Part(taken, encoded, passages, right)
    pooling = head.reads_features
    assert pooling is not None
    cached = {split: featured(part, encoder, pooling) for split, part in parts.items()}
    settings = Finetune(mode="frozen", epochs=3, learning_rate=1e-2, length=16, global_batch=16)
    slow, fast = (
        run_trial(Work(settings, head, encoder, goal, one["train"].encoded, one["validation"], 0), lambda record: None)
        for one in (parts, cached)
    )
    assert fast[0]["status"] == slow[0]["status"] == "done"
    for key in ("trained_parameters", "total_parameters", "best_epoch"):
        assert fast[0][key] == slow[0][key]
    assert fast[1].keys() == slow[1].keys()
    for weight, tensor in slow[1].items():
        torch.testing.assert_close(fast[1][weight], tensor, atol=1e-4, rtol=0)
    for a, b in zip(slow[0]["epochs"], fast[0]["epochs"], strict=True):
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-4)
    rows = [len(part.encoded.lengths) for part in parts.values()]
    passages = parts["validation"].passages
    judged = rows[1] + (0 if passages is None else len(passages.lengths))
    assert fast[0]["encoder_rows"] == 0 and slow[0]["encoder_rows"] == 3 * (rows[0] + judged)


def featured(part: Part, encoder: Path, pooling: str) -> Part:
    """With what the encoder makes of all its rows at once."""
    alone = open_encoder(encoder)

    def ready(encoded: Encoded | None) -> Encoded | None:
        if encoded is None:
            return None
        tokens = encoded.tokens(np.arange(len(encoded.lengths)))
        with torch.no_grad():
            states = pooled_states(alone, {k: torch.from_numpy(v) for k, v in tokens.items()}, (pooling,))[pooling]
        return encoded.with_features(states.numpy(), pooling == "tokens")

    encoded = ready(part.encoded)
    assert encoded is not None
    return replace(part, encoded=encoded, passages=ready(part.passages))


def task_of(kind: str) -> tuple[Examples, Goal]:
    """60 examples of any kind, some longer than a row."""
    texts = make_examples(60, 1, longest=24).texts
    words = [text.split() for text in texts]
    if kind == "tagging":
        tags = [["B-N" if word < "w3" else "O" for word in some] for some in words]
        return Examples(kind, texts, words=words, targets=tags), Goal(("B-N", "O"), "accuracy", scheme="bio")
    if kind == "answering":
        spans = [[(text.index(some[-1]), some[-1])] for text, some in zip(texts, words, strict=True)]
        return Examples(kind, ["w55"] * 60, pairs=texts, targets=spans), Goal((), "answer_f1")
    if kind == "multiple_choice":
        choices = [[some[0], some[-1], "w9"] for some in words]
        targets = [k % 3 for k in range(60)]
        return Examples(kind, texts, choices=choices, targets=targets), Goal((), "accuracy", num_choices=3)
    if kind == "embedding":
        pairs = [" ".join(some[::2]) for some in words]
        pairs[1] = pairs[0]  # no wrong answer of the other
        return Examples(kind, texts, pairs=pairs, targets=[None] * 60), Goal((), "mrr")
    return make_examples(60, 1, longest=24), GOAL


def test_order_depends_on_seed_and_epoch_alone() -> None:
    orders = {(seed, epoch): epoch_order(50, seed, epoch) for seed in range(2) for epoch in range(3)}
    assert all(sorted(order) == list(range(50)) for order in orders.values())
    assert len({tuple(order) for order in orders.values()}) == 6
    assert (epoch_order(50, 1, 2) == orders[1, 2]).all()


@pytest.mark.parametrize("mode", ["frozen", "full"])
def test_a_diverging_trial_ends_as_nan_without_weights(encoder, splits, mode: str) -> None:
    outcome, weights = run(encoder, splits, mode=mode, learning_rate=1e30)
    assert outcome["status"] == "nan" and outcome["score"] is None and not weights
    assert "learning rate" in outcome["error"] or "validation loss" in outcome["error"]


def test_a_number_is_learnt_and_a_constant_one_has_no_correlation(encoder) -> None:
    """Whole numbers: of each text how many words it has."""
    random = np.random.default_rng(1)
    counts = random.integers(1, 14, 120)
    texts = [" ".join(f"w{word}" for word in random.integers(0, 60, count)) for count in counts]
    found = []
    for targets in ([float(count) for count in counts], [3.0] * len(counts)):
        examples = Examples("regression", texts, targets=targets)
        part = Part(examples, encode_examples(examples, [], encoder, 16))
        settings = Finetune(mode="full", learning_rate=1e-2, epochs=3, length=16, global_batch=8)
        head, goal = Head(kind="regression", pooling="max"), Goal((), "pearson")
        found.append(run_trial(Work(settings, head, encoder, goal, part.encoded, part, 0), lambda record: None)[0])
    learnt, constant = found
    losses = [record["train_loss"] for record in learnt["epochs"]]
    assert losses[-1] < 0.3 * losses[0] and learnt["status"] == "done"
    assert learnt["score"] > 0.9  # where (B,) met (B, 1) each number would be drawn to the mean of its batch
    assert [record["score"] for record in constant["epochs"]] == [None] * 3
    assert (constant["status"], constant["score"]) == ("nan", None) and "or every target" in constant["error"]


def test_predictions_come_back_in_order(encoder, splits) -> None:
    objective = build_head(encoder, Head(), LABELS, mode="full", seed=0).eval()
    encoded = splits[1].encoded
    logits = outputs_of(objective, encoded, "cpu")["logits"]
    with torch.no_grad():
        alone = objective.logits(tensors(encoded, np.array([17]))).numpy()
    np.testing.assert_allclose(logits[17:18], alone, atol=1e-5)
