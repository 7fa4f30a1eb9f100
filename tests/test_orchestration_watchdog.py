"""A rank that is stuck names itself and ends; one that is frozen is named by those who wait for it."""

import os
import time
from typing import Any

import pytest
import ray
from ray.exceptions import RayActorError

from orchestration.beacon import Beacon
from orchestration.pacer import Pacer
from orchestration.watchdog import Watchdog, blame, limit_of


def sign(passed: int, silent: float = 0.0) -> dict[str, object]:
    return {"host": "h", "step": 1, "stage": "forward", "passed": passed, "silent": silent}


def test_the_one_with_the_fewest_stages_behind_it_is_waited_for():
    assert blame({0: sign(8), 1: sign(7), 2: sign(8)}, silent_after=5) == ([1], [])
    assert blame({0: sign(8), 1: sign(7, silent=9), 2: sign(7)}, silent_after=5) == ([1, 2], [1])
    assert blame({0: sign(8), 1: sign(8)}, silent_after=5) == ([0, 1], [])


def test_slow_stages_and_the_first_step_have_their_time():
    assert limit_of("forward", 5, 10) == 10
    assert limit_of("forward", 0, 10) == 30
    assert limit_of("starting", 5, 10) == limit_of("exporting", 5, 10) == 600
    assert limit_of("starting", 5, 1000) == 3000


@ray.remote(num_cpus=0.1)
class Rank:
    """A worker process with a beacon and a watchdog."""

    def __init__(self, rank: int, ranks: int, pacer: object) -> None:
        self.beacon = Beacon(rank)
        self.ranks, self.pacer = ranks, pacer

    def is_there(self) -> bool:
        return True

    def work(self, stages: int, then: float, limit: float = 1.0) -> int:
        """Pass so many stages of steps, then stay in one."""
        self.beacon.at("reading", 0)
        watchdog = Watchdog(self.beacon, self.ranks, limit, self.pacer).start()
        for number in range(stages):
            time.sleep(0.05)
            self.beacon.at("forward", 1 + number)
        time.sleep(then)
        watchdog.stop()
        return os.getpid()

    def save(self, files: int, seconds: float) -> int:
        """Deliver so many files, each in a second, in one stage of saving, then stay there."""
        from orchestration import watchdog as rules  # this process's: Ray sends the class with copies of its globals

        rules.SLOW["saving"] = 5.0
        self.beacon.at("saving", 1)
        watchdog = Watchdog(self.beacon, self.ranks, 1.0, self.pacer).start()
        for _ in range(files):
            time.sleep(1)
            self.beacon.passes("saving:file", 1)
        time.sleep(seconds)
        watchdog.stop()
        return os.getpid()


def two_ranks(pacer: object) -> list[Any]:
    """Ranks 0 and 1, when their processes are there."""
    ranks = [Rank.remote(rank, 2, pacer) for rank in (0, 1)]
    ray.get([rank.is_there.remote() for rank in ranks])
    return ranks


@pytest.mark.timeout(60)
def test_the_stuck_rank_ends_itself_the_waiting_one_lives(ray_4_cpus):
    pacer = Pacer.remote()
    waiting, stuck = two_ranks(pacer)
    works = [waiting.work.remote(12, 4.0), stuck.work.remote(11, 60.0)]
    with pytest.raises(RayActorError):
        ray.get(works[1], timeout=40)
    news = ray.get(pacer.news.remote())
    assert news["trouble"].startswith("rank 1 on ") and "step 11, forward: stuck for" in news["trouble"]
    assert "time.sleep(then)" in news["log"][0], "the stack of the thread that works"
    assert ray.get(works[0], timeout=20) > 0, "the one that waits has longer"
    ray.get(pacer.lost.remote("rank 0: Connection closed", False))
    assert ray.get(pacer.news.remote())["lost"] == news["trouble"], "the one that knows the cause is believed"


@pytest.mark.timeout(60)
def test_the_waiting_rank_names_one_that_gives_no_sign_of_life(ray_4_cpus):
    pacer = Pacer.remote()
    ray.get(pacer.beat.remote(1, {"host": "far", "step": 3, "stage": "backward", "passed": 2, "files": 0}))
    waiting = Rank.remote(0, 2, pacer)
    with pytest.raises(RayActorError):
        ray.get(waiting.work.remote(6, 60.0), timeout=40)
    trouble = ray.get(pacer.news.remote())["trouble"]
    assert trouble.startswith("rank 1 on far, step 3, backward: no sign of life for")
    assert "rank 0 on" in trouble


@pytest.mark.timeout(60)
def test_a_rank_that_works_is_left_alone(ray_4_cpus):
    pacer = Pacer.remote()
    rank = Rank.remote(0, 1, pacer)
    assert ray.get(rank.work.remote(60, 0.0, 5.0), timeout=40) > 0  # three seconds, each stage far below the limit
    assert ray.get(pacer.news.remote())["trouble"] is None
    assert ray.get(pacer.signs.remote())[0]["stage"] == "forward"


@pytest.mark.timeout(90)
def test_a_slow_save_is_not_stuck_while_files_of_any_rank_reach_the_storage(ray_4_cpus):
    """A limit of 5 s; one rank delivers for 12 s, the other waits for it."""
    pacer = Pacer.remote()
    waiting, slow = two_ranks(pacer)
    works = [slow.save.remote(12, 0.0), waiting.save.remote(0, 12.5)]
    assert all(pid > 0 for pid in ray.get(works, timeout=60)) and ray.get(pacer.news.remote())["trouble"] is None
    stuck = slow.save.remote(2, 60.0)
    with pytest.raises(RayActorError):
        ray.get(stuck, timeout=40)
    assert "rank 1 on" in ray.get(pacer.news.remote())["trouble"]
