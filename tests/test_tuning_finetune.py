"""One trial alone: it learns, repeats exactly, keeps its best epoch, sees the same order in every mode, ends on NaN."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_encoder import GOAL, LABELS, make_examples, read, write_encoder

from data.alignment import encode_examples
from data.examples import Examples
from model.config import Head
from model.heads.building import build_head
from orchestration.inference import outputs_of
from tuning.config import Finetune
from tuning.finetune import Goal, Part, epoch_order, predicted, run_trial, tensors

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
    return run_trial(Finetune(**values), Head(), encoder, GOAL, train.encoded, validation, seed, lambda record: None)


def test_a_full_trial_learns_and_hands_back_its_best_epoch(encoder, splits) -> None:
    reports = []
    settings = Finetune(mode="full", learning_rate=3e-3, epochs=6, length=16, global_batch=16)
    train, validation = splits
    outcome, weights = run_trial(settings, Head(), encoder, GOAL, train.encoded, validation, 0, reports.append)
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


def test_cached_features_train_the_same_head_as_the_frozen_encoder_in_the_loop(encoder, splits) -> None:
    objective = build_head(encoder, Head(), LABELS, mode="frozen", seed=0).eval()
    cached = []
    for part in splits:
        with torch.no_grad():
            features = objective.features(tensors(part.encoded, np.arange(len(part.encoded)))).numpy()
        cached.append(replace(part, encoded=replace(part.encoded, features=features)))
    torch.manual_seed(0)
    slow, in_the_loop = run(encoder, splits, mode="frozen", epochs=3, learning_rate=1e-2)
    fast, from_features = run(encoder, cached, mode="frozen", epochs=3, learning_rate=1e-2)
    assert set(in_the_loop) == {
        "bert.pooler.dense.weight", "bert.pooler.dense.bias", "classifier.weight", "classifier.bias",
    }  # fmt: skip
    for name, weight in in_the_loop.items():
        torch.testing.assert_close(from_features[name], weight, atol=1e-4, rtol=0)
    for a, b in zip(slow["epochs"], fast["epochs"], strict=True):
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-4)


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
        found.append(run_trial(settings, head, encoder, goal, part.encoded, part, 0, lambda record: None)[0])
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
