"""Faults that a run survives, on real processes: kills, a rank that hangs or is frozen, a SIGTERM, a damaged shard.

Each run ends with the losses of the undisturbed one; how long it took from the fault to the next new step is printed.
"""

import json
import random
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_runs import STOPS, Driver, Nodes, losses, nodes, table, watched, written_corpus

pytestmark = [pytest.mark.road, pytest.mark.soak, pytest.mark.timeout(1200)]

STEPS = 160
TWO = [f"pretrain.steps={STEPS}", "scaling.workers=2"]


@pytest.fixture(autouse=True)
def no_driver_is_left() -> Iterator[None]:
    yield
    Driver.end_all()


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("faults")
    written_corpus(folder)
    return folder


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[Nodes]:
    with nodes() as cluster:
        cluster.add()
        yield cluster


@pytest.fixture(scope="module")
def undisturbed(home, two_nodes) -> dict[int, float]:
    driver = Driver(home, two_nodes.address, "undisturbed", *TWO)
    assert driver.wait() == 0, driver.told()
    found = losses(driver.run)
    assert list(found) == list(range(STEPS))
    return found


def restarts(driver: Driver) -> int:
    return json.loads((driver.run / "status.json").read_text())["restarts"]


@pytest.mark.parametrize(
    "fault",
    ["kill:1:70", "kill:0:100:evaluating", "kill:1:50:saving:state", "kill:0:100:saving:file",
     "kill:0:100:saving:manifest", "kill:0:100:saving:retention"],
)  # fmt: skip
def test_a_worker_that_is_killed_costs_the_steps_since_the_checkpoint(home, two_nodes, undisturbed, fault):
    name = fault.replace(":", "-")
    driver = Driver(home, two_nodes.address, name, *TWO, CLOZE_FAULT=fault)
    assert driver.wait() == 0, driver.told()
    assert losses(driver.run) == pytest.approx(undisturbed, abs=1e-6)
    assert restarts(driver) == 1
    rank, step = fault.split(":")[1:3]
    assert re.search(rf"rank {rank} on \S+ \(last seen at step \d+, \S+\): its process was killed", driver.log())
    assert driver.steps()[-1]["step"] == STEPS - 1 >= int(step)


def test_the_driver_is_killed_and_the_same_command_goes_on(home, two_nodes, undisturbed):
    driver = Driver(home, two_nodes.address, "driver", *TWO)
    driver.reaches(70)
    driver.kill()
    begun = time.monotonic()
    again = Driver(home, two_nodes.address, "driver", *TWO)
    again.until(lambda: "workers" in again.told() and again.step() > 75)
    print(f"driver killed: {time.monotonic() - begun:.1f} s to the next new step")
    assert again.wait() == 0, again.told()
    assert losses(again.run) == pytest.approx(undisturbed, abs=1e-6)


def test_a_stuck_rank_is_named_with_its_stack_and_started_again(home, two_nodes, undisturbed):
    driver = Driver(home, two_nodes.address, "stuck", *TWO, "scaling.stuck_seconds=6", CLOZE_FAULT="stall:1:70")
    assert driver.wait() == 0, driver.told()
    assert losses(driver.run) == pytest.approx(undisturbed, abs=1e-6)
    assert re.search(r"rank 1 on \S+, step 70, forward: stuck for \d+ s \(scaling.stuck_seconds=6\)", driver.told())
    stack = driver.log()
    assert "it stands here" in stack and "in train_steps" in stack and "time.sleep(3600)" in stack


def test_a_frozen_process_is_named_by_the_one_that_waits_for_it(home, two_nodes):
    driver = Driver(home, two_nodes.address, "frozen", "pretrain.steps=100000", "scaling.workers=2",
                    "scaling.stuck_seconds=6", "pretrain.eval_every_steps=null")  # fmt: skip
    driver.reaches(60)
    two_nodes.workers()[-1].send_signal(signal.SIGSTOP)
    took = driver.until(lambda: re.search(r"no sign of life for \d+ s; rank \d on \S+, step", driver.told()))
    step = driver.step()
    took += driver.until(lambda: driver.step() > step + 60)
    print(f"frozen: {took:.1f} s to the next new step")
    told = driver.told()
    named = re.search(r"rank (\d) on \S+, step \d+, \S+: no sign of life for \d+ s; rank (\d) on", told)
    assert named and named[1] != named[2]
    driver.process.send_signal(signal.SIGTERM)
    assert driver.wait() == 130


def test_sigterm_to_a_worker_saves_at_once_and_redoes_nothing(home, two_nodes, undisturbed):
    driver = Driver(home, two_nodes.address, "sigterm", *TWO[1:], "pretrain.steps=100000",
                    "checkpoints.every_steps=100000", "pretrain.eval_every_steps=null",  # the best so far is saved too
                    "scaling.max_restarts=0")  # fmt: skip
    driver.reaches(60)
    two_nodes.workers()[-1].send_signal(signal.SIGTERM)
    took = driver.until(lambda: "a worker got SIGTERM" in driver.told())
    step = int(re.findall(r"saved at step (\d+): a worker got SIGTERM", driver.told())[0])
    took += driver.until(lambda: driver.step() > step + 20)
    print(f"SIGTERM: {took:.1f} s to the next new step, none redone")
    driver.process.send_signal(signal.SIGTERM)
    assert driver.wait() == 130
    found = losses(driver.run)
    assert list(found) == list(range(len(found)))
    assert restarts(driver) == 0
    saved = sorted(path.name for path in (driver.run / "checkpoints").iterdir())
    assert saved[0] == f"step-{step:08d}" and len(saved) == 2


def test_a_truncated_shard_is_named(home, two_nodes, undisturbed):
    shards = sorted((home / "runs" / ".cache").rglob("train/shard-*.parquet"))
    whole = shards[0].read_bytes()
    shards[0].write_bytes(whole[: len(whole) // 2])
    try:
        driver = Driver(home, two_nodes.address, "shard", *TWO)
        assert driver.wait() != 0
        assert shards[0].name in driver.told(), driver.told()
    finally:
        shards[0].write_bytes(whole)
    driver = Driver(home, two_nodes.address, "shard", *TWO)
    assert driver.wait() == 0, driver.told()
    assert losses(driver.run) == pytest.approx(undisturbed, abs=1e-6)


@pytest.mark.timeout(3000)  # some 6 minutes where nothing else runs
def test_twenty_random_kills_end_as_the_undisturbed_run(home, two_nodes):
    """Of workers, at any step and stage, between two files of a save and before its manifest, and of the driver."""
    steps, draw = 2000, random.Random(20)
    words = [f"pretrain.steps={steps}", "scaling.workers=2", "pretrain.eval_every_steps=500"]
    calm = Driver(home, two_nodes.address, "calm", *words)
    assert calm.wait(1000) == 0, calm.told()
    stages = ("forward", "backward", "all-reduce", "update", "saving", "saving:file", "saving:manifest", "driver")
    starts: list[list[str]] = [[]]  # of a driver: the faults of its workers, and where it is killed itself
    for number in range(20):
        stage, step = draw.choice(stages), 95 * number + draw.randint(20, 90)
        if stage == "driver":
            starts[-1].append(str(step))
            starts.append([])
            continue
        rank = draw.randint(0, 1)
        if stage.startswith("saving"):
            step = 50 * (step // 50 + 1)
            rank = 0 if ":" in stage else rank
        starts[-1].append(f"kill:{rank}:{step}:{stage}")
    begun = time.monotonic()
    with watched(home / "runs" / "killed") as watch:
        for number, faults in enumerate(starts):
            of_workers = [fault for fault in faults if ":" in fault]
            driver = Driver(home, two_nodes.address, "killed", *words, CLOZE_FAULT=" ".join(of_workers))
            if number < len(starts) - 1:
                driver.reaches(int(faults[-1]), 300)
                driver.kill()
        assert driver.wait(1500) == 0, driver.told()
    ended = len(re.findall(r"the worker group ended at step", driver.log()))
    print("\n".join(" ".join(faults) for faults in starts))
    print(table(watch.stops(), STOPS))
    print(f"20 kills in {time.monotonic() - begun:.0f} s; {sum(stop[2] for stop in watch.stops())} steps redone, ",
          f"{sum(stop[1] for stop in watch.stops()):.0f} s lost")
    assert ended == 20 - (len(starts) - 1)
    assert losses(driver.run) == pytest.approx(losses(calm.run), abs=1e-6)
