"""What the verbs of a cluster do: jobs, their state, the cluster's health, and the files that make one.

In: a verb's parsed options. Out: its exit code, and what it prints. What is printed is made elsewhere.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from data.config import UserError
from orchestration.cluster import joined
from orchestration.progress import run_log
from orchestration.recipe import load_config

MARKS = {"good": ("ok", "green"), "fault": ("FAULT", "bold red"), "note": ("-", "dim")}


def doctor(options: argparse.Namespace) -> int:
    """Examine every node; exit code 1 where something is to be repaired."""
    if options.recipe is None and not any(word.startswith("name=") for word in options.overrides):
        options.overrides.append("name=doctor")  # a name makes no difference here
    config = load_config(options.recipe, options.overrides)
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
    """Check a file of `ray up`, or print one."""
    from orchestration.launcher import KINDS, example, find_faults

    if options.action in KINDS:
        print(example(options.action), end="")
        return 0
    if options.file is None:
        raise UserError("cloze cluster check: no file given; give the file of `ray up`, such as cluster.yaml")
    if faults := find_faults(options.file):
        raise UserError("\n".join(faults))
    print(f"{options.file}: no fault found; next: ray up {options.file}")
    return 0
