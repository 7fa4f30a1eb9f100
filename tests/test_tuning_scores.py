"""Scores by known values, their direction, the majority baseline; entries, their order, the verdict."""

import csv
import json

import numpy as np
import pytest

from tuning.leaderboard import best_trial, make_entries, verdict, write_leaderboard
from tuning.scores import METRICS, Metric, majority_baseline


def test_a_constant_predictor_under_imbalance() -> None:
    labels = np.array([0] * 95 + [1] * 5)
    constant = np.zeros(100, int)
    assert METRICS["accuracy"].compute(labels, constant) == 0.95
    assert METRICS["macro_f1"].compute(labels, constant) == pytest.approx((2 * 0.95 / 1.95) / 2)  # 0.487
    assert METRICS["matthews"].compute(labels, constant) == 0.0
    assert majority_baseline(labels, labels, "accuracy") == 0.95
    assert majority_baseline(np.array([1, 1, 0]), labels, "accuracy") == 0.05  # of the training examples


def test_several_classes_by_hand() -> None:
    labels = np.array([0, 0, 1, 1, 2, 2])
    predictions = np.array([0, 1, 1, 1, 2, 0])
    assert METRICS["accuracy"].compute(labels, predictions) == pytest.approx(4 / 6)
    assert METRICS["macro_f1"].compute(labels, predictions) == pytest.approx((1 / 2 + 4 / 5 + 2 / 3) / 3)
    # (4 * 6 - (2*2 + 2*3 + 2*1)) / sqrt((36 - 14) * (36 - 12))
    assert METRICS["matthews"].compute(labels, predictions) == pytest.approx(12 / np.sqrt(22 * 24))


@pytest.mark.parametrize("higher", [True, False])
def test_direction(higher: bool) -> None:
    metric = Metric(METRICS["accuracy"].compute, higher)
    assert metric.beats(0.6, 0.5) is higher and metric.beats(0.5, 0.6) is not higher
    assert metric.beats(0.1, None) and not metric.beats(0.5, 0.5) and not metric.beats(float("nan"), None)
    assert sorted([0.2, None, 0.9], key=metric.rank_key) == ([0.9, 0.2, None] if higher else [0.2, 0.9, None])


def result(encoder: str, point: str, seed: int, score: float | None, status: str = "done") -> dict:
    return {
        "trial": f"{encoder}-{point}-s{seed}", "encoder": encoder, "point": point, "seed": seed, "score": score,
        "status": status, "mode": "full", "learning_rate": 1e-3, "num_epochs": 3, "metric": "accuracy", "best_epoch": 1,
        "seconds": 1.5, "trained_parameters": 10, "total_parameters": 20, "majority_baseline": 0.4,
        "error": None if status == "done" else f"{status}: why", "values": {"finetune.learning_rate": 1e-3},
    }  # fmt: skip


def test_entries_are_ranked_by_mean_and_broken_ones_stand_last() -> None:
    entries = make_entries(
        [
            result("pretrained", "nan", 0, None, "nan"), result("pretrained", "nan", 1, None, "nan"),
            result("pretrained", "half", 0, 0.99), result("pretrained", "half", 1, None, "failed"),
            result("random", "low", 1, 0.5), result("random", "low", 0, 0.3),
            result("pretrained", "high", 0, 0.7), result("pretrained", "high", 1, 0.8),
        ]
    )  # fmt: skip
    assert [entry["point"] for entry in entries] == ["high", "low", "half", "nan"]
    high, low, half, nan = entries
    assert high["score_mean"] == pytest.approx(0.75) and high["score_std"] == pytest.approx(0.05 * 2**0.5)
    assert low["scores"] == [0.3, 0.5] and low["seeds"] == 2 and low["seconds"] == 3.0  # in the order of seeds
    assert half["status"] == "failed" and half["score_mean"] == 0.99 and half["score_std"] is None
    assert half["error"] == "failed: why" and half["scores"] == [0.99, None]
    assert nan["status"] == "nan" and nan["score_mean"] is None
    assert best_trial(high) == "pretrained-high-s1" and best_trial(half) == "pretrained-half-s0"
    with pytest.raises(ValueError):
        best_trial(nan)


@pytest.mark.parametrize(
    ("pretrained", "random", "paid"),
    [
        ((0.70, 0.72), (0.50, 0.52), True),
        ((0.50, 0.52), (0.70, 0.72), False),
        ((0.70, 0.72), (0.50, 0.80), False),  # a lead of 0.06 within a deviation of 0.21
        ((0.60, 0.60), (0.60, 0.60), False),  # no lead
    ],
)
def test_the_lead_must_exceed_the_larger_deviation(pretrained, random, paid: bool) -> None:
    trials = [result("pretrained", "a", seed, score) for seed, score in enumerate(pretrained)]
    trials += [result("random", "b", seed, score) for seed, score in enumerate(random)]
    sentence, answer = verdict(make_entries(trials))
    assert answer is paid and ("not more than" in sentence) is not paid


def test_nothing_to_compare_is_no_win() -> None:
    assert verdict(make_entries([result("pretrained", "a", 0, 0.9)]))[1] is False
    both = [result("pretrained", "a", 0, None, "nan"), result("random", "a", 0, 0.1)]
    assert verdict(make_entries(both)) == ("No comparison: no entry with a pretrained encoder finished.", False)


def test_the_files_hold_the_same_entries(tmp_path) -> None:
    entries = make_entries([result("pretrained", "a", 0, 0.9), result("random", "a", 0, None, "nan")])
    write_leaderboard(entries, tmp_path)
    assert json.loads((tmp_path / "leaderboard.json").read_text()) == entries
    with (tmp_path / "leaderboard.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["encoder"] for row in rows] == ["pretrained", "random"]
    assert float(rows[0]["score_mean"]) == 0.9 and rows[1]["score_mean"] == "" and rows[1]["status"] == "nan"
    assert not list(tmp_path.glob("*.part"))
