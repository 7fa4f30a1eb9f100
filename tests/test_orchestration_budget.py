"""Budgets: what is spent is counted once, by all ranks alike, over kills and changes of world size."""

import copy
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_store import made_store

from data.config import Masking
from model.config import Encoder
from model.encoder import build_encoder
from model.objectives.masked import MaskedLM
from orchestration import ledger as ledger_file
from orchestration.budget import LEDGER, Limit, Spent, has_more, in_words, limit_of, spent_before, told
from orchestration.feed import Feed
from orchestration.ledger import Ledger
from orchestration.plain_engine import PlainEngine
from orchestration.recipe import build_config
from orchestration.schedule import rate_of_share
from orchestration.segments import Plan, PlanPhase, window_parts
from orchestration.steps import train_steps

LIMIT = Limit("tokens", 4000, None)


@pytest.mark.parametrize(
    ("limit", "share"),
    [
        (Limit("tokens", 4000, None), 0.25),
        (Limit("hours", 0.5, None), 0.5),
        (Limit("money", 8, 2.0), 0.25),
        (Limit("tokens", 10, None), 1.0),
    ],
)
def test_the_share_is_of_the_budgets_own_unit(limit: Limit, share: float):
    assert limit.share(Spent(tokens=1000, seconds=900, worker_seconds=3600)) == share


def test_what_was_spent_is_told_with_money_where_a_price_is_known():
    spent = Spent(tokens=1000, seconds=900, worker_seconds=3600)
    none = {"seconds_before_steps": 0, "worker_seconds_before_steps": 0}
    assert told(spent, None) == {"tokens": 1000, "seconds": 900, "worker_seconds": 3600, **none}
    assert told(spent, 2.5)["money"] == 2.5
    assert in_words(told(spent, 2.5)) == "15 min 00 s, 1 worker-hours, 2.5 in money"
    assert [Limit("tokens", 5e6, None).text, Limit("hours", 0.5, None).text] == ["5,000,000 tokens", "0.5 hours"]


def test_a_raised_budget_is_more_and_an_equal_one_is_not():
    summary = {"spent": {"tokens": 4010, "seconds": 3.0, "worker_seconds": 6.0}}
    assert not has_more(LIMIT, summary) and not has_more(None, summary)
    assert has_more(Limit("tokens", 5000, None), summary)
    config = build_config({"name": "x", "pretrain": {"budget": {"money": 3}}},
                          {"cluster.price_per_worker_hour": 2})  # fmt: skip
    assert limit_of(config) == Limit("money", 3, 2.0)
    assert limit_of(build_config({"name": "x"}, {})) is None


def test_time_is_the_ledgers_and_tokens_are_the_checkpoints(tmp_path: Path):
    """Steps behind the checkpoint are done again: their time was spent, their tokens count once."""
    assert spent_before(tmp_path, None) == Spent()
    manifest = {"spent": {"tokens": 500, "seconds": 60.0, "worker_seconds": 120.0}}
    assert spent_before(tmp_path, manifest) == Spent(500, 60, 120)
    (tmp_path / LEDGER).write_text(json.dumps({"tokens": 700, "seconds": 90.0, "worker_seconds": 210.0}))
    assert spent_before(tmp_path, manifest) == Spent(500, 90, 210)
    assert spent_before(tmp_path, None) == Spent(0, 90, 210)
    (tmp_path / LEDGER).write_text('{"tokens": 700')
    assert spent_before(tmp_path, manifest) == Spent(500, 60, 120)


def test_the_seconds_of_a_killed_driver_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Nothing but the ledger's own thread writes: a group that is killed says no last word."""
    monkeypatch.setattr(ledger_file, "LEDGER_SECONDS", 0.1)
    ledger = Ledger(Spent(0, 100.0, 100.0), 0, 3, Limit("hours", 1, None), None, tmp_path / LEDGER)
    deadline = time.monotonic() + 20
    while not (tmp_path / LEDGER).exists() or spent_before(tmp_path, None).seconds < 100.4:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    after = spent_before(tmp_path, None)
    assert after.worker_seconds - 100 == pytest.approx(3 * (after.seconds - 100))
    ledger.finish()


def test_ranks_agree_by_the_clock_of_rank_0_and_a_budget_never_ends_a_run_before_its_first_step(tmp_path: Path):
    limit = Limit("hours", 1 / 3600, None)
    ranks = [Ledger(Spent(7, 5.0, 5.0), 0, 2, limit, None, tmp_path / LEDGER if rank == 0 else None)
             for rank in range(2)]  # fmt: skip
    assert ranks[1].clock() == 0.0 < ranks[0].clock()
    assert not any(rank.is_spent for rank in ranks)
    for rank in ranks:
        rank.count(0, {"tokens": 30.0}, 2.5)
    assert [rank.spent for rank in ranks] == [Spent(37, 7.5, 10.0)] * 2
    assert all(rank.is_spent for rank in ranks)
    for rank in ranks:
        rank.finish()


@pytest.mark.parametrize("limit", [Limit("hours", 100 / 3600, None), Limit("money", 20 / 3600, 0.1)])
def test_what_was_spent_before_the_first_step_skips_no_warm_up(tmp_path: Path, limit: Limit):
    """Loading, the first evaluation and a group that was killed before its first save count, but the schedule is that
    of the rest; it goes on from there after a restart, by other workers too."""

    def group(before: Spent, start: int, workers: int = 2) -> Ledger:
        return Ledger(before, start, workers, limit, None, None)

    killed = group(Spent(), 0)
    killed.begin(10.0)
    killed.count(0, {"tokens": 5}, 12.0)
    assert killed.spent == Spent(5, 12.0, 24.0, 10.0, 20.0)
    (tmp_path / LEDGER).write_text(json.dumps(dataclasses.asdict(killed.spent)))

    first = group(spent_before(tmp_path, None), 0)
    first.begin(8.0)  # 20 seconds are gone, 80 are left
    first.count(0, {"tokens": 5}, 10.0)
    assert first.spent == Spent(5, 22.0, 44.0, 20.0, 40.0)
    assert first.share() == pytest.approx(0.22)
    assert first.shares() == pytest.approx((0.0, 2 / 80))
    assert rate_of_share(*first.shares(), 1.0, 0.1) == pytest.approx(1 / 5)
    first.count(1, {"tokens": 5}, 12.0)
    assert first.shares() == pytest.approx((2 / 80, 4 / 80))

    again = group(spent_before(tmp_path, {"spent": dataclasses.asdict(first.spent)}), 2, workers=1)
    again.begin(4.0)
    again.count(2, {"tokens": 5}, 8.0)
    per_second = 2.0 if limit.unit == "money" else 1.0  # of two workers, against one
    spent = 24 * per_second - 20 * per_second
    assert again.shares() == pytest.approx(
        ((spent + 4) / (limit_seconds(limit) - 20 * per_second), (spent + 8) / (limit_seconds(limit) - 20 * per_second))
    )
    for ledger in (killed, first, again):
        ledger.finish()


def limit_seconds(limit: Limit) -> float:
    """A budget in seconds of a worker group, or of a worker."""
    return limit.amount * 3600 / (limit.price or 1.0)


def test_a_budget_that_loading_spends_ends_with_one_step_that_learns():
    ledger = Ledger(Spent(), 0, 2, Limit("hours", 5 / 3600, None), None, None)
    ledger.begin(9.0)
    assert not ledger.is_spent
    ledger.count(0, {"tokens": 5}, 10.0)
    assert ledger.is_spent and rate_of_share(*ledger.shares(), 1.0, 0.06) == pytest.approx(1 / 1.06)
    ledger.finish()


def test_a_run_of_steps_is_done_by_its_steps():
    ledger = Ledger(Spent(), 30, 1, None, 120, None)
    assert ledger.share() == 0.25
    ledger.count(119, {"tokens": 8}, 1.0)
    assert ledger.share() == 1.0 and not ledger.is_spent
    ledger.finish()


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    folder = tmp_path_factory.mktemp("budget")
    store = made_store(folder / "store", [90, 77])
    phase = PlanPhase(0, 10**9, length=16, micro_batch=2, store=str(store.path))
    return Plan(str(folder), (phase,), seed=3, global_batch=7, eval_every_steps=10**9, masking=Masking(),
                weights=(1.0,))  # fmt: skip


def engine() -> PlainEngine:
    torch.set_num_threads(1)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    encoder = Encoder(**sizes, max_position_embeddings=16)
    return PlainEngine(MaskedLM(build_encoder(encoder, {"vocab_size": 100, "pad_id": 0}, seed=1)[0]))


def batches(plan: Plan, start: int, rank: int, world_size: int):
    """Step and micro-batches of one rank from `start` on, as a worker has them."""
    slots = world_size * plan.phases[0].micro_batch
    feed = Feed(rank, plan.seed, plan.phases[0].micro_batch, -(-plan.global_batch // slots), pad_id=0)
    step = start
    for window in range(start // 24, 10):  # 167 rows are an epoch of 24 steps, and a window
        for _, parts in window_parts(plan, window, step, world_size):
            mine = [part for part in parts if part.rank == rank and not part.evaluation]
            yield from feed.steps(mine, step, lambda lengths, positions: None, lambda stage, step: None)
            step = mine[-1].last_step


def train(plan: Plan, made: PlainEngine, ledger: Ledger, start: int, kill_before: int | None = None):
    """Records to the end of the budget, and (step, state, spent) of the newest checkpoint: every 10 steps."""
    records, saved = [], None
    steps = batches(plan, start, 0, 1)
    rate = lambda step: rate_of_share(*ledger.shares(), 1e-2, 0.2)  # noqa: E731
    for record in train_steps(made, steps, rate, count=ledger.count):
        records.append((record.step, record.loss, record.learning_rate, ledger.spent.tokens))
        if (record.step + 1) % 10 == 0:
            state = copy.deepcopy((made.module.state_dict(), made.optimizer.state_dict()))
            saved = record.step + 1, state, dataclasses.asdict(ledger.spent)
        if ledger.is_spent or record.step + 1 == kill_before:
            break
    return records, saved


def test_killed_and_resumed_a_token_budget_trains_the_same_bit_for_bit(plan: Plan, tmp_path: Path, one_thread: None):
    whole, _ = train(plan, engine(), Ledger(Spent(), 0, 1, LIMIT, None, None), 0)
    assert whole[-1][3] >= LIMIT.amount > whole[-2][3], "it ends with the first step that spends the budget"
    rates = [rate for _, _, rate, _ in whole]
    peak = int(np.argmax(rates))
    assert 0 < rates[0] < rates[1] < 1e-2 and sorted(rates[: peak + 1]) == rates[: peak + 1]
    assert sorted(rates[peak:], reverse=True) == rates[peak:] and rates[-1] > 0
    assert whole[peak][3] / LIMIT.amount == pytest.approx(0.2, abs=0.05)

    begun, saved = train(plan, engine(), Ledger(Spent(), 0, 1, LIMIT, None, None), 0, kill_before=27)
    assert saved is not None and begun[-1][0] == 26
    step, (weights, moments), facts = saved
    assert step == 20
    (tmp_path / LEDGER).write_text(json.dumps({"tokens": begun[-1][3], "seconds": 1e3, "worker_seconds": 1e3}))
    before = spent_before(tmp_path, {"spent": facts})
    again = engine()
    again.module.load_state_dict(weights)
    again.optimizer.load_state_dict(moments)
    rest, _ = train(plan, again, Ledger(before, step, 1, LIMIT, None, None), step)
    assert begun[:20] + rest == whole


@pytest.mark.parametrize("world_size", [2, 3])
def test_the_schedule_of_a_token_budget_is_the_same_for_any_world_size(plan: Plan, world_size: int, one_thread: None):
    """Filler rows, of which other world sizes have other numbers, are no tokens."""

    def rates(workers: int) -> list[float]:
        made, ledger = engine(), Ledger(Spent(), 0, workers, LIMIT, None, None)
        told: list[float] = []
        for of_ranks in zip(*(batches(plan, 0, rank, workers) for rank in range(workers)), strict=True):
            sums: list[Any] = [made.forward(batch)[1]["tokens"] for rank in of_ranks for batch in rank.micro_batches]
            ledger.count(of_ranks[0].number, {"tokens": float(sum(sums))}, 0.0)
            told.append(rate_of_share(*ledger.shares(), 1e-2, 0.2))
            if ledger.is_spent:
                return told
        raise AssertionError("the budget was not spent")

    with torch.no_grad():
        assert rates(world_size) == rates(1)
