"""How ranks agree on a save while they train: words through an actor, as collectives of a second thread would mix with
training's.

In: of each rank, what it brought to the storage, or why it could not. Out: all of it together, for the rank that writes
the manifest; and that rank's verdict, for all. A rank that dies leaves a save without a verdict: its worker group ends.
Knows neither Ray nor files.
"""

import asyncio
from collections.abc import Callable
from typing import Any

Files = dict[str, dict[str, Any]]


class GroupGoneError(RuntimeError):
    """Who waits is of a worker group that is gone."""


class Agreement:
    """The saves of one worker group; the pacer is one (orchestration/pacer.py). A save is known by its step."""

    def __init__(self) -> None:
        self._resume = 0
        self._told: list[str] = []
        self._said = asyncio.Event()
        self._group = 0
        self._forget_saves()

    def _forget_saves(self) -> None:
        """A new worker group: what the last one did not finish is no more.

        Who waited for it gets a GroupGoneError, though hardly anybody hears it: an actor runs so many calls at once,
        and those of the dead would fill it.
        """
        self._group += 1
        self._delivered: dict[int, dict[int, Files | str]] = {}
        self._verdicts: dict[int, str | None] = {}
        self._say()

    async def resume_at(self, step: int) -> None:
        """The workers agreed on the checkpoint that they load, that before `step`; the stream begins there."""
        self._resume = step

    async def resumes_at(self) -> int:
        """What `resume_at` was told."""
        return self._resume

    async def delivered(self, step: int, rank: int, files: Files | str) -> None:
        """A rank brought its files to the storage; a text: it could not."""
        self._delivered.setdefault(step, {})[rank] = files
        self._say()

    async def deliveries(self, step: int, ranks: int) -> Files | str:
        """All ranks' files, once all have spoken; the first one's text where some could not."""
        await self._until(lambda: len(self._delivered.get(step, {})) == ranks)
        words = self._delivered.pop(step)
        files: Files = {}
        for _, word in sorted(words.items()):
            if isinstance(word, str):
                return word
            files |= word
        return files

    async def settle(self, step: int, fault: str | None) -> None:
        """The verdict on a save; None: it counts."""
        self._verdicts = {step: fault}  # of one save: the next begins when all ranks know the last one's
        self._say()

    async def verdict(self, step: int) -> str | None:
        """What `settle` was told of this step, once it was."""
        await self._until(lambda: step in self._verdicts)
        return self._verdicts[step]

    async def _until(self, is_there: Callable[[], bool]) -> None:
        """Wait for words of this group."""
        group = self._group
        while not is_there():
            await self._said.wait()
            if group != self._group:
                raise GroupGoneError

    def _say(self) -> None:
        """Wake all who wait."""
        said, self._said = self._said, asyncio.Event()
        said.set()

    async def warn(self, text: str) -> None:
        """Something that the user should know of."""
        if text not in self._told:
            self._told.append(text)

    async def warnings(self) -> list[str]:
        """What `warn` was told, in order, each once."""
        return self._told
