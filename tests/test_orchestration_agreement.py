"""Words of ranks about a save: they wait for one another, and nobody waits for a group that is gone."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from orchestration.agreement import Agreement, GroupGoneError


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 10))


def test_files_of_all_ranks_come_together_and_the_verdict_is_everyones() -> None:
    async def save() -> None:
        agreement = Agreement()
        group = agreement._next_group()
        for number in (1, 2):
            waiting = agreement.deliveries(group, number, 2), agreement.verdict(group, number)
            together, told = map(asyncio.ensure_future, waiting)
            for rank in (1, 0):
                await agreement.delivered(group, number, rank, {f"rank{rank}": {"bytes": number}})
            assert await together == {"rank0": {"bytes": number}, "rank1": {"bytes": number}} and not told.done()
            await agreement.settle(group, number, None)
            assert await told is None

    run(save())


def test_words_that_come_twice_say_what_they_said_once() -> None:
    """Ray makes a call again whose answer was lost on its way."""

    async def save() -> None:
        agreement = Agreement()
        group = agreement._next_group()
        for rank in (0, 1, 1):
            await agreement.delivered(group, 1, rank, {f"rank{rank}": {}})
        assert [await agreement.deliveries(group, 1, 2) for _ in range(2)] == [{"rank0": {}, "rank1": {}}] * 2
        for _ in range(2):
            await agreement.settle(group, 1, "full disk")
        assert [await agreement.verdict(group, 1) for _ in range(2)] == ["full disk"] * 2
        await agreement.delivered(group, 1, 0, {"rank0": {}})  # late, and settled
        assert not agreement._delivered

    run(save())


def test_a_new_group_frees_the_calls_of_the_one_before_which_has_no_say_any_more() -> None:
    """An actor answers so many calls at once: those that waited for dead ranks must not stay."""

    async def lose() -> None:
        agreement = Agreement()
        old = agreement._next_group()
        waiting = [asyncio.ensure_future(agreement.verdict(old, 1)) for _ in range(3)]
        waiting.append(asyncio.ensure_future(agreement.deliveries(old, 1, 2)))
        await agreement.delivered(old, 1, 0, {})
        await asyncio.sleep(0.01)  # all of them wait
        new = agreement._next_group()
        assert all(isinstance(e, GroupGoneError) for e in await asyncio.gather(*waiting, return_exceptions=True))
        for word in (agreement.delivered(old, 1, 1, {}), agreement.settle(old, 1, None), agreement.verdict(old, 1)):
            with pytest.raises(GroupGoneError, match="worker group 1 is gone; the newest is 2"):
                await word
        again = asyncio.ensure_future(agreement.verdict(new, 1))
        await asyncio.sleep(0.01)
        assert not again.done() and not agreement._delivered
        await agreement.settle(new, 1, "full disk")
        assert await again == "full disk"

    run(lose())
