"""Jobs of a cluster: handed over, found by id or by the run's name, followed, stopped.

In: a cluster's door, and a job or the word for one. Out: its id, its log, its exit code. A cluster that stops
answering is a ConnectionError that says so in one line.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from data.config import UserError
from orchestration.credentials import masked
from orchestration.dashboard import Door, ask
from orchestration.submit import STOP_SECONDS, Job

Write = Callable[[str], object]

TRIES = 3
PAUSE_S = 2.0
PENDING_S = 20  # a job that is told to stop before it has started ends when it starts
WORD_S = 15  # between two words on a job that waits to begin
STOPPED = 130  # as of a process that Ctrl-C ended: Ray keeps no exit code of a stopped job


def hand_over(door: Door, job: Job) -> None:
    """Upload what the job needs and start it. Raises UserError where the cluster refuses it."""
    try:
        door.client.submit_job(
            entrypoint=job.entrypoint,
            submission_id=job.submission_id,
            runtime_env=job.runtime_env,
            metadata=job.metadata,
        )
    except RuntimeError as error:
        cause = masked(next(line for line in reversed(str(error).splitlines()) if line.strip(" '\".")))
        raise UserError(
            f"{door.url}: the cluster did not take the job: {cause.strip()}; where it finds no agent, a port of "
            f"the head's is taken: start it with a free --dashboard-agent-listen-port"
        ) from None


def listed(door: Door) -> list[Any]:
    """The submitted jobs, newest first."""
    jobs = [job for job in _answer(door, door.client.list_jobs) if job.submission_id]
    return sorted(jobs, key=lambda job: job.start_time or 0, reverse=True)


def found(door: Door, word: str) -> Any:
    """The job of a submission id, or of a run: the one that has not ended, else the newest. Raises UserError."""
    jobs = listed(door)
    by_id = [job for job in jobs if job.submission_id == word]
    named = [job for job in jobs if word in ((job.metadata or {}).get("run"), (job.metadata or {}).get("job_name"))]
    running = [job for job in named if not job.status.is_terminal()]
    for choice in (by_id, running, [] if running else named[:1]):
        if len(choice) == 1:
            return choice[0]
    if running:
        ids = ", ".join(f"{job.submission_id} ({job.status.value})" for job in running[:5])
        raise UserError(f"{word}: {len(running)} jobs of that name have not ended; give the id of one: {ids}")
    raise UserError(f"{word}: no job of that id or name at {door.url}; `cloze jobs` lists them")


def follow(door: Door, submission_id: str, write: Write) -> tuple[int, str]:
    """Write the job's log until it ends; returns its exit code and how it ended.

    A connection that breaks, as proxies break idle ones, is taken up again where it was. Raises ConnectionError where
    the cluster no longer answers.
    """
    log = _Log(write)
    begun = told = time.monotonic()
    while (job := info(door, submission_id)).status.value == "PENDING":
        if time.monotonic() - told > WORD_S:
            told = time.monotonic()
            log.write(f"{told - begun:.0f} s: {job.message or 'its environment is being made'}\n")
        time.sleep(0.5)
    while True:
        asyncio.run(_tail(door, submission_id, log))
        job = info(door, submission_id)
        if job.status.is_terminal():
            log.add(_answer(door, lambda: whole_log(door, submission_id)), from_start=True)
            return ended(job)
        time.sleep(1)


def info(door: Door, submission_id: str) -> Any:
    """What Ray knows of a job."""
    return _answer(door, lambda: door.client.get_job_info(submission_id))


def ended(job: Any) -> tuple[int, str]:
    """Exit code and words for a job that has ended."""
    status, code = job.status.value, job.driver_exit_code
    if status == "STOPPED":
        return STOPPED, "stopped; the same command goes on from where it was saved"
    if code is None:
        code = 0 if status == "SUCCEEDED" else 1
    if status == "FAILED" and job.driver_exit_code is None:
        return 1, f"failed before it began: {_reason(job)}"
    if code < 0:  # killed by a signal, as a shell says it
        code = 128 - code
    return code, "succeeded" if code == 0 else f"failed with exit code {code}"


def stop(door: Door, submission_id: str, tell: Callable[[str], object]) -> int:
    """Ask a job to save and end, and wait until it has; returns 0, or 1 where it has not."""
    job = info(door, submission_id)
    if job.status.is_terminal():
        tell(f"{submission_id} has ended already: {ended(job)[1]}")
        return 0
    tell(f"{submission_id}: stopping; it saves first, which may take {STOP_SECONDS} s")
    _answer(door, lambda: door.client.stop_job(submission_id))
    begun = time.monotonic()
    while not job.status.is_terminal():
        waited = time.monotonic() - begun
        if job.status.value == "PENDING" and waited > PENDING_S:
            tell(
                f"{submission_id} is PENDING: {(job.message or 'its environment is being made').rstrip('.')}. "
                f"It ends as soon as it starts, and Ray gives it up after 15 minutes; `cloze jobs` shows when"
            )
            return 1
        if waited > STOP_SECONDS + 30:
            tell(f"{submission_id} has not ended after {waited:.0f} s; the dashboard, {door.url}, shows its node")
            return 1
        time.sleep(0.5)
        job = info(door, submission_id)
    tell(f"{submission_id}: {ended(job)[1]}")
    return 0


class _Log:
    """Writes a growing text once, however often it is read from its start."""

    def __init__(self, write: Write) -> None:
        self.write, self.written, self.seen = write, 0, 0

    def add(self, text: str, from_start: bool = False) -> None:
        """Take the next piece; of what was written before nothing is written again."""
        if from_start:
            self.seen = 0
        new = text[max(0, self.written - self.seen) :]
        self.seen += len(text)
        self.written = max(self.written, self.seen)
        if new:
            self.write(new)


async def _tail(door: Door, submission_id: str, log: _Log) -> None:
    """Write the log until its connection ends, or the cluster does: a host that is gone closes no connection."""
    import aiohttp

    async def read() -> None:
        first = True
        async for text in door.client.tail_job_logs(submission_id):
            log.add(text, from_start=first)
            first = False

    async def watch() -> None:
        while True:
            await asyncio.sleep(PAUSE_S)
            await asyncio.to_thread(_answer, door, lambda: ask(door.url, "/api/version"))

    tasks = [asyncio.create_task(read()), asyncio.create_task(watch())]
    done, running = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    error = next(iter(done)).exception()
    if error is not None and not isinstance(error, RuntimeError | aiohttp.ClientError | OSError):
        raise error
    if isinstance(error, ConnectionError) and "does not answer" in str(error):
        raise error


def _answer(door: Door, question: Callable[[], Any]) -> Any:
    """The answer, with patience for a moment's trouble. Raises ConnectionError where there is none."""
    import requests

    for left in reversed(range(TRIES)):
        try:
            return question()
        except (requests.exceptions.RequestException, ConnectionError, UserError) as error:
            if not left:
                raise ConnectionError(
                    f"the cluster at {door.url} does not answer any more; jobs end with their cluster, and a run goes "
                    f"on from its newest checkpoint when the same command is given to the next one"
                ) from error
            time.sleep(PAUSE_S)
    raise AssertionError


def whole_log(door: Door, submission_id: str) -> str:
    """All of a job's log; a job that never began has none."""
    try:
        return door.client.get_job_logs(submission_id)
    except RuntimeError:
        return ""


def _reason(job: Any) -> str:
    """The line of Ray's message that says why a job did not begin."""
    lines = [line.strip() for line in masked(job.message or "no reason given").splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith("ERROR:") or "Error" in line or "No module" in line]
    reason = (telling or lines)[-1][:300]
    if any(word in (job.message or "") for word in ("pip", "virtualenv")):
        reason += "; where the nodes have Cloze's packages, give cluster.requirements=null"
    return reason
