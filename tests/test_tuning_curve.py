"""Learning curves: who is ahead with how much data, as a table and a sentence; only what the seeds tell."""

from made_results import results

from tuning.curve import best_by_size, grid, sentence
from tuning.leaderboard import make_entries

SCORES = {  # examples: frozen, full
    100: ([0.60, 0.61, 0.62], [0.40, 0.41, 0.42]),
    300: ([0.70, 0.71, 0.72], [0.60, 0.62, 0.61]),
    1000: ([0.75, 0.76, 0.77], [0.75, 0.77, 0.76]),
    4000: ([0.78, 0.78, 0.78], [0.90, 0.91, 0.92]),
}


def curve(**more) -> list[dict]:
    """Entries of two modes by size; 4,000 are all."""
    found: list[dict] = []
    for size, scores in SCORES.items():
        for mode, of_mode in zip(("frozen", "full"), scores, strict=True):
            found += results(mode, of_mode, size=size, asked=size < 4000, **more)
    return found


def test_the_sentence_says_who_wins_with_how_much_data() -> None:
    assert sentence(make_entries(curve())) == (
        "With 100 to 300 examples frozen is better than full by 0.100 to 0.200; with 1,000 examples frozen and full "
        "are not told apart; with 4,000 examples full is better than frozen by 0.130."
    )


def test_a_lead_that_the_seeds_do_not_prove_is_no_win() -> None:
    one = make_entries([one for one in curve() if one["seed"] == 0])
    assert sentence(one) == (
        "With 100 to 300 examples frozen is ahead of full by 0.100 to 0.200, unproven with 1 seed; with 1,000 examples "
        "frozen and full are not told apart; with 4,000 examples full is ahead of frozen by 0.120, unproven with 1 "
        "seed."
    )
    two = [one for one in curve() if one["seed"] < 2 and one["train_size"] < 4000]
    two += results("full", [0.90, 0.80], size=4000) + results("frozen", [0.70, 0.75], size=4000)
    assert "with 4,000 examples full is ahead of frozen by 0.125, unproven with 2 seeds." in sentence(make_entries(two))


def test_the_table_has_a_line_for_each_size_and_the_best_rate_of_each_mode() -> None:
    worse = results("full", [0.2, 0.3, 0.2], rate=1e-5, size=4000)
    control = results("full", [0.3, 0.3, 0.4], encoder="random", size=4000)
    lost = results("frozen", ["nan"] * 3, rate=1.0, size=100, asked=True)
    head, lines = grid(make_entries(curve() + worse + lost))
    assert head == ["examples", "full", "frozen"] and [line[0] for line in lines] == ["100", "300", "1,000", "4,000"]
    assert lines[0] == ["100", "0.410 ± 0.025 (1e-3)", "0.610 ± 0.025 (1e-3)"]
    assert lines[3][1].startswith("0.910")
    head, lines = grid(make_entries(curve() + control))
    assert head == ["examples", "pretrained full", "pretrained frozen", "random full"]
    assert [line[3] for line in lines] == ["–", "–", "–", "0.333 ± 0.143 (1e-3)"]
    assert "random" not in sentence(make_entries(curve() + control))


def test_one_size_is_no_curve() -> None:
    one = make_entries(results("full", [0.5, 0.6]) + results("frozen", [0.5, 0.6]))
    assert grid(one) == ([], []) and sentence(one) == "" and best_by_size(one) == {}
    assert sentence([]) == ""
    lost = make_entries(results("full", [0.5, 0.6]) + results("full", ["nan", "nan"], size=100, asked=True))
    assert grid(lost) == ([], [])


def test_one_mode_is_a_curve_that_compares_nothing() -> None:
    full = make_entries([one for one in curve() if one["mode"] == "full"])
    assert sentence(full) == "" and len(grid(full)[1]) == 4
