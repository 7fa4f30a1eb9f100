"""report.html from files: whole, escaped, self-contained; of killed, failed and half-written runs too."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from data.config import UserError
from tuning import charts
from tuning.report import write_report

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


def make_entry(encoder: str, mode: str, rate: float, score: float | None, std: float | None = 0.01, **more) -> dict:
    return {
        "encoder": encoder, "mode": mode, "learning_rate": rate, "epochs": 3, "seeds": 2, "score_mean": score,
        "score_std": std, "metric": "accuracy", "test_score": None, "seconds": 31.2, "trained_parameters": 1528456,
        "status": "done", **more,
    }  # fmt: skip


def make_sweep(run: Path, entries: list[dict]) -> None:
    run.mkdir(parents=True, exist_ok=True)
    (run / "leaderboard.json").write_text(json.dumps(entries))
    (run / "config.yaml").write_text("name: demo\n")


ENTRIES = [
    make_entry("pretrained", "full", 3e-4, 0.631, test_score=0.618),
    make_entry("pretrained", "full", 1e-4, 0.602),
    make_entry("random", "full", 3e-4, 0.483),
    make_entry("pretrained", "frozen", 1e-2, 0.434, std=None),
    make_entry("random", "frozen", 1e-2, 0.161),
]


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

    def handle_startendtag(self, tag, attrs):
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if "td" in self.open:
            self.rows[-1].append(data)


def read_page(run: Path) -> Page:
    path = write_report(run)
    assert path == run / "report.html"
    assert not list(run.glob("*.part"))
    source = path.read_text()
    for svg in re.findall(r"<svg.*?</svg>", source, flags=re.DOTALL):
        ElementTree.fromstring(svg)  # well-formed
    return Page(source)


def test_sweep_page_has_table_charts_pretraining_and_config(tmp_path):
    make_pretraining(tmp_path / "demo")
    make_sweep(tmp_path / "demo-sweep", ENTRIES)
    page = read_page(tmp_path / "demo-sweep")
    rows = [row for row in page.rows if row]
    assert len(rows) == len(ENTRIES)
    assert rows[0][:6] == ["pretrained", "full", "3e-4", "3", "0.631 ± 0.010", "0.618"]
    assert rows[3][4] == "0.434"  # one seed: no deviation is invented
    assert "Pretraining paid" in page.text
    assert "9.00 → 7.00" in page.text  # from metrics.jsonl, as there is no summary.json yet
    for label in ("pretrained, frozen", "random, full", "learning rate", "validation accuracy", "masked loss (nats)"):
        assert label in page.text, label
    assert "Configname: demo" in page.text


def test_page_loads_nothing_and_runs_nothing(tmp_path):
    make_pretraining(tmp_path / "demo")
    make_sweep(tmp_path / "demo-sweep", ENTRIES)
    page = read_page(tmp_path / "demo-sweep")
    text = (tmp_path / "demo-sweep" / "report.html").read_text()
    assert not re.search(r"https?:|//[a-z]|<script|<link|<img|@import|url\((?!#)", text)
    assert all(value.startswith("#") for name, value in page.attributes if name in ("href", "src") and value)
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert "prefers-color-scheme: dark" in text
    ids = {value for name, value in page.attributes if name == "id"}
    assert set(re.findall(r'(?:href="|url\()#([^")]+)', text)) <= ids
    assert len(text) < 400_000


def test_labels_are_escaped_in_table_and_charts(tmp_path):
    nasty = "<script>alert(1)</script> $x_1$ & \"quoted\" 中文"
    make_sweep(tmp_path / "x-sweep", [make_entry(nasty, "full", 1e-4, 0.5, error=nasty, status="failed")])
    page = read_page(tmp_path / "x-sweep")
    assert "script" not in {tag for tag in page.open}
    assert "<script" not in (tmp_path / "x-sweep" / "report.html").read_text()
    assert page.text.count(nasty) == 4  # lead, table, status, legend; mathematics is not typeset


def test_entries_without_a_score_stand_in_the_table_only(tmp_path):
    entries = [*ENTRIES, make_entry("pretrained", "full", 1.0, None, None, status="nan", error="loss is nan")]
    make_sweep(tmp_path / "x-sweep", entries)
    page = read_page(tmp_path / "x-sweep")
    assert page.rows[-1][4] == "–"
    assert page.rows[-1][-1] == "nan: loss is nan"
    make_sweep(tmp_path / "y-sweep", [entries[-1]])
    assert "No trial has a score" in read_page(tmp_path / "y-sweep").text


def test_sweep_that_was_killed_shows_the_trials_it_has(tmp_path):
    run = tmp_path / "demo-sweep"
    for seed in (0, 1):
        result = {
            "trial": f"pretrained-1-s{seed}", "encoder": "pretrained", "point": "1", "values": {"head.pooling": "cls"},
            "seed": seed, "metric": "accuracy", "mode": "full", "learning_rate": 3e-4, "num_epochs": 2,
            "status": "done", "score": 0.6 + seed / 100, "best_epoch": 2, "seconds": 3.0, "trained_parameters": 10,
            "error": None, "total_parameters": 10, "epochs": [{"epoch": 1, "score": 0.4}, {"epoch": 2, "score": 0.6}],
        }  # fmt: skip
        write_lines(run / "trials" / result["trial"] / "result.json", [result])
    page = read_page(run)
    assert "has not finished" in page.text
    assert "0.605 ± 0.007" in page.text
    assert "head.pooling" in page.text  # a key of the space gets its column
    assert "Validation score against the epoch" in str(page.attributes)


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
    make_sweep(tmp_path / "x-sweep", ENTRIES)
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


def test_long_curves_are_thinned_by_means():
    values = np.arange(100_000.0)
    thinned = charts.thin(values)
    assert len(thinned) <= charts.LARGEST_POINTS
    assert thinned[0] == values[:84].mean()
    assert charts.thin(values[:10]).tolist() == values[:10].tolist()
    assert np.allclose(charts.smooth(np.ones(7), 3), 1)
    assert charts.smooth(np.array([0.0, 3.0, 6.0]), 3).tolist() == [1.5, 3.0, 4.5]


def test_learning_rates_are_written_short():
    assert [charts.short(x) for x in (3e-4, 1e-2, 2.5e-5, 0.5, 1.0)] == ["3e-4", "1e-2", "2.5e-5", "0.5", "1"]
