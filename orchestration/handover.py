"""What becomes of a rank's state once it lies on a disk of its node: a share of a checkpoint, or a fault all know of.

In: files on the rank's desk. Out: a checkpoint in the storage (orchestration/checkpoint.py). Each rank hashes its files
and delivers them; rank 0 waits for all, brings the lines of metrics up to here, writes the manifest, deletes what is
not kept, and tells the verdict. Runs in a thread beside training; ranks agree through the pacer
(orchestration/agreement.py). Knows no engine.
"""

import errno
import logging
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from data.delivery import deliver, desk_of
from data.retries import at_once
from data.storage import is_remote, remove, shown, sizes
from orchestration import checkpoint
from orchestration.lease import taken_by

logger = logging.getLogger(__name__)

_FULL = "the disk is full"


class Handover:
    """One rank's way from its desk to the storage."""

    def __init__(
        self,
        run: Path,
        keep: int,
        rank: int,
        ranks: int,
        pacer: Any,
        group: int,
        lease: str | None,
        owner: Mapping[str, Any],
        carry: Callable[[], None] | None,
        passes: Callable[[str, int], None],
    ) -> None:
        """`group`, `lease`, `carry`, `passes`: as of orchestration/saving.py's Saver."""
        self._run, self._keep, self._owner = run, keep, owner
        self._rank, self._ranks, self._pacer, self._group = rank, ranks, pacer, group
        self._number = 0
        self._carry, self._passes, self._lease = carry, passes, lease
        self.desk = desk_of(run, f"rank-{rank:04d}")

    def complete(self, step: int, facts: dict[str, Any], fault: str | None) -> str | None:
        """Deliver this rank's files, agree, and on rank 0 make a checkpoint of them all; returns the verdict.

        `fault`: what kept this rank from writing its state; None: nothing.

        Every rank speaks, and rank 0 gives a verdict, whatever happens: the others wait for them.
        """
        self._number += 1
        save = self._group, self._number
        word = self._guarded(step, lambda: self._bring(step)) if fault is None else fault
        self.clear()
        try:
            ray.get(self._pacer.delivered.remote(*save, self._rank, word))
            if self._rank == 0:
                fault = self._guarded(step, lambda: self._conclude(step, facts, save))
                if fault is not None:
                    self.warn(f"a save failed, training goes on: {fault}")
                ray.get(self._pacer.settle.remote(*save, fault))
            return ray.get(self._pacer.verdict.remote(*save))
        except RayError as error:  # the driver is gone, and this process will be
            return f"rank {self._rank}, step {step}: no word from the driver: {error}"

    def _guarded(self, step: int, work: Callable[[], Any]) -> Any:
        """The result of `work`, or what went wrong as a text: nobody above a thread would hear of it."""
        try:
            return work()
        except RayError:  # no word from the driver, or of a group that is no more: nothing is to be settled
            raise
        except Exception as error:
            logger.exception("saving")
            return f"rank {self._rank}, step {step}: {type(error).__name__}: {error}"

    def _bring(self, step: int) -> dict[str, dict[str, Any]] | str:
        """Hash and deliver this rank's files; a text: it could not."""
        files: dict[str, dict[str, Any]] = {}
        folder = checkpoint.folder_of(self._run, step)
        # Where the storage does not say, nothing can be written either.
        if other := self._other_driver():
            return f"rank {self._rank}, step {step}: {other} took this run for abandoned, and goes on with it"
        for file in sorted(path for path in self.desk.rglob("*") if path.is_file()):
            name = file.relative_to(self.desk).as_posix()
            try:
                files[name] = {"bytes": file.stat().st_size, "hash": checkpoint.digest(file)}
                deliver(file, folder / name)
            except OSError as error:
                return self.say(step, folder / name, error)
            self._passes("saving:file", step)
        return files

    def _conclude(self, step: int, facts: dict[str, Any], save: tuple[int, int]) -> str | None:
        """Rank 0, once all ranks have spoken: lines of metrics, manifest, retention; a text: it does not count."""
        files: Any = ray.get(self._pacer.deliveries.remote(*save, self._ranks))
        fault = files if isinstance(files, str) else self._commit(step, {**facts, "files": files})
        return None if fault is None else fault + self._give_up(step, fault)

    def _commit(self, step: int, manifest: dict[str, Any]) -> str | None:
        folder = checkpoint.folder_of(self._run, step)
        try:
            if self._carry:
                self._carry()  # before the checkpoint counts: a run that resumes there has all lines
            # Of a save of this step that a fault broke off, perhaps by other ranks: who converts the state for another
            # number of ranks takes all files there for its own.
            for name in sizes(folder).keys() - manifest["files"].keys():
                remove(folder / name)
            self._passes("saving:manifest", step)
            self.put_manifest(folder, manifest)
        except OSError as error:
            return self.say(step, folder / checkpoint.MANIFEST, error)
        self._passes("saving:retention", step)
        try:
            checkpoint.retain(self._run, step, self._keep, self._owner)
        except OSError as error:  # the save counts all the same, and the next one deletes what this one did not
            logger.warning("checkpoints that are not kept could not be deleted: %s", error)
        return None

    def put_manifest(self, folder: Path, manifest: dict[str, Any]) -> None:
        """Write it here, then have it in the storage whole. Raises OSError."""
        self.desk.mkdir(parents=True, exist_ok=True)
        written = self.desk / checkpoint.MANIFEST
        try:
            checkpoint.write_json(written, manifest)
            deliver(written, folder / checkpoint.MANIFEST)
        finally:
            written.unlink(missing_ok=True)  # what lies on the desk is delivered with the next save

    def _give_up(self, step: int, fault: str) -> str:
        """Remove what there is of a failed save; on a full disk also what is neither the newest nor the best."""
        try:
            with at_once():  # storage that is away was waited for; the remains do not count, and go with a later save
                if self._other_driver():
                    return ""  # what lies there may be its own
                remove(checkpoint.folder_of(self._run, step))
                if _FULL not in fault or not self._shares_a_disk():
                    return ""
                newest = checkpoint.newest(self._run, self._owner)[0]
                gone = checkpoint.retain(self._run, newest, 1, self._owner) if newest else []
            return f"; deleted to make room: {', '.join(folder.name for folder in gone)}" if gone else ""
        except OSError as error:
            logger.warning("the remains of the save at step %d could not be removed: %s", step, error)
            return ""

    def _other_driver(self) -> str | None:
        """Who holds the run in place of this group's driver, which may be stopped and not know it yet."""
        return None if self._lease is None else taken_by(self._run, self._lease)

    def _shares_a_disk(self) -> bool:
        """Whether the desk and the checkpoints lie on one: else deleting these makes no room for that."""
        return not is_remote(self._run) and self._run in self.desk.parents

    def warn(self, text: str) -> None:
        """Tell the user, in log, status and summary."""
        ray.get(self._pacer.warn.remote(text))

    def clear(self) -> None:
        """Leave nothing on the desk."""
        shutil.rmtree(self.desk, ignore_errors=True)

    def say(self, step: int, place: Path, error: OSError) -> str:
        """One line: who, when, where, what, and how full the disk is."""
        try:
            there = next(folder for folder in (place, *place.parents) if folder.exists())
            free = shutil.disk_usage(there).free
        except OSError:  # a mount that is away: what it was asked for first is the cause
            return f"rank {self._rank}, step {step}: {shown(place)}: {' '.join(str(error).split())[:300]}"
        # torch's own words for a full disk name no cause.
        full = error.errno in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error) or free < 2**20
        cause = _FULL if full else " ".join(str(error).split())[:300]
        return f"rank {self._rank}, step {step}: {shown(place)}: {cause} ({free / 1e6:,.1f} MB free on {there})"
