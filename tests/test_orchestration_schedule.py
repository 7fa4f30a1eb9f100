"""The learning rate is a closed form of the step."""

import pytest

from orchestration.schedule import learning_rate


def test_warm_up_then_linear_decay():
    rates = [learning_rate(step, 10, 1.0, 0.2) for step in range(10)]
    assert rates[:3] == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert rates[2:] == pytest.approx([(10 - step) / 8 for step in range(2, 10)])
    assert rates[-1] > 0


def test_constant_and_no_warm_up():
    assert [learning_rate(step, 5, 2.0, 0.0, "constant") for step in range(5)] == [2.0] * 5
    assert learning_rate(0, 5, 2.0, 0.0) == 2.0
    assert learning_rate(0, 1, 2.0, 0.5) == 2.0
