"""The order of rows as a pure function of (seed, epoch, step, global batch) and the weights of the sources.

In: how many rows each shard holds, which source it is of, a weight per source, a seed, a global batch. Out: the rows of
any step, without a step before it. Knows numpy only: no storage, no workers; which rank takes which row of a step is
`rank_rows`, the last step.

    line of a source:  its row groups in a new order at every visit (a computed permutation), visit after visit
    epoch:             weight x rows from each source's line, where the epoch before left off, evenly interleaved
    window:            the next `window_steps` steps of an epoch, its rows permuted by (seed, epoch, window)
    step:              the next `global_batch` rows of its window

A window is the unit of reading: it draws from about 32 places of the corpus and is read once. With weight 1 an epoch
visits every row once; its last step holds what is left, so that no row stands twice in a step and a corpus smaller than
one global batch is no special case. (With other weights one visit of a source may end, and the next begin, within a
step.) What is kept in memory is a few numbers per shard.
"""

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from data.permutation import permute, places_of

GROUP_ROWS = 256  # rows of a row group, the least that is read at once: about 100 kB at 128 tokens
# Rows of a window: 32 row groups, or 8 for each source. A window cuts at most one group of a source at either end, so
# at most 1/8 of what an epoch reads is read twice. Part of the order: changing these changes every run.
WINDOW_ROWS = 8192
WINDOW_ROWS_PER_SOURCE = 8 * GROUP_ROWS


@dataclass(frozen=True)
class Window:
    """The rows of consecutive steps of one epoch."""

    epoch: int
    first_step: int
    rows: tuple[np.ndarray, ...]
    """Row ids (int64) of each step from `first_step` on."""
    visits: tuple[np.ndarray, ...]
    """How often each of these rows was visited before (int64): the epoch, where weights are 1. Keys the masks."""


class Line:
    """The endless line of one source's rows. Memory: a few numbers per shard, kept for the visits in use."""

    def __init__(self, shard_rows: np.ndarray, first_row: int, key: tuple[int, int]) -> None:
        self.num_rows = int(shard_rows.sum())
        self._key = key
        self._first_rows = first_row + np.cumsum(shard_rows) - shard_rows
        groups = -(-shard_rows // GROUP_ROWS)
        self._end_groups = np.cumsum(groups)
        self._num_groups = int(groups.sum())
        ragged = np.flatnonzero(shard_rows % GROUP_ROWS)
        self._ragged = self._end_groups[ragged] - 1
        self._missing = GROUP_ROWS - shard_rows[ragged] % GROUP_ROWS
        self._of_visit = lru_cache(maxsize=2)(self._lay_out)

    def take(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Row ids and earlier visits, each (end - begin,) int64, of the places begin <= place < end."""
        rows, visits = [], []
        for visit in range(begin // self.num_rows, -(-end // self.num_rows)):
            first = visit * self.num_rows
            places = np.arange(max(begin, first), min(end, first + self.num_rows)) - first
            rows.append(self._rows_at(places, visit))
            visits.append(np.full(len(places), visit, np.int64))
        return np.concatenate(rows or [np.empty(0, np.int64)]), np.concatenate(visits or [np.empty(0, np.int64)])

    def _lay_out(self, visit: int) -> tuple[np.ndarray, np.ndarray]:
        """Where the short groups end in the line of a visit, and the rows missing up to there."""
        slots = places_of(self._ragged, self._num_groups, (*self._key, visit))
        order = np.argsort(slots)
        missing = np.cumsum(self._missing[order])
        return (slots[order] + 1) * GROUP_ROWS - missing, np.concatenate([[0], missing])

    def _rows_at(self, places: np.ndarray, visit: int) -> np.ndarray:
        """Row ids at places 0 .. num_rows - 1 of one visit."""
        ends, missing = self._of_visit(visit)
        slots, within = np.divmod(places + missing[np.searchsorted(ends, places, side="right")], GROUP_ROWS)
        slots, of_slot = np.unique(slots, return_inverse=True)
        groups = permute(slots, self._num_groups, (*self._key, visit))
        shards = np.searchsorted(self._end_groups, groups, side="right")
        groups_before = np.concatenate([[0], self._end_groups])[shards]
        first_rows = self._first_rows[shards] + (groups - groups_before) * GROUP_ROWS
        return first_rows[of_slot] + within


@dataclass(frozen=True)
class Order:
    """Which rows make up which step. Row ids count over all shards; shards of one source stand together."""

    shard_rows: np.ndarray
    """(S,) int64"""
    shard_sources: np.ndarray
    """(S,) int64, ascending"""
    weights: tuple[float, ...]
    """Visits of each source's rows per epoch, by source."""
    seed: int
    global_batch: int

    @cached_property
    def _lines(self) -> list[tuple[Line, int]]:
        """The line of each source that has rows and weight, and its rows per epoch (at least one)."""
        lines = []
        first_rows = np.cumsum(self.shard_rows) - self.shard_rows
        for source in np.unique(self.shard_sources):
            here = np.flatnonzero(self.shard_sources == source)
            weight = self.weights[source]
            if weight > 0 and self.shard_rows[here].sum():
                line = Line(self.shard_rows[here], int(first_rows[here[0]]), (self.seed, int(source)))
                lines.append((line, max(1, round(weight * line.num_rows))))
        return lines

    @cached_property
    def num_rows(self) -> int:
        """Rows of one epoch."""
        return sum(rows for _, rows in self._lines)

    @cached_property
    def steps_per_epoch(self) -> int:
        """Steps that one epoch takes; the last one may be short."""
        if self.num_rows == 0:
            raise ValueError("no rows to order")
        return -(-self.num_rows // self.global_batch)

    @cached_property
    def window_steps(self) -> int:
        """Steps of one window; the last window of an epoch may be short."""
        return max(1, max(WINDOW_ROWS, WINDOW_ROWS_PER_SOURCE * len(self._lines)) // self.global_batch)

    @cached_property
    def windows_per_epoch(self) -> int:
        """Windows of one epoch."""
        return -(-self.steps_per_epoch // self.window_steps)

    def window_of(self, step: int) -> int:
        """Number of the window that holds `step`, counted from the first of epoch 0."""
        epoch, step_in_epoch = divmod(step, self.steps_per_epoch)
        return epoch * self.windows_per_epoch + step_in_epoch // self.window_steps

    def window(self, number: int) -> Window:
        """The rows of window `number`, in time that does not depend on it."""
        epoch, in_epoch = divmod(number, self.windows_per_epoch)
        first = in_epoch * self.window_steps
        last = min(first + self.window_steps, self.steps_per_epoch)
        begin, end = first * self.global_batch, min(last * self.global_batch, self.num_rows)
        parts = [
            line.take(epoch * rows + low, epoch * rows + high)
            for (line, rows), low, high in zip(self._lines, self._taken(begin), self._taken(end), strict=True)
        ]
        key = np.random.Philox(key=[self.seed, epoch], counter=[0, 0, 0, 1 + in_epoch])
        shuffled = np.random.Generator(key).permutation(end - begin)
        rows, visits = (np.concatenate(arrays)[shuffled] for arrays in zip(*parts, strict=True))
        cuts = list(range(self.global_batch, len(rows), self.global_batch))
        first_step = epoch * self.steps_per_epoch + first
        return Window(epoch, first_step, tuple(np.split(rows, cuts)), tuple(np.split(visits, cuts)))

    def _taken(self, place: int) -> list[int]:
        """How many rows of each source stand before `place` of an epoch.

        Row k of a source's n in this epoch has the time (2k + 1) / 2n, so sources are spread evenly; equal times go by
        source. Whole numbers throughout: time is counted in ticks, of which each holds at most one row of a source.
        """
        sizes = [rows for _, rows in self._lines]
        ticks = 1 << (2 * max(sizes)).bit_length()

        def before(tick: int) -> list[int]:
            return [max(0, -((ticks - 2 * size * tick) // (2 * ticks))) for size in sizes]

        tick = bisect_right(range(ticks + 1), place, key=lambda tick: sum(before(tick))) - 1
        counts, after = before(tick), before(min(tick + 1, ticks))
        left = place - sum(counts)
        for source, more in enumerate(after):
            if left and more > counts[source]:
                counts[source], left = more, left - 1
        return counts


def rank_rows(rows: np.ndarray, rank: int, world_size: int) -> np.ndarray:
    """The rows of one step that `rank` trains on: every world_size-th, so that ranks differ by at most one row."""
    return rows[rank::world_size]
