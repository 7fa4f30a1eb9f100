"""Tags and entities: there and back in every scheme, broken ones as conlleval and seqeval read them, schemes told."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities

from data.schemes import SCHEMES, breaks_of, detect_scheme, entities_of, letters_of, repair, tags_of

TYPES = ("PER", "ORG", "creative-work")


@st.composite
def sentences(draw: st.DrawFn) -> tuple[list[tuple[str, int, int]], int]:
    """Entities of a sentence, in order, and its length."""
    entities: list[tuple[str, int, int]] = []
    place = 0
    for gap, size, type_ in draw(
        st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.sampled_from(TYPES)), max_size=6)
    ):
        entities.append((type_, place + gap, place + gap + size))
        place += gap + size
    return entities, place + draw(st.integers(0, 2))


@given(sentences(), st.sampled_from(["bio", "iob1", "iobes"]))
def test_tags_give_their_entities_back(sentence: tuple[list[tuple[str, int, int]], int], scheme: str) -> None:
    entities, length = sentence
    tags = tags_of(entities, length, scheme)
    assert len(tags) == length and entities_of(tags) == entities
    assert breaks_of(tags, scheme) == [] and repair(tags, scheme) == tags


@given(sentences())
def test_io_joins_what_touches(sentence: tuple[list[tuple[str, int, int]], int]) -> None:
    entities, length = sentence
    joined: list[tuple[str, int, int]] = []
    for type_, start, end in entities:
        if joined and joined[-1][0] == type_ and joined[-1][2] == start:
            joined[-1] = (type_, joined[-1][1], end)
        else:
            joined.append((type_, start, end))
    assert entities_of(tags_of(entities, length, "io")) == joined


TAGS = ["O", *(f"{letter}-{type_}" for letter in "BIES" for type_ in TYPES)]


@settings(max_examples=300)
@given(st.lists(st.sampled_from(TAGS), max_size=12), st.sampled_from(sorted(SCHEMES)))
def test_whatever_stands_there_is_read_as_seqeval_does_and_repaired_to_the_same(tags: list[str], scheme: str) -> None:
    assert [(type_, start, end - 1) for type_, start, end in entities_of(tags)] == get_entities(tags)
    mended = repair(tags, scheme)
    assert breaks_of(mended, scheme) == []
    if scheme != "io":
        assert entities_of(mended) == entities_of(tags)
        assert breaks_of(tags, scheme) or mended == tags  # what breaks nothing stays


@pytest.mark.parametrize(
    ("tags", "scheme", "broken", "mended"),
    [
        ("O I-PER I-PER", "bio", [1], "O B-PER I-PER"),
        ("B-PER I-ORG", "bio", [1], "B-PER B-ORG"),
        ("B-PER E-PER", "bio", [1], "B-PER I-PER"),
        ("O B-PER B-PER", "iob1", [1], "O I-PER B-PER"),
        ("B-PER I-PER O", "iobes", [2], "B-PER E-PER O"),
        ("B-PER", "iobes", [0], "S-PER"),
        ("B-PER S-ORG", "iobes", [1], "S-PER S-ORG"),
        ("O B-PER", "io", [1], "O I-PER"),
    ],
)
def test_broken_tags_by_place(tags: str, scheme: str, broken: list[int], mended: str) -> None:
    assert breaks_of(tags.split(), scheme) == broken and repair(tags.split(), scheme) == mended.split()


def test_other_letters_are_read_alike_and_written_back() -> None:
    bilou = ["O", "B-PER", "I-PER", "L-PER", "U-ORG"]
    assert entities_of(bilou) == [("PER", 1, 4), ("ORG", 4, 5)] and breaks_of(bilou, "iobes") == []
    assert repair(["O", "B-PER", "O"], "iobes", letters_of([bilou])) == ["O", "U-PER", "O"]
    segmented = ["B", "M", "E", "S", "B", "E"]  # the words of Chinese
    assert entities_of(segmented) == [("", 0, 3), ("", 3, 4), ("", 4, 6)]
    assert repair(["B", "S"], "iobes", letters_of([segmented])) == ["S", "S"]


@pytest.mark.parametrize(
    ("sentences", "scheme"),
    [
        (["B-PER I-PER O", "O B-ORG"], "bio"),
        (["B-PER I-PER O I-ORG", "B-ORG", "B-PER I-PER"], "bio"),  # one tag is wrong, no reason for another scheme
        (["I-PER I-PER O I-ORG", "I-ORG B-ORG"], "iob1"),
        (["S-PER O B-ORG E-ORG"], "iobes"),
        (["U-PER O B-ORG L-ORG"], "iobes"),
        (["I-PER I-PER O"], "io"),
        (["NOUN VERB NOUN"], None),
        (["O NOUN"], None),
        (["O O"], None),
        (["X-PER O"], None),
        (["B-PER O PUNCT"], None),
        ([""], None),
    ],
)
def test_the_scheme_is_told_by_the_tags(sentences: list[str], scheme: str | None) -> None:
    assert detect_scheme([sentence.split() for sentence in sentences]) == scheme
