"""When training gives up on steps whose loss or gradient is no finite number.

In: the record of each step, equal on all ranks. Out: nothing, or an error that names the step, ranks and rows.
Knows neither torch nor files.
"""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestration.steps import StepRecord


class Gate:
    """How many steps in a row may be skipped before training gives up.

    A loss or gradient that is no finite number comes of some rows, or of a training that has diverged: the first is
    over with the next step.
    """

    def __init__(
        self,
        largest: int = 1,
        tell: Callable[["StepRecord"], None] = lambda record: None,
        hint: Callable[["StepRecord"], str] = lambda record: "",
    ) -> None:
        """`tell` hears of each bad step, also of the one that ends training; `hint` ends its error."""
        self.largest = largest
        self.in_a_row = 0
        self.last: StepRecord | None = None
        """The bad step that ended training: nobody but `tell` hears of it else."""
        self._tell, self._hint = tell, hint

    def judge(self, record: "StepRecord") -> None:
        """Raises FloatingPointError, on all ranks alike, at the `largest` bad step in a row."""
        if not record.skipped:
            self.in_a_row = 0
        if not record.suspects:
            return
        self.in_a_row += 1
        self._tell(record)
        if self.in_a_row >= self.largest:
            self.last = record
            if math.isfinite(record.loss):
                what = f"the gradient's norm is {record.gradient_norm} (loss {record.loss:g}, "
            else:
                what = f"the loss is {record.loss} ("
            text = f"step {record.step}: {what}learning rate {record.learning_rate:g})"
            if self.in_a_row > 1:
                text += f", as of {self.in_a_row} steps in a row"
            rows = [_named(*item) for item in record.suspects.items()]
            raise FloatingPointError("; ".join(filter(None, [text, *rows, self._hint(record)])))


def _named(rank: int, row_ids: Sequence[int]) -> str:
    """The rows of a rank in an error, as many as one reads."""
    few = ",".join(map(str, row_ids[:8])) + ("..." if len(row_ids) > 8 else "")
    return f"rank {rank} had rows {few}" if few else ""
