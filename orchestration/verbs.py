"""What each verb does: checks that need nothing, then the run's folder, Ray, the rooms, and the result in a few lines.

In: a verb's parsed options. Out: its exit code. A UserError leaves no folder behind; whatever else goes wrong carries
the path of the run's log. Rooms are imported by the verb that needs them: `show` must not wait for torch.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from data.storage import publish, shown
from orchestration.budget import has_more, in_words, limit_of
from orchestration.cluster import (
    address_of,
    ask_for_cpus,
    check_address,
    check_workers,
    free_cpus,
    joined,
    this_machine,
)
from orchestration.config import Config, to_yaml
from orchestration.doctor import check_nodes
from orchestration.progress import Progress, Stage, log_path, run_log
from orchestration.pulse import beating
from orchestration.recipe import load_config
from orchestration.run import folder_of, held, summary_of
from orchestration.switches import check_switches

QUIET_SECONDS = 8  # a cluster that has CPUs free answers sooner, even where its first process must start


def show(options: argparse.Namespace) -> int:
    """Print the effective config."""
    if options.recipe is None and not any(word.startswith("name=") for word in options.overrides):
        options.overrides.append("name=my-run")
    print(to_yaml(load_config(options.recipe, options.overrides)), end="")
    return 0


def pretrain(options: argparse.Namespace) -> int:
    """Prepare rows and train; or only say what would be done."""
    config = load_config(options.recipe, options.overrides)
    check_switches()
    from data.phases import longest
    from data.tally import tell
    from orchestration import trainer
    from orchestration.checks import check, remarks
    from orchestration.weights import try_weights

    run = folder_of(config)
    check(config, run)
    limit = limit_of(config)
    if (summary := summary_of(run)) is not None and not has_more(limit, summary):
        more = "" if limit is None else " A higher pretrain.budget goes on."
        print(f"{config.name} is finished: nothing to do. Another name=NAME makes a new run.{more}")
        print(_outcome(summary, run))
        return 0
    on_nodes(config, options.dry_run, partial(check_workers, config.scaling, autoscales=config.cluster.autoscales))
    if options.dry_run:
        from orchestration.plan import describe

        print("\n".join(f"{name:16} {value}" for name, value in describe(config)))
        return 0

    def work(terminal: Any, progress: Progress) -> int:
        with joined(config.cluster) as nodes:
            check_workers(config.scaling, nodes, config.cluster.autoscales)
            await_nodes(config, progress)
            with progress.stage("corpus") as update:
                stores = trainer.prepare_rows(config, run, update)
            store = longest(stores)
            progress.say(Stage("corpus").line(tell(store.manifest)))
            for remark in remarks(config, store):
                progress.say(Stage("corpus").line(f"note: {remark}"))
            for line in try_weights(config, store):
                progress.say(Stage("encoder").line(line))
            with progress.stage("pretrain") as update:
                summary = trainer.pretrain(config, run, stores, options.dump_batches, update)
        print(_outcome(summary, run), file=terminal.out)
        return 0

    goal = {"steps": config.pretrain.total_steps, "budget": limit.text if limit is not None else None}
    return in_run(config, run, work, **goal, workers=config.scaling.max_workers)


def await_nodes(config: Config, progress: Progress) -> None:
    """Wait for CPUs that others hold, or that come on demand; then look at the nodes that are there."""
    if address_of(config.cluster) is not None:
        answered = ask_for_cpus()
        if not answered(QUIET_SECONDS):
            with progress.stage("cluster") as update:
                while not answered(1):
                    update(f"waiting: {free_cpus()}", None)
    check_nodes(config)


def on_nodes(config: Config, dry_run: bool, check: Callable[[Any], None]) -> None:
    """Check against the nodes there are. A cluster is joined for it only by a dry run: the real one joins anyway."""
    check_address(address_of(config.cluster))
    if address_of(config.cluster) is None:
        check(this_machine())
    elif dry_run:
        with tempfile.TemporaryDirectory() as folder, run_log(Path(folder)), joined(config.cluster) as nodes:
            check(nodes)


def _outcome(summary: dict[str, Any], run: Path) -> str:
    """The result of a pretraining run, in three lines."""
    held_out = "no held-out document: not evaluated"
    if summary["eval_loss_after"] is not None:
        held_out = f"held-out loss {summary['eval_loss_before']:.3f} -> {summary['eval_loss_after']:.3f}"
        for key, after in summary.items():  # what the objective is judged by: shares, all of them
            name = key.removeprefix("eval_").removesuffix("_after")
            if key == f"eval_{name}_after" and not name.startswith("loss"):
                before = summary.get(f"eval_{name}_before")  # none where the first guesses were all of one kind
                told = "none" if before is None else f"{before:.1%}"
                held_out += f", {name.replace('_', ' ')} {told} -> {after:.1%}"
    speed = f"{summary['tokens']:,} tokens in {summary['seconds']:,.0f} s, {summary['tokens_per_second']:,.0f} tokens/s"
    if len(lengths := summary.get("rows_length", [])) > 1:
        held_out += f" (rows of {', then '.join(map(str, lengths))} tokens)"
    if "spent" in summary:  # a run that ended before spending was counted does not say
        speed += f"; {summary['steps']:,} steps, spent: {in_words(summary['spent'])}"
    told = "".join(f"\nnote: {warning}" for warning in summary.get("warnings", []))
    return f"{held_out}\n{speed}{told}\nencoder {as_typed(run / 'export')}   log {as_typed(run / 'log')}"


def in_run(config: Config, run: Path, work: Callable[[Any, Progress], int], **facts: Any) -> int:
    """Hold the run's folder and do the work with its log open; `facts` are for `cloze status`."""
    with held(run, config), log_of(run) as terminal, beating(run, facts) as pulse:
        return work(terminal, Progress(terminal.err, pulse.watch))


@contextmanager
def log_of(folder: Path) -> Iterator[Any]:
    """Send chatter to the folder's log; what goes wrong carries the log's path."""
    try:
        with run_log(folder) as terminal:
            try:
                yield terminal
            except Exception as error:
                error.log = as_typed(terminal.log)  # pyright: ignore[reportAttributeAccessIssue]
                raise
    finally:
        with suppress(OSError):  # must not hide what ended the run
            publish(log_path(folder))


def as_typed(path: Path) -> str:
    """A path as the user would type it."""
    path = Path(path).absolute()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else shown(path)
