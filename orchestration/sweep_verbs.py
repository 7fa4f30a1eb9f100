"""What the verbs of sweeps do: run one, or one for each of several tasks; print who won; write the report again.

In: a verb's parsed options. Out: its exit code, and what it prints: leaderboard, learning curve, table of tasks, and
what to do. Who wins is tuning/leaderboard.py's, in which words tuning/recommendation.py's.
"""

import argparse
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from data.config import UserError
from data.storage import place, publish
from orchestration.cluster import address_of, joined
from orchestration.config import Config
from orchestration.identity import SWEEP_SECTIONS
from orchestration.progress import Progress, Stage
from orchestration.recipe import load_config
from orchestration.run import check_identity, check_storage, fetch_run, folder_of
from orchestration.status import is_run
from orchestration.switches import check_switches
from orchestration.task_configs import task_configs
from orchestration.terminal import printable
from orchestration.verbs import as_typed, await_nodes, in_run, on_nodes

Entry = dict[str, Any]
WIDTH = 120  # columns of the tables, whatever the terminal's: they are copied and compared
SHOWN_ENTRIES = 30


def sweep(options: argparse.Namespace) -> int:
    """Run a sweep and print its leaderboard."""
    config = load_config(options.recipe, options.overrides)
    check_switches()
    from tuning.inputs import resolved
    from tuning.report import write_report
    from tuning.suite import suite
    from tuning.sweep import sweep as run_sweep

    check_storage(config)
    run = folder_of(config, "-sweep")
    check_identity(run, config, SWEEP_SECTIONS)
    tasks = task_configs(config)
    notes: list[str] = []
    on_nodes(config, options.dry_run, lambda nodes: notes.extend(_checked(tasks, nodes)))
    known = {task: resolved(one) for task, one in tasks.items()}
    if options.dry_run:
        print("\n".join([*planned(tasks), *(f"note: {note}" for note in notes)]))
        return 0

    def work(terminal: Any, progress: Progress) -> int:
        with joined(config.cluster) as nodes:
            if address_of(config.cluster) is not None:  # on a Ray of its own it was checked before
                _checked(tasks, nodes)
            await_nodes(config, progress)
            told: list[str] = []
            with progress.stage("sweep") as update:
                if config.sweep.tasks:
                    boards = suite(config, run, update, told.append)
                else:
                    boards = {"": run_sweep(config, run, update, tell=told.append)}
            for note in told:
                progress.say(Stage("task").line(f"note: {printable(note)}"))
        report = write_report(run)
        if config.sweep.tasks:
            print_suite(run, boards, terminal.out)
        else:
            print_sweep(boards[""], terminal.out)
        beats = [_print_verdict(entries, task, terminal.out) for task, entries in boards.items()]
        first = next(iter(boards))  # a suite has a winner in each task's folder
        best = run / first / "best" if first else run / "best"
        places = f"model {as_typed(best)}   report {as_typed(report)}   log {as_typed(terminal.log)}"
        print(places, file=terminal.out)
        if len(boards) < len(tasks) or (config.sweep.must_beat_random and not all(beats)):
            return 1  # tasks that failed as a whole stand in the table, with their reason
        print("\nnext:\n" + "\n".join(f"  {line}" for line in _next_commands(known[first], best)), file=terminal.out)
        return 0

    return in_run(config, run, work)


def _checked(tasks: Mapping[str, Config], nodes: Sequence[Any]) -> list[str]:
    """What is to be told of the tasks. Raises UserError with what is wrong with any of them, a line each."""
    from tuning.sweep import check

    notes: list[str] = []
    faults: list[str] = []
    for task, config in tasks.items():
        of_task = f"sweep.tasks.{task}: " if task else ""
        try:
            notes += [of_task + note for note in check(config, nodes)]
        except UserError as error:
            faults += [of_task + line for line in str(error).splitlines()]
    if faults:
        raise UserError("\n".join(faults))
    return notes


def planned(tasks: Mapping[str, Config]) -> list[str]:
    """What a sweep would run, a line for each task, and what its trials ask for, a line for each mode."""
    from tuning.space import count_points, points

    lines: list[str] = []
    asked: dict[str, None] = {}
    total = 0
    for task, config in tasks.items():
        sweep = config.sweep
        counts = {"points": count_points(config), "encoders": len(sweep.encoders), "seeds": sweep.seeds}
        counts |= {"training sizes": len(sweep.train_sizes)} if sweep.train_sizes else {}
        number = 1
        for count in counts.values():
            number *= count
        total += number
        least = "at most " if sweep.scheduler == "asha" or sweep.search == "optuna" else ""
        factors = " x ".join(f"{count} {name}" for name, count in counts.items())
        lines.append(f"{f'{task}: ' if task else ''}{factors} = {least}{number} trials")
        for mode in sorted({point.config.finetune.mode for point in points(config)}):
            workers, cpus, gpus = sweep.asked(mode)
            several = f"{workers} workers, each " if workers > 1 else ""
            asked[f"a trial of mode {mode} asks for {several}{cpus:g} CPU, {gpus:g} GPU"] = None
        limits = {name: most for name, most in sweep.budget if most is not None}
        if limits:
            budget = " or ".join(f"{most:g} {name}" for name, most in limits.items())
            asked[f"{'each task' if task else 'the sweep'} ends after {budget}"] = None
    return [*lines, *([f"together {total} trials"] if len(tasks) > 1 else []), *asked]


def print_sweep(entries: list[Entry], out: Any) -> None:
    """The leaderboard of the training size that decides, best first; the learning curve where there are several."""
    from tuning import curve
    from tuning.leaderboard import judged
    from tuning.wording import short, size_text

    board = judged(entries)
    if len(board) < len(entries):
        print(f"on {size_text(board[0]['train_size'])}", file=out)
    _print_leaderboard(board, out)
    stopped = [entry for entry in board if entry["status"] == "stopped"]
    if stopped:
        best = f"{stopped[0]['mode']} at {short(stopped[0]['learning_rate'])}, {stopped[0]['score_mean']:.3f}"
        few = "1 point was" if len(stopped) == 1 else f"{len(stopped)} points were"
        print(f"{few} stopped by the race, the best of them {best} by then", file=out)
    names, lines = curve.grid(entries)
    if lines:
        print(file=out)
        _print_table(names, lines, out, ())
        print(curve.sentence(entries), file=out)
    if lost := [entry for entry in entries if entry["status"] == "failed"]:
        print(
            f"\n{len(lost)} of {len(entries)} points lack trials that failed, first: {printable(lost[0]['error'])}; "
            f"the same command tries those again whose process died",
            file=out,
        )


def _print_leaderboard(board: Sequence[Entry], out: Any) -> None:
    """Entries as a table, but those that a race stopped."""
    from tuning.wording import names_of, short, time_text, with_interval

    shown = [entry for entry in board if entry["status"] != "stopped"]
    names = names_of(entry["encoder"] for entry in shown)
    rows = []
    for entry in shown[:SHOWN_ENTRIES]:
        is_whole = entry["status"] == "done"
        against = "" if entry["difference_mean"] is None else with_interval(
            entry["difference_mean"], entry["difference_ci95"], "+")  # fmt: skip
        score = entry["status"] if entry["score_mean"] is None else with_interval(
            entry["score_mean"], entry["score_ci95"])  # fmt: skip
        mark = "recommended" if entry["recommended"] else "tied" if entry["tied"] and entry["rank"] != 1 else ""
        if not is_whole and entry["score_mean"] is not None:
            mark = entry["status"]
        rows.append([
            names[entry["encoder"]], entry["mode"], short(entry["learning_rate"]), score, against,
            "" if entry["test_score"] is None else f"{entry['test_score']:.3f}", time_text(entry["worker_seconds"]),
            f"{entry['trained_parameters']:,}" if entry["trained_parameters"] else "", mark,
        ])  # fmt: skip
    head = ["encoder", "mode", "learning rate", board[0]["metric"], "against best", "test", "cost", "trained", ""]
    tested = any(row[5] for row in rows)
    kept = [i for i in range(len(head)) if i != 5 or tested]
    _print_table([head[i] for i in kept], [[row[i] for i in kept] for row in rows], out, ("encoder", "mode", ""))
    if len(shown) > SHOWN_ENTRIES:
        print(f"and {len(shown) - SHOWN_ENTRIES} more in leaderboard.csv", file=out)


def print_suite(run: Path, boards: Mapping[str, list[Entry]], out: Any) -> None:
    """The table tasks x encoders, and what each task's sweep recommends."""
    from tuning.recommendation import recommendation
    from tuning.table import grid, read_suite

    rows = read_suite(run)
    names, lines = grid(rows)
    _print_table(names, lines, out, ("task", "metric"))
    print(file=out)
    for task, entries in boards.items():
        print(printable(f"{task}: {recommendation(entries)}"), file=out)
    for row in rows:
        if row["encoder"] is None:
            print(printable(f"{row['task']}: failed: {row['error']}"), file=out)


def _print_verdict(entries: list[Entry], task: str, out: Any) -> bool:
    """What to do, and whether pretraining paid; returns whether it did."""
    from tuning.leaderboard import verdict
    from tuning.recommendation import recommendation

    text, beats = verdict(entries)
    if not task:
        print(f"\n{printable(recommendation(entries))}\n{text}", file=out)
    elif any(entry["encoder"] == "random" for entry in entries):
        print(f"{task}: {text}", file=out)
    return beats


def _print_table(names: Sequence[str], rows: Iterable[Sequence[str]], out: Any, words: Sequence[str]) -> None:
    """A table without lines; the columns of these names are words, all others numbers."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in names:
        table.add_column(Text(printable(name)), justify="left" if name in words else "right")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    Console(file=out, width=WIDTH).print(table)


def _next_commands(config: Config, best: Path) -> list[str]:
    """Three commands worth trying next."""
    folders = [Path(name) for name in config.sweep.encoders if name not in ("pretrained", "random")]
    encoder = as_typed(folders[0] if folders else folder_of(config) / "export")
    cloze = "cloze" if shutil.which("cloze") else ".venv/bin/cloze"
    use = "embed" if config.head.kind == "embedding" else "predict"
    is_table = use == "predict" and (
        config.task.text_pair or config.task.choices or config.head.kind == "answering"
    )
    return [
        f"{cloze} {use} {as_typed(best)} FILE{'.csv' if is_table else '.txt'}",
        f"{cloze} pretrain name=mine corpus.sources=FOLDER",
        f"{cloze} sweep name=mytask sweep.encoders={encoder} task.train=TRAIN.csv task.validation=DEV.csv",
    ]


def report(options: argparse.Namespace) -> int:
    """Write report.html again."""
    from tuning.report import write_report
    from tuning.table import read_suite

    run = place(options.storage) / options.name
    if not is_run(run) and Path(options.name).is_dir():  # a run's name may also be that of the folder of its texts
        run = Path(options.name)
    fetch_run(run)
    for task in {row["task"] for row in read_suite(run)}:
        fetch_run(run / task)
    report = write_report(run)
    publish(report)
    print(as_typed(report))
    return 0
