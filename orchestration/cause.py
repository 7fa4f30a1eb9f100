"""One line for what went wrong, out of exceptions that crossed processes.

In: an exception, perhaps one of Ray's that carries remote tracebacks as text. Out: the line that names the cause.
"""

import re

# "ValueError: ..." at the start of a line; Ray's own wrappers say less than what they wrap.
_NAMED = re.compile(r"^\s*(?!ray\.)[\w.]*(Error|Exception)(\([\w.]+\))?: \S")
# Ray's own words for a lack of memory, which many lines of advice follow.
_MEMORY = re.compile(r"[^:]*killed due to the node running low on memory.*?(?=, ID:|$)")
_BROKEN = re.compile(r"Connection (reset|closed|refused) by peer|Connection closed")


def cause_of(error: BaseException) -> str:
    """The last line of the message that names an exception, else its last line, else the exception's type."""
    failures = getattr(error, "worker_failures", None)
    if failures:
        # A rank that dies breaks the connections of the others, whose words then say nothing of the cause.
        error = min(failures.values(), key=lambda failure: bool(_BROKEN.search(str(failure))))
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) <= 1:
        return lines[0] if lines else type(error).__name__
    if memory := next(filter(None, map(_MEMORY.search, lines)), None):
        return memory[0].strip() + "): give it more, or fewer workers or smaller micro-batches"
    named = [line for line in lines if _NAMED.match(line)]
    return (named or lines)[-1]
