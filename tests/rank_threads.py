"""Ranks as threads of one process, for tests of what they tell each other."""

import threading
from collections.abc import Callable


def in_threads(ranks: int, work: Callable[[int], object], seconds: float = 120) -> None:
    """Run `work(rank)` for each rank at once; fails where one does not end in time."""
    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
        assert not thread.is_alive(), "a rank waits for ever"
