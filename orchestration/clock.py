"""Where a worker's time goes: seconds of a step, and how many of them were waiting for rows.

In: an iterator of parts. Out: the same parts, and seconds since the last lap. Knows neither Ray nor torch.
"""

import time
from collections.abc import Iterator

from data.batches import Part


class Clock:
    """Seconds since the last lap, and how many of them went into waiting for data."""

    def __init__(self) -> None:
        self._begun = time.perf_counter()
        self._waited = 0.0

    def waiting(self, parts: Iterator[Part]) -> Iterator[Part]:
        """Pass the parts on, counting the time that each one takes to come; the first brings the clock to 0."""
        first = next(parts, None)
        self.lap()
        if first is None:
            return
        yield first
        while True:
            begun = time.perf_counter()
            part = next(parts, None)
            self._waited += time.perf_counter() - begun
            if part is None:
                return
            yield part

    def lap(self) -> tuple[float, float]:
        """(seconds, seconds of waiting) since the last lap."""
        now = time.perf_counter()
        lap = now - self._begun, self._waited
        self._begun, self._waited = now, 0.0
        return lap
