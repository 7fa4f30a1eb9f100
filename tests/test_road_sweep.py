"""The second half of the road through the command line: own encoder, own task from files, leaderboard, winner."""

import csv
import json
import random
import shutil
from functools import partial
from pathlib import Path

import pytest

pytestmark = [pytest.mark.road, pytest.mark.timeout(420)]

SMALL = [
    "tokenizer.vocab_size=60", "rows.length=32", "encoder.hidden_size=32", "encoder.num_attention_heads=2",
    "encoder.intermediate_size=64", "pretrain.steps=40", "pretrain.micro_batch=4", "scaling.workers=1",
    "pretrain.learning_rate=5e-3", "pretrain.eval_every_steps=null", "corpus.held_out=0.1",
]  # fmt: skip
SPACE = (
    "sweep.space={finetune.mode: [frozen, full], finetune.learning_rate: {frozen: [1e-2], full: [3e-3, 1e-5]}, "
    "finetune.epochs: {frozen: [40], full: [8]}}"
)
FILES = ["task.train=train.csv", "task.validation=dev.jsonl", "task.test=test.tsv"]
TASK = [*FILES, "finetune.length=16", "finetune.global_batch=8", "sweep.seeds=2", SPACE]


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A corpus, and a task: does the sentence speak of animals or of money?"""
    folder = tmp_path_factory.mktemp("sweep")
    draw = random.Random(1)
    words = {"animal": ["cat", "dog", "cow", "hen", "pig"], "money": ["coin", "bank", "debt", "loan", "rent"]}

    def example() -> tuple[str, str]:
        label = draw.choice(list(words))
        return " ".join(["the", draw.choice(words[label]), "and", "a", draw.choice(words[label])]), label

    (folder / "corpus.txt").write_text("\n\n".join(f"{example()[0]} . {example()[0]} ." for _ in range(200)))
    examples = [example() for _ in range(200)]
    with open(folder / "train.csv", "w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *examples[:120]])
    (folder / "dev.jsonl").write_text("".join(json.dumps({"text": t, "label": c}) + "\n" for t, c in examples[120:160]))
    (folder / "test.tsv").write_text("text\tlabel\n" + "".join(f"{t}\t{c}\n" for t, c in examples[160:]))
    (folder / "letters.txt").write_text("the cat and a hen\n\nthe loan and a debt\n")
    return folder


@pytest.fixture(scope="module")
def run_cloze(cloze, home):
    """The command line in the module's folder, on the tests' Ray."""
    return partial(cloze, cwd=home)


@pytest.fixture(scope="module")
def swept(run_cloze, home):
    done = run_cloze("pretrain", "name=s", "corpus.sources=corpus.txt", *SMALL)
    assert done.returncode == 0, done.stderr
    done = run_cloze("sweep", "name=s", *TASK)
    assert done.returncode == 0, done.stderr
    return done


def test_the_leaderboard_says_who_won_and_at_what_cost(swept, home):
    entries = json.loads((home / "runs/s-sweep/leaderboard.json").read_text())
    assert len(entries) == 6  # 3 points x {pretrained, random}
    scores = [entry["score_mean"] for entry in entries]
    assert scores == sorted(scores, reverse=True) and scores[0] > 0.9
    assert {(e["encoder"], e["mode"]) for e in entries} == {
        (encoder, mode) for encoder in ("pretrained", "random") for mode in ("frozen", "full")
    }
    tested = [entry["test_score"] for entry in entries if entry["test_score"] is not None]
    assert len(tested) == 1 and tested[0] > 0.8
    for entry in entries:
        assert {"learning_rate", "score_std", "seconds", "trained_parameters"} <= set(entry)
        assert (entry["seeds"], entry["metric"], entry["status"]) == (2, "accuracy", "done")
    sizes = {entry["mode"]: entry["trained_parameters"] for entry in entries}
    assert sizes["frozen"] == 32 * 32 + 32 + 2 * 32 + 2 < sizes["full"]  # pooler and classifier
    rows = list(csv.DictReader((home / "runs/s-sweep/leaderboard.csv").open()))
    assert [float(row["score_mean"]) for row in rows] == scores


def test_the_user_sees_a_table_a_verdict_and_what_to_do_next(swept, home):
    lines = swept.stdout.splitlines()
    assert lines[0].split()[:4] == ["encoder", "mode", "learning", "rate"]
    table = lines[1 : lines.index("")]
    assert len(table) == 6 and all(" ± " in line for line in table)
    assert len([line for line in table if line.endswith("recommended")]) == 1
    assert lines[lines.index("") + 1].split(":")[0].split(" at ")[0] in ("frozen", "full")
    assert "next:" in lines and len(lines[lines.index("next:") + 1 :]) == 3
    report = (home / "runs/s-sweep/report.html").read_text()
    assert "<svg" in report and "http-equiv" not in report and 'src="http' not in report


def test_best_labels_a_file_line_by_line(swept, home, run_cloze):
    done = run_cloze("predict", "runs/s-sweep/best", "letters.txt", "-o", "labels.jsonl")
    assert done.returncode == 0, done.stderr
    labels = [json.loads(line) for line in (home / "labels.jsonl").read_text().splitlines()]
    assert [label.get("label") for label in labels] == ["animal", None, "money"]
    assert "error" in labels[1]


def test_the_same_sweep_again_does_nothing_and_another_task_is_refused(swept, home, run_cloze):
    results = sorted((home / "runs/s-sweep/trials").glob("*/result.json"))
    assert len(results) == 12
    times = [path.stat().st_mtime_ns for path in results]
    again = run_cloze("sweep", "name=s", *TASK)
    assert again.returncode == 0, again.stderr
    assert [path.stat().st_mtime_ns for path in results] == times
    assert again.stdout == swept.stdout
    other = run_cloze("sweep", "name=s", *TASK, "task.validation=train.csv")
    assert other.returncode == 2
    assert "task.validation: run s-sweep was started with 'dev.jsonl', now 'train.csv'" in other.stderr


@pytest.mark.soak
def test_a_demo_whose_pretraining_did_not_pay_says_so_and_exits_1(swept, home, run_cloze):
    """The random encoder alone beside itself: no lead can be more than its deviation."""
    random_copy = home / "random-copy"
    shutil.copytree(next((home / "runs/.cache").glob("random-*")), random_copy)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(home / "runs/s/export" / name, random_copy)
    done = run_cloze(
        "sweep", "name=t", f"sweep.encoders=[{random_copy}, random]", *TASK, "sweep.must_beat_random=true",
        "sweep.space={finetune.mode: frozen, finetune.epochs: 1, finetune.learning_rate: 1e-6}",
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "random" in done.stdout and "next:" not in done.stdout


def test_dry_run_counts_trials(swept, home, run_cloze):
    done = run_cloze("sweep", "name=u", "sweep.encoders=runs/s/export", *TASK, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "3 points x 1 encoders x 2 seeds = 6 trials"
    assert not (home / "runs/u-sweep").exists()


def test_a_suite_is_looked_at_whole_on_a_cluster_too_before_any_of_it_starts(swept, run_cloze, home):
    """Else the first task would train for hours, and the typing error in the second be a line of its table."""
    files = dict(word.split("=") for word in FILES)
    tasks = {"good": files, "bad": {**files, "task.validation": "typo.csv", "head.kind": "classification"}}
    done = run_cloze("sweep", "name=both", "sweep.encoders=[runs/s/export]", f"sweep.tasks={json.dumps(tasks)}")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
    assert "sweep.tasks.bad: task.validation=typo.csv" in done.stderr
    assert not (home / "runs" / "both-sweep").exists()
