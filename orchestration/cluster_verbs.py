"""What the verbs of a cluster do: jobs, their state, the cluster's health, and the files that make one.

In: a verb's parsed options. Out: its exit code, and what it prints. What is printed is made elsewhere.
"""

import argparse

from data.config import UserError


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
