"""What one rank of a run is told. Imports no DeepSpeed: the driver only hands it on.

In: facts of the driver. Out: a record that travels to every worker.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from data.batches import Part
from orchestration.config import Config
from orchestration.plan import Phase, number_of_phase


@dataclass(frozen=True)
class Job:
    """What a worker is told. Paths are absolute and the same on every node."""

    config: Config
    run: str
    tokenizer_folder: str
    tokenizer: dict[str, Any]
    """What it is: vocab_size, pad_id, cls_id, ..."""
    data: str
    """Fingerprint of the prepared rows."""
    recipe: str
    """The run's config.yaml, for the model card."""
    phases: tuple[Phase, ...]
    steps_per_epoch: tuple[int, ...]
    """Of each phase."""
    evaluates_before: Callable[[int], bool]
    """Whether held-out rows are evaluated before a step is trained, or behind the last one."""
    dump_batches: str | None
    fault: str
    lease: str | None
    """Token of the driver's hold on the run's folder."""
    pacer: Any

    def epoch_of(self, step: int) -> int:
        """Which epoch of its phase's rows `step` is of."""
        number = number_of_phase(self.phases, step)
        return (step - self.phases[number].first_step) // self.steps_per_epoch[number]

    def kind_of(self, part: Part) -> tuple[int, bool]:
        """Number of the phase, and whether it is evaluated: parts of one kind in a row go together."""
        return number_of_phase(self.phases, part.first_step), part.evaluation


def run_worker(job: Job) -> None:
    """What Ray calls in every worker: only there the model's libraries are imported."""
    from orchestration.worker import pretrain_worker

    pretrain_worker(job)
