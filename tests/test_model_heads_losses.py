"""Losses over labels against what torch and arithmetic say."""

import math

import pytest
import torch
from torch.nn import functional

from model.heads.losses import binary_cross_entropy, cross_entropy, squared_error, weigh_classes

LOGITS = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
LABELS = torch.tensor([0, 2, -100, 1, 2, -100])
KNOWN = LABELS != -100


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weights", [None, torch.tensor([1.0, 2.0, 0.5])])
def test_cross_entropy_is_the_sum_of_torchs_terms(weights, smoothing: float) -> None:
    actual = cross_entropy(LOGITS, LABELS, weights, smoothing)
    scale = torch.ones(3) if weights is None else weights
    expected = 0.0
    for row, label in zip(LOGITS[KNOWN].log_softmax(-1).tolist(), LABELS[KNOWN].tolist(), strict=True):
        spread = -sum(float(w) * p for w, p in zip(scale, row, strict=True)) / 3
        expected += (1 - smoothing) * -float(scale[label]) * row[label] + smoothing * spread
    assert actual.item() == pytest.approx(expected, abs=1e-6)
    mean = functional.cross_entropy(LOGITS[KNOWN], LABELS[KNOWN], weights, label_smoothing=smoothing)
    torch.testing.assert_close(actual / scale[LABELS[KNOWN]].sum(), mean)


def test_binary_cross_entropy_decides_each_label_alone() -> None:
    labels = torch.tensor([[1.0, 0.0, 1.0]] * 5 + [[math.nan] * 3])
    weights = torch.tensor([1.0, 2.0, 0.5])
    expected = 0.0
    for row in LOGITS[:5].sigmoid().tolist():
        for weight, p, target in zip(weights.tolist(), row, (0.95, 0.05, 0.95), strict=True):  # smoothed by 0.1
            expected -= weight * (target * math.log(p) + (1 - target) * math.log(1 - p))
    assert binary_cross_entropy(LOGITS, labels, weights, 0.1).item() == pytest.approx(expected, abs=1e-5)
    plain = functional.binary_cross_entropy_with_logits(LOGITS[:5], labels[:5], reduction="sum")
    torch.testing.assert_close(binary_cross_entropy(LOGITS, labels, None, 0.0), plain)


def test_fillers_give_no_gradient_even_where_the_model_says_nan() -> None:
    values = torch.tensor([1.0, torch.nan, 3.0], requires_grad=True)
    loss = squared_error(values, torch.tensor([2.0, torch.nan, 1.0]))
    loss.backward()
    assert loss == 5 and values.grad is not None and values.grad.tolist()[::2] == [-2, 4]
    nothing = squared_error(values, torch.full((3,), torch.nan))
    assert nothing == 0
    assert cross_entropy(LOGITS, torch.full((6,), -100)) == 0


def test_a_number_for_each_row_and_no_table_of_all_by_all() -> None:
    with pytest.raises(ValueError, match=r"\(3, 1\) against labels \(3,\)"):
        squared_error(torch.zeros(3, 1), torch.zeros(3))


def test_balanced_weights_are_inverse_frequencies_of_mean_one() -> None:
    weights = weigh_classes("balanced", ["a", "b", "c"], {"a": 6, "b": 3, "c": 1})
    assert weights is not None
    torch.testing.assert_close(weights, torch.tensor([10 / 18, 10 / 9, 10 / 3]))
    assert (weights * torch.tensor([6.0, 3.0, 1.0])).sum() / 10 == pytest.approx(1)
    unseen = weigh_classes("balanced", ["a", "b", "c"], {"a": 3, "b": 1})
    assert unseen is not None and unseen.tolist() == pytest.approx([2 / 3, 2, 1])
    given = weigh_classes({"b": 4.0}, ["a", "b"], None)
    assert given is not None and given.tolist() == [1, 4]
    assert weigh_classes(None, ["a"], None) is None
    with pytest.raises(ValueError, match="no label 'x'; labels are a, b"):
        weigh_classes({"x": 1.0}, ["a", "b"], None)
    with pytest.raises(ValueError, match="number of training targets"):
        weigh_classes("balanced", ["a", "b"], None)
