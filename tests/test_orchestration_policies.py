"""How many workers, and what counts as a failure: Ray Train's own errors, judged by our policies."""

import pytest
import ray
from ray.exceptions import ActorDiedError
from ray.train import FailureConfig, ScalingConfig
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError
from ray.train.v2._internal.execution.failure_handling import FailureDecision
from ray.train.v2.api.exceptions import ControllerError, WorkerGroupError

from orchestration.pacer import Pacer
from orchestration.policies import OTHERS, Elastic, Failures, Moved, fitting, lost_nodes

RETRY, RAISE = FailureDecision.RETRY, FailureDecision.RAISE
BROKEN = RuntimeError("rank 0, step 7: RuntimeError: [pair.cc:537] Read error: Connection reset by peer. GLHF!")


def died(words: str) -> WorkerHealthCheckFailedError:
    return WorkerHealthCheckFailedError("A worker health check failed.", RuntimeError(words))


KILLED = died("The actor died unexpectedly before finishing this task.\nThe actor is dead because its worker process "
              "has died. Worker exit type: SYSTEM_ERROR")  # fmt: skip
NODE = died("The actor died unexpectedly before finishing this task.\nThe actor died because its node has died.")


@pytest.fixture
def pacer(ray_4_cpus):
    return Pacer.remote()


def decided(policy: Failures, *failures: Exception) -> FailureDecision:
    return policy.make_decision(WorkerGroupError("failed", dict(enumerate(failures))))


def news(pacer) -> dict:
    return ray.get(pacer.news.remote())


def test_failures_in_a_row_without_a_new_checkpoint_are_counted(pacer):
    policy = Failures(FailureConfig(max_failures=2), pacer)
    for start in (0, 0, 50, 50, 100):  # each new checkpoint begins the count anew
        ray.get(pacer.open.remote(start))
        assert decided(policy, BROKEN, KILLED) is RETRY
    ray.get(pacer.open.remote(100))
    assert decided(policy, KILLED) is RETRY
    ray.get(pacer.open.remote(100))
    assert decided(policy, KILLED) is RAISE
    assert news(pacer)["restarts"] == 6


def test_a_worker_that_dies_while_its_group_starts_is_one_of_the_failures(pacer):
    policy = Failures(FailureConfig(max_failures=1), pacer)
    error = ControllerError(ActorDiedError())
    ray.get(pacer.open.remote(0))
    assert policy.make_decision(error) is RETRY
    ray.get(pacer.open.remote(0))
    assert policy.make_decision(error) is RAISE
    assert news(pacer)["lost"].startswith("a worker, while it started: its process was killed")
    assert policy.make_decision(ControllerError(ValueError("a bug"))) is RAISE


def test_moves_and_lost_nodes_are_no_failures(pacer):
    policy = Failures(FailureConfig(max_failures=0), pacer)
    ray.get(pacer.open.remote(0))
    assert decided(policy, Moved(f"saved at step 9: {OTHERS}"), Moved("saved at step 9: a node is drained")) is RETRY
    assert news(pacer)["lost"] == "saved at step 9: a node is drained", "the reason of the one that knows it"
    ray.get(pacer.open.remote(9))
    assert news(pacer)["restarts"] == 0
    assert decided(policy, BROKEN, NODE) is RETRY
    assert news(pacer)["lost"] == "rank 1: its node was lost"
    ray.get(pacer.open.remote(9))
    assert news(pacer)["restarts"] == 1
    assert decided(policy, BROKEN, KILLED) is RAISE


def test_the_cause_is_the_dead_rank_and_where_it_was_last_seen(pacer):
    policy = Failures(FailureConfig(max_failures=1), pacer)
    ray.get(pacer.open.remote(0))
    ray.get(pacer.beat.remote(1, {"host": "far", "step": 70, "stage": "backward", "passed": 9, "files": 0}))
    decided(policy, BROKEN, KILLED)
    assert news(pacer)["lost"].startswith("rank 1 on far (last seen at step 70, backward): its process was killed")


def test_where_only_lost_connections_are_known_the_step_is_said(pacer):
    decided(Failures(FailureConfig(max_failures=1), pacer), BROKEN)
    assert news(pacer)["lost"] == "rank 0, step 7: lost its connection to another rank, which said nothing"


@pytest.mark.parametrize(
    ("free", "each", "places"),
    [
        ({"CPU": 0.3}, {"CPU": 0.1}, 3),  # 0.3 // 0.1 is 2
        ({"CPU": 2.0}, {"CPU": 0.75}, 2),
        ({"CPU": 2.0}, {"CPU": 0.5}, 4),
        ({"CPU": 8.0, "GPU": 1.0}, {"CPU": 1.0, "GPU": 0.5}, 2),
        ({"CPU": 8.0}, {"CPU": 1.0, "GPU": 1.0}, 0),
        ({"CPU": 8.0}, {"CPU": 1.0, "GPU": 0}, 8),
    ],
)
def test_fractions_of_a_cpu_are_counted_right(free, each, places):
    assert fitting(free, each) == places


def test_workers_are_counted_on_nodes_that_are_there(pacer):
    each = {"CPU": 0.1}
    policy = Elastic(ScalingConfig(num_workers=(1, 5), resources_per_worker=each), pacer)
    here = ray.get_runtime_context().get_node_id()
    assert policy._count_possible_workers({here: {"CPU": 0.3}, "other": {"CPU": 0.1}}) == 4
    assert policy._count_possible_workers({here: {"CPU": 9.0}}) == 5
    assert lost_nodes() == {}


def test_what_breaks_behind_a_stop_that_was_saved_starts_nothing_again(pacer):
    policy = Failures(FailureConfig(max_failures=9), pacer)
    ray.get(pacer.open.remote(0))
    assert decided(policy, KILLED) is RETRY
    ray.get(pacer.stopped.remote(40))
    for failure in (KILLED, NODE, Moved("saved at step 40: a node is drained")):
        assert decided(policy, failure) is RAISE
