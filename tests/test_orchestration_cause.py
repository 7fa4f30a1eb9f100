"""The one line that names the cause, out of what Ray makes of an exception."""

import pytest
import ray
from ray.exceptions import RayTaskError

from orchestration.cause import cause_of


@pytest.mark.parametrize(
    "text, line",
    [
        ("one line", "one line"),
        ("", "ValueError"),
        ("Traceback:\n  File x\nKeyError: 'a'\n\nTo change retry attempts, configure ...", "KeyError: 'a'"),
        ("ray.exceptions.RayTaskError(ValueError): x\nValueError: y\nray.train.WorkerGroupError: z", "ValueError: y"),
        (
            "ray.exceptions.OutOfMemoryError: 2 worker(s) were killed due to the node running low on memory. Memory on "
            "the node (IP: 10.0.0.2, ID: 52) was 22.37GB used\nOOM kill reason: ...\nRefer to the documentation ...",
            "2 worker(s) were killed due to the node running low on memory. Memory on the node (IP: 10.0.0.2): give it "
            "more, or fewer workers or smaller micro-batches",
        ),
    ],
)
def test_the_line_that_names_the_cause(text, line):
    assert cause_of(ValueError(text)) == line


def test_what_a_task_of_ray_raised(ray_4_cpus):
    @ray.remote(num_cpus=0.1)
    def broken() -> None:
        raise ValueError("the cause")

    with pytest.raises(RayTaskError) as error:
        ray.get(broken.remote())
    assert cause_of(error.value) == "ValueError: the cause"


def test_a_rank_that_lost_its_connection_is_not_the_cause():
    class Failed(Exception):
        worker_failures = {
            0: RuntimeError("rank 0, step 3: RuntimeError: gloo Read error: Connection reset by peer"),
            1: RuntimeError("rank 1, step 3: ValueError: the cause"),
        }

    assert cause_of(Failed()) == "rank 1, step 3: ValueError: the cause"


DIED = "The actor died unexpectedly before finishing this task.\n"
MEMORY = "1 worker(s) were killed due to the node running low on memory. Memory on the node (IP: 1, ID: 52) was 22.37GB"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (f"{DIED}worker process has died. End of file.", "its process was killed, without a word of its own"),
        ("The actor 01 is unavailable: The actor is temporarily unavailable: RPC error", "its process was killed"),
        (f"{DIED}The actor died because its node has died. Node Id: 7", "its node was lost"),
        (f"{DIED}{MEMORY}\nworker process has died", "1 worker(s) were killed due to the node running low on memory"),
    ],
)
def test_a_rank_that_died_is_the_cause_of_what_the_others_say(words, line):
    class Failed(Exception):
        worker_failures = {
            0: RuntimeError("rank 0, step 3: RuntimeError: gloo Read error: Connection reset by peer"),
            1: RuntimeError(words),
            2: RuntimeError("rank 2, step 3: RuntimeError: Connection closed by peer"),
        }

    assert cause_of(Failed()).startswith(f"rank 1: {line}")


def test_where_all_lost_a_connection_rank_and_step_are_said():
    class Failed(Exception):
        worker_failures = {2: RuntimeError("rank 2, step 3: RuntimeError: Connection reset by peer. GLHF!")}

    assert cause_of(Failed()) == "rank 2, step 3: lost its connection to another rank, which said nothing"
