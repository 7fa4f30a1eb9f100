"""Errors of writing that wait until all ranks are through a save's collectives.

In: DeepSpeed's writer of files. Out: one that never raises, and tells afterwards. Raised where it happens, a full disk
of one rank would leave the others waiting in a barrier, or meet its next collective with one of theirs. Knows neither
DeepSpeed nor torch.
"""

from collections.abc import Callable
from typing import Any


class DeferringWriter:
    """Stands in for DeepSpeed's `checkpoint_engine`."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._fault: str | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Make a folder."""
        self.attempt(path, lambda: self._writer.makedirs(path, exist_ok=exist_ok))

    def save(self, state_dict: Any, path: str) -> None:
        """Write a file."""
        self.attempt(path, lambda: self._writer.save(state_dict, path))

    def attempt(self, path: str, write: Callable[[], object]) -> None:
        """Write; the first error since the last `raise_fault` is kept."""
        try:
            write()
        except (OSError, RuntimeError) as error:  # torch's writer in C++ raises the latter
            self._fault = self._fault or f"{path}: {error}"

    def raise_fault(self) -> None:
        """Raise OSError where something could not be written since the last call; now all ranks may part."""
        fault, self._fault = self._fault, None
        if fault is not None:
            raise OSError(fault)
