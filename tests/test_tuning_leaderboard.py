"""The leaderboard does not lie: intervals by hand, order, ties over paired seeds, what is recommended."""

import csv
import json
import math

import pytest
from made_results import results

from tuning.intervals import half_width, may_be_equal, paired
from tuning.leaderboard import (
    best_trial,
    difference,
    make_entries,
    read_leaderboard,
    verdict,
    winner,
    write_leaderboard,
)

# Two-sided 95 % quantiles of Student's t by degrees of freedom. Source: any printed table.
T = {1: 12.7062, 2: 4.3027, 4: 2.7764}


def names(entries: list[dict]) -> list[str]:
    return [f"{entry['mode']}{entry['learning_rate']:g}" for entry in entries]


def test_intervals_are_those_of_the_printed_table() -> None:
    assert half_width([]) is None and half_width([0.5]) is None
    assert half_width([0.70, 0.72]) == pytest.approx(T[1] * 0.01, rel=1e-4)  # deviation 0.01414, over sqrt(2)
    assert half_width([0.7, 0.8, 0.9]) == pytest.approx(T[2] * 0.1 / math.sqrt(3), rel=1e-4)
    assert half_width([1, 2, 3, 4, 5]) == pytest.approx(T[4] * math.sqrt(2.5 / 5), rel=1e-4)
    assert half_width([0.4, 0.4, 0.4]) == 0


def test_seeds_are_paired_by_their_number() -> None:
    assert paired({"0": 0.5, "1": 0.7}, {"1": 0.6, "2": 0.1}) == [pytest.approx(0.1)]
    entries = make_entries(results("full", [0.9, 0.8]) + results("frozen", [0.5, 0.4], first_seed=1))
    assert difference(entries[1], entries[0]) == [pytest.approx(0.5 - 0.8)]  # seed 1 alone is of both


@pytest.mark.parametrize(
    ("lags", "equal"),
    [
        ([0.0, 0.0, 0.0], True),
        ([0.01, 0.02, -0.02], True),
        ([0.01, 0.02, 0.03], True),  # 0.02 +- 0.0248
        ([0.10, 0.12, 0.11], False),  # 0.11 +- 0.0248
        ([0.05], False),  # one seed tells nothing
        ([], False),
        ([0.01, -0.002], True),
        ([0.14, 0.20], False),  # 0.17 +- 0.38 holds 0; behind on both of two seeds
        ([0.05, 0.05, 0.05], False),
    ],
)
def test_what_cannot_be_told_apart(lags: list[float], equal: bool) -> None:
    assert may_be_equal(lags) is equal


def test_an_entry_holds_its_statistics_and_its_cost() -> None:
    full, frozen = make_entries(results("full", [0.90, 0.92, 0.94]) + results("frozen", [0.80, 0.84, 0.82]))
    assert (full["rank"], full["train_size"], full["seeds"]) == (1, 900, 3)
    assert full["score_mean"] == pytest.approx(0.92) and full["score_std"] == pytest.approx(0.02)
    assert full["score_ci95"] == pytest.approx(T[2] * 0.02 / math.sqrt(3), rel=1e-4)
    assert full["difference_mean"] is None and full["difference_ci95"] is None and full["tied"] is True
    # -0.10 -0.08 -0.12: paired, so that what a seed does to both is no difference
    assert frozen["difference_mean"] == pytest.approx(-0.10)
    assert frozen["difference_ci95"] == pytest.approx(T[2] * 0.02 / math.sqrt(3), rel=1e-4)
    assert frozen["tied"] is False and frozen["rank"] == 2
    assert (full["worker_seconds"], full["seconds"], full["encoder_rows"]) == (12.0, 6.0, 2700)
    assert (frozen["worker_seconds"], frozen["encoder_rows"]) == (6.0, 0)
    assert [full["recommended"], frozen["recommended"]] == [True, False] and winner([full, frozen]) is full


def test_of_those_tied_the_cheapest_is_recommended_then_the_better() -> None:
    entries = make_entries(
        results("full", [0.90, 0.92, 0.94])
        + results("lora", [0.91, 0.90, 0.94])  # tied, cheaper
        + results("frozen", [0.91, 0.90, 0.93], rate=1e-2)  # tied, cheapest
        + results("frozen", [0.91, 0.89, 0.93], rate=3e-2)  # the same parameters, a lower mean
        + results("frozen", [0.50, 0.51, 0.52], rate=1.0)
    )
    assert names(entries) == ["full0.001", "lora0.001", "frozen0.01", "frozen0.03", "frozen1"]
    assert [entry["tied"] for entry in entries] == [True, True, True, True, False]
    assert [entry["recommended"] for entry in entries] == [False, False, True, False, False]
    best = winner(entries)
    assert best is not None and names([best]) == ["frozen0.01"]


def test_what_another_point_beats_beyond_doubt_is_not_recommended_though_the_best_is_too_uncertain_to() -> None:
    entries = make_entries(
        results("full", [0.67, 0.66, 0.53])  # one seed fell behind: its interval holds everything
        + results("full", [0.555, 0.546, 0.551], rate=1e-4)
        + results("frozen", [0.50, 0.499, 0.502], rate=1e-2)  # cheapest
    )
    assert names(entries) == ["full0.001", "full0.0001", "frozen0.01"] and all(entry["tied"] for entry in entries)
    assert [entry["recommended"] for entry in entries] == [True, False, False]


def test_the_random_control_is_recommended_only_where_no_other_is_tied() -> None:
    both = results("full", [0.5, 0.6, 0.7]) + results("frozen", [0.6, 0.5, 0.69], encoder="random")
    best = winner(make_entries(both))
    assert best is not None and best["encoder"] == "pretrained"
    best = winner(make_entries(results("full", [0.1, 0.1, 0.1]) + both[3:]))
    assert best is not None and best["encoder"] == "random"


def test_equal_means_stand_in_an_order_that_does_not_depend_on_that_of_the_results() -> None:
    some = results("full", [0.5, 0.7]) + results("frozen", [0.7, 0.5]) + results("frozen", [0.6, 0.6], rate=1e-2)
    orders = [names(make_entries(given)) for given in (some, some[::-1], some[2:] + some[:2])]
    assert orders == [["frozen0.001", "frozen0.01", "full0.001"]] * 3


def test_what_is_not_whole_stands_below_unranked_whatever_its_score() -> None:
    entries = make_entries(
        results("frozen", ["failed", "failed"], rate=1)
        + results("full", ["nan", "nan"], rate=2)
        + results("full", [0.99, "nan"], rate=3)
        + results("full", [0.97], rate=4, status="stopped")
        + results("full", [0.96, "failed"], rate=5)
        + results("full", [0.98], rate=6)  # of two seeds one is done
        + results("full", [0.5, 0.6], rate=7)
        + results("frozen", [0.4, 0.5], rate=8)
    )
    rates = [entry["learning_rate"] for entry in entries]
    assert rates == [7, 8, 6, 5, 4, 3, 2, 1]
    assert [entry["rank"] for entry in entries] == [1, 2] + [None] * 6
    statuses = ["done", "done", "done", "failed", "stopped", "nan", "nan", "failed"]
    assert [entry["status"] for entry in entries] == statuses
    assert [entry["tied"] for entry in entries] == [True] + [False] * 7
    assert entries[4]["score_mean"] == 0.97 and entries[4]["difference_mean"] is None
    assert entries[6]["score_mean"] is None and entries[6]["error"] == "nan it was"
    best = winner(entries)
    assert best is not None and best["learning_rate"] == 7


def test_where_no_point_is_whole_the_best_that_lacks_a_seed_wins_and_never_one_that_was_stopped() -> None:
    lost = results("full", ["nan", "nan"]) + results("frozen", ["failed"])
    stopped = results("full", [0.9], rate=5, status="stopped")
    entries = make_entries(lost + stopped + results("full", [0.6, "failed"], rate=6))
    best = winner(entries)
    assert best is not None and best["learning_rate"] == 6 and best["rank"] is None
    assert winner(make_entries(lost + stopped)) is None


def test_an_entry_with_a_failed_seed_keeps_the_scores_of_the_others_in_the_order_of_seeds() -> None:
    whole, half = make_entries(results("full", [0.9, 0.8])[::-1] + results("frozen", [0.99, "failed"]))
    assert whole["scores"] == [0.9, 0.8] and whole["best_epochs"] == [2, 2]
    assert half["scores"] == [0.99, None] and half["score_mean"] == 0.99 and half["error"] == "failed it was"
    assert half["score_std"] is None and half["score_ci95"] is None and half["trained_parameters"] == 1_000
    assert best_trial(whole) == "pretrained-full0.001-s0" and best_trial(half) == "pretrained-frozen0.001-s0"
    with pytest.raises(ValueError):
        best_trial(make_entries(results("full", ["nan"]))[0])


def test_sizes_are_judged_apart_the_largest_first() -> None:
    entries = make_entries(
        results("full", [0.3, 0.4, 0.3], size=100, asked=True)
        + results("frozen", [0.6, 0.5, 0.7], size=100, asked=True)
        + results("full", [0.8, 0.9, 0.8], size=900)
        + results("frozen", [0.6, 0.7, 0.7], size=900)
    )
    found = [(entry["train_size"], entry["mode"], entry["rank"], entry["recommended"]) for entry in entries]
    assert found == [
        (900, "full", 1, True), (900, "frozen", 2, False), (100, "frozen", 1, True), (100, "full", 2, False)
    ]  # fmt: skip
    assert entries[3]["difference_mean"] == pytest.approx((0.3 + 0.4 + 0.3 - 1.8) / 3)
    best = winner(entries)
    assert best is entries[0]


def test_trials_that_died_before_they_could_tell_their_size_belong_to_it_all_the_same() -> None:
    dead = dict.fromkeys(("score", "best_epoch", "trained_parameters", "train_size"))
    whole, small = results("full", [0.8, 0.9]), results("full", [0.4, 0.5], size=100, asked=True)
    whole[1] |= {**dead, "status": "failed", "error": "its process died"}
    small[0] |= {**dead, "status": "failed"}
    lost = [one | {**dead, "status": "failed"} for one in results("frozen", ["failed", "failed"])]
    found = [(entry["train_size"], entry["mode"], entry["seeds"]) for entry in make_entries(whole + small + lost)]
    assert found == [(900, "full", 2), (900, "frozen", 2), (100, "full", 2)]
    only = make_entries(lost + small)  # nobody tells how many all are
    assert [(entry["train_size"], entry["mode"]) for entry in only] == [(None, "frozen"), (100, "full")]
    assert only[0]["train_size"] is None and "nan" not in json.dumps(only, allow_nan=False).lower()


def test_the_verdict_compares_on_the_most_examples() -> None:
    def both(size: int, scores: list, controls: list) -> list:
        return results("full", scores, size=size, asked=size < 900) + results(
            "full", controls, encoder="random", size=size, asked=size < 900
        )

    grown = both(900, [0.70, 0.72], [0.50, 0.52]) + both(100, [0.1, 0.1], [0.5, 0.5])
    sentence, paid = verdict(make_entries(grown))
    assert paid and "0.710 against random 0.510" in sentence
    shrunk = both(900, [0.50, 0.52], [0.70, 0.72]) + both(100, [0.9, 0.9], [0.5, 0.5])
    assert verdict(make_entries(shrunk))[1] is False


@pytest.mark.parametrize(
    ("pretrained", "random", "paid"),
    [
        ([0.70, 0.72], [0.50, 0.52], True),
        ([0.50, 0.52], [0.70, 0.72], False),
        ([0.70, 0.72], [0.50, 0.80], False),  # a lead of 0.06 within a deviation of 0.21
        ([0.60, 0.60], [0.60, 0.60], False),  # no lead
    ],
)
def test_the_lead_must_exceed_the_larger_deviation(pretrained: list, random: list, paid: bool) -> None:
    entries = make_entries(results("full", pretrained) + results("full", random, encoder="random"))
    sentence, answer = verdict(entries)
    assert answer is paid and ("not more than" in sentence) is not paid


def test_nothing_to_compare_is_no_win() -> None:
    assert verdict(make_entries(results("full", [0.9])))[1] is False
    both = results("full", ["nan"]) + results("full", [0.1], encoder="random")
    assert verdict(make_entries(both)) == ("No comparison: no entry with a pretrained encoder finished.", False)


def test_the_files_hold_the_same_entries(tmp_path) -> None:
    entries = make_entries(results("full", [0.9, 0.8]) + results("frozen", ["nan", "nan"]))
    write_leaderboard(entries, tmp_path)
    assert json.loads((tmp_path / "leaderboard.json").read_text()) == entries
    with (tmp_path / "leaderboard.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["mode"], row["rank"], row["status"]) for row in rows] == [("full", "1", "done"), ("frozen", "", "nan")]
    assert float(rows[0]["score_ci95"]) == entries[0]["score_ci95"] and rows[1]["score_mean"] == ""
    assert not list(tmp_path.glob("*.part"))


def test_files_of_an_earlier_version_are_not_taken_for_ours(tmp_path) -> None:
    entries = make_entries(results("full", [0.8, 0.9]))
    assert read_leaderboard(tmp_path) is None
    write_leaderboard(entries, tmp_path)
    assert read_leaderboard(tmp_path) == entries
    (tmp_path / "leaderboard.json").write_text(json.dumps([{"encoder": "x", "mode": "full", "trials": []}]))
    assert read_leaderboard(tmp_path) is None
