"""Answers compared as SQuAD's script compares them, in English and Chinese."""

import pytest

from tuning.answers import is_equal, mean_of_best, normalise, overlap


@pytest.mark.parametrize(
    ("answer", "normal"),
    [
        ("The  Eiffel-Tower, a tower!", "eiffeltower tower"), ("An apple\n", "apple"), ("theatre", "theatre"),
        ("北京，大学。", "北京，大学。"),  # the script removes ASCII punctuation only
        ("the", ""), ("", ""),
    ],
)  # fmt: skip
def test_what_does_not_count_is_removed(answer: str, normal: str) -> None:
    assert normalise(answer) == normal


def test_words_in_common() -> None:
    assert is_equal("The dog.", "dog") == 1.0 and is_equal("dogs", "dog") == 0.0
    assert overlap("the black dog", "dog") == pytest.approx(2 * 0.5 * 1 / 1.5)
    assert overlap("dog dog", "dog cat") == 0.5  # a word counts as often as in both
    assert overlap("cat", "dog") == 0 and overlap("", "dog") == 0 and overlap("dog", "the") == 0
    assert overlap("", "the") == 1.0
    assert overlap("北京大学", "北京") == 0.0  # no spaces, one word
    assert overlap("1998 年", "1998 年 底") == pytest.approx(0.8)


def test_the_nearest_of_several_right_answers_counts_and_none_is_right_where_there_is_none() -> None:
    rights = [["dog", "black dog"], [], []]
    assert mean_of_best(is_equal, ["the black dog", "", "cat"], rights) == pytest.approx(2 / 3)
    assert mean_of_best(overlap, ["black", "", "cat"], rights) == pytest.approx((2 / 3 + 1) / 3)
