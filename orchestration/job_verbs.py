"""What the verbs of jobs do: submit, list, follow, stop.

In: a verb's parsed options. Out: its exit code, and what it prints. What is printed is made elsewhere.
"""

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any


def submit(options: argparse.Namespace) -> int:
    """Run a verb as a job, follow its log, return its exit code."""
    from orchestration import cli, jobs
    from orchestration.dashboard import entered, interpreter_of
    from orchestration.ship import shipped
    from orchestration.submit import described, environment, requested, split

    words, settings = split(options.words)
    request = requested(words, cli.parse(words[0], words[1:]), settings)
    variables = environment(options.env)
    with shipped(request.recipe) as shipment:
        door = entered(options.address or request.cluster.address)
        python = "python" if request.brings_python else interpreter_of(door.url)
        job = described(request, variables, shipment.archive, python)
        print(f"ships     {shipment}" if request.cluster.image is None else f"image     {request.cluster.image}")
        jobs.hand_over(door, job)
    print(f"job       {job.submission_id}\ndashboard {door.url}/#/jobs/{job.submission_id}", flush=True)
    if options.detach:
        print(_how_on(job.submission_id))
        return 0
    return _followed(door, job.submission_id)


def jobs(options: argparse.Namespace) -> int:
    """List the cluster's jobs."""
    from orchestration import jobs
    from orchestration.dashboard import entered

    rows = [("ID", "STATUS", "RUN", "VERB", "STARTED", "SECONDS")]
    for job in jobs.listed(entered(options.address)):
        begun, end = (job.start_time or 0) / 1000, (job.end_time or time.time() * 1000) / 1000
        facts = job.metadata or {}
        started = time.strftime("%Y-%m-%d %H:%M", time.localtime(begun))
        rows.append(
            (job.submission_id, job.status.value, facts.get("run", "-"), facts.get("verb", "-"), started,
             f"{max(0, end - begun):,.0f}")
        )  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip())
    return 0


def logs(options: argparse.Namespace) -> int:
    """Print a job's log; following it, return the job's exit code."""
    from orchestration import jobs
    from orchestration.dashboard import entered

    door = entered(options.address)
    submission_id = jobs.found(door, options.id).submission_id
    if options.follow:
        return _followed(door, submission_id)
    print(jobs.whole_log(door, submission_id), end="")
    return 0


def stop(options: argparse.Namespace) -> int:
    """Stop a job and wait for its end."""
    from orchestration import jobs
    from orchestration.dashboard import entered

    door = entered(options.address)
    submission_id = jobs.found(door, options.id).submission_id
    return _reached(lambda: jobs.stop(door, submission_id, print))


def _followed(door: Any, submission_id: str) -> int:
    """Print a job's log until it ends, and say how; Ctrl-C asks whether the job is to go on."""
    from orchestration import jobs

    def follow() -> int:
        code, words = jobs.follow(door, submission_id, lambda text: print(text, end="", flush=True))
        print(f"cloze: job {submission_id} {words}", file=sys.stderr)
        return code

    try:
        return _reached(follow)
    except KeyboardInterrupt:
        answer = ""
        if sys.stdin is not None and sys.stdin.isatty():
            try:
                answer = input("\nstop the job, or let it go on without you? [s/G] ")
            except (KeyboardInterrupt, EOFError):
                print()
        if answer.strip().lower() in ("s", "stop"):
            _reached(lambda: jobs.stop(door, submission_id, print))
        else:
            print(f"cloze: the job goes on; {_how_on(submission_id)}", file=sys.stderr)
        return 130


def _reached(work: Callable[[], int]) -> int:
    """Do it; a cluster that is gone is one line and exit code 1."""
    try:
        return work()
    except ConnectionError as error:
        print(f"cloze: {error}", file=sys.stderr)
        return 1


def _how_on(submission_id: str) -> str:
    """How to come back to a job."""
    return f"`cloze logs -f {submission_id}` follows it, `cloze stop {submission_id}` stops it"
