"""What a sweep costs, against the same trials done otherwise, on all cores, each with one thread.

    make bench BENCH=sweep ARGS="[tiny] [ENCODER]"

a. 12 learning rates x 3 seeds on a frozen encoder, against the same sweep that runs the encoder in every trial.
b. 36 frozen and 4 full trials, against each trial in a process of its own that loads its encoder and reads the texts.
c. 12 full trials alone, against the same.

The clock begins with Ray started, and ends when every trial has its score; "whole" is with the winner's folder, which
peers do not write. A score that differs between two ways ends the benchmark: both did the same work. ENCODER is
runs/demo/export (`make demo`) where none is given, and one of the same size with random weights where that is not
there; texts are random words, up to 128 tokens of them in a, 64 in b and c. About 9 minutes on 2 cores; tiny: a few
trials, to see that it works.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", RAY_DATA_DISABLE_PROGRESS_BARS="1")
CORES = len(os.sched_getaffinity(0))
FROZEN_RATES = [1e-4 * 2**k for k in range(12)]
FULL_RATES = [1e-4, 3e-4]


@dataclass(frozen=True)
class Size:
    """Of a task and its trials."""

    train: int
    validation: int
    length: int
    epochs: int
    """Of frozen trials; full ones have 2."""


Scores = dict[tuple[str, float, int], float]


def make_task(size: Size) -> Any:
    """Texts of random words that a head can learn, with up to `size.length` tokens."""
    from tiny_encoder import LABELS, make_examples

    from data.examples import TaskData

    splits = (make_examples(number, seed, longest=size.length) for seed, number in
              enumerate((size.train, size.validation)))  # fmt: skip
    return TaskData("classification", list(LABELS), None, *splits, None)


def run_sweep(folder: Path, encoder: Path, size: Size, rates: dict[str, list[float]], seeds: int, cached: bool = True):
    """Run a sweep on a Ray of its own; returns the seconds until all trials have scores, and whole, and the scores."""
    import ray

    from orchestration.recipe import build_config
    from tuning import features
    from tuning.sweep import sweep

    ray.init("local", num_cpus=CORES, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    largest, features.LARGEST_BYTES = features.LARGEST_BYTES, features.LARGEST_BYTES if cached else 0
    marks: list[float] = []

    def progress(text: str, fraction: float | None = None, **_: object) -> None:
        if text.startswith("handing over"):
            marks.append(time.monotonic())

    epochs = {"frozen": size.epochs, "full": 2}
    config = build_config({"name": "bench", "storage": str(folder)}, {
        "sweep.encoders": [str(encoder)], "sweep.seeds": seeds, "finetune.length": size.length,
        "sweep.space": {
            "finetune.mode": list(rates), "finetune.learning_rate": rates,
            "finetune.epochs": {mode: epochs[mode] for mode in rates},
        },
    })  # fmt: skip
    task = make_task(size)
    begun = time.monotonic()
    try:
        entries = sweep(config, folder / "bench-sweep", progress, task)
    finally:
        features.LARGEST_BYTES = largest
        ray.shutdown()
    whole = time.monotonic() - begun
    scores = {
        (entry["mode"], entry["learning_rate"], seed): score
        for entry in entries
        for seed, score in enumerate(entry["scores"])
    }
    rows = sum(entry["encoder_rows"] for entry in entries if entry["mode"] == "frozen")
    if cached and rows:
        raise RuntimeError(f"frozen trials ran the encoder over {rows} rows")
    return marks[0] - begun, whole, scores


def run_alone(folder: Path, encoder: Path, size: Size, rates: dict[str, list[float]], seeds: int):
    """Run every trial in a process of its own, as many at once as there are cores; returns seconds and scores."""
    folder.mkdir()
    task = make_task(size)
    splits = {name: vars(getattr(task, name)) for name in ("train", "validation")}
    (folder / "task.json").write_text(json.dumps({"splits": splits, "labels": task.labels}))
    todo = [
        (mode, rate, seed) for seed in range(seeds) for mode in sorted(rates, reverse=True) for rate in rates[mode]
    ]
    begun, running, scores = time.monotonic(), dict[Any, tuple[str, float, int]](), Scores()
    while todo or running:
        while todo and len(running) < CORES:
            mode, rate, seed = todo.pop(0)
            settings = {
                "mode": mode, "learning_rate": rate, "length": size.length,
                "epochs": size.epochs if mode == "frozen" else 2,
            }  # fmt: skip
            words = [sys.executable, __file__, "trial", str(folder), str(encoder), json.dumps(settings), str(seed)]
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
            running[process] = (mode, rate, seed)
        for process in [one for one in running if one.poll() is not None]:
            if process.returncode:
                raise RuntimeError(f"a peer ended with {process.returncode}")
            scores[running.pop(process)] = json.loads(process.stdout.read().splitlines()[-1])
        time.sleep(0.01)
    return time.monotonic() - begun, scores


def trial(folder: Path, encoder: Path, settings: dict[str, Any], seed: int) -> None:
    """One trial, this process's own: prints its score."""
    import torch

    from data.alignment import encode_examples
    from data.examples import Examples
    from model.config import Head
    from tuning.config import Finetune
    from tuning.finetune import Goal, Part, Work, run_trial

    torch.set_num_threads(1)
    finetune, told = Finetune(**settings), json.loads((folder / "task.json").read_text())
    examples = [Examples(**told["splits"][name]) for name in ("train", "validation")]
    train, validation = (Part(one, encode_examples(one, told["labels"], encoder, finetune.length)) for one in examples)
    goal = Goal(tuple(told["labels"]), "accuracy")
    outcome, _ = run_trial(Work(finetune, Head(), encoder, goal, train.encoded, validation, seed), lambda record: None)
    print(json.dumps(outcome["score"]))


def check(ours: Scores, theirs: Scores, examples: int) -> None:
    """Raise RuntimeError where scores differ by more than two examples (sums are taken in another order)."""
    apart = {key: (ours[key], theirs[key]) for key in theirs if abs(ours[key] - theirs[key]) > 2.01 / examples}
    if ours.keys() != theirs.keys() or apart:
        raise RuntimeError(f"not the same trials: {apart or ours.keys() ^ theirs.keys()}")


def main(words: list[str]) -> None:
    """Print the three ratios."""
    tiny = words[:1] == ["tiny"]
    encoder = Path(words[tiny]) if words[tiny:] else Path("runs/demo/export")
    long = Size(60, 30, 32, 2) if tiny else Size(1000, 200, 128, 9)
    short = Size(60, 30, 32, 2) if tiny else Size(300, 100, 64, 5)
    every = 6 if tiny else 1  # of the learning rates, so many fewer
    with tempfile.TemporaryDirectory() as name:
        root, encoder = Path(name), encoder.absolute()
        if not (encoder / "config.json").is_file():
            from tiny_encoder import write_encoder

            encoder = write_encoder(root / "encoder", width=128, positions=128)
        print(f"{CORES} cores, one thread each; {encoder}", flush=True)

        rates = {"frozen": FROZEN_RATES[::every]}
        scored, whole, found = run_sweep(root / "cached", encoder, long, rates, 3)
        told(f"a. {len(found)} frozen trials, {long.train} texts, {long.epochs} epochs", scored, whole)
        peer, peer_whole, other = run_sweep(root / "looped", encoder, long, rates, 3, cached=False)
        told("   the encoder run in each", peer, peer_whole, scored, whole)
        check(found, other, long.validation)

        for letter, rates, seeds in (
            ("b", {"frozen": FROZEN_RATES[:9:every], "full": FULL_RATES[:1]}, 4),
            ("c", {"full": FULL_RATES[::every]}, 6),
        ):  # fmt: skip
            scored, whole, found = run_sweep(root / letter, encoder, short, rates, seeds)
            counts = " and ".join(f"{len(rates[mode]) * seeds} {mode}" for mode in rates)
            told(f"{letter}. {counts} trials, {short.train} texts", scored, whole)
            peer, other = run_alone(root / f"{letter}-alone", encoder, short, rates, seeds)
            told("   each in its own process", peer, peer, scored, whole)
            check(found, other, short.validation)


def told(what: str, scored: float, whole: float, ours: float | None = None, ours_whole: float | None = None) -> None:
    """A line of the table."""
    ratio = f"   {scored / ours:5.1f} x ({whole / ours_whole:.1f} x)" if ours and ours_whole else ""
    print(f"{what:<48} {scored:7.1f} s ({whole:.1f} s whole){ratio}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["trial"]:
        trial(Path(sys.argv[2]), Path(sys.argv[3]), json.loads(sys.argv[4]), int(sys.argv[5]))
    else:
        main(sys.argv[1:])
