"""Charts as SVG: what is drawn, in the page's colours, one panel or several; and curves made thin."""

import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from made_results import results

from tuning import charts, loss_chart, winner_charts
from tuning.drawing import log_ticks
from tuning.leaderboard import make_entries


def texts(svg: str | None) -> list[str]:
    """The texts of a chart, in their order; the SVG is well-formed and has no colour but the page's."""
    assert svg is not None
    colours = set(re.findall(r"#[0-9a-f]{6}\b", svg))
    assert colours <= {"#000000", "#ffffff"}, colours
    return [element.text or "" for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("text")]


def lines(encoders: list[str], modes: tuple[str, ...] = ("full", "frozen"), **more) -> list[dict]:
    return [
        one for number, encoder in enumerate(encoders) for mode in modes for rate in (1e-4, 1e-3)
        for one in results(mode, [0.5 + number / 10, 0.6, 0.55], encoder=encoder, rate=rate, **more)
    ]  # fmt: skip


def test_few_lines_share_a_panel_and_many_have_one_for_each_encoder() -> None:
    few = texts(charts.score_by_learning_rate(make_entries(lines(["pretrained", "random"]))))
    assert {"pretrained, full", "pretrained, frozen", "random, full", "random, frozen"} <= set(few)
    assert few.count("validation accuracy") == 1 and {"1e-4", "1e-3"} <= set(few)
    many = texts(charts.score_by_learning_rate(make_entries(lines(["/m/a/model", "/m/b/model", "c", "random"]))))
    assert {"a", "b", "c", "random", "full", "frozen"} <= set(many) and many.count("full") == 1
    assert many.count("validation accuracy") == 2  # of four panels those at the left edge


def test_entries_without_a_score_or_rank_are_left_out_and_stopped_ones_are_crosses() -> None:
    whole = lines(["pretrained"])
    lost = results("full", ["nan"] * 3, rate=1e-2) + results("full", [0.9, "failed", 0.9], rate=1e-1)
    plain = charts.score_by_learning_rate(make_entries(whole))
    assert charts.score_by_learning_rate(make_entries(whole + lost)) == plain
    stopped = results("full", [0.4], rate=5e-4, status="stopped")
    assert "5e-4" in texts(charts.score_by_learning_rate(make_entries(whole + stopped)))
    assert charts.score_by_learning_rate(make_entries(lost[:3])) is None
    assert charts.score_by_cost(make_entries(lost[:3])) is None


def test_cost_has_one_mark_per_entry_and_names_the_recommended() -> None:
    entries = make_entries(lines(["pretrained"]))
    found = texts(charts.score_by_cost(entries))
    assert found.count("recommended") == 1 and {"6 s", "12 s"} <= set(found)
    keys = texts(charts.score_by_cost(make_entries(lines(["a", "b", "c", "random"]))))
    assert [name for name in keys if name in ("a", "b", "c", "random", "full", "frozen")] == [
        "a", "b", "c", "random", "full", "frozen"
    ]  # fmt: skip


def test_learning_curves_are_drawn_from_two_sizes_on() -> None:
    one = lines(["pretrained"])
    assert charts.score_by_train_size(make_entries(one)) is None
    found = texts(charts.score_by_train_size(make_entries(one + lines(["pretrained"], size=100, asked=True))))
    assert {"100", "900", "training examples", "pretrained, full"} <= set(found)


def test_epochs_are_a_line_for_each_seed_of_the_best_points() -> None:
    trials = [
        {**one, "epochs": [{"epoch": e, "score": 0.1 * e} for e in range(1, 4)]} for one in lines(["pretrained"])
    ]
    entries = make_entries(trials)
    svg = charts.score_by_epoch(entries, trials)
    assert {"pretrained, full, 1e-4", "pretrained, frozen, 1e-4", "1", "2", "3"} <= set(texts(svg))
    assert charts.score_by_epoch(entries, []) is None


def test_a_wide_interval_runs_out_of_the_chart_instead_of_squeezing_it() -> None:
    """Of two seeds 0.02 apart the interval is 0.25 wide: the axis still shows hundredths."""
    trials = results("full", [0.70, 0.72]) + results("full", [0.71, 0.75], rate=1e-2)
    found = texts(charts.score_by_learning_rate(make_entries(trials)))
    ticks = [float(text) for text in found if re.fullmatch(r"0\.\d+", text)]
    assert min(ticks) > 0.66 and max(ticks) < 0.79


def test_equal_scores_and_a_single_entry_are_drawn() -> None:
    for scores in ([1.0, 1.0], [0.0, 0.0], [0.5]):
        entries = make_entries(results("full", scores))
        assert texts(charts.score_by_learning_rate(entries)) and texts(charts.score_by_cost(entries))


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([1e-4, 3e-4, 1e-3], ["1e-4", "3e-4", "1e-3"]),
        ([2e-5, 1.9e-5, 4e-3], ["1e-4", "1e-3"]),  # too near to be written side by side
        ([5.0, 5.1], ["5"]),
        ([0.031, 0.032], ["3.1e-2"]),
    ],
)
def test_ticks_stand_at_the_values_tried_or_at_round_ones(values: list[float], ticks: list[str]) -> None:
    class Axis:
        def set_ticks(self, places, labels=(), minor=False):
            if not minor:
                self.labels = labels
                assert all(min(values) * 0.98 <= place <= max(values) * 1.02 for place in places)

    axis = Axis()
    log_ticks(axis, values)
    assert axis.labels == ticks


def test_a_confusion_matrix_shows_counts_and_short_names() -> None:
    long = "a label whose name goes on and on"
    found = texts(winner_charts.confusion_matrix({"labels": [long, "b"], "counts": [[1234, 0], [7, 0]]}))
    assert {"1,234", "7", "b", "right", "predicted"} <= set(found) and "0" not in found
    assert found.count(f"{long[:17]}…") == 2
    empty = {"labels": ["a", "b"], "counts": [[0, 0], [1, 2]]}  # of one label no example
    assert "2" in texts(winner_charts.confusion_matrix(empty))
    many = {"labels": [f"l{i}" for i in range(20)], "counts": [[1] * 20] * 20}
    assert texts(winner_charts.confusion_matrix(many)).count("1") == 400


def test_numbers_are_dots() -> None:
    assert {"right", "predicted"} <= set(texts(winner_charts.numbers([[1.0, 1.5], [2.0, 1.0]])))


def test_long_curves_are_thinned_by_means() -> None:
    values = np.arange(100_000.0)
    thinned = loss_chart.thin(values)
    assert len(thinned) <= loss_chart.LARGEST_POINTS
    assert thinned[0] == values[:84].mean()
    assert loss_chart.thin(values[:10]).tolist() == values[:10].tolist()
    assert np.allclose(loss_chart.smooth(np.ones(7), 3), 1)
    assert loss_chart.smooth(np.array([0.0, 3.0, 6.0]), 3).tolist() == [1.5, 3.0, 4.5]
    assert loss_chart.loss_curve([{"step": 1, "loss": math.nan}, {"step": 2, "loss": None}]) is None
