"""The order of rows as a pure function of (seed, epoch, step, global batch).

In: the number of rows of each row group, a seed, a global batch. Out: the row ids of any step, without a step before
it. Knows numpy only: no storage, no workers; which rank takes which row of a step is `rank_rows`, the last step.

    epoch e:   row groups permuted by (seed, e) -> one line of positions
    window w:  the next `window_steps` steps of that line (about 32 row groups), its rows permuted by (seed, e, w)
    step:      the next `global_batch` rows of its window

A window is the unit of reading: it draws from about 32 places of the corpus and is read once. An epoch visits every
row once; its last step holds what is left, so that no row stands twice in a step and a corpus smaller than one global
batch is no special case.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

# Rows of a window: 32 row groups of 256. Part of the order: changing it changes every run.
WINDOW_ROWS = 8192


@dataclass(frozen=True)
class Window:
    """The rows of consecutive steps of one epoch."""

    epoch: int
    first_step: int
    rows: tuple[np.ndarray, ...]
    """Row ids (int64) of each step from `first_step` on."""


@dataclass(frozen=True)
class Order:
    """Which rows make up which step. `group_rows`: rows of each row group, int64, in the order of row ids."""

    group_rows: np.ndarray
    seed: int
    global_batch: int

    @cached_property
    def num_rows(self) -> int:
        """Rows of one epoch."""
        return int(self.group_rows.sum())

    @cached_property
    def steps_per_epoch(self) -> int:
        """Steps that one epoch takes; the last one may be short."""
        if self.num_rows == 0:
            raise ValueError("no rows to order")
        return -(-self.num_rows // self.global_batch)

    @cached_property
    def window_steps(self) -> int:
        """Steps of one window; the last window of an epoch may be short."""
        return max(1, WINDOW_ROWS // self.global_batch)

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

        groups = np.random.Generator(np.random.Philox(key=[self.seed, epoch])).permutation(len(self.group_rows))
        ends = np.cumsum(self.group_rows[groups])
        # The groups that overlap [begin, end) of this epoch's line, and the part of each that does.
        chosen = range(int(np.searchsorted(ends, begin, "right")), int(np.searchsorted(ends, end, "left")) + 1)
        first_ids = np.concatenate([[0], np.cumsum(self.group_rows)])[groups]
        parts = []
        for place in chosen:
            start = ends[place] - self.group_rows[groups[place]]
            low, high = max(begin, start) - start, min(end, ends[place]) - start
            parts.append(np.arange(low, high, dtype=np.int64) + first_ids[place])
        rows = np.concatenate(parts)
        key = np.random.Philox(key=[self.seed, epoch], counter=[0, 0, 0, 1 + in_epoch])
        rows = np.random.Generator(key).permutation(rows)
        cuts = range(self.global_batch, len(rows), self.global_batch)
        return Window(epoch, epoch * self.steps_per_epoch + first, tuple(np.split(rows, list(cuts))))


def rank_rows(rows: np.ndarray, rank: int, world_size: int) -> np.ndarray:
    """The rows of one step that `rank` trains on: every world_size-th, so that ranks differ by at most one row."""
    return rows[rank::world_size]
