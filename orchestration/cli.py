"""The command line: `cloze VERB [-c RECIPE] [key.path=value ...]`.

In: words. Out: an exit code: 0 done, 1 failed (cause in the run's log), 2 a mistake of the user (one line each).
What a verb does stands in orchestration/verbs.py, imported when one is asked for: `--help` answers in a tenth of a
second.
"""

import argparse
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

VERBS = {
    "show": "print the effective config as YAML",
    "prepare": "read the corpus, train the tokenizer, write token rows",
    "pretrain": "train an encoder on the corpus; the same command again resumes",
    "sweep": "try learning rates, frozen and full, on a task; keep the winner",
    "report": "write report.html of a run or sweep again, from its files",
    "predict": "label every line of a file with a model that a sweep kept",
}
RESUMES = {
    "pretrain": "; the same command goes on from the last checkpoint",
    "sweep": "; the same command runs the trials that are left",
}
EXAMPLES = """examples:
  cloze pretrain -c demo                                  the demo: embedded corpus, BERT-tiny
  cloze pretrain name=law corpus.sources=corpus/          your own text
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

    try:
        from data.config import UserError
        from orchestration import verbs
    except KeyboardInterrupt:
        return 130
    try:
        return getattr(verbs, verb)(options)
    except UserError as error:
        _complain(str(error))
        return 2
    except KeyboardInterrupt:
        _complain("stopped" + RESUMES.get(verb, ""))
        return 130
    except BrokenPipeError:
        return 1
    except Exception as error:
        from orchestration.cause import cause_of

        log = getattr(error, "log", None) or _keep_traceback()
        _complain(f"{verb} failed: {cause_of(error)}\nlog: {log}")
        return 1


def _keep_traceback() -> str:
    """Write the traceback of a failure outside any run to a file of its own; returns its path."""
    with tempfile.NamedTemporaryFile("w", prefix="cloze-", suffix=".log", delete=False, encoding="utf-8") as file:
        traceback.print_exc(file=file)
    return file.name


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
