"""report.html from files: whole, escaped, self-contained; of killed, failed and half-written runs too."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from made_results import results

from data.config import UserError
from tuning.leaderboard import make_entries, winner, write_leaderboard
from tuning.report import write_report
from tuning.table import make_rows, write_suite

VOID = ("meta", "br", "link", "img", "input", "hr")


def write_lines(path: Path, records: list[dict], torn: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records) + torn)


def make_pretraining(run: Path, steps: int = 60) -> None:
    records: list[dict] = []
    for step in range(steps):
        if step % 20 == 0:
            records.append({"step": step, "eval_loss": 9 - step / 20, "eval_accuracy": step / 400, "eval_targets": 90})
        records.append({"step": step, "epoch": 0, "tokens": 2000, "targets": 300, "loss": 9 - step / 15 + step % 3 / 9,
                        "learning_rate": 1e-3, "gradient_norm": 1.0, "tokens_per_second": 18000.0,
                        "data_wait_fraction": 0.01})  # fmt: skip
    write_lines(run / "metrics.jsonl", records, torn='{"step": 60, "lo')
    (run / "config.yaml").write_text("name: demo\ncorpus:\n  sources: ['<b>&amp;']\n")


def make_sweep(run: Path, trials: list[dict], test_score: float | None = None, **files) -> list[dict]:
    """A finished sweep's files; `files`: others, such as winner={...} for winner.json."""
    run.mkdir(parents=True, exist_ok=True)
    entries = make_entries(trials)
    if best := winner(entries):
        best["test_score"] = test_score
    write_leaderboard(entries, run)
    (run / "config.yaml").write_text("name: demo\n")
    for name, found in files.items():
        (run / f"{name}.json").write_text(json.dumps(found))
    return entries


TRIALS = [
    *results("full", [0.62, 0.63, 0.64], rate=3e-4, majority_baseline=0.125),
    *results("full", [0.60, 0.61, 0.605], rate=1e-4),
    *results("frozen", [0.43, 0.44, 0.45], rate=1e-2),
    *results("full", [0.48, 0.49, 0.48], encoder="random", rate=3e-4),
    *results("frozen", [0.16], encoder="random", rate=1e-2),
]
FOUND = {
    "trial": "pretrained-full0.0003-s2", "encoder": "pretrained", "mode": "full", "kind": "classification",
    "num_examples": 40, "num_wrong": 4, "num_cut": 2, "dots": [],
    "confusion": {"labels": ["no", "yes"], "counts": [[17, 3], [1, 19]]},
    "per_label": [{"label": "yes", "precision": 0.8636, "recall": 0.95, "f1": 0.9048, "support": 20}],
    "hardest": [
        {"place": "/data/dev.csv:7", "text": "<b>well</b> & good", "pair": None, "target": "no", "prediction": "yes",
         "probability": 0.987},
    ],
}  # fmt: skip


class Page(HTMLParser):
    """Checks that tags close in order, and collects texts, attributes and table rows."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.rows: list[list[str]] = []
        self.text = ""
        self.feed(source)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag == "td":
            self.rows[-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if "td" in self.open:
            self.rows[-1][-1] += data


def read_page(run: Path) -> Page:
    path = write_report(run)
    assert path == run / "report.html"
    assert not list(run.glob("*.part"))
    source = path.read_text()
    for svg in re.findall(r"<svg.*?</svg>", source, flags=re.DOTALL):
        ElementTree.fromstring(svg)  # well-formed
    return Page(source)


def test_sweep_page_has_table_charts_errors_pretraining_and_config(tmp_path):
    make_pretraining(tmp_path / "demo")
    make_sweep(tmp_path / "demo-sweep", TRIALS, 0.618, winner=FOUND)
    page = read_page(tmp_path / "demo-sweep")
    rows = [row for row in page.rows if row]
    assert rows[0][:7] == ["pretrained", "full", "3e-4", "3", "0.630 ± 0.025", "", "0.618"]
    assert rows[1][4:7] == ["0.605 ± 0.012", "-0.025 ± 0.022", ""]
    assert rows[4][4:6] == ["0.160", ""]  # one seed of three: no deviation is invented, no rank
    assert rows[0][-4:] == ["3", "12 s", "80,000", "recommended"]
    assert page.text.index("full at 3e-4: accuracy 0.630 ± 0.025, better than frozen") < page.text.index("Leaderboard")
    assert "On the test examples, scored once: accuracy 0.618." in page.text
    assert "Pretraining paid" in page.text and "most frequent answer scores 0.125" in page.text
    assert "9.00 → 7.00" in page.text  # from metrics.jsonl, as there is no summary.json yet
    for label in ("pretrained, frozen", "random, full", "learning rate", "validation accuracy", "masked loss (nats)",
                  "worker-seconds of all seeds", "recommended", "predicted"):  # fmt: skip
        assert label in page.text, label
    assert ["yes", "0.864", "0.950", "0.905", "20"] in rows
    assert ["dev.csv:7", "<b>well</b> & good", "no", "yes", "0.987"] in rows
    assert "4 (10.0%)" in page.text and "Configname: demo" in page.text


def test_the_winners_errors_are_shown_only_of_the_winner(tmp_path):
    make_sweep(tmp_path / "x-sweep", TRIALS, winner={**FOUND, "trial": "pretrained-frozen0.01-s0"})
    assert "Where the winner is wrong" not in read_page(tmp_path / "x-sweep").text


def test_page_loads_nothing_and_runs_nothing(tmp_path):
    make_pretraining(tmp_path / "demo")
    sizes = [one for size in (100, 300) for one in results("full", [0.4, 0.5, 0.4], size=size, asked=True)]
    make_sweep(tmp_path / "demo-sweep", TRIALS + sizes, winner=FOUND)
    page = read_page(tmp_path / "demo-sweep")
    text = (tmp_path / "demo-sweep" / "report.html").read_text()
    assert len(re.findall("<svg", text)) == 5  # rates, cost, sizes, confusion, loss
    assert not re.search(r"https?:|//[a-z]|<script|<link|<img|@import|url\((?!#)", text)
    assert all(value.startswith("#") for name, value in page.attributes if name in ("href", "src") and value)
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert "prefers-color-scheme: dark" in text
    ids = {value for name, value in page.attributes if name == "id"}
    assert set(re.findall(r'(?:href="|url\()#([^")]+)', text)) <= ids
    assert len(text) < 400_000


def test_labels_are_escaped_in_table_charts_and_errors(tmp_path):
    nasty = "<script>alert(1)<|script> $x_1$ & \"quoted\" 中文"
    trials = results("full", [0.5, 0.6], encoder=nasty) + results("full", [0.4, "failed"], encoder=nasty, rate=1.0)
    trials[-1]["error"] = nasty
    confusion = {"labels": [nasty, "b"], "counts": [[1, 2], [3, 4]]}
    hardest = [{**FOUND["hardest"][0], "text": nasty, "target": nasty, "pair": nasty}]
    found = {**FOUND, "trial": f"{nasty}-full0.001-s0", "confusion": confusion, "hardest": hardest}
    found["per_label"] = [{**FOUND["per_label"][0], "label": nasty}]
    make_sweep(tmp_path / "x-sweep", trials, winner=found)
    page = read_page(tmp_path / "x-sweep")
    assert "<script" not in (tmp_path / "x-sweep" / "report.html").read_text()
    # lead, two lines of the table, a status, two legends, a label, three cells of the error; mathematics is not typeset
    assert page.text.count(nasty) == 10
    assert page.text.count("<script>alert(1)<…") == 2  # both sides of the matrix


def test_what_came_to_nothing_is_named_with_its_reason(tmp_path):
    lost = results("full", ["nan", "nan", "nan"], rate=1.0) + results("lora", ["failed"] * 3)
    stopped = results("full", [0.7], rate=2e-5, status="stopped")
    make_sweep(tmp_path / "x-sweep", TRIALS + lost + stopped)
    page = read_page(tmp_path / "x-sweep")
    assert "Diverged: pretrained full at 1 (nan it was)." in page.text
    assert "Failed: pretrained lora at 1e-3 (failed it was)." in page.text
    told = {row[-1]: row for row in page.rows if row}
    assert told["nan: nan it was"][4] == "–" and told["failed: failed it was"][1] == "lora"
    assert told["stopped"][2:5] == ["2e-5", "3", "0.700"] and "1 stopped by the race" in page.text
    make_sweep(tmp_path / "y-sweep", lost)
    assert "No trial has a score. Diverged" in read_page(tmp_path / "y-sweep").text


def test_a_long_leaderboard_unfolds_and_loses_nothing(tmp_path):
    trials = [one for i in range(30) for one in results("full", [0.5, 0.5 + i / 100], rate=(i + 1) * 1e-5)]
    make_sweep(tmp_path / "x-sweep", trials + results("full", ["nan", "nan"], rate=1.0))
    page = read_page(tmp_path / "x-sweep")
    rates = [row[2] for row in page.rows if row]
    assert len(set(rates)) == 31 and rates[:2] == ["3e-4", "2.9e-4"] and rates[20] == "1"
    assert "11 more" in page.text


def test_learning_curves_have_a_chart_a_table_and_a_sentence(tmp_path):
    small = results("full", [0.2, 0.21, 0.2], rate=3e-4, size=100, asked=True)
    small += results("frozen", [0.40, 0.41, 0.40], rate=1e-2, size=100, asked=True)
    make_sweep(tmp_path / "x-sweep", TRIALS + small)
    page = read_page(tmp_path / "x-sweep")
    assert "With 100 examples frozen is better than full by 0.200; with 900 examples full is better" in page.text
    head = page.text[page.text.index("With 100") :]
    assert head.index("training examples") > 0
    assert ["100", "0.203 ± 0.014 (3e-4)", "–", "0.403 ± 0.014 (1e-2)"] in page.rows
    assert "On 900 examples" in page.text and "On 100 examples" in page.text


def test_sweep_that_was_killed_shows_the_trials_it_has(tmp_path):
    run = tmp_path / "demo-sweep"
    epochs = [{"epoch": 1, "score": 0.4}, {"epoch": 2, "score": 0.6}]
    for result in results("full", [0.60, 0.61], rate=3e-4, values={"head.pooling": "cls"}, epochs=epochs):
        write_lines(run / "trials" / result["trial"] / "result.json", [result])
    page = read_page(run)
    assert "has not finished" in page.text and "0.605 ± 0.064" in page.text
    assert "head.pooling" in page.text  # a key of the space gets its column
    assert "Validation score against the epoch" in str(page.attributes)


def test_a_suites_page_links_to_its_tasks_pages(tmp_path):
    run = tmp_path / "demo-sweep"
    boards = {"sst2": make_sweep(run / "sst2", TRIALS, 0.6), "a <task>": make_sweep(run / "a <task>", TRIALS)}
    write_suite(make_rows(boards, {"lost": "task.train=x.csv: no such file"}), run)
    page = read_page(run)
    assert {value for name, value in page.attributes if name == "href" and value and not value.startswith("#")} == {
        "sst2/report.html", "a <task>/report.html"
    }  # fmt: skip
    rows = [row for row in page.rows if row]
    assert rows[0] == ["sst2", "accuracy", "0.630 ± 0.025 (full 3e-4)", "0.483 ± 0.014 (full 3e-4)", "0.600"]
    assert ["lost", "failed: task.train=x.csv: no such file"] in rows
    assert page.text.count("full at 3e-4: accuracy 0.630 ± 0.025, better than frozen") == 2
    assert "0.630 ± 0.025" in read_page(run / "sst2").text


def test_pretraining_page(tmp_path):
    make_pretraining(tmp_path / "demo")
    summary = {
        "eval_loss_before": 9.0, "eval_loss_after": 5.08, "eval_accuracy_before": 0.0, "eval_accuracy_after": 0.23,
        "steps": 60, "tokens": 120000, "tokens_per_second": 18000.4, "seconds": 213, "workers": 2, "zero_stage": 1,
        "documents_read": 4200, "documents_kept": 4193,
        "spent": {"tokens": 120000, "seconds": 300.0, "worker_seconds": 600.0, "money": 1.5},
    }  # fmt: skip
    (tmp_path / "demo" / "summary.json").write_text(json.dumps(summary))
    text = read_page(tmp_path / "demo").text
    assert "sources: ['<b>&amp;']" in text  # the config, its own markup shown as text
    for fact in ("9.00 → 5.08", "0.0% → 23.0%", "18,000", "3 min 33 s", "2, ZeRO stage 1", "4,200 read, 4,193 kept",
                 "5 min 00 s, 0.1667 worker-hours, 1.5 in money"):  # fmt: skip
        assert fact in text, fact


def test_writing_again_gives_the_same_file(tmp_path):
    make_sweep(tmp_path / "x-sweep", TRIALS, winner=FOUND)
    first = write_report(tmp_path / "x-sweep").read_bytes()
    assert write_report(tmp_path / "x-sweep").read_bytes() == first


def test_nothing_to_report_is_refused_in_one_line(tmp_path):
    (tmp_path / "empty").mkdir()
    make_pretraining(tmp_path / "demo")
    (tmp_path / "demo-sweep").mkdir()
    for name, message in (("no", "no such run"), ("empty", "nothing to report"), ("demo-sweep", "nothing to report")):
        with pytest.raises(UserError, match=message):
            write_report(tmp_path / name)
        assert not (tmp_path / name / "report.html").exists()
