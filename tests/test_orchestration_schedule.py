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


@pytest.mark.parametrize("warmup_ratio", [0.0, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("schedule", ["linear", "constant"])
def test_the_rate_of_a_share_is_the_same_line_over_the_budget(warmup_ratio: float, schedule: str):
    line = 2.0, warmup_ratio, schedule
    rates = [rate_of_share(step / 10, (step + 1) / 10, *line) for step in range(10)]
    assert rates == pytest.approx([learning_rate(step, 10, *line) for step in range(10)])
    assert min(rates) > 0


def test_a_step_that_spends_everything_has_a_rate_and_none_exceeds_the_peak():
    assert rate_of_share(0.0, 1.0, 1.0, 0.06) == pytest.approx(1 / 1.06)
    assert rate_of_share(0.05, 0.9, 1.0, 0.06) <= 1.0


def test_a_raised_budget_goes_back_on_the_line():
    assert rate_of_share(1000 / 2000, 1001 / 2000, 1.0, 0.0) == rate_of_share(5 / 10, 6 / 10, 1.0, 0.0) == 0.5
    assert rate_of_share(1000 / 4000, 1001 / 4000, 1.0, 0.5) == pytest.approx(0.5, abs=1e-3)  # in its warm-up
