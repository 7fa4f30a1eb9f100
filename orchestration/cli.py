"""The command line: `cloze VERB [-c RECIPE] [key.path=value ...]`.

In: words. Out: an exit code: 0 done, 1 failed (cause in the run's log), 2 a mistake of the user (one line each).
Nothing heavy is imported before a verb needs it: `--help` answers in a tenth of a second.
"""

import argparse
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestration.config import Config

VERBS = {
    "show": "print the effective config as YAML",
    "prepare": "read the corpus, train the tokenizer, write token rows",
    "pretrain": "train an encoder on the corpus; the same command again resumes",
    "sweep": "try learning rates, frozen and full, on a task; keep the winner",
    "report": "write report.html of a run or sweep again, from its files",
    "predict": "label every line of a file with a model that a sweep kept",
}
EXAMPLES = """examples:
  cloze pretrain -c demo                                  the demo: embedded corpus, BERT-tiny
  cloze pretrain name=law corpus.sources=[corpus/]        your own text
  cloze sweep name=law task.train=train.csv task.validation=dev.csv
  cloze predict runs/law-sweep/best letters.txt -o labels.jsonl
  cloze pretrain -c demo --dry-run                        check everything, start nothing

`cloze VERB --help` says more; `cloze show` lists every key."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog="cloze",
        description="Pretrain BERT-family encoders on your own text with Ray, then find the best way to use them.",
        epilog="verbs:\n" + "\n".join(f"  {v:9} {text}" for v, text in VERBS.items()) + "\n\n" + EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("verb", choices=VERBS, metavar="VERB", help="one of: " + ", ".join(VERBS))
    verb = parser.parse_args(words[:1]).verb
    options = _parser(verb).parse_intermixed_args(words[1:])

    from data.config import UserError

    try:
        return HANDLERS[verb](options)
    except UserError as error:
        _complain(str(error))
        return 2
    except KeyboardInterrupt:
        _complain("stopped; the same command goes on from the last checkpoint")
        return 130
    except BrokenPipeError:
        return 1
    except Exception as error:
        log = getattr(error, "log", None)
        if log is None:
            traceback.print_exc()
        _complain(f"{verb} failed: {error}" + (f"\nlog: {log}" if log else ""))
        return 1


def _complain(message: str) -> None:
    """One `cloze: ...` line per line of the message."""
    for line in message.splitlines():
        print(f"cloze: {line}", file=sys.stderr)


def _parser(verb: str) -> argparse.ArgumentParser:
    """The parser of one verb."""
    parser = argparse.ArgumentParser(prog=f"cloze {verb}", description=VERBS[verb])
    if verb == "predict":
        parser.add_argument("model", type=Path, help="folder of a classifier, such as runs/demo-sweep/best")
        parser.add_argument("input", type=Path, help="text, JSONL, CSV, TSV or Parquet file")
        parser.add_argument("-o", "--output", type=Path, help="JSONL to write (default: INPUT.predictions.jsonl)")
        parser.add_argument("--text-field", default="text", help="column of the text (default: text)")
        parser.add_argument("--address", help="address of a Ray cluster (default: RAY_ADDRESS, else a private Ray)")
        return parser
    if verb == "report":
        parser.add_argument("name", help="the run's or sweep's folder name, such as demo or demo-sweep")
        parser.add_argument("--storage", default="runs", help="folder of all runs (default: runs)")
        return parser
    parser.add_argument("-c", "--recipe", help="a shipped recipe (demo, pretrain_base) or a YAML file")
    parser.add_argument("overrides", nargs="*", metavar="key.path=value", help="values are YAML")
    if verb != "show":
        parser.add_argument("--dry-run", action="store_true", help="check all that can be checked, print it, stop")
    if verb == "pretrain":
        parser.add_argument("--dump-batches", metavar="DIR", help="write what each rank trains on: DIR/rank<r>.jsonl")
    return parser


def _config(options: argparse.Namespace) -> "Config":
    from orchestration.config import load_config

    return load_config(options.recipe, options.overrides)


def show(options: argparse.Namespace) -> int:
    """Print the effective config."""
    from orchestration.config import to_yaml

    if options.recipe is None and not any(word.startswith("name=") for word in options.overrides):
        options.overrides.append("name=my-run")
    print(to_yaml(_config(options)), end="")
    return 0


def pretrain(options: argparse.Namespace) -> int:
    """Prepare rows and train; or only say what would be done."""
    config = _config(options)
    from orchestration import trainer
    from orchestration.cluster import address_of, check_workers, joined, this_machine
    from orchestration.plan import describe
    from orchestration.run import folder_of

    run = folder_of(config)
    trainer.check(config, run)
    if (summary := trainer.summary_of(run)) is not None:
        print(f"{config.name} is finished: nothing to do. Another name=NAME makes a new run.")
        print(_outcome(summary, run))
        return 0
    if address_of(config.cluster) is None:
        check_workers(config.scaling, this_machine())
    elif options.dry_run:
        with joined(config.cluster) as nodes:
            check_workers(config.scaling, nodes)
    if options.dry_run:
        print("\n".join(f"{name:16} {value}" for name, value in describe(config)))
        return 0

    def work(terminal: Any, progress: Any) -> int:
        with joined(config.cluster) as nodes:
            check_workers(config.scaling, nodes)
            with progress.stage("corpus") as update:
                store = trainer.prepare_rows(config, run, update)
            with progress.stage("pretrain") as update:
                summary = trainer.pretrain(config, run, store, nodes, options.dump_batches, update)
        print(_outcome(summary, run), file=terminal.out)
        return 0

    return _in_run(config, run, work)


def _outcome(summary: dict[str, Any], run: Path) -> str:
    """The result of a pretraining run, in three lines."""
    held_out = "no held-out document: not evaluated"
    if summary["eval_loss_after"] is not None:
        held_out = (
            f"held-out loss {summary['eval_loss_before']:.3f} -> {summary['eval_loss_after']:.3f}, "
            f"accuracy {summary['eval_accuracy_before']:.1%} -> {summary['eval_accuracy_after']:.1%}"
        )
    speed = f"{summary['tokens']:,} tokens in {summary['seconds']:,.0f} s, {summary['tokens_per_second']:,.0f} tokens/s"
    return f"{held_out}\n{speed}\nencoder {_shown(run / 'export')}   log {_shown(run / 'log')}"


def prepare(options: argparse.Namespace) -> int:
    """Prepare rows, without a run."""
    config = _config(options)
    from orchestration import trainer
    from orchestration.cluster import joined
    from orchestration.progress import Progress
    from orchestration.run import cache_of, folder_of

    trainer.check(config, folder_of(config))
    if options.dry_run:
        print("the corpus can be read")
        return 0
    from data.prepare import prepare as prepare_rows
    from orchestration.progress import run_log

    def work(progress: Progress) -> Any:
        with joined(config.cluster), progress.stage("corpus") as update:
            return prepare_rows(config.corpus, config.tokenizer, config.rows, cache_of(config), update)

    with run_log(cache_of(config)) as terminal:
        store = work(Progress(terminal.err))
        skipped = store.manifest["documents_skipped"]
        print(f"{store.train.num_rows:,} rows, {store.held_out.num_rows:,} held out", file=terminal.out)
        print(f"{store.manifest['documents_read']:,} documents read, skipped: {skipped or 'none'}", file=terminal.out)
        print(f"rows {_shown(store.path)}", file=terminal.out)
    return 0


def sweep(options: argparse.Namespace) -> int:
    """Run a sweep and print its leaderboard."""
    config = _config(options)
    from orchestration.cluster import joined
    from orchestration.config import SWEEP_SECTIONS
    from orchestration.run import check_identity, check_storage, folder_of
    from tuning.leaderboard import verdict
    from tuning.report import write_report
    from tuning.space import points

    check_storage(config)
    run = folder_of(config, "-sweep")
    check_identity(run, config, SWEEP_SECTIONS)
    num_points = len(points(config))
    if options.dry_run:
        from tuning.sweep import check

        check(config)
        trials = num_points * len(config.sweep.encoders) * config.sweep.seeds
        parts = f"{num_points} points x {len(config.sweep.encoders)} encoders x {config.sweep.seeds} seeds"
        print(f"{parts} = {trials} trials")
        print(f"each asks for {config.sweep.cpus_per_trial:g} CPU, {config.sweep.gpus_per_trial:g} GPU")
        return 0

    def work(terminal: Any, progress: Any) -> int:
        from tuning.sweep import sweep as run_sweep

        with joined(config.cluster), progress.stage("sweep") as update:
            entries = run_sweep(config, run, update)
        write_report(run)
        text, beats = verdict(entries)
        _print_leaderboard(entries, terminal.out)
        print(text, file=terminal.out)
        print(f"model {_shown(run / 'best')}   report {_shown(run / 'report.html')}", file=terminal.out)
        if config.sweep.must_beat_random and not beats:
            return 1
        print("\nnext:\n" + "\n".join(f"  {line}" for line in _next_commands(config, run)), file=terminal.out)
        return 0

    return _in_run(config, run, work)


def _print_leaderboard(entries: list[dict[str, Any]], out: Any) -> None:
    """The leaderboard as a table, best first."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("encoder", "mode", "learning rate", entries[0]["metric"], "test", "seconds", "trained"):
        table.add_column(name, justify="left" if name in ("encoder", "mode") else "right")
    for entry in entries:
        score = entry["status"]
        if entry["score_mean"] is not None:
            spread = f" ± {entry['score_std']:.3f}" if entry["score_std"] is not None else ""
            score = f"{entry['score_mean']:.3f}{spread}"
        test = "" if entry["test_score"] is None else f"{entry['test_score']:.3f}"
        table.add_row(
            Path(entry["encoder"]).name, entry["mode"], f"{entry['learning_rate']:g}", score, test,
            f"{entry['seconds']:.0f}", f"{entry['trained_parameters']:,}" if entry["trained_parameters"] else "",
        )  # fmt: skip
    Console(file=out, width=110).print(table)


def _next_commands(config: "Config", run: Path) -> list[str]:
    """Three commands worth trying next."""
    import shutil

    cloze = "cloze" if shutil.which("cloze") else ".venv/bin/cloze"
    return [
        f"{cloze} predict {_shown(run / 'best')} README.md -o labels.jsonl",
        f"{cloze} pretrain name=mine corpus.sources=[FOLDER]",
        f"{cloze} sweep name={config.name} task.train=TRAIN.csv task.validation=DEV.csv",
    ]


def report(options: argparse.Namespace) -> int:
    """Write report.html again."""
    from data.config import UserError
    from tuning.report import write_report

    run = Path(options.storage) / options.name
    if not (run / "config.yaml").is_file():
        raise UserError(f"{options.name}: no run of that name in {options.storage}; give --storage FOLDER")
    print(_shown(write_report(run) or run / "report.html"))
    return 0


def predict(options: argparse.Namespace) -> int:
    """Label a file."""
    import tempfile

    from orchestration.cluster import joined
    from orchestration.config import Cluster
    from orchestration.predict import predict as label
    from orchestration.progress import Progress, run_log

    with tempfile.TemporaryDirectory(prefix="cloze-") as folder, run_log(Path(folder)) as terminal:
        progress = Progress(terminal.err)
        with joined(Cluster(address=options.address)), progress.stage("predict") as update:
            output = label(options.model, options.input, options.output, update, options.text_field)
        print(_shown(output), file=terminal.out)
    return 0


def _in_run(config: "Config", run: Path, work: Callable[[Any, Any], int]) -> int:
    """Hold the run's folder, send chatter to its log, do the work; a failure carries the log's path."""
    from orchestration.progress import Progress, run_log
    from orchestration.run import held

    with ExitStack() as stack:
        stack.enter_context(held(run, config))
        terminal = stack.enter_context(run_log(run))
        try:
            return work(terminal, Progress(terminal.err))
        except Exception as error:
            error.log = _shown(terminal.log)  # pyright: ignore[reportAttributeAccessIssue]
            raise


def _shown(path: Path) -> str:
    """A path as the user would type it."""
    path = Path(path).absolute()
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


HANDLERS = {
    "show": show,
    "prepare": prepare,
    "pretrain": pretrain,
    "sweep": sweep,
    "report": report,
    "predict": predict,
}
