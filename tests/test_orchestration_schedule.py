"""The learning rate is a closed form of the step."""

import pytest

from orchestration.schedule import learning_rate, rate_of_share


def test_warm_up_then_linear_decay():
    rates = [learning_rate(step, 10, 1.0, 0.2) for step in range(10)]
    assert rates[:3] == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert rates[2:] == pytest.approx([(10 - step) / 8 for step in range(2, 10)])
    assert rates[-1] > 0


def test_constant_and_no_warm_up():
    assert [learning_rate(step, 5, 2.0, 0.0, "constant") for step in range(5)] == [2.0] * 5
    assert learning_rate(0, 5, 2.0, 0.0) == 2.0
    assert learning_rate(0, 1, 2.0, 0.5) == 2.0


def test_the_rate_of_a_share_is_the_same_line_over_the_budget():
    rates = [rate_of_share(step / 10, 1.0, 0.2) for step in range(10)]
    assert rates[:3] == pytest.approx([0, 1 / 2, 1.0])
    assert rates[2:] == pytest.approx([(10 - step) / 8 for step in range(2, 10)])
    assert [rate_of_share(share, 2.0, 0.0) for share in (0, 0.5, 1.0)] == [2.0, 1.0, 0.0]
    assert [rate_of_share(share, 2.0, 0.0, "constant") for share in (0, 0.5, 0.99)] == [2.0] * 3


def test_a_raised_budget_goes_back_on_the_line():
    assert rate_of_share(1000 / 2000, 1.0, 0.0) == rate_of_share(5 / 10, 1.0, 0.0) == 0.5
    assert rate_of_share(1000 / 4000, 1.0, 0.5) == 0.5  # in the warm-up of the new one
