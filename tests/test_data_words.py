"""Words of a text: BERT's, with their places; of a tagged cell between its spaces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.words import find_words, split_words, words_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("She lives in Paris.", ["She", "lives", "in", "Paris", "."]),
        ("张三去 Beijing大学", ["张", "三", "去", "Beijing", "大", "学"]),
        ("हिन्दी  a-b", ["हिन्दी", "a", "-", "b"]),  # a vowel sign is no punctuation
        ("\U00020000\U0001f600!", ["\U00020000", "\U0001f600", "!"]),
        ("", []),
        (" \n ", []),
    ],
)
def test_words_of_running_text(text: str, words: list[str]) -> None:
    assert [text[start:end] for start, end in split_words(text)] == words


def test_a_tagged_cell_is_split_at_spaces_only_unless_it_is_chinese_without_any() -> None:
    assert words_of("don't  go , now. ") == ["don't", "go", ",", "now."]
    assert words_of("张三去北京大学参观") == list("张三去北京大学参观")
    assert words_of("张三 去") == ["张三", "去"]


@given(st.text(max_size=40))
def test_places_hold_the_words_and_nothing_but_spaces_lies_between(text: str) -> None:
    places = split_words(text)
    words = [text[start:end] for start, end in places]
    assert find_words(words, text) == places
    left = set(range(len(text))) - {i for start, end in places for i in range(start, end)}
    assert all(text[i].isspace() for i in left)


def test_words_that_a_text_does_not_hold() -> None:
    with pytest.raises(ValueError):
        find_words(["b", "a"], "a b")
