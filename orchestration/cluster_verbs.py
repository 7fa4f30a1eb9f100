"""What the verbs of a cluster do: jobs, their state, the cluster's health, and the files that make one.

In: a verb's parsed options. Out: its exit code, and what it prints. What is printed is made elsewhere.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

WATCH_SECONDS = 2.0
PLAIN_SECONDS = 15.0  # between two lines of a run that is watched through a pipe


def status(options: argparse.Namespace) -> int:
    """Show one run, or a line for each. Watching ends with the runs: 1 where one of them failed or was lost."""
    from orchestration.status import find_run, find_runs, is_over, overview, page, read_status

    runs = [find_run(options.name, options.storage)] if options.name else find_runs(options.storage)
    if not runs:
        print(f"no run in {options.storage}")
        return 0

    def look() -> tuple[list[str], str, bool]:
        statuses = [read_status(run) for run in runs]
        lines = page(statuses[0]) if options.name else overview(statuses)
        states = " ".join(one["state"] for one in statuses)
        return lines, states, all(map(is_over, statuses))

    if options.watch:
        last = _show_live(look) if sys.stdout.isatty() else _show_plain(look)
        return int("failed" in last or "lost" in last)
    print("\n".join(look()[0]))
    return 0


def _looks(look: Callable[[], tuple[list[str], str, bool]]) -> Iterator[tuple[list[str], str, bool]]:
    """Look again and again until all is over."""
    while True:
        seen = look()
        yield seen
        if seen[2]:
            return
        time.sleep(WATCH_SECONDS)


def _show_live(look: Callable[[], tuple[list[str], str, bool]]) -> str:
    """Redraw the same lines on the terminal; returns the last states."""
    from rich.live import Live
    from rich.text import Text

    states = ""
    with Live(auto_refresh=False) as live:
        for lines, now, _ in _looks(look):
            live.update(Text("\n".join(lines), no_wrap=True, overflow="crop"), refresh=True)
            states = now
    return states


def _show_plain(look: Callable[[], tuple[list[str], str, bool]]) -> str:
    """Print the lines now and then, and when a state changes; returns the last states."""
    states, printed = "", float("-inf")
    for lines, now, _ in _looks(look):
        if now != states or time.monotonic() - printed >= PLAIN_SECONDS:
            print("\n".join(lines), flush=True)
            printed = time.monotonic()
        states = now
    return states


def cluster(options: argparse.Namespace) -> int:
    """Print a file that a cluster needs, or check one."""
    return CLUSTER[options.action](options)


def _grafana(options: argparse.Namespace) -> int:
    """Print the Grafana dashboard of the runs."""
    print((Path(__file__).parent / "dashboard.json").read_text(encoding="utf-8"), end="")
    return 0


# action -> what does it
CLUSTER: dict[str, Callable[[argparse.Namespace], int]] = {"grafana": _grafana}
