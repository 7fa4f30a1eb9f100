"""Ray Train's trainer, without the helper that confuses two Rays on one machine; its backend chosen where workers are.

In: what TorchTrainer takes. Out: the same, less one callback. Knows Ray Train's internals, so that no other file must.
"""

from dataclasses import replace
from typing import Any

import torch
from ray.train.torch import TorchConfig, TorchTrainer, get_device
from ray.train.torch.config import _TorchBackend
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback


def worker_device() -> torch.device:
    """Where this worker computes. Ray's own answer trusts what was asked of Ray: cuda:0 also without CUDA."""
    return get_device() if torch.cuda.is_available() else torch.device("cpu")


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


class WorkerGroup(TorchTrainer):
    """TorchTrainer whose workers are not shot by another Ray's answer.

    Ray 2.60's PlacementGroupCleaner asks the first Ray that it finds on the machine whether our controller lives; where
    that is another one (two users, or a test beside a run) the answer is no, and the cleaner takes the workers away in
    the middle of a step. It only guards controllers that outlive their driver, and ours does not: a placement group
    ends with its job anyway.
    """

    def _create_default_callbacks(self) -> list[Any]:
        callbacks = super()._create_default_callbacks()
        return [callback for callback in callbacks if not isinstance(callback, PlacementGroupCleanerCallback)]

    def _register_sigint_handler(self, controller: Any) -> None:
        """None: Ray's ends the process with SystemExit(1). Ctrl-C stays KeyboardInterrupt; workers end with the job."""
