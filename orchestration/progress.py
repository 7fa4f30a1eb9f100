"""What the user sees while a run works, and where everything else goes.

In: stages, and inside a stage calls of `update(text, fraction)`. Out: on a terminal one live line per stage, elsewhere
a plain line every 15 seconds; at the end of a stage one result line. `run_log` turns all other output of this process
(logging, warnings, prints, what libraries write to file descriptors 1 and 2) into <run>/log/driver.log.
Knows nothing of what the stages do. rich is imported for a terminal only: it costs 60 ms.
"""

import contextlib
import datetime
import logging
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TextIO

from data.config import UserError
from orchestration.credentials import masked

PLAIN_LINE_SECONDS = 15.0
NAME_WIDTH = 10  # "tokenizer" and "pretrain" line up
# An ETA from the first moments is noise: below both of these none is shown.
ETA_AFTER_SECONDS, ETA_AFTER_FRACTION = 3.0, 0.01


class Update(Protocol):
    """What a stage calls while it works."""

    def __call__(self, text: str, fraction: float | None = None, **facts: Any) -> None:
        """Text to show, share done, and what `cloze status` is told by name: step, loss, ..."""
        ...


class Progress:
    """Shows stages one after the other on a stream (standard error if none is given)."""

    def __init__(self, stream: TextIO | None = None, watch: "Callable[[Stage], None] | None" = None) -> None:
        """`watch` is told of each stage when it begins."""
        self._stream = sys.stderr if stream is None else stream
        self._watch = watch
        self._live = self._stream.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb")
        self._gone = False

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[Update]:
        """Show a stage while the block runs; the last text given to `update` stands in its result line.

        `update(text, fraction)`: fraction is the share done, 0 to 1, or None where nobody knows. Cheap: call it often.
        A block that raises ends with a line that says so, and the exception goes on; a UserError goes without one, as
        its own message is all that is shown of it.
        """
        stage = Stage(name)
        if self._watch is not None:
            self._watch(stage)
        show = self._show_live if self._live else self._show_plain
        try:
            with show(stage) as update:
                yield update
        except UserError:
            raise
        except BaseException as error:
            how = "stopped" if isinstance(error, KeyboardInterrupt | SystemExit) else "failed"
            self.say(stage.line(f"{how} after {duration(stage.seconds)}  {stage.text}".rstrip()))
            raise
        self.say(stage.line(f"{stage.text}   {duration(stage.seconds)}".lstrip()))

    def say(self, text: str) -> None:
        """Write one line or several. A terminal or pipe that went away does not end the run."""
        if self._gone:
            return
        try:
            self._stream.write(text + "\n")
            self._stream.flush()
        except OSError:
            self._gone = True

    @contextlib.contextmanager
    def _show_plain(self, stage: "Stage") -> Iterator[Update]:
        last = stage.begun

        def update(text: str, fraction: float | None = None, **facts: Any) -> None:
            nonlocal last
            stage.update(text, fraction, **facts)
            now = time.monotonic()
            if now - last >= PLAIN_LINE_SECONDS:
                last = now
                self.say(stage.line(f"{stage.text}  {stage.clock()}"))

        yield update

    @contextlib.contextmanager
    def _show_live(self, stage: "Stage") -> Iterator[Update]:
        from rich.cells import cell_len, set_cell_size
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        console = Console(file=self._stream, force_terminal=True, highlight=False)

        def render() -> Text:
            # Asked of the stream itself: descriptors 0-2, which rich asks, may be files. 0 columns: unknown.
            columns = os.get_terminal_size(self._stream.fileno()).columns or 80
            console.width = columns
            line = Text(no_wrap=True, overflow="crop")
            line.append(f"{stage.name:<{NAME_WIDTH}} ", style="bold")
            text, clock = stage.text or "...", f"  {stage.clock()}"
            room = columns - 1 - line.cell_len - len(clock)  # the text is cut, never the time left
            return line.append(text if cell_len(text) <= room else set_cell_size(text, max(room, 0))).append(clock)

        # Not redirected: the standard streams belong to run_log.
        live = Live(
            get_renderable=render, console=console, transient=True, refresh_per_second=5, redirect_stdout=False,
            redirect_stderr=False,
        )  # fmt: skip
        with live:
            yield stage.update


class Stage:
    """A stage's newest text and fraction, and the clock for its ETA."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = ""
        self.facts: dict[str, Any] = {}
        self.begun = time.monotonic()
        self.fraction: float | None = None
        self._first: tuple[float, float] | None = None  # (when, fraction): a resumed stage does not begin at 0

    @property
    def seconds(self) -> float:
        """Since the stage began."""
        return time.monotonic() - self.begun

    def update(self, text: str, fraction: float | None = None, **facts: Any) -> None:
        """Take what is to be shown next."""
        self.text = " ".join(text.split())
        self.facts = {**self.facts, **facts}
        self.fraction = None if fraction is None else min(max(fraction, 0.0), 1.0)
        # Less than ever before: another piece of work begins.
        if self.fraction is not None and (self._first is None or self.fraction < self._first[1]):
            self._first = time.monotonic(), self.fraction

    def eta_seconds(self) -> float | None:
        """Seconds left at the speed so far; None while nothing can be said."""
        if self._first is None or self.fraction is None:
            return None
        elapsed = time.monotonic() - self._first[0]
        done = self.fraction - self._first[1]
        if elapsed < ETA_AFTER_SECONDS or done < ETA_AFTER_FRACTION:
            return None
        return elapsed * (1 - self.fraction) / done

    def clock(self) -> str:
        """Share done, and time left (time passed where that is unknown)."""
        share = "" if self.fraction is None else f"{self.fraction:.0%}  "
        eta = self.eta_seconds()
        return share + (f"{duration(self.seconds)} so far" if eta is None else f"{duration(eta)} left")

    def line(self, text: str) -> str:
        """A line of this stage."""
        return f"{self.name:<{NAME_WIDTH}} {text}"


def duration(seconds: float) -> str:
    """28 s, 3 min 05 s, 2 h 07 min, 3 d 4 h.

    >>> [duration(s) for s in (0.4, 28.2, 185, 7620, 273600)]
    ['0 s', '28 s', '3 min 05 s', '2 h 07 min', '3 d 4 h']
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


class Terminal(NamedTuple):
    """The process's own standard streams while `run_log` holds descriptors 1 and 2."""

    out: TextIO
    """For results."""
    err: TextIO
    """For progress and faults."""
    log: Path
    """Where everything else goes."""


def log_path(run: Path) -> Path:
    """The driver's log of a run."""
    return run / "log" / "driver.log"


@contextlib.contextmanager
def run_log(run: Path) -> Iterator[Terminal]:
    """Send everything that is not written to the yielded streams into the run's log, until the block ends.

    Creates `run`, so check what can be checked before. Children that start inside inherit the log, not the terminal.
    An exception's traceback is written to the log on its way out; what the user is told of it is the caller's business.
    """
    path = log_path(run)
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        log = open(path, "a", encoding="utf-8", errors="backslashreplace", buffering=1)  # noqa: SIM115  closed below
        stack.push(_closed(log))
        out, err = (stack.enter_context(_duplicate(number)) for number in (1, 2))
        stack.enter_context(_redirected(log))
        stack.enter_context(_logging_to(log))
        now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        log.write(f"==== {now}  pid {os.getpid()}  {masked(' '.join(sys.argv))}\n")
        try:
            yield Terminal(out, err, path)
        except UserError as error:
            log.write(f"refused: {masked(str(error))}\n")
            raise
        except BaseException:
            with contextlib.suppress(OSError):  # a full disk must not hide what ended the run
                log.write(masked(traceback.format_exc()))
            raise


def _closed(log: TextIO) -> Callable[..., None]:
    """Closes the log at the end of a stack. On a full disk its last lines are lost, and no word of what came before."""

    def close(*_: object) -> None:
        with contextlib.suppress(OSError):
            log.close()

    return close


def _duplicate(number: int) -> TextIO:
    """A text stream on a copy of a descriptor; children do not inherit it, so nothing keeps the user's pipe open."""
    stream = open(os.dup(number), "w", encoding="utf-8", errors="replace", buffering=1)  # noqa: SIM115  the caller's
    os.set_inheritable(stream.fileno(), False)
    return stream


@contextlib.contextmanager
def _redirected(log: TextIO) -> Iterator[None]:
    """Descriptors 1 and 2 and sys.stdout, sys.stderr write to the log; libraries that kept the old objects do too."""
    saved = {number: os.dup(number) for number in (1, 2)}
    streams = sys.stdout, sys.stderr
    _flush(streams)
    try:
        for number in saved:
            os.dup2(log.fileno(), number)
        sys.stdout = sys.stderr = log
        yield
    finally:
        _flush((*streams, log))  # what the old objects still hold came from inside, so it goes to the log
        sys.stdout, sys.stderr = streams
        for number, copy in saved.items():
            os.dup2(copy, number)
            os.close(copy)


def _flush(streams: tuple[Any, ...]) -> None:
    for stream in streams:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


class _Masked(logging.Formatter):
    """Libraries quote addresses and their options, in tracebacks too: credentials do not go into the log."""

    def format(self, record: logging.LogRecord) -> str:
        return masked(super().format(record))


@contextlib.contextmanager
def _logging_to(log: TextIO) -> Iterator[None]:
    """The root logger writes to the log from INFO on; warnings become its records, each place once."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    handler = logging.StreamHandler(log)
    handler.setFormatter(_Masked("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        logging.captureWarnings(True)
        try:
            yield
        finally:
            logging.captureWarnings(False)
            root.handlers[:] = handlers
            root.setLevel(level)
