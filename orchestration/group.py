"""Ray Train's trainer with our policies; its backend chosen where workers are; who tells a worker to leave.

In: what TorchTrainer takes, and the pacer. Out: the same, less one callback. Knows Ray Train's internals, so that no
other file but orchestration/policies.py must.
"""

import os
import signal
import threading
from dataclasses import replace
from typing import Any

import torch
from ray.train.torch import TorchConfig, TorchTrainer, get_device
from ray.train.torch.config import _TorchBackend
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.execution.context import get_train_context
from ray.train.v2.api.config import FailureConfig

from orchestration.policies import Elastic, Failures

# How soon a lost worker and a drained node are noticed: Ray's own values are 2 and 5 seconds.
NOTICE = {"RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "1", "RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "1"}
# Between two looks whether there is room for another number of workers; a change costs some 20 s.
RESIZE_SECONDS = 20.0

_told_to_leave = threading.Event()


def worker_device() -> torch.device:
    """Where this worker computes. Ray's own answer trusts what was asked of Ray: cuda:0 also without CUDA."""
    return get_device() if torch.cuda.is_available() else torch.device("cpu")


def leaving() -> str | None:
    """Why this worker should save at once: its process got a SIGTERM, or a node of the group is drained; None: no."""
    if _told_to_leave.is_set():
        return "a worker got SIGTERM"
    # Ray's own question, ray.train.get_preemption_info, is a barrier of all ranks.
    return "a node is drained" if get_train_context().preemption_context.preemption_info else None


def heed_sigterm() -> None:
    """Let the first SIGTERM of this process ask for a save; the second one does what the first did before."""
    before = signal.getsignal(signal.SIGTERM)

    def ask(number: int, frame: Any) -> None:
        if _told_to_leave.is_set() and callable(before):
            before(number, frame)
        _told_to_leave.set()

    signal.signal(signal.SIGTERM, ask)


class Collectives(TorchConfig):
    """NCCL where the workers compute on GPUs, else gloo.

    Asked of a worker: the driver's node may have no GPU, and a GPU that was asked of Ray may be one that torch, in its
    CPU build, cannot use.
    """

    @property
    def backend_cls(self) -> type[_TorchBackend]:
        return _Backend


class _Backend(_TorchBackend):
    def on_start(self, worker_group: Any, backend_config: TorchConfig) -> None:
        device = worker_group.execute_single(0, worker_device)
        backend = "nccl" if device.type == "cuda" else "gloo"
        super().on_start(worker_group, replace(backend_config, backend=backend))
        worker_group.execute(heed_sigterm)


class WorkerGroup(TorchTrainer):
    """TorchTrainer with our policies, whose workers are not shot by another Ray's answer.

    Ray 2.60's PlacementGroupCleaner asks the first Ray that it finds on the machine whether our controller lives; where
    that is another one (two users, or a test beside a run) the answer is no, and the cleaner takes the workers away in
    the middle of a step. It only guards controllers that outlive their driver, and ours does not: a placement group
    ends with its job anyway.
    """

    def __init__(self, *arguments: Any, pacer: Any, stuck_seconds: float, **options: Any) -> None:
        """`stuck_seconds`: after twice as long Ray itself takes a worker that does not answer for dead."""
        super().__init__(*arguments, **options)
        self._pacer = pacer
        self._stuck_seconds = stuck_seconds

    def _initialize_and_run_controller(self, **parts: Any) -> Any:
        if self.scaling_config.elasticity_enabled:
            parts["scaling_policy"] = Elastic(self.scaling_config, self._pacer)
        parts["failure_policy"] = Failures(self.run_config.failure_config or FailureConfig(), self._pacer)
        silent = {"RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": f"{2 * self._stuck_seconds + 30:g}"}
        for name, value in {**NOTICE, **silent}.items():  # Ray Train hands its own variables on to the controller
            os.environ.setdefault(name, value)
        return super()._initialize_and_run_controller(**parts)

    def _create_default_callbacks(self) -> list[Any]:
        callbacks = super()._create_default_callbacks()
        return [callback for callback in callbacks if not isinstance(callback, PlacementGroupCleanerCallback)]

    def _register_sigint_handler(self, controller: Any) -> None:
        """None: Ray's ends the process with SystemExit(1). Ctrl-C stays KeyboardInterrupt; workers end with the job."""
