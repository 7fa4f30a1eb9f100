"""What the driver shows while the workers train, and what it asks of them when its user wants to stop.

In: the pacer of a run. Out: progress, lines in the log, and the wish to stop. Knows Ray as the way to the pacer.
"""

import _thread
import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from orchestration.budget import limit_of
from orchestration.cluster import free_cpus
from orchestration.config import Config
from orchestration.progress import Update

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5
WAIT_SECONDS = 30  # workers start in 10 to 20 s; after that the user is told what they may be waiting for


@contextmanager
def following(pacer: Any, config: Config, update: Update) -> Iterator[None]:
    """Show the pacer's newest record while training runs; the first Ctrl-C or SIGTERM asks the workers to save and end.

    A second one, or one while nothing is trained yet, ends the driver at once.
    """
    ended, asked = threading.Event(), threading.Event()

    def ask(number: int, frame: Any) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    arguments = (pacer, config, update, ended, asked)
    thread = threading.Thread(target=_follow, args=arguments, daemon=True)
    thread.start()
    handlers = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        ended.set()
        thread.join()


def _follow(pacer: Any, config: Config, update: Update, ended: threading.Event, asked: threading.Event) -> None:
    """Ask the pacer until training has ended, and once more; tell it when the user wants to stop."""
    import ray
    from ray.exceptions import RayError

    facts, begun, warned, logged, share = dict[str, Any](), time.monotonic(), 0, 0, None
    limit, total = limit_of(config), config.pretrain.total_steps
    is_over = False
    while not is_over:
        is_over = ended.wait(POLL_SECONDS)
        try:
            news: Any = ray.get(pacer.news.remote(logged), timeout=5)
        except RayError as error:
            logger.warning("no word from the pacer: %s", error)
            continue
        for line in news["log"]:
            logger.warning("%s", line)
        logged += len(news["log"])
        for warning in news["warnings"][warned:]:
            logger.warning("%s", warning)
            facts["warning"] = warning
        warned = len(news["warnings"])
        line, missing = news["line"], news["lost"] or not news["line"]
        if asked.is_set() and not line and not is_over:
            _thread.interrupt_main()  # nothing is trained yet: nothing to save
        elif asked.is_set():
            pacer.stop.remote()
        begun = begun if missing else time.monotonic()
        text = told(news, config)
        if missing and time.monotonic() - begun > WAIT_SECONDS:
            text += f" ({free_cpus()})"
        if "loss" in line:
            facts |= {key: line[key] for key in ("loss", "tokens_per_second")} | {"step": line["step"] + 1}
        elif line:
            facts["step"] = line["step"]
        if news["eval_loss"] is not None:  # of a line that may be an older one than the newest
            facts["eval_loss"] = news["eval_loss"]
        if asked.is_set() and line and not missing:
            text = f"stopping: the workers save (once more Ctrl-C: at once)  {step_text(config, line['step'])}"
        counts = {"restarts": news["restarts"], **({"workers": news["workers"]} if news["workers"] else {})}
        if line and total is not None:
            share = line["step"] / total
        share = line.get("budget_share", share)
        if limit is not None and share is not None and not missing:
            text += f"  {share:.1%} of {limit.text}"
        update(text, share, **facts, **counts)


def step_text(config: Config, step: int) -> str:
    """How far a run is, by its steps."""
    total = config.pretrain.total_steps
    return f"step {step:,}" if total is None else f"step {step:,}/{total:,}"


def told(news: dict[str, Any], config: Config) -> str:
    """What the pacer told, in words."""
    line = news["line"]
    if trouble := news["trouble"] or news["lost"]:
        return f"starting workers again: {trouble}"
    if not line:
        return "starting workers"
    if "loss" in line:
        loss, speed = told_loss(line["loss"]), line["tokens_per_second"]
        return f"{step_text(config, line['step'] + 1)}  loss {loss}  {speed:,.0f} tokens/s"
    return f"{step_text(config, line['step'])}  held-out loss {line['eval_loss']:.3f}"


def told_loss(loss: float | None) -> str:
    """A loss in words; None: of a step that was skipped."""
    return "no number" if loss is None else f"{loss:.3f}"
