"""Progress lines on a terminal and off it, and the log that takes everything else."""

import doctest
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import textwrap
import time
from pathlib import Path

import pytest

from data.config import UserError
from orchestration import progress
from orchestration.progress import Progress, Stage, duration


class Lines:
    """A stream that is no terminal and keeps its lines."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False


def test_stage_ends_with_one_line_of_its_last_text():
    stream = Lines()
    with Progress(stream).stage("rows") as update:
        update("1 row", 0.1)
        update("61,203 rows of 128 tokens\nfrom 42,001 documents", 1.0)
    assert stream.text == "rows       61,203 rows of 128 tokens from 42,001 documents   0 s\n"


def test_plain_line_every_15_seconds(monkeypatch):
    now = 1000.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    stream = Lines()
    with Progress(stream).stage("pretrain") as update:
        for step in range(100):
            now += 1
            update(f"step {step}", step / 100)
    lines = stream.text.splitlines()
    assert len(lines) == 100 // 15 + 1
    assert lines[0] == "pretrain   step 14  14%  1 min 26 s left"  # 86 of 100 steps left, one a second
    assert lines[-1] == "pretrain   step 99   1 min 40 s"


def test_eta_of_a_resumed_stage_counts_from_where_it_began(monkeypatch):
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    stage = Stage("pretrain")
    now = 50.0  # starting took long, and says nothing of the steps' speed
    stage.update("step 800", 0.8)
    assert stage.eta_seconds() is None
    now = 60.0
    stage.update("step 900", 0.9)
    assert stage.eta_seconds() == pytest.approx(10)
    stage.update("exporting")
    assert stage.eta_seconds() is None
    assert stage.clock() == "1 min 00 s so far"


@pytest.mark.parametrize(("error", "word"), [(ValueError("x"), "failed"), (KeyboardInterrupt(), "stopped")])
def test_an_exception_ends_the_stage_with_a_line_and_goes_on(error, word):
    stream = Lines()
    with pytest.raises(type(error)), Progress(stream).stage("sweep") as update:
        update("trial 3 of 16", 0.2)
        raise error
    assert stream.text == f"sweep      {word} after 0 s  trial 3 of 16\n"


def test_a_mistake_of_the_user_is_told_by_its_message_alone():
    stream = Lines()
    with pytest.raises(UserError), Progress(stream).stage("corpus"):
        raise UserError("corpus.sources.0.path=x: no such file or folder; correct the path")
    assert stream.text == ""


def test_a_pipe_that_closed_does_not_end_the_run():
    read, write = os.pipe()
    os.close(read)
    stream = open(write, "w")  # noqa: SIM115
    shown = Progress(stream)
    with shown.stage("rows") as update:
        update("x", None)
    shown.say("and no error the second time")
    with pytest.raises(BrokenPipeError):
        stream.close()


def test_durations_read_well():
    assert duration(59.6) == "1 min 00 s"
    assert duration(3599.9) == "1 h 00 min"
    assert doctest.testmod(progress).failed == 0


def run_in_terminal(source: str, columns: int = 60) -> str:
    """What a Python program writes to its terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source)], stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs,
        env=environment, cwd=Path(__file__).parent.parent,
    )  # fmt: skip
    os.close(theirs)
    parts = []
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # Linux says EIO when the last writer has closed
            break
        if not part:
            break
        parts.append(part)
    os.close(ours)
    process.wait(timeout=30)
    return b"".join(parts).decode()


def test_one_live_line_on_a_terminal():
    seen = run_in_terminal("""
        import time
        from orchestration.progress import Progress
        with Progress().stage("pretrain") as update:
            for step in range(5):
                update(f"step {step} [not a tag] " + "loss " * 40, step / 5)
                time.sleep(0.25)
            update("2,000 steps, loss 5.11", 1.0)
    """)
    assert "step 1 [not a tag] loss loss" in seen
    assert re.search(r"20%  \d+ s so far", seen)
    assert seen.count("\n") <= 3  # live frames overwrite one another: a long text is cut, not wrapped
    assert re.search(r"pretrain   2,000 steps, loss 5\.11   \d+ s\r\n$", seen)
    assert seen.count("\x1b[?25l") == seen.count("\x1b[?25h") == 1  # the cursor is back


def test_the_terminal_is_sane_after_an_exception():
    seen = run_in_terminal("""
        import time
        from orchestration.progress import Progress
        with Progress().stage("sweep") as update:
            update("trial 1", 0.5)
            time.sleep(0.5)
            raise SystemExit(1)
    """)
    assert seen.endswith("  trial 1\r\n")
    assert "sweep      stopped after" in seen
    assert seen.count("\x1b[?25l") == seen.count("\x1b[?25h") == 1


NOISY = """
    import logging, os, subprocess, sys, warnings
    from pathlib import Path
    early = logging.StreamHandler()  # keeps the stderr of import time, as libraries do
    logging.getLogger("deepspeed").addHandler(early)
    logging.getLogger("deepspeed").propagate = False
    old = sys.stdout
    from orchestration.progress import Progress, run_log
    with run_log(Path(sys.argv[1])) as terminal:
        with Progress(terminal.err).stage("rows") as update:
            print("noise of print")
            print("noise of an old stdout object", file=old)
            os.write(1, b"noise of write(1)\\n")
            os.write(2, b"noise of write(2)\\n")
            subprocess.run(["sh", "-c", "echo noise of a child; echo noise of its stderr >&2"], check=True)
            warnings.warn("noise of warnings")
            logging.warning("noise of logging")
            logging.getLogger("x").info("noise at level info")
            logging.getLogger("deepspeed").error("noise of a handler made early")
            update("7 rows", 1.0)
        print("best: 0.63", file=terminal.out)
        FAULT
    print("after the log")
"""


def run_noisy(run: Path, fault: str) -> tuple[subprocess.CompletedProcess, str]:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(NOISY).replace("FAULT", fault), str(run)],
        capture_output=True, text=True, timeout=60, cwd=Path(__file__).parent.parent,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )  # fmt: skip
    return done, (run / "log" / "driver.log").read_text()


def test_only_progress_and_results_reach_the_user(tmp_path):
    done, log = run_noisy(tmp_path / "demo", "")
    assert done.returncode == 0
    assert done.stdout == "best: 0.63\nafter the log\n"
    assert re.fullmatch(r"rows       7 rows   \d+ s\n", done.stderr)
    for noise in ("print", "an old stdout object", "write(1)", "write(2)", "a child", "its stderr", "warnings",
                  "logging", "a handler made early"):  # fmt: skip
        assert f"noise of {noise}" in log, noise
    assert "noise at level info" in log
    assert "after the log" not in log


def test_a_traceback_goes_to_the_log_and_a_second_run_appends(tmp_path):
    run = tmp_path / "demo"
    done, log = run_noisy(run, "raise RuntimeError('rank 1, step 7')")
    assert "Traceback" in log
    assert "RuntimeError: rank 1, step 7" in log
    assert done.returncode == 1
    assert done.stdout == "best: 0.63\n"
    _, log = run_noisy(run, "from data.config import UserError; raise UserError('rows.length=9: too long')")
    assert log.count("==== ") == 2
    assert "refused: rows.length=9: too long\n" in log


def test_children_that_outlive_the_run_do_not_hold_the_users_pipe(tmp_path):
    begun = time.monotonic()
    run_noisy(tmp_path, "subprocess.Popen(['sleep', '20'])")
    assert time.monotonic() - begun < 15


def test_importing_progress_is_cheap():
    source = "import sys, orchestration.progress; print([m for m in ('rich', 'ray', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n"
