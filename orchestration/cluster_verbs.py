"""What the verbs of a cluster do: how far runs are, the nodes' health, and the files that make a cluster.

In: a verb's parsed options. Out: its exit code, and what it prints. What is printed is made elsewhere.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from data.config import UserError
from orchestration.cluster import joined
from orchestration.progress import run_log
from orchestration.recipe import load_config
from orchestration.switches import check_switches

WATCH_SECONDS = 2.0
PLAIN_SECONDS = 15.0  # between two lines of a run that is watched through a pipe
MARKS = {"good": ("ok", "green"), "fault": ("FAULT", "bold red"), "note": ("-", "dim")}


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


def doctor(options: argparse.Namespace) -> int:
    """Examine every node; exit code 1 where something is to be repaired."""
    if options.recipe is None and not any(word.startswith("name=") for word in options.overrides):
        options.overrides.append("name=doctor")  # a name makes no difference here
    config = load_config(options.recipe, options.overrides)
    check_switches()
    from orchestration.doctor import examine

    with tempfile.TemporaryDirectory() as folder, run_log(Path(folder)) as terminal, joined(config.cluster):
        findings = examine(config)
        _print_findings(findings, terminal.out)
    return int(any(finding.state == "fault" for finding in findings))


def _print_findings(findings: list[Any], out: Any) -> None:
    """One row per finding; what to do stands beneath it."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("", "check", "where", "found"):
        table.add_column(name, overflow="fold")
    for finding in findings:
        mark, style = MARKS[finding.state]
        text = Text(finding.found)
        if finding.remedy:
            text.append(f"\n-> {finding.remedy}", style="bold")
        table.add_row(Text(mark, style=style), finding.check, Text(finding.where), text)
    console = Console(file=out, width=None if out.isatty() else 120, color_system="auto" if out.isatty() else None)
    console.print(table)
    faults = sum(finding.state == "fault" for finding in findings)
    print(f"\n{faults or 'no'} fault{'s' * (faults != 1)}", file=out)


def cluster(options: argparse.Namespace) -> int:
    """Check a file of `ray up`, or print a file that a cluster needs."""
    if options.action == "check":
        return _check_cluster(options.file)
    from orchestration.launcher import example

    dashboard = Path(__file__).parent / "dashboard.json"
    print(dashboard.read_text(encoding="utf-8") if options.action == "grafana" else example(options.action), end="")
    return 0


def _check_cluster(file: Path | None) -> int:
    """Faults are a mistake of the user's: a line each, exit code 2."""
    from orchestration.launcher import find_faults

    if file is None:
        raise UserError("cloze cluster check: no file given; give the file of `ray up`, such as cluster.yaml")
    if faults := find_faults(file):
        raise UserError("\n".join(faults))
    print(f"{file}: no fault found; next: ray up {file}")
    return 0
