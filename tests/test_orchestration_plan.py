"""The arithmetic of a run: its phases, what `--dry-run` says of them, of budgets and of prices."""

from orchestration.plan import ENDLESS_STEPS, Phase, describe, number_of_phase, phases_of, step_plan
from orchestration.recipe import load_config

TWO = ["rows.length=[128,512]", "pretrain.steps=[90,10]", "pretrain.micro_batch=[8,3]"]


def test_phases_are_numbered_through_and_have_their_own_micro_batches():
    config = load_config("demo", TWO)
    phases = phases_of(config)
    assert phases == (Phase(0, 90, 128, 8), Phase(90, 100, 512, 3))
    assert [number_of_phase(phases, step) for step in (0, 89, 90, 99, 100)] == [0, 0, 1, 1, 1]
    assert [step_plan(config, 2, number).accumulation for number in (0, 1)] == [1, 3]
    assert step_plan(config, 2, 1).filler_rows == 2
    one = load_config("demo", ["pretrain.steps=null", "pretrain.budget.hours=1"])
    assert phases_of(one) == (Phase(0, ENDLESS_STEPS, 128, 8),)


def lines(*overrides: str) -> list[str]:
    return [f"{name}: {value}" for name, value in describe(load_config("demo", list(overrides)))]


def test_a_dry_run_shows_phases():
    told = lines(*TWO)
    assert "steps: 100 = 90 with rows of 128 + 10 with rows of 512" in told
    assert "rows per step: 16 = 2 workers x 1 x 8 of phase 1" in told
    assert "rows per step: 16 + 2 filler = 2 workers x 3 x 3 of phase 2" in told
    assert "tokens per step: at most 8,192 of phase 2" in told


def test_a_dry_run_shows_the_budget_and_the_price_of_the_fewest_and_the_most_workers():
    assert "steps: 1,500" in lines() and not any(line.startswith(("budget", "price")) for line in lines())
    words = ["pretrain.steps=null", "scaling.workers=[2,4]", "cluster.price_per_worker_hour=3"]
    told = lines(*words, "pretrain.budget.hours=2")
    assert {"budget: 2 hours", "price: 6 to 12 an hour", "cost: 12 to 24"} <= set(told)
    assert "rows per step: 16 = 4 workers x 1 x 4" not in told
    assert "rows per step: 16 = 2 workers x 1 x 8" in told
    assert "rows per step: 16 + 16 filler = 4 workers x 1 x 8" in told
    told = lines(*words, "pretrain.budget.money=24")
    assert {"budget: 24 in money", "time: 2 to 4 hours"} <= set(told)
    assert "budget: 5,000,000 tokens" in lines("pretrain.steps=null", "pretrain.budget.tokens=5e6")
