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
