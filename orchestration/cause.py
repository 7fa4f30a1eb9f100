"""One line for what went wrong, out of exceptions that crossed processes.

In: an exception, perhaps one of Ray's that carries remote tracebacks as text. Out: the line that names the cause.
"""

import re

# "ValueError: ..." at the start of a line; Ray's own wrappers say less than what they wrap.
_NAMED = re.compile(r"^\s*(?!ray\.)[\w.]*(Error|Exception)(\([\w.]+\))?: \S")
# Ray's own words for a lack of memory, which many lines of advice follow.
_MEMORY = re.compile(r"[^:]*killed due to the node running low on memory.*?(?=, ID:|$)")
_BROKEN = re.compile(r"Connection (reset|closed|refused) by peer|Connection closed|[Ss]ocket.*closed|Broken pipe")
# Ray's own words, in exceptions that a dead actor leaves.
_LOST_NODE = re.compile(r"its node has died|node (is|was) (dead|terminated)|node termination|its owner .*node .*died")
_WHERE = re.compile(r"rank \d+, step \d+")
_DEAD = re.compile(r"worker process has died|died unexpectedly|Worker unexpectedly exits|temporarily unavailable")


def is_broken(error: BaseException) -> bool:
    """Whether a rank only says that another one left it."""
    return bool(_BROKEN.search(str(error)))


def is_lost_node(error: BaseException) -> bool:
    """Whether a worker ended because its node did."""
    return getattr(error, "preempted", False) or bool(_LOST_NODE.search(str(error)))


def cause_of(error: BaseException) -> str:
    """The last line of the message that names an exception, else its last line, else the exception's type.

    Of the failures of a worker group the one that is the others' cause, with its rank.
    """
    failures = getattr(error, "worker_failures", None)
    if failures:
        # A rank that dies breaks the connections of the others, whose words then say nothing of the cause.
        rank = min(failures, key=lambda rank: _follows(failures[rank]))
        return _of_rank(rank, failures[rank])
    return _line_of(error)


def _follows(failure: BaseException) -> tuple[bool, bool]:
    """How likely a rank's failure is the consequence of another's: what died is not, what lost a peer is."""
    return is_broken(failure), not (_DEAD.search(str(failure)) or is_lost_node(failure))


def _of_rank(rank: int, failure: BaseException) -> str:
    """The cause of one rank's failure, with the rank; below 0: of a worker that had none yet."""
    line, text = _line_of(failure), str(failure)
    who = "a worker, while it started" if rank < 0 else f"rank {rank}"
    if is_lost_node(failure):
        return f"{who}: its node was lost"
    if _DEAD.search(text) and not _MEMORY.search(text):
        return (
            f"{who}: its process was killed, without a word of its own; where it was no fault of the machine, "
            f"look for the kernel's out-of-memory killer (dmesg)"
        )
    if is_broken(failure):
        where = _WHERE.search(text)
        return f"{where[0] if where else who}: lost its connection to another rank, which said nothing"
    return line if line.startswith("rank ") or f"rank {rank}" in line else f"{who}: {line}"


def _line_of(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) <= 1:
        return lines[0] if lines else type(error).__name__
    if memory := next(filter(None, map(_MEMORY.search, lines)), None):
        return memory[0].strip() + "): give it more, or fewer workers or smaller micro-batches"
    named = [line for line in lines if _NAMED.match(line)]
    return (named or lines)[-1]
