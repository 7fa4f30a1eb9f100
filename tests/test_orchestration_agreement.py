"""Words of ranks about a save: they wait for one another, and nobody waits for a group that is gone."""

import asyncio

from orchestration.agreement import Agreement, GroupGoneError


def test_files_of_all_ranks_come_together_and_the_verdict_is_everyones() -> None:
    async def save() -> None:
        agreement = Agreement()
        together, told = (asyncio.ensure_future(one) for one in (agreement.deliveries(4, 2), agreement.verdict(4)))
        for rank in (1, 0):
            await agreement.delivered(4, rank, {f"rank{rank}": {"bytes": rank}})
        assert await together == {"rank0": {"bytes": 0}, "rank1": {"bytes": 1}} and not told.done()
        await agreement.settle(4, None)
        assert await told is None

    asyncio.run(asyncio.wait_for(save(), 10))


def test_a_new_group_frees_the_calls_of_the_one_before() -> None:
    """An actor answers so many calls at once: those that waited for dead ranks must not stay."""

    async def lose() -> None:
        agreement = Agreement()
        waiting = [asyncio.ensure_future(agreement.verdict(4)) for _ in range(3)]
        waiting.append(asyncio.ensure_future(agreement.deliveries(4, 2)))
        await agreement.delivered(4, 0, {})
        await asyncio.sleep(0.01)  # all of them wait
        agreement._forget_saves()
        assert all(isinstance(e, GroupGoneError) for e in await asyncio.gather(*waiting, return_exceptions=True))
        again = asyncio.ensure_future(agreement.verdict(4))
        await agreement.settle(4, "full disk")
        assert await again == "full disk"

    asyncio.run(asyncio.wait_for(lose(), 10))
