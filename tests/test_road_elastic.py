"""Workers that come and go with the nodes of a real cluster: the same rows in the same order, nearly equal losses."""

import json
import re
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from fault_runs import STOPS, Driver, Nodes, losses, nodes, table, watched, written_corpus
from metadata_service import metadata_service

pytestmark = [pytest.mark.road, pytest.mark.soak, pytest.mark.timeout(1500)]

ELASTIC = ["scaling.workers=[1, 2]", "pretrain.eval_every_steps=null", "scaling.max_restarts=0"]


@pytest.fixture(autouse=True)
def no_driver_is_left() -> Iterator[None]:
    yield
    Driver.end_all()


@pytest.fixture
def home(tmp_path) -> Path:
    written_corpus(tmp_path)
    return tmp_path


@pytest.fixture
def two_nodes() -> Iterator[Nodes]:
    with nodes() as cluster:
        cluster.add()
        yield cluster


def workers(driver: Driver) -> int | None:
    steps = driver.steps()
    return steps[-1]["workers"] if steps else None


def stop(driver: Driver) -> None:
    driver.process.send_signal(signal.SIGTERM)
    assert driver.wait() == 130, driver.told()


def rows_of(folder: Path) -> dict[int, list[int]]:
    """step -> row ids of all ranks, as trained in the end: a step that was redone has the lines of both."""
    steps: dict[int, set[int]] = {}
    for path in folder.glob("rank*.jsonl"):
        for line in path.read_text().splitlines():
            batch = json.loads(line)
            steps.setdefault(batch["step"], set()).update(batch["row_ids"])
    return {step: sorted(rows) for step, rows in steps.items()}


@pytest.mark.parametrize("times", [1, 4])
def test_lost_nodes_and_their_return(home, two_nodes, times):
    """2 -> 1 -> 2 workers, so many times: losses near those of the undisturbed run, the same rows of each step."""
    driver = Driver(home, two_nodes.address, "elastic", *ELASTIC, "pretrain.steps=100000", "--dump-batches", "dump")
    with watched(driver.run) as watch:
        for _ in range(times):
            driver.reaches(driver.step() + 60)
            assert workers(driver) == 2
            step = driver.step()
            two_nodes.lose()
            driver.until(lambda: workers(driver) == 1)
            driver.reaches(max(step, driver.step()) + 30)
            two_nodes.add()
            driver.until(lambda: workers(driver) == 2)
        driver.reaches(driver.step() + 20)
    stop(driver)
    found, lines = losses(driver.run), driver.steps()
    assert json.loads((driver.run / "status.json").read_text())["workers"] == 2
    changes = [b["step"] for a, b in zip(lines, lines[1:], strict=False) if a["workers"] != b["workers"]]
    assert len(changes) == 2 * times
    saved = re.findall(r"saved at step (\d+): another number of workers fits", driver.log())
    assert changes[1::2] == [int(step) for step in saved], "no step is redone where a group grows"

    calm = Driver(home, two_nodes.address, "calm", *ELASTIC, "--dump-batches", "calm", "pretrain.steps=100000")
    calm.reaches(len(found), 600)
    stop(calm)
    reference = losses(calm.run)
    apart = max(abs(reference[step] - loss) for step, loss in found.items())
    print(table(watch.stops(), STOPS))
    print(f"largest difference of a loss over {len(found)} steps and {2 * times} changes: {apart:.1e}")
    assert apart < (1e-4 * 2 if times == 1 else 1e-3)
    ours, theirs = rows_of(home / "dump"), rows_of(home / "calm")
    assert all(ours[step] == theirs[step] for step in found)


def test_the_clouds_notice_drains_the_node_and_the_group_saves_and_goes_on_without_it(home):
    with nodes() as cluster, metadata_service() as (machine, address):
        cluster.add(AWS_EC2_METADATA_SERVICE_ENDPOINT=f"http://{address}", AWS_EC2_METADATA_DISABLED="false")
        driver = Driver(home, cluster.address, "spot", *ELASTIC, "pretrain.steps=100000",
                        "checkpoints.every_steps=100000")  # fmt: skip
        driver.reaches(60)
        assert workers(driver) == 2
        ends = datetime.now(UTC) + timedelta(seconds=120)
        machine.notice = json.dumps({"action": "terminate", "time": ends.strftime("%Y-%m-%dT%H:%M:%SZ")})
        took = driver.until(lambda: "a node is drained" in driver.told())
        step = int(re.findall(r"saved at step (\d+): a node is drained", driver.told())[0])
        took += driver.until(lambda: workers(driver) == 1)
        print(f"spot notice: {took:.1f} s to the next new step, none redone")
        assert driver.steps()[step]["workers"] == 1 and driver.steps()[step - 1]["workers"] == 2
        stop(driver)
        assert json.loads((driver.run / "status.json").read_text())["restarts"] == 0
        assert list(losses(driver.run)) == list(range(driver.step() + 1))
