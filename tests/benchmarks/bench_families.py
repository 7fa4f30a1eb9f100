"""Every family with every objective at a tiny size: parameters, tokens/s, own metric, and a frozen probe of each.

    make bench BENCH=families ARGS="[STEPS [NAME ...]]"

Each trains on the embedded corpus, 16 rows of 128 tokens a step for as many steps (default 600), in one process on all
cores: BERT-tiny's shape (128 wide, 2 layers) with a vocabulary of 8,192. The probe is one linear layer on the frozen
encoder's [CLS], and one on the mean of its outputs, 2,000 examples of the demo's task (8 packages), each beside an
encoder of the same shape with random weights, whose mean is a bag of words: the score that compares objectives, since
their losses do not compare. Exits with 1 where the loss on held-out rows did not fall or a probe of [CLS] is not above
its random encoder.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from family_runs import RUNS, Run, read, training

from data.config import Corpus, Masking, Rows, Task, Tokenizer
from data.prepare import prepare
from data.store import Store
from data.tasks import load_task
from model.config import Encoder, Head, Objective
from model.encoder import write_random_encoder
from model.export import export_objective
from model.heads.states import open_encoder, pooled_states
from model.objectives.catalogue import build_objective
from orchestration.plain_engine import PlainEngine
from orchestration.schedule import learning_rate
from orchestration.steps import evaluate, train_steps
from tuning.config import Finetune
from tuning.finetune import Goal, Part, Work, run_trial
from tuning.inputs import read_part

BATCH, LENGTH, VOCABULARY, HELD_OUT = 16, 128, 8192, 512


def quiet(*_: Any, **__: Any) -> None:
    """Progress that nobody reads."""


def shape(run: Run) -> Encoder:
    """BERT-tiny; half of its layers for the student."""
    return Encoder.model_validate({
        "family": run.family, "num_hidden_layers": 1 if run.objective["name"] == "distillation" else 2,
        "embedding_size": 64 if run.family in ("albert", "electra") else None,
    })  # fmt: skip


def trained(run: Run, store: Store, steps: int, teacher: Path, folder: Path) -> dict[str, Any]:
    """Train, evaluate before and after, export to `folder`; figures."""
    masking = Masking.model_validate(run.masking)
    taught = {"teacher": str(teacher)} if run.objective["name"] == "distillation" else {}
    objective = Objective.model_validate({**run.objective, **taught})
    module = build_objective(objective, shape(run), store.manifest["tokenizer"], seed=0)[0]
    engine, draws = PlainEngine(module), objective.needs_draws
    rows = np.arange(min(HELD_OUT, store.held_out.num_rows))
    held_out = [read(store, "held_out", some, 0, masking, draws)[0] for some in np.array_split(rows, len(rows) // 32)]
    before = evaluate(engine, held_out)
    torch.manual_seed(0)
    tokens, begun = 0.0, time.monotonic()
    for record in train_steps(
        engine, training(store, steps, BATCH, masking, draws), lambda step: learning_rate(step, steps, 1e-3, 0.06)
    ):
        tokens += record.metrics["tokens"]
    seconds = time.monotonic() - begun
    after = evaluate(engine, held_out)
    export_objective(module, module.state_dict(), store.tokenizer_folder, folder, {})
    return {
        "parameters": sum(p.numel() for p in module.parameters()), "tokens": tokens, "rate": tokens / seconds,
        "before": before, "after": after,
    }  # fmt: skip


def probe(folder: Path, task: Any, tokenizer: Path, pooling: Any) -> float:
    """Best validation accuracy of a linear layer on the frozen encoder's pooled outputs."""
    head = Head(pooling=pooling, layers="linear")
    goal = Goal(tuple(task.labels), "accuracy")
    settings = Finetune(mode="frozen", learning_rate=1e-2, epochs=30, length=64)
    encoder = open_encoder(folder)
    parts = []
    for examples in (task.train, task.validation):
        encoded = read_part(examples, task, goal, tokenizer, settings, head).encoded
        features = np.zeros((len(encoded), 128), np.float32)
        with torch.no_grad():
            for start in range(0, len(encoded), 128):
                some = np.arange(start, min(start + 128, len(encoded)))
                batch = {name: torch.from_numpy(array) for name, array in encoded.tokens(some).items()}
                features[some] = pooled_states(encoder, batch, (pooling,))[pooling].numpy()
        parts.append(Part(examples, encoded.with_features(features, on_tokens=False)))
    outcome, _ = run_trial(Work(settings, head, folder, goal, parts[0].encoded, parts[1], 0), quiet)
    return outcome["score"]


def main() -> int:
    """Print the table, as Markdown, row by row."""
    import ray

    words = sys.argv[1:]
    steps = int(words.pop(0)) if words else 600
    ray.init("local", num_cpus=2, include_dashboard=False, logging_level="ERROR")
    root = Path(tempfile.mkdtemp(prefix="bench-families-"))
    cache = root / "cache"
    task = load_task(Task(train_size=2000), "classification", 0, cache, quiet)
    stores: dict[tuple[str, str], Store] = {}
    asked = {name: run for name, run in RUNS.items() if not words or name in words}
    for run in asked.values():
        if (run.tokenizer, run.packing) not in stores:
            tokenizer = Tokenizer.model_validate({"kind": run.tokenizer, "vocab_size": VOCABULARY})
            rows = Rows.model_validate({"length": LENGTH, "packing": run.packing})
            stores[run.tokenizer, run.packing] = prepare(Corpus(), tokenizer, rows, cache, quiet)
    ray.shutdown()
    fell = []
    print("| run | parameters | tokens | tokens/s | held-out rows | probe [CLS] | random | probe mean | random |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for name, run in asked.items():
        store, folder = stores[run.tokenizer, run.packing], root / name
        found = trained(run, store, steps, root / "bert-mlm", folder)
        write_random_encoder(folder, 0, root / f"random-{name}")
        pooled = [(one, pooling) for pooling in ("cls", "mean") for one in (folder, root / f"random-{name}")]
        probes = [probe(one, task, folder, pooling) for one, pooling in pooled]
        after, before = found["after"], found["before"]
        told = ", ".join(
            f"{key} {before[key]:.3f} → {after[key]:.3f}" if key in before else f"{key} {after[key]:.3f}"
            for key in after
            if key != "targets" and not key.startswith("loss_")
        )
        figures = f"{found['parameters']:,} | {found['tokens']:,.0f} | {found['rate']:,.0f}"
        print(f"| {name} | {figures} | {told} | {' | '.join(f'{score:.3f}' for score in probes)} |", flush=True)
        if after["loss"] >= before["loss"] or probes[0] <= probes[1]:
            fell.append(name)
    if fell:
        print(f"did not improve: {', '.join(fell)}")
    return int(bool(fell))


if __name__ == "__main__":
    sys.exit(main())
