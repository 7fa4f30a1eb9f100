"""The sentence on top of a sweep: mode, rate, rival, paired difference, cost; and no more than the seeds tell."""

import doctest

from made_results import results

from tuning import intervals, wording
from tuning.leaderboard import make_entries
from tuning.recommendation import recommendation


def test_the_recommendation_names_mode_rate_rival_difference_and_cost() -> None:
    tied = results("full", [0.915, 0.912, 0.918]) + results("frozen", [0.912, 0.912, 0.912], rate=3e-3)
    for one in tied:
        one["worker_seconds"] = 60.0 if one["mode"] == "full" else 2.0
    assert recommendation(make_entries(tied)) == (
        "frozen at 3e-3: accuracy 0.912 ± 0.000, not told apart from full (0.915, difference -0.003 ± 0.007), with "
        "1/80 of the trained parameters and 1/30 of the worker-seconds."
    )
    apart = results("full", [0.95, 0.96, 0.94]) + results("frozen", [0.90, 0.91, 0.89], rate=3e-3)
    assert recommendation(make_entries(apart)) == (
        "full at 1e-3: accuracy 0.950 ± 0.025, better than frozen (0.900, difference +0.050 ± 0.000), with 80 times "
        "the trained parameters and 2 times the worker-seconds."
    )


def test_the_recommendation_claims_no_more_than_the_seeds_tell() -> None:
    two = results("full", [0.63, 0.71]) + results("frozen", [0.50, 0.51], rate=1e-2)
    sentence = recommendation(make_entries(two))
    assert sentence.startswith("full at 1e-3: accuracy 0.670 ± 0.508, ahead of frozen (0.505, difference +0.165 ± 0.4")
    assert "which 2 seeds do not prove" in sentence
    one = recommendation(make_entries(results("full", [0.7]) + results("frozen", [0.5])))
    assert "full at 1e-3: accuracy 0.700, beside frozen (0.500, difference +0.200), which one seed does not" in one
    rates = results("full", [0.7, 0.8, 0.9]) + results("full", [0.1, 0.1, 0.2], rate=1)
    same_mode = recommendation(make_entries(rates))
    assert "better than full at 1 (0.133" in same_mode and "times" not in same_mode
    alone = recommendation(make_entries(results("full", [0.7, 0.8, 0.9])))
    assert alone == "full at 1e-3: accuracy 0.800 ± 0.248."


def test_encoders_are_named_where_there_are_several_and_the_control_is_no_rival() -> None:
    with_control = results("full", [0.9, 0.8]) + results("frozen", [0.7, 0.6], encoder="random")
    assert "random" not in recommendation(make_entries(with_control))
    two = results("full", [0.9, 0.8], encoder="minilm") + results("full", [0.5, 0.5])
    assert recommendation(make_entries(two)).startswith("minilm full at 1e-3: accuracy 0.850 ± 0.635, ahead of "
                                                        "pretrained full (0.500, difference")  # fmt: skip


def test_what_came_to_nothing_is_named_with_its_reason() -> None:
    lost = [one for rate in range(1, 6) for one in results("full", ["nan", "nan"], rate=rate)]
    entries = make_entries(results("full", [0.8, 0.8]) + lost + results("lora", [0.5, "failed"]))
    assert recommendation(entries).endswith(
        " Diverged: full at 1, full at 2, full at 3 and 2 more (nan it was). Failed: lora at 1e-3 (failed it was)."
    )
    assert recommendation(make_entries(lost)).startswith("No trial has a score. Diverged: full at 1,")
    assert recommendation([]) == "No trial has a score."


def test_a_winner_that_is_no_better_than_a_constant_answer_is_said_so() -> None:
    for scores, said in (([0.95, 0.95, 0.951], True), ([0.97, 0.98, 0.975], False), ([0.94, 0.93, 0.90], True)):
        entries = make_entries(results("full", scores, majority_baseline=0.95))
        assert ("always giving the most frequent answer (0.950)" in recommendation(entries)) is said, scores


def test_a_winner_that_lacks_a_seed_is_said_to() -> None:
    entries = make_entries(results("full", ["nan", "nan"]) + results("full", [0.6, "failed"], rate=6))
    assert recommendation(entries).startswith("full at 6: accuracy 0.600, the mean of 1 of its 2 seeds. Diverged: full")


def test_names_and_numbers_are_as_people_write_them() -> None:
    assert doctest.testmod(wording).failed == 0 and doctest.testmod(intervals).failed == 0
    assert [wording.short(x) for x in (3e-4, 1e-2, 2.5e-5, 0.5, 1.0)] == ["3e-4", "1e-2", "2.5e-5", "0.5", "1"]
    assert wording.size_text(1) == "1 example" and wording.size_text(12000) == "12,000 examples"
    assert wording.names_of(["a/b/model", "c/b/model"]) == {"a/b/model": "a/b", "c/b/model": "c/b"}
    assert wording.names_of(["/", "model"]) == {"/": "/", "model": "model"} and wording.names_of([]) == {}
