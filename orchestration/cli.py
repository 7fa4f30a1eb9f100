"""The command line: `cloze VERB [-c RECIPE] [key.path=value ...]`.

In: words. Out: an exit code: 0 done, 1 failed (cause in the run's log), 2 a mistake of the user (one line each).
What a verb does stands in orchestration/*verbs.py, imported when one is asked for: `--help` answers in a tenth of a
second.
"""

import argparse
import importlib
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

EXAMPLES = """examples:
  cloze pretrain -c demo                                  the demo: embedded corpus, BERT-tiny
  cloze pretrain name=law corpus.sources=corpus/          your own text
  cloze sweep name=law task.train=train.csv task.validation=dev.csv
  cloze predict runs/law-sweep/best letters.txt -o labels.jsonl
  cloze embed demo letters.txt -o vectors.parquet         a vector for each line
  cloze fill demo "The [MASK] sat on the mat"             what the encoder would write there
  cloze pretrain -c demo --dry-run                        check everything, start nothing
  cloze submit pretrain -c law.yaml storage=/nfs/runs     the same as a job of a Ray cluster

`cloze VERB --help` says more; `cloze show` lists every key."""
RESUMES = {
    "pretrain": "; the same command goes on from the last checkpoint",
    "sweep": "; the same command runs the trials that are left",
}


class Parser(argparse.ArgumentParser):
    """A parser whose complaint about a word shows no credential in it."""

    def error(self, message: str) -> NoReturn:
        from orchestration.credentials import masked

        super().error(masked(message))


def _recipe(parser: Parser) -> None:
    parser.add_argument("-c", "--recipe", help="a shipped recipe (demo, roberta_base, ...) or a YAML file")
    parser.add_argument("overrides", nargs="*", metavar="key.path=value", help="values are YAML")


def _work(parser: Parser) -> None:
    _recipe(parser)
    parser.add_argument("--dry-run", action="store_true", help="check all that can be checked, print it, stop")


def _inspect(parser: Parser) -> None:
    _recipe(parser)
    parser.add_argument("--rows", default="3", metavar="N", help="rows to show of the step's batch (default: 3)")
    parser.add_argument("--row-ids", metavar="12,15", help="show these rows instead")
    parser.add_argument("--part", default="train", metavar="PART", help="train or held_out (default: train)")
    parser.add_argument("--step", default="0", metavar="K", help="masks as at this step (default: 0)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead")


def _pretrain(parser: Parser) -> None:
    _work(parser)
    parser.add_argument("--dump-batches", metavar="DIR", help="write what each rank trains on: DIR/rank<r>.jsonl")


def _report(parser: Parser) -> None:
    parser.add_argument("name", help="the run's or sweep's folder name, such as demo or demo-sweep")
    parser.add_argument("--storage", default="runs", help="folder of all runs (default: runs)")


def _predict(parser: Parser) -> None:
    _use(parser, "a model with a head, or a sweep's name: demo-sweep is runs/demo-sweep/best")
    parser.add_argument("-o", "--output", type=Path, help="JSONL to write (default: INPUT.predictions.jsonl)")
    parser.add_argument("--text-field", help="column of the text (default: text; of a question: question)")
    parser.add_argument("--pair-field", help="column of a second text, or of what holds the answer (default: context)")
    parser.add_argument("--choices", metavar="A,B", help="columns of the choices that a multiple-choice model has")
    parser.add_argument("--scores", action="store_true", help="also the probability of every label")


def _embed(parser: Parser) -> None:
    _use(parser, "an encoder, or a run's name: demo is runs/demo/export")
    parser.add_argument("-o", "--output", type=Path, help="Parquet to write (default: INPUT.vectors.parquet)")
    parser.add_argument("--text-field", default="text", help="column of the text (default: text)")
    parser.add_argument("--as", dest="role", choices=("query", "passage"), help="put the model's prefix before each")


def _use(parser: Parser, model: str) -> None:
    _model(parser, model)
    parser.add_argument("input", type=Path, help="text, JSONL, CSV, TSV, Parquet or Arrow file")
    parser.add_argument("--address", help="address of a Ray cluster (default: RAY_ADDRESS, else a private Ray)")


def _fill(parser: Parser) -> None:
    _model(parser, "a masked language model, or a run's name: demo is runs/demo/export")
    parser.add_argument("text", help='such as "The [MASK] sat on the mat"; <mask> means the same, several may be there')
    parser.add_argument("--top", default="5", metavar="N", help="tokens to show for each mask (default: 5)")
    parser.add_argument("--json", action="store_true", help="one JSON list instead, a list for each mask")


def _model(parser: Parser, what: str) -> None:
    parser.add_argument("model", help=f"folder of {what}")
    parser.add_argument("--storage", default="runs", help="folder of all runs (default: runs)")
    parser.add_argument("--allow-pickle", action="store_true", help="open pickled weights, which can run code")


def _status(parser: Parser) -> None:
    parser.add_argument("name", nargs="?", help="a run or sweep, such as demo or demo-sweep (default: all of them)")
    parser.add_argument("--storage", default="runs", help="folder of all runs (default: runs)")
    parser.add_argument("--watch", action="store_true", help="show it again and again until it ends (1 if it fails)")


def _jobs(parser: Parser) -> None:
    parser.add_argument(
        "--address", help="dashboard of the cluster, http://HOST:8265 (default: RAY_ADDRESS, else this machine's)"
    )


def _submit(parser: Parser) -> None:
    _jobs(parser)
    parser.add_argument("--detach", action="store_true", help="do not follow the log")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="variable of the job; again")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="VERB ...", help="what the job runs")


def _job(parser: Parser) -> None:
    _jobs(parser)
    parser.add_argument("id", help="submission id, or the run's name where one job of it runs")


def _logs(parser: Parser) -> None:
    _job(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the job ends")


def _cluster(parser: Parser) -> None:
    parser.add_argument("action", choices=("check", "aws", "local", "kuberay", "grafana"))
    parser.add_argument("file", nargs="?", type=Path, help="check: the file of `ray up`")


# verb -> what it does, its arguments, the module that does it
VERBS: dict[str, tuple[str, Callable[[Parser], None], str]] = {
    "show": ("print the effective config as YAML", _recipe, "verbs"),
    "prepare": ("read the corpus, train the tokenizer, write token rows", _work, "row_verbs"),
    "inspect": ("show what the model will see: counts, lengths, masked rows", _inspect, "row_verbs"),
    "pretrain": ("train an encoder on the corpus; the same command again resumes", _pretrain, "verbs"),
    "sweep": ("try learning rates, frozen and full, on a task; keep the winner", _work, "sweep_verbs"),
    "report": ("write report.html of a run or sweep again, from its files", _report, "sweep_verbs"),
    "predict": ("label every line of a file with a model that a sweep kept", _predict, "use_verbs"),
    "embed": ("write a vector for every line of a file, to Parquet", _embed, "use_verbs"),
    "fill": ("guess the tokens at each [MASK] of a sentence", _fill, "use_verbs"),
    "status": ("show how far a run or sweep is", _status, "cluster_verbs"),
    "submit": ("run a verb as a job of a Ray cluster, and follow its log", _submit, "job_verbs"),
    "jobs": ("list the jobs of a cluster", _jobs, "job_verbs"),
    "logs": ("print a job's log", _logs, "job_verbs"),
    "stop": ("stop a job; it saves first", _job, "job_verbs"),
    "doctor": ("check every node of a cluster, and say what to repair", _recipe, "cluster_verbs"),
    "cluster": ("check a cluster.yaml, or print one for AWS, own machines or Kubernetes", _cluster, "cluster_verbs"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = Parser(
        prog="cloze",
        description="Pretrain BERT-family encoders on your own text with Ray, then find the best way to use them.",
        epilog="verbs:\n" + "\n".join(f"  {v:9} {text}" for v, (text, _, _) in VERBS.items()) + "\n\n" + EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("verb", choices=VERBS, metavar="VERB", help="one of: " + ", ".join(VERBS))
    verb = parser.parse_args(words[:1]).verb
    if not _here():
        _complain("the current folder is gone; change to one that is there")
        return 2
    options = parse(verb, words[1:])

    try:
        from data.config import UserError

        module = importlib.import_module(f"orchestration.{VERBS[verb][2]}")
    except KeyboardInterrupt:
        return 130
    # A SIGTERM is a Ctrl-C from a scheduler: what is held is let go, what is known is written.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return getattr(module, verb)(options)
    except UserError as error:
        _complain(str(error))
        return 2
    except KeyboardInterrupt as stopped:
        _complain(str(stopped) or "stopped" + RESUMES.get(verb, ""))
        return 130
    except BrokenPipeError:
        return 1
    except Exception as error:
        from orchestration.cause import cause_of

        log = getattr(error, "log", None) or _keep_traceback()
        _complain(f"{verb} failed: {cause_of(error)}\nlog: {log}")
        return 1


def parse(verb: str, words: Sequence[str]) -> argparse.Namespace:
    """The options of one verb; words that it does not know end the process with exit code 2."""
    text, arguments, _ = VERBS[verb]
    parser = Parser(prog=f"cloze {verb}", description=text)
    arguments(parser)
    if verb == "submit":  # what stands behind the job's verb is for the job
        return parser.parse_args(words)
    return parser.parse_intermixed_args(words)


def _here() -> bool:
    """Whether the current folder is still there: paths are told relative to it."""
    try:
        return bool(Path.cwd())
    except FileNotFoundError:
        return False


def _keep_traceback() -> str:
    """Write the traceback of a failure outside any run to a file of its own; returns its path."""
    from orchestration.credentials import masked

    with tempfile.NamedTemporaryFile("w", prefix="cloze-", suffix=".log", delete=False, encoding="utf-8") as file:
        file.write(masked(traceback.format_exc()))
    return file.name


def _complain(message: str) -> None:
    """One `cloze: ...` line per line of the message, credentials left out: what is shown is kept by CI systems.

    A message may name what stands in the files of others: control characters are written out.
    """
    from orchestration.credentials import masked
    from orchestration.terminal import printable

    for line in masked(message).splitlines():
        print(f"cloze: {printable(line)}", file=sys.stderr)
