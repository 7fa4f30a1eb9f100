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
    """Who speaks or waits is of a worker group that is gone."""


class Agreement:
    """The saves of the newest worker group; the pacer is one (orchestration/pacer.py).

    Groups are counted, and so are the saves of each, alike on all ranks: (group, save) names one. A call may come twice
    (the answer to the first was lost on its way), and changes nothing then. In the name of a group that is gone every
    call raises GroupGoneError: a process that has yet to die has no say in another group's saves.
    """

    def __init__(self) -> None:
        self._resume = 0
        self._told: list[str] = []
        self._said = asyncio.Event()
        self._group = 0
        self._delivered: dict[int, dict[int, Files | str]] = {}
        self._verdicts: dict[int, str | None] = {}

    def _next_group(self) -> int:
        """A new worker group: what the last one did not finish is no more. Returns its number, from 1.

        Who waited for it gets a GroupGoneError, though hardly anybody hears it: an actor runs so many calls at once,
        and those of the dead would fill it.
        """
        self._group += 1
        self._delivered, self._verdicts = {}, {}
        self._say()
        return self._group

    async def resume_at(self, step: int) -> None:
        """The workers agreed on the checkpoint that they load, that before `step`; the stream begins there."""
        self._resume = step

    async def resumes_at(self) -> int:
        """What `resume_at` was told."""
        return self._resume

    async def delivered(self, group: int, save: int, rank: int, files: Files | str) -> None:
        """A rank brought its files to the storage; a text: it could not."""
        self._check(group)
        if save not in self._verdicts:
            self._delivered.setdefault(save, {})[rank] = files
            self._say()

    async def deliveries(self, group: int, save: int, ranks: int) -> Files | str:
        """All ranks' files, once all have spoken; the first one's text where some could not."""
        await self._until(group, lambda: len(self._delivered.get(save, {})) == ranks)
        files: Files = {}
        for _, word in sorted(self._delivered[save].items()):
            if isinstance(word, str):
                return word
            files |= word
        return files

    async def settle(self, group: int, save: int, fault: str | None) -> None:
        """The verdict on a save; None: it counts."""
        self._check(group)
        self._delivered.pop(save, None)
        self._verdicts = {save: fault}  # of one save: the next begins when all ranks know the last one's
        self._say()

    async def verdict(self, group: int, save: int) -> str | None:
        """What `settle` was told of this save, once it was."""
        await self._until(group, lambda: save in self._verdicts)
        return self._verdicts[save]

    async def _until(self, group: int, is_there: Callable[[], bool]) -> None:
        """Wait for words of a group."""
        self._check(group)
        while not is_there():
            await self._said.wait()
            self._check(group)

    def _check(self, group: int) -> None:
        if group != self._group:
            raise GroupGoneError(f"worker group {group} is gone; the newest is {self._group}")

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
