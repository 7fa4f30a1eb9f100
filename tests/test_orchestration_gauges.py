"""What a rank tells Prometheus: means since the last time, equal values once, little time, and nothing unknown."""

import json
import re
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from orchestration import gauges
from orchestration.gauges import COUNTERS, METRICS, Metrics, WorkerGauges
from orchestration.steps import StepRecord

ROOT = Path(__file__).parent.parent


class Told(Metrics):
    """Keeps what is told instead of handing it to Ray."""

    def __init__(self, run: str) -> None:
        super().__init__(run)
        self.told: dict[str, float] = {}

    def _tell(self, name, value, labels):
        also, _ = METRICS[name]
        assert set(labels) == set(also), f"{name} is labelled {also}"
        self.told[name] = self.told.get(name, 0) + value if name in COUNTERS else value

    def start(self) -> None:
        pass

    def collect(self) -> dict[str, float]:
        for (name, labels), value in self._values.items():
            self._tell(name, value, dict(labels))
        return self.told


def record(step: int, tokens: int = 100) -> StepRecord:
    return StepRecord(step, 2.5, {"mlm": 2.5}, {"mlm": 15}, {"tokens": tokens, "correct": 3}, 1e-3, 0.7)


@pytest.fixture
def rank(monkeypatch):
    """Makes the gauges of one rank, and a clock to move."""
    now = [1000.0]
    monkeypatch.setattr(gauges, "Metrics", Told)
    monkeypatch.setattr(gauges.time, "monotonic", lambda: now[0])

    def make(number: int) -> tuple[WorkerGauges, Told, list[float]]:
        made = WorkerGauges(
            "law", number, restarts=1, flops=lambda tokens, targets, row: 10 * tokens + targets["mlm"] + row,
            peak=(1e4, "measured"), device=torch.device("cpu"),
        )  # fmt: skip
        return made, made._metrics, now  # pyright: ignore[reportReturnType]

    return make


def work(made: WorkerGauges, now: list[float], steps: int) -> None:
    for step in range(steps):
        now[0] += 0.5
        made.read(np.array([30, 20]), positions=80)
        made.step(record(step), seconds=0.5, waited_seconds=0.1, share=(step + 1) / 100)


def test_rank_0_tells_all_and_values_are_means(rank):
    made, told, now = rank(0)
    work(made, now, 8)
    made.evaluation({"loss": 3.5, "accuracy": 0.25, "targets": 16})
    made.checkpoint(1.5)
    values = told.collect()
    assert values.keys() == {name for name in METRICS if "trial" not in name and "score" not in name}
    assert values["cloze_step_seconds"] == pytest.approx(0.5)
    assert values["cloze_data_wait_fraction"] == pytest.approx(0.2)
    assert values["cloze_tokens_per_second"] == pytest.approx(200)
    assert values["cloze_tokens"] == 8 * 100  # all that were published: 4 steps each time
    assert values["cloze_padding_fraction"] == pytest.approx(1 - 50 / 80)
    flops = 10 * 400 + 4 * 15 + 25
    assert values["cloze_flops_utilisation"] == pytest.approx(flops / 2.0 / 1e4)
    assert values["cloze_eta_seconds"] == pytest.approx(92 * 0.5)
    assert (values["cloze_step"], values["cloze_restarts"], values["cloze_eval_accuracy"]) == (8, 1, 0.25)


def test_other_ranks_tell_only_what_differs(rank):
    made, told, now = rank(1)
    work(made, now, 8)
    made.evaluation({"loss": 3.5, "accuracy": 0.25, "targets": 16})
    made.checkpoint(1.5)
    assert told.collect().keys() == {"cloze_step_seconds", "cloze_data_wait_fraction", "cloze_memory_bytes"}


def test_the_last_step_is_told_however_soon(rank):
    made, told, now = rank(0)
    work(made, now, 2)
    assert "cloze_step" not in told.collect()
    made.step(record(99), seconds=0.1, waited_seconds=0.0, share=1.0)
    assert told.collect()["cloze_step"] == 100
    assert told.collect()["cloze_eta_seconds"] == 0


def test_a_step_costs_microseconds():
    made = WorkerGauges("law", 0, 0, lambda *_: 1.0, (1e12, "measured"), torch.device("cpu"))
    lengths, steps = np.full(16, 128), 20_000
    made._metrics.stop()
    begun = time.perf_counter()
    for step in range(steps):
        made.read(lengths, 2048)
        made.step(record(step), 0.1, 0.0, step / 10**9)
    micros = (time.perf_counter() - begun) / steps * 1e6
    assert micros < 100, f"{micros:.0f} microseconds"  # 3 where nothing else runs; a step of BERT-tiny takes 30,000


def test_the_dashboard_asks_for_what_is_told_and_nothing_else():
    board = (ROOT / "orchestration/dashboard.json").read_text(encoding="utf-8")
    text = json.dumps([panel.get("targets") for panel in json.loads(board)["panels"]])
    exposed = {f"ray_{name}{'_total' if name in COUNTERS else ''}" for name in METRICS}
    left_out = {"ray_cloze_tokens_per_second"}  # the dashboard takes the rate of the counter: exact over any time
    assert set(re.findall(r"ray_cloze_\w+", text)) == exposed - left_out


def test_the_readme_lists_every_metric():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    missing = [name for name in METRICS if f"`{name}`" not in readme]
    assert not missing
