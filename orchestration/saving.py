"""A worker's side of saving: the state goes to a disk of the node, all else happens beside training.

In: engine, step, held-out loss and what was spent. Out: a checkpoint (orchestration/checkpoint.py) in the storage, or a
fault that all ranks know of. What training waits for is `engine.save`, and an earlier save that is still on its way;
a thread hands over the rest (orchestration/handover.py).

A save that fails (a full disk, storage that is away for longer than data/retries.py waits) does not end a run: what is
in memory is worth more than the steps that would be redone. It is said, its remains are removed, where the disk was
full older checkpoints than the newest and the best are given up, and the next save is tried. MOST_FAILURES in a row
end the run, and so does a failed save at the end, or when the run is told to stop: nothing would be left of it then.
"""

import logging
import math
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from orchestration import checkpoint
from orchestration.config import Checkpoints
from orchestration.engine import DeepSpeedEngine
from orchestration.handover import Handover
from orchestration.resuming import Beginning

logger = logging.getLogger(__name__)

MOST_FAILURES = 3  # in a row; at the default cadence 1,500 steps without a checkpoint
PACKAGES = ("torch", "deepspeed", "ray", "transformers", "cloze")


class SavingError(RuntimeError):
    """No state can be saved any more; all ranks raise it alike, and a restart would meet it again."""


class Saver:
    """Saves of one rank in one worker group. All ranks call the same methods at the same steps."""

    def __init__(
        self,
        run: Path,
        checkpoints: Checkpoints,
        engine: DeepSpeedEngine,
        *,
        rank: int,
        ranks: int,
        pacer: Any,
        group: int,
        lease: str | None,
        beginning: Beginning,
        owner: Mapping[str, Any],
        made_by: Mapping[str, Any],
        carry: Callable[[], None] | None = None,
        passes: Callable[[str, int], None] = lambda point, step: None,
    ) -> None:
        """`group`: the number of this worker group. `lease`: the token of its driver's hold on the run; None: nobody
        looks. `made_by`: zero_stage and precision, for the manifest. `carry` (on rank 0) brings the metrics' lines to
        the storage. `passes` is told the points of a save: saving:state, saving:file (behind each one), saving:manifest
        (before it), saving:retention.
        """
        self._run, self._engine, self._rank, self._owner = run, engine, rank, owner
        self._every, self._passes = checkpoints.every_steps, passes
        self._made_by = {"world_size": ranks, **made_by}
        self._handover = Handover(run, checkpoints.keep, rank, ranks, pacer, group, lease, owner, carry, passes)
        self._begun, self._saved = beginning.step, beginning.step
        self._best = beginning.best_loss
        self._judged = beginning.manifest is None or beginning.manifest.get("eval_loss") is not None
        self._thread: threading.Thread | None = None
        self._amending: threading.Thread | None = None
        self._unwritten: tuple[int, float] | None = None  # an evaluation that a manifest lacks: step and loss
        self._fault: str | None = None
        self._failures = 0
        self._before: Mapping[str, float] = (beginning.manifest or {}).get("saving", {})
        self.stall_seconds = 0.0
        """What training waited for, in all saves of this group."""
        self.beside_seconds = 0.0
        """What the threads took beside it."""
        self.saves = 0
        """Those of this group that count."""
        # What kills left there, whichever rank's it was. No rank writes before all have come this far.
        shutil.rmtree(self._handover.desk.parent, ignore_errors=True)

    def is_due(self, step: int, is_end: bool = False) -> bool:
        """Whether the cadence, or the end of the run, asks for the state before `step`."""
        return step > self._begun and (is_end or step % self._every == 0)

    def evaluated(self, step: int, loss: float, spent: Mapping[str, float], is_end: bool = False) -> bool:
        """The state before `step` was evaluated: save it where that is due, or where it is the best so far.

        Returns whether it did. `loss`: no number for a state that cannot be trusted, which is never the best.
        """
        if step == self._begun or step == self._saved:
            self._judge(step, loss)
            return False
        if not self.is_due(step, is_end) and math.isfinite(loss):
            self._await()  # the verdict on the save before may not have reached all ranks: they must compare alike
        if self.is_due(step, is_end) or loss < self._best:
            self.save(step, loss, spent)
            return True
        return False

    def save(self, step: int, eval_loss: float | None, spent: Mapping[str, float]) -> None:
        """Save the state before `step`; returns once it lies on a disk of this node.

        Raises SavingError where MOST_FAILURES saves in a row have failed.
        """
        begun = time.perf_counter()
        self._await()
        if step == self._saved and self._fault is None:
            return
        if self._failures >= MOST_FAILURES:
            raise SavingError(f"{self._failures} saves in a row failed; the last: {self._fault}")
        self._passes("saving:state", step)
        fault = self._write(step)
        loss = eval_loss if eval_loss is not None and math.isfinite(eval_loss) else None
        facts = {
            "step": step, **self._made_by, **self._owner, "versions": {name: _version(name) for name in PACKAGES},
            "eval_loss": loss, "spent": dict(spent), "saving": self.told(1),
        }  # fmt: skip
        self._saved, self._judged = step, loss is not None
        self._thread = threading.Thread(target=self._finish, args=(step, facts, fault), daemon=True, name="cloze-save")
        self._thread.start()
        self.stall_seconds += time.perf_counter() - begun

    def finish(self) -> None:
        """Wait for the save that is on its way. Raises SavingError where the last one failed."""
        begun = time.perf_counter()
        self._await()
        self._amend()
        self.stall_seconds += time.perf_counter() - begun
        self._handover.clear()
        with suppress(OSError):  # another rank's desk is still there
            self._handover.desk.parent.rmdir()
        if self._fault is not None:
            raise SavingError(self._fault)

    def settle(self, seconds: float) -> bool:
        """Give the save that is on its way so much time, where training ends before its end; whether it counts."""
        if self._thread is not None:
            self._thread.join(seconds)
        return self._fault is None and (self._thread is None or not self._thread.is_alive())

    def told(self, more: int = 0) -> dict[str, float]:
        """What saving cost the run so far, over its worker groups; `more`: a save that is on its way."""
        costs = {
            "checkpoints_saved": self.saves + more,
            "checkpoint_stall_seconds": self.stall_seconds,
            "checkpoint_seconds_beside": self.beside_seconds,
        }
        return {name: round(self._before.get(name, 0) + cost, 3) for name, cost in costs.items()}

    def _write(self, step: int) -> str | None:
        """Write this rank's state on its desk; a text: it could not. Every rank runs through engine.save."""
        try:
            shutil.rmtree(self._handover.desk, ignore_errors=True)
            self._handover.desk.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            with suppress(OSError):
                self._engine.save(self._handover.desk)  # the other ranks wait in there
            return self._handover.say(step, self._handover.desk, error)
        try:
            self._engine.save(self._handover.desk)
        except OSError as error:
            return self._handover.say(step, self._handover.desk, error)
        return None

    def _finish(self, step: int, facts: dict[str, Any], fault: str | None) -> None:
        """The thread."""
        begun = time.perf_counter()
        try:
            self._amend()  # before this save deletes what is neither new nor the best
        except Exception:  # all ranks wait for this one's word on the save
            logger.exception("amending a manifest")
        self._fault = self._handover.complete(step, facts, fault)
        self.saves += self._fault is None
        if self._fault is None and facts["eval_loss"] is not None:
            self._best = min(self._best, facts["eval_loss"])
        self.beside_seconds += time.perf_counter() - begun

    def _await(self) -> None:
        """Wait for the threads, and count failures in a row: the same on all ranks."""
        if self._amending is not None:
            self._amending.join()
            self._amending = None
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            self._failures = self._failures + 1 if self._fault else 0

    def _judge(self, step: int, loss: float) -> None:
        """An evaluation of what was saved before it: its manifest gets the loss."""
        if self._judged or not math.isfinite(loss):
            return
        self._await()
        self._judged = True
        if self._fault is not None:
            return
        self._best = min(self._best, loss)
        if self._rank == 0:
            self._unwritten = step, loss
            self._amending = threading.Thread(target=self._amend, daemon=True, name="cloze-amend")
            self._amending.start()

    def _amend(self) -> None:
        """Write the evaluation that a manifest lacks; one that cannot be written is said, and tried again later."""
        if self._unwritten is None:
            return
        step, loss = self._unwritten
        folder = checkpoint.folder_of(self._run, step)
        try:
            manifest = checkpoint.read_manifest(folder, self._owner)
            if isinstance(manifest, dict):
                self._handover.put_manifest(folder, {**manifest, "eval_loss": loss})
            self._unwritten = None
        except OSError as error:
            self._handover.warn(f"the held-out loss of {folder.name} could not be written: {error}")


def _version(package: str) -> str | None:
    """The installed version; None: not installed, as where a job brought its own copy."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
