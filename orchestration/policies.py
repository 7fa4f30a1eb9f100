"""What Ray Train does when workers come and go: how many of them train, and what counts as a failure.

In: what Ray knows of nodes, and how a worker group ended. Out: decisions for Ray Train's controller, in whose process
this runs. Knows Ray Train's internals, and the pacer.

    room for more workers   the pacer asks the workers to save; they end with Moved, and a larger group starts there
    a node is drained       the same (orchestration/group.py hears of it in the worker)
    a node is lost          a group of what is left starts at the newest checkpoint; no failure of the run
    a worker breaks         the same, `scaling.max_restarts` times in a row without a new checkpoint between
"""

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray
from ray._private.state import state
from ray.exceptions import GetTimeoutError, RayActorError
from ray.train.v2._internal.execution.failure_handling import FailureDecision
from ray.train.v2._internal.execution.failure_handling.default import DefaultFailurePolicy
from ray.train.v2._internal.execution.scaling_policy import NoopDecision, ResizeDecision
from ray.train.v2._internal.execution.scaling_policy.elastic import ElasticScalingPolicy
from ray.train.v2.api.config import FailureConfig, ScalingConfig
from ray.train.v2.api.exceptions import ControllerError, PreemptionError, WorkerGroupError

from orchestration.cause import cause_of, is_lost_node

ANSWER_SECONDS = 5
FAILURE_SECONDS = 120  # what broke may have left the driver's node short of memory; without an answer the run ends
STARTING = -1  # in place of a rank: of a worker that had none yet
REFUSED_SECONDS = 900
MOST_LOST = 20  # nodes lost in a row with no checkpoint between: more is a fault of the run
KNOCK_SECONDS = 2
OTHERS = "another rank leaves"  # what a rank knows that was not asked itself


def lost_nodes() -> dict[str, str]:
    """Nodes, id -> host, that Ray takes for alive and whose raylet does not answer.

    Ray's health checks take 15 s and more to find that out; meanwhile it would place workers there, and wait.
    """
    alive = [node for node in ray.nodes() if node["Alive"]]

    def answers(node: dict[str, Any]) -> bool:
        try:
            socket.create_connection((node["NodeManagerAddress"], node["NodeManagerPort"]), KNOCK_SECONDS).close()
            return True
        except OSError:
            return False

    with ThreadPoolExecutor(16) as threads:
        there = list(threads.map(answers, alive))
    pairs = zip(alive, there, strict=True)
    return {node["NodeID"]: node["NodeManagerHostname"] for node, is_there in pairs if not is_there}


class Moved(Exception):
    """All ranks saved the state before a step and end, to be started again elsewhere or in another number."""


def fitting(free: dict[str, float], each: dict[str, float]) -> int:
    """How many workers a node has room for. Ray's own `//` finds one worker of 0.1 CPU too few in 0.3."""
    asked = {name: amount for name, amount in each.items() if amount > 0}
    return min(int(free.get(name, 0.0) / amount + 1e-6) for name, amount in asked.items())


class Elastic(ElasticScalingPolicy):
    """Between the fewest and the most workers, as many as there is room for; a group saves before it grows."""

    def __init__(self, scaling_config: ScalingConfig, pacer: Any) -> None:
        super().__init__(scaling_config)
        self._pacer = pacer
        self._tried: int | None = None
        self._refused: dict[int, float] = {}

    def _count_possible_workers(self, reserved_resources: dict[str, dict[str, float]]) -> int:
        """Ray's, by `fitting`, without nodes that are drained or lost: Ray counts their room until they are gone."""
        going = {*state.get_draining_nodes(), *lost_nodes()}
        each: dict[str, Any] = self.scaling_config._resources_per_worker_not_none
        places = sum(fitting(free, each) for node, free in reserved_resources.items() if node not in going)
        return min(places, self.scaling_config.max_workers)

    def _get_reserved_resources(self) -> dict[str, dict[str, float]] | None:
        """Ray's, of the nodes as they are now: the coordinator looks every 20 s, a lost node would be waited for."""
        ask: Any = self._autoscaling_coordinator.get_reserved_resources
        try:
            return ray.get(ask.remote(self._requester_id, recompute=True), timeout=ANSWER_SECONDS)
        except GetTimeoutError:
            return None  # asked again at the controller's next turn

    def make_decision_for_non_running_worker_group(self) -> Any:
        """As many as fit; one fewer than last time where those did not come to run: others hold the room."""
        decision = super().make_decision_for_non_running_worker_group()
        if isinstance(decision, ResizeDecision):
            if self._tried is not None:
                self._refused[self._tried] = time.monotonic()
                fewer = max(self.scaling_config.min_workers, min(decision.num_workers, self._tried - 1))
                decision = self._get_resize_decision(fewer)
            self._tried = decision.num_workers
        return decision

    def make_decision_for_running_worker_group(self, worker_group_state: Any, worker_group_status: Any) -> Any:
        """Ask the workers to save and end where another number fits; the group that follows is of that number."""
        self._tried = None
        decision = super().make_decision_for_running_worker_group(worker_group_state, worker_group_status)
        # Room that others hold (a sweep, an actor) Ray counts as ours: what did not start is not asked for again for a
        # while, else the group would save and start again for ever.
        if isinstance(decision, ResizeDecision) and not self._was_refused(decision.num_workers):
            self._pacer.move.remote()
        return NoopDecision()

    def _was_refused(self, workers: int) -> bool:
        since = self._refused.get(workers)
        return since is not None and time.monotonic() - since < REFUSED_SECONDS


class Failures(DefaultFailurePolicy):
    """Counts what broke in a row without a new checkpoint between; moves and lost nodes are none of the run's."""

    def __init__(self, failure_config: FailureConfig, pacer: Any) -> None:
        super().__init__(failure_config)
        self._pacer = pacer
        self._start: int | None = None
        self._lost = 0

    def make_decision(self, training_failed_error: Any) -> FailureDecision:
        """RETRY or RAISE; the pacer hears why."""
        error = training_failed_error
        if ray.get(self._pacer.is_over.remote(), timeout=FAILURE_SECONDS):
            return FailureDecision.RAISE  # whoever broke after that: a new group would find nothing to do
        if isinstance(error, ControllerError) and isinstance(error.controller_failure, RayActorError):
            # A worker that dies while its group starts is to Ray the controller's fault, which it does not try again.
            error = WorkerGroupError(str(error.controller_failure), {STARTING: error.controller_failure})
        if isinstance(error, PreemptionError):
            self._tell("a node was taken away", planned=True)
            return FailureDecision.RETRY
        if isinstance(error, WorkerGroupError):
            failures = error.worker_failures.values()
            if moved := [str(failure) for failure in failures if isinstance(failure, Moved)]:
                self._tell(min(moved, key=lambda words: words.endswith(OTHERS)), planned=True)
                return FailureDecision.RETRY
            start: Any = ray.get(self._pacer.start.remote(), timeout=FAILURE_SECONDS)
            if self._start is not None and start > self._start:
                self._worker_group_failures = self._lost = 0
            self._start = start
            silent = lost_nodes()  # Ray itself may only say yet that a worker there is not reached
            if (silent or any(map(is_lost_node, failures))) and self._lost < MOST_LOST:
                self._lost += 1
                self._tell(f"node {', '.join(silent.values())} was lost" if silent else cause_of(error), planned=False)
                return FailureDecision.RETRY
            self._tell(cause_of(error), planned=False)
        return super().make_decision(error)

    def _tell(self, cause: str, planned: bool) -> None:
        ray.get(self._pacer.lost.remote(cause, planned), timeout=FAILURE_SECONDS)
