"""Where a trial is half-way: trials/<id>/state.pt, from which the next run of the same trial goes on.

In: what its engine holds and what its epochs brought. Out: the same again, or nothing and a line for the trial's log.
Of a trial that several ranks share each writes its own part, rank 0 the file that names the epoch last: so the whole is
there or is not. Knows no Ray; what is in it is the loop's business (tuning/finetune.py).
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from data.storage import children, fetch, publish, remove

NAME = "state.pt"
State = dict[str, Any]


class Halfway:
    """The saves of one rank of a trial."""

    def __init__(
        self, folder: Path, owner: Mapping[str, Any], seconds: float, rank: int = 0,
        gather: Callable[[Any], list[Any]] = lambda value: [value],
    ) -> None:
        """`folder`: of the trial; `owner`: plain values that tell it from every other; `seconds`: between two saves;
        `gather`: hands every rank the values of all."""
        self._folder, self._owner, self._seconds, self._rank, self._gather = folder, dict(owner), seconds, rank, gather
        self._saved = time.monotonic()
        self.log: list[str] = []
        """What the trial's result should say."""

    def load(self) -> State | None:
        """What this rank saved last; None on all ranks alike where one of them has nothing to go on from."""
        found, fault = self._read(NAME) if self._rank == 0 else (None, None)
        epoch = self._gather(found["epoch"] if found else None)[0]
        if self._rank and epoch is not None:
            name = self._part(epoch)
            found, fault = self._read(name)
            fault = fault if found or fault else f"{name} is not there"
        told = self._gather((found is not None, fault))
        if all(is_there for is_there, _ in told):
            return found
        self.log += [f"{fault}: the trial started anew" for _, fault in told if fault]
        return None

    def is_due(self) -> bool:
        """Whether rank 0 would save now; all ranks must ask."""
        return self._gather(time.monotonic() - self._saved >= self._seconds)[0]

    def save(self, state: State) -> None:
        """Write this rank's part, `state["epoch"]` among it; all ranks must call it. What cannot be written is said in
        the log: the trial goes on."""
        state = {**state, "owner": self._owner}
        name = NAME if self._rank == 0 else self._part(state["epoch"])
        fault = self._write(name, state) if self._rank else None
        fault = next(filter(None, self._gather(fault)), None)
        if self._rank == 0 and fault is None:
            fault = self._write(NAME, state)
        fault = self._gather(fault)[0]
        self._saved = time.monotonic()
        if fault is not None:
            self.log.append(f"epoch {state['epoch']}: {fault}")
        elif self._rank:
            for older in children(self._folder):
                if older.startswith(f"state-r{self._rank}-") and older != name:
                    remove(self._folder / older)

    def _part(self, epoch: int) -> str:
        return f"state-r{self._rank}-e{epoch}.pt"

    def _read(self, name: str) -> tuple[State | None, str | None]:
        """A file's content and what is wrong with it; neither where there is no file."""
        path = self._folder / name
        fetch(path)
        if not path.is_file():
            return None, None
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            is_whole = state.pop("digest") == digest_of(state)
        except Exception as error:  # of many types, by where the damage is; all are told
            return None, f"{name} cannot be read ({type(error).__name__})"
        if not is_whole:
            return None, f"{name} is damaged"
        return (state, None) if state["owner"] == self._owner else (None, f"{name} is of another trial")

    def _write(self, name: str, state: State) -> str | None:
        """Write a file whole or not at all; returns what hindered it."""
        path = self._folder / name
        part = path.with_name(f"{name}.part")
        try:
            torch.save({**state, "digest": digest_of(state)}, part)
            os.replace(part, path)
            publish(path)
        except (OSError, RuntimeError) as error:  # torch's writer in C++ raises the latter
            part.unlink(missing_ok=True)
            return f"{name} could not be written: {error}"
        return None


def clear(folder: Path) -> None:
    """Remove what is half-way of the trial in `folder`, which ended."""
    for name in children(folder):
        if name.startswith((NAME, "state-r")):
            remove(folder / name)


def digest_of(value: Any) -> str:
    """Hash of nested mappings and lists of tensors and plain values: torch.load does not look at its checksums."""
    digest = hashlib.sha256()

    def add(one: Any) -> None:
        if isinstance(one, Mapping):
            for key in sorted(one):
                digest.update(f"{key}:".encode())
                add(one[key])
        elif isinstance(one, list | tuple):
            digest.update(f"{len(one)},".encode())
            for item in one:
                add(item)
        elif isinstance(one, torch.Tensor):
            digest.update(f"{one.dtype}{tuple(one.shape)}".encode())
            digest.update(one.contiguous().reshape(-1).view(torch.uint8).numpy().data)
        else:
            digest.update(json.dumps(one).encode())

    add(value)
    return digest.hexdigest()
