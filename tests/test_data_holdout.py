"""Splits that are made: shares by label, groups and copies whole, no label lost to training, one seed one split."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.copies import copies_across, copy_keys
from data.examples import Examples
from data.holdout import count_units, hold_out

SHARES = {"validation": 0.1, "test": 0.1}


def classes(*labels: str, texts: list[str] | None = None, groups: list[str] | None = None) -> Examples:
    own = texts or [f"text {i}" for i in range(len(labels))]
    return Examples("classification", own, targets=list(labels), groups=groups)


def left(examples: Examples, made: dict[str, list[int]]) -> list[int]:
    """What is left to train on; no example is in two splits."""
    held = [number for numbers in made.values() for number in numbers]
    assert len(held) == len(set(held))
    return [number for number in range(len(examples)) if number not in set(held)]


def test_every_label_keeps_its_share() -> None:
    examples = classes(*"a" * 600, *"b" * 300, *"c" * 100)
    made = hold_out(examples, SHARES, 0, labelled=True)
    for split in SHARES:
        assert Counter((examples.targets or [])[i] for i in made[split]) == {"a": 60, "b": 30, "c": 10}
        assert made[split] == sorted(made[split])
    assert len(left(examples, made)) == 800


def test_small_labels_add_up_to_the_share() -> None:
    """Of 50 labels of 9 examples each, where a share of one label is no whole number."""
    examples = classes(*[f"label {i % 50}" for i in range(450)])
    made = hold_out(examples, {"validation": 0.02}, 0, labelled=True)
    assert len(made["validation"]) == 50  # one of each label of three or more, though 2 % of 450 are 9
    made = hold_out(examples, {"validation": 0.5, "test": 0.05}, 0, labelled=True)
    assert (len(made["validation"]), len(made["test"])) == (225, 23)


@settings(max_examples=100, deadline=None)
@given(
    labels=st.lists(st.sampled_from("abcdef"), min_size=1, max_size=80),
    share=st.floats(0.01, 0.9),
    test=st.floats(0.01, 0.5) | st.none(),
    seed=st.integers(0, 9),
    texts=st.integers(1, 80) | st.none(),
    groups=st.integers(1, 30) | st.none(),
)
def test_nothing_is_lost_shared_or_unseen(
    labels: list[str], share: float, test: float | None, seed: int, texts: int | None, groups: int | None
) -> None:
    random = np.random.default_rng(seed)
    numbers = random.integers(texts, size=len(labels)).tolist() if texts else range(len(labels))
    names = [f"Text  {number}" if i % 2 else f"text {number} " for i, number in enumerate(numbers)]
    of = [f"g{random.integers(groups)}" for _ in labels] if groups else None
    examples = classes(*labels, texts=names, groups=of)
    shares = {"validation": share} | ({} if test is None else {"test": test})
    made = hold_out(examples, shares, seed, labelled=True)
    assert made == hold_out(examples, shares, seed, labelled=True) and made.keys() == shares.keys()
    parts = {"train": left(examples, made), **made}
    for what in (copy_keys(examples), *([of] if of else [])):
        for key in set(what):
            assert sum(any(what[i] == key for i in numbers) for numbers in parts.values()) == 1
    for label, times in Counter(labels).items():
        of_label = {split: sum(labels[i] == label for i in numbers) for split, numbers in parts.items()}
        assert sum(of_label.values()) == times and of_label["train"] > 0
        if times >= 3 and texts is None and groups is None:
            assert of_label["validation"] > 0


def test_groups_go_whole_and_come_near_the_share() -> None:
    random = np.random.default_rng(0)
    patients = [f"p{p}" for p in range(60) for _ in range(int(random.integers(1, 30)))]
    examples = classes(*random.choice(["a", "b", "c"], len(patients), p=[0.5, 0.3, 0.2]).tolist(), groups=patients)
    made = hold_out(examples, SHARES, 1, labelled=True)
    for split in SHARES:
        assert 0.08 <= len(made[split]) / len(patients) <= 0.12
        assert {patients[i] for i in made[split]}.isdisjoint(patients[i] for i in left(examples, made))
    assert {patients[i] for i in made["test"]}.isdisjoint(patients[i] for i in made["validation"])
    # A text that two groups share makes one of them.
    both = classes("a", "b", "a", "b", texts=["x", "y", "X ", "z"], groups=["p", "p", "q", "r"])
    assert count_units(both) == 2


def test_other_kinds_lose_no_label_either() -> None:
    random = np.random.default_rng(0)
    tags = [[*random.choice(["O", "B-X", "B-Y"], 5).tolist(), *(["B-RARE"] if i == 7 else [])] for i in range(100)]
    several = [tuple(tag for tag in "ab" if random.random() < 0.5) + ("rare",) * (i == 7) for i in range(100)]
    texts = [f"text {i}" for i in range(100)]
    for seed in range(10):
        for kind, targets in (("tagging", tags), ("multi_label", several)):
            made = hold_out(Examples(kind, texts, targets=targets), SHARES, seed)
            assert all(len(numbers) == 10 and 7 not in numbers for numbers in made.values())
    numbers = Examples("regression", texts, targets=[float(i) for i in range(100)])
    assert [len(part) for part in hold_out(numbers, SHARES, 0).values()] == [10, 10]
    pairs = Examples("embedding", texts, pairs=texts, targets=[None] * 100)
    assert [len(part) for part in hold_out(pairs, SHARES, 0).values()] == [10, 10]


def test_questions_about_one_context_stay_together() -> None:
    contexts = [f"context {i // 5}" for i in range(100)]
    targets = [[(0, "context")] if i % 3 else [] for i in range(100)]
    examples = Examples("answering", [f"why {i}?" for i in range(100)], pairs=contexts, targets=targets)
    made = hold_out(examples, SHARES, 0)
    for split in SHARES:
        assert {contexts[i] for i in made[split]}.isdisjoint(contexts[i] for i in left(examples, made))
        assert len(made[split]) == 10 and {bool(targets[i]) for i in made[split]} == {True, False}
    only = Examples("answering", ["a?", "b?"], pairs=["x", "y"], targets=[[(0, "x")], []])
    assert hold_out(only, {"validation": 0.5}, 0)["validation"] == []  # each is the only one of its sort


@pytest.mark.parametrize("labels", ["ab", "abc", "aab", "aaaa"])
def test_what_cannot_be_divided_stays_whole(labels: str) -> None:
    """The last example of a label stays in training; of three or more one is held out, however small the share."""
    made = hold_out(classes(*labels), SHARES, 0, labelled=True)
    assert len(made["validation"]) == (labels == "aaaa") and made["test"] == []


def test_one_seed_is_one_split_and_another_another() -> None:
    examples = classes(*"ab" * 100)
    one, again, other = (hold_out(examples, SHARES, seed, labelled=True) for seed in (3, 3, 4))
    assert one == again and one["validation"] != other["validation"]


def test_copies_are_told_by_all_texts_whatever_case_and_white_space() -> None:
    train = Examples("multiple_choice", ["A  dog", "a cat"], choices=[["x", "Y"], ["x", "y"]], targets=[0, 1])
    test = Examples("multiple_choice", [" a dog\n", "A CAT", "a cat"], choices=[["X", "y "], ["x", "z"], ["x", "y"]])
    keys = {"train": "task.train=a.csv", "validation": "task.validation=b.csv", "test": "task.test=c.csv"}
    assert copies_across(keys, {"train": train, "test": test}) == [
        "task.test=c.csv: 2 of 3 examples (66.7%) stand in task.train too, case and white space aside; they tell little"
    ]
    first = Examples("classification", ["a", "b"], pairs=["c", "d"])
    second = Examples("classification", ["A", "b"], pairs=["C", "e"])
    assert copies_across(keys, {"train": first, "validation": second, "test": second}) == [
        "task.validation=b.csv: 1 of 2 examples (50.0%) stand in task.train too, case and white space aside; they tell "
        "little",
        "task.test=c.csv: 1 of 2 examples (50.0%) stand in task.train too, case and white space aside; they tell "
        "little",
        "task.test=c.csv: 2 of 2 examples (100.0%) stand in task.validation too, case and white space aside; they tell "
        "little",
    ]
    assert copies_across(keys, {"train": first, "validation": Examples("classification", ["a"], pairs=["x"])}) == []
