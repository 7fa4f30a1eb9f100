"""Every family with every objective at a tiny size: parameters, tokens/s, own metric, and a frozen probe of each.

    python tests/benchmarks/bench_families.py [STEPS] [NAME ...]

Each trains on the embedded corpus for as many steps of as many rows (default 800 of 16 rows of 128 tokens), with the
command line as a user would; then `cloze sweep` trains a linear classifier on the frozen encoder's [CLS] for the
demo's task, on this encoder and on one of the same shape with random weights. The probe is the one score that compares
objectives: losses of different objectives do not compare. Exits with 1 where a metric did not improve on the held-out
rows or a probe is not above its random encoder. Runs and their logs lie under runs/families.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

STORAGE = Path("runs/families")
BPE, UNIGRAM = {"tokenizer.kind": "bpe"}, {"tokenizer.kind": "unigram"}
GENERATED = {"masking.mask_share": 1.0, "masking.random_share": 0.0, "objective.name": "rtd"}
# name -> what differs from the demo. The teacher of distillation is the first of them.
RUNS: dict[str, dict[str, Any]] = {
    "bert-mlm": {},
    "bert-nsp": {"objective.name": "mlm_nsp", "rows.packing": "next_sentence"},
    "bert-clm": {"objective.name": "clm"},
    "spanbert-sbo": {"objective.name": "mlm_sbo", "masking.strategy": "span", "rows.packing": "document"},
    "roberta-mlm": {"encoder.family": "roberta", **BPE},
    "albert-sop": {
        "encoder.family": "albert", **UNIGRAM, "objective.name": "mlm_sop", "rows.packing": "sentence_order",
        "masking.strategy": "ngram",
    },
    "electra-rtd": {"encoder.family": "electra", **GENERATED, "objective.generator_size": 0.5},
    "deberta-v2-mlm": {"encoder.family": "deberta-v2", **UNIGRAM, "masking.strategy": "ngram"},
    "deberta-v3-rtd": {"encoder.family": "deberta-v3", **UNIGRAM, **GENERATED, "objective.generator_size": 0.5},
    "modernbert-mlm": {
        "encoder.family": "modernbert", **BPE, "rows.packing": "packed", "masking.mlm_probability": 0.3,
    },
    "distilbert-distillation": {
        "encoder.family": "distilbert", "encoder.num_hidden_layers": 1, "objective.name": "distillation",
        "objective.teacher": f"{STORAGE}/bert-mlm/export", "tokenizer.path": f"{STORAGE}/bert-mlm/export",
    },
}  # fmt: skip


def cloze(*words: str) -> None:
    """Run a command; its output is for the eye."""
    subprocess.run([sys.executable, "-m", "orchestration", *words], check=True)


def pretrained(name: str, changes: dict[str, Any], steps: int) -> dict[str, Any]:
    """The run's summary; a finished run is not run again."""
    fixed = {"name": name, "storage": STORAGE, "pretrain.steps": steps, "checkpoints.every_steps": steps}
    words = [f"{key}={value}" for key, value in {**fixed, **changes}.items()]
    cloze("pretrain", "-c", "demo", *words)
    return json.loads((STORAGE / name / "summary.json").read_text())


def probed(name: str) -> tuple[float, float]:
    """Validation accuracies of a linear head on the frozen encoder: pretrained, random."""
    space = "{finetune.mode: frozen, finetune.learning_rate: [0.003, 0.01], finetune.epochs: 30}"
    cloze("sweep", "-c", "demo", f"name={name}", f"storage={STORAGE}", f"sweep.space={space}",
          "head.layers=linear", "sweep.must_beat_random=false")  # fmt: skip
    entries = json.loads((STORAGE / f"{name}-sweep" / "leaderboard.json").read_text())
    best = {}
    for entry in entries:  # best first
        best.setdefault(entry["encoder"], entry["score_mean"])
    return best["pretrained"], best["random"]


def main() -> int:
    """Print the table, as Markdown, after all runs."""
    words = sys.argv[1:]
    steps = int(words.pop(0)) if words and words[0].isdigit() else 800
    rows, fell = [], []
    for name, changes in RUNS.items():
        if words and name not in words:
            continue
        summary = pretrained(name, changes, steps)
        names = [key[5:-6] for key in summary if key.startswith("eval_") and key.endswith("_after")]
        told = ", ".join(
            f"{key} {summary.get(f'eval_{key}_before', float('nan')):.3f} → {summary[f'eval_{key}_after']:.3f}"
            for key in names
        )
        ours, random = probed(name)
        rows.append(
            f"| {name} | {summary['parameters']:,} | {summary['tokens']:,} | {summary['tokens_per_second']:,.0f} | "
            f"{told} | {ours:.3f} | {random:.3f} |"
        )
        if summary["eval_loss_after"] >= summary["eval_loss_before"] or ours <= random:
            fell.append(name)
    print("| run | parameters | tokens | tokens/s | held-out rows | frozen probe | random encoder |")
    print("|---|---|---|---|---|---|---|")
    print("\n".join(rows))
    if fell:
        print(f"did not improve: {', '.join(fell)}")
    return int(bool(fell))


if __name__ == "__main__":
    sys.exit(main())
