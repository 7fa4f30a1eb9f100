"""Ray Train's trainer, without the helper that confuses two Rays on one machine.

In: what TorchTrainer takes. Out: the same, less one callback. Knows Ray Train's internals, so that no other file must.
"""

from typing import Any

from ray.train.torch import TorchTrainer
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback


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
