"""Rows of every kind: tokens as transformers', labels at the right tokens, windows that leave nothing out, no crash."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from family_tokenizers import MINILM, write_tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from data.alignment import encode_examples
from data.config import UserError
from data.examples import IGNORED, Encoded, Examples
from data.reader import open_reader
from data.windows import share_room, windows_of

KINDS = ("minilm", "wordpiece", "bpe", "unigram")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_tokenizers(tmp_path_factory.mktemp("tokenizers"))


def theirs(folder: Path, *texts: Any, length: int, **choice: Any) -> Any:
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(str(folder), **choice.pop("load", {}))
    return loaded(*texts, truncation=True, max_length=length, padding=True, **choice)


TEXTS = ["The dog sleeps.", "", "张三去北京大学参观", "why " * 30, "a \x00 b [MASK]"]


@pytest.mark.parametrize("kind", KINDS)
def test_single_texts_are_as_transformers_reads_them(folders: dict[str, Path], kind: str) -> None:
    encoded = encode_examples(Examples("classification", TEXTS), [], folders[kind], 12)
    expected = theirs(folders[kind], TEXTS, length=12)
    assert encoded.input_ids.tolist() == expected["input_ids"] and encoded.input_ids.dtype == np.int32
    assert encoded.lengths.tolist() == [sum(mask) for mask in expected["attention_mask"]]
    assert encoded.examples.tolist() == [0, 1, 2, 3, 4] and encoded.labels is None and encoded.segments is None
    assert encoded.cuts[3] and not encoded.cuts[[0, 1]].any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [6, 11, 12, 60])
def test_pairs_are_cut_as_transformers_cuts_them(folders: dict[str, Path], kind: str, length: int) -> None:
    pairs = TEXTS[::-1]
    examples = Examples("classification", TEXTS, pairs, targets=["b", "a", "b", "a", "b"])
    encoded = encode_examples(examples, ["a", "b"], folders[kind], length, segments=True)
    expected = theirs(folders[kind], TEXTS, pairs, length=length, return_token_type_ids=True)
    assert encoded.input_ids.tolist() == expected["input_ids"]
    assert encoded.labels is not None and encoded.labels.tolist() == [1, 0, 1, 0, 1]
    if kind in ("minilm", "wordpiece"):
        assert encoded.segments is not None and encoded.segments.tolist() == expected["token_type_ids"]
    assert encode_examples(examples, ["a", "b"], folders[kind], length).segments is None


@given(st.integers(0, 40), st.integers(0, 40), st.integers(2, 40))
def test_room_is_shared_by_cutting_the_longer_text(first: int, second: int, room: int) -> None:
    one, two = share_room(first, second, room)
    assert one <= first and two <= second and one + two == min(room, first + second)
    if first + second > room:  # what is kept of the longer is at most a token more, or all of the shorter is kept
        assert abs(one - two) <= 1 or (one == first and one < two) or (two == second and two < one)


@given(st.integers(0, 200), st.integers(1, 30), st.integers(1, 29))
def test_windows_hold_everything_and_share_what_they_should(size: int, room: int, stride: int) -> None:
    stride = min(stride, room - 1)
    windows = list(windows_of(size, room, stride))
    assert windows[0].start == 0 and windows[-1].stop == size
    assert all(window.stop - window.start <= room for window in windows)
    for before, after in zip(windows, windows[1:], strict=False):
        assert before.stop - after.start == stride and after.stop > before.stop
    assert list(windows_of(size, room, None)) == [slice(0, min(size, room))]


@pytest.mark.parametrize("kind", KINDS)
def test_words_are_as_transformers_reads_them(folders: dict[str, Path], kind: str) -> None:
    """RoBERTa's needs add_prefix_space there: each word begins as after a space."""
    words = [["The", "dogs", "sleep", "quietly", "."], list("张三去北京大学参观"), ["[MASK]", "1987"]]
    tags = [["D", "N", "V", "A", "P"], ["B", "I", "O", "B", "I", "I", "I", "O", "O"], ["O", "N"]]
    labels = sorted({tag for some in tags for tag in some})
    examples = Examples("tagging", [" ".join(some) for some in words], words=words, targets=tags)
    encoded = encode_examples(examples, labels, folders[kind], 64)
    load = {"add_prefix_space": True} if kind == "bpe" else {}
    expected = theirs(folders[kind], words, length=64, is_split_into_words=True, load=load)
    assert encoded.input_ids.tolist() == expected["input_ids"]
    assert encoded.word_ids is not None and encoded.labels is not None
    for row in range(3):
        of = [-1 if word is None else word for word in expected.word_ids(row)]
        assert encoded.word_ids[row].tolist() == of
        naive = [
            IGNORED if word < 0 or word == before else labels.index(tags[row][word])
            for word, before in zip(of, [-1, *of], strict=False)
        ]
        assert encoded.labels[row].tolist() == naive
        assert (encoded.labels[row] != IGNORED).sum() == len(words[row])


def test_a_chinese_sentence_has_a_label_for_each_character() -> None:
    tags = ["B-PER", "I-PER", "O", "B-ORG", "I-ORG", "I-ORG", "I-ORG", "O", "O"]
    labels = sorted(set(tags))
    examples = Examples("tagging", ["张三去北京大学参观"], targets=[tags])  # words are told from the text
    encoded = encode_examples(examples, labels, MINILM, 16)
    assert encoded.labels is not None and encoded.labels[0, 1:10].tolist() == [labels.index(tag) for tag in tags]
    assert encoded.labels[0, [0, 10]].tolist() == [IGNORED, IGNORED]


@pytest.mark.parametrize("kind", KINDS)
def test_words_of_which_a_tokenizer_makes_nothing_are_unknown_tokens(folders: dict[str, Path], kind: str) -> None:
    words = [["\u200d", "dog", "\x07", "\x07", "sleeps", "\x07"], ["\x07"], []]
    tags = [list("abcdef"), ["a"], []]
    texts = [" ".join(some) for some in words]
    encoded = encode_examples(Examples("tagging", texts, words=words, targets=tags), list("abcdef"), folders[kind], 64)
    assert encoded.labels is not None
    assert [row[row != IGNORED].tolist() for row in encoded.labels] == [[0, 1, 2, 3, 4, 5], [0], []]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from(["dog", "unquestionably", "京", "a", "x" * 60, "\x07"]), max_size=30),
    st.integers(4, 12), st.integers(1, 6), st.sampled_from(KINDS),
)  # fmt: skip
def test_every_word_is_labelled_in_some_window(
    folders: dict[str, Path], words: list[str], length: int, stride: int, kind: str
) -> None:
    stride = min(stride, length - 3)
    labels = [str(i) for i in range(len(words))]
    examples = Examples("tagging", [" ".join(words)], words=[words], targets=[labels])
    encoded = encode_examples(examples, labels, folders[kind], length, stride)
    assert encoded.labels is not None and encoded.word_ids is not None
    found = encoded.labels[encoded.labels != IGNORED]
    assert set(found.tolist()) == set(range(len(words))) and not encoded.cuts.any()
    assert (encoded.word_ids[encoded.labels != IGNORED] == found).all()


CONTEXT = (
    "The dog sleeps under the old bridge. 张三去北京大学参观, and it is quiet there at night. "
    "Nobody knows what the fox wants; 李四在图书馆看书, and so the long story goes on to its end."
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("answer", ["The dog", "bridge", "北京大学", "quiet", "night"])
@pytest.mark.parametrize("question", ["Where?", "Who goes " * 40, ""])
def test_answers_stand_at_their_tokens(folders: dict[str, Path], kind: str, answer: str, question: str) -> None:
    start = CONTEXT.index(answer)
    examples = Examples("answering", [question], [CONTEXT], targets=[[(start, answer)]])
    encoded = encode_examples(examples, [], folders[kind], 48, 20, segments=True)
    assert encoded.labels is not None and encoded.offsets is not None
    assert len(encoded) > 1 and encoded.input_ids.shape[1] <= 48
    assert encoded.cuts.tolist() == [len(question) > 20]
    holding = [unit for unit in range(len(encoded)) if encoded.labels[unit, 0] > 0]
    assert holding
    for unit in range(len(encoded)):
        first, last = encoded.labels[unit]
        offsets = encoded.offsets[unit]
        read = offsets[offsets[:, 0] >= 0]
        if unit in holding:
            taken = CONTEXT[offsets[first, 0] : offsets[last, 1]]
            assert answer in taken and len(taken.strip()) <= len(answer) + 2
        else:
            assert first == last == 0 and not (read[0, 0] < start and start + len(answer) < read[-1, 1])
    alone = encode_examples(examples, [], folders[kind], 12)  # a quarter of length is shared
    assert alone.input_ids.shape[1] <= 12
    told = {i for row in alone.offsets.reshape(-1, 2) for i in range(*row)}  # type: ignore[union-attr]
    assert all(i in told or c.isspace() for i, c in enumerate(CONTEXT))


def test_a_question_without_answer_and_several_answers() -> None:
    targets = [[], [(37, "张三"), (4, "dog")]]
    examples = Examples("answering", ["Who?", "Who?"], [CONTEXT, CONTEXT], targets=targets)
    encoded = encode_examples(examples, [], MINILM, 64)
    assert encoded.labels is not None and encoded.offsets is not None and encoded.labels[0].tolist() == [0, 0]
    first, last = encoded.labels[1]
    assert encoded.offsets[1, first, 0] == 37 and encoded.offsets[1, last, 1] == 39  # the first one given


@pytest.mark.parametrize("kind", KINDS)
def test_choices_are_rows_of_one_unit(folders: dict[str, Path], kind: str) -> None:
    choices = [["sleeps.", "", "goes on and on and on and on"], ["x", "y", "z"]]
    texts = ["The dog " * 5, "I"]
    encoded = encode_examples(
        Examples("multiple_choice", texts, choices=choices, targets=[2, 0]), [], folders[kind], 14
    )
    flat = [(text, choice) for text, some in zip(texts, choices, strict=True) for choice in some]
    expected = theirs(folders[kind], *map(list, zip(*flat, strict=True)), length=14)
    assert encoded.group == 3 and len(encoded) == 2 and encoded.input_ids.tolist() == expected["input_ids"]
    assert encoded.labels is not None and encoded.labels.tolist() == [2, 0] and encoded.cuts.tolist() == [True, False]
    batch = encoded.batch(np.array([1]))
    width = batch["attention_mask"].sum(1).max()
    assert batch["input_ids"].tolist() == encoded.input_ids[3:, :width].tolist() and batch["labels"].tolist() == [0]


@pytest.mark.parametrize(
    ("targets", "labels"), [(["a", "b"], np.array([0, 1])), ([0.5, -1.0], np.float32([0.5, -1])), ([None] * 2, [0, 0])]
)
def test_pairs_for_an_embedding_are_two_rows_with_their_prefixes(targets: list[Any], labels: Any) -> None:
    examples = Examples("embedding", ["dog", "cat " * 20], ["fox", "hen"], targets=targets)
    encoded = encode_examples(examples, ["a", "b"], MINILM, 8, 2, True, "query: ", "passage: ")
    expected = theirs(MINILM, ["query: dog", "passage: fox", "query: " + "cat " * 20, "passage: hen"], length=8)
    assert encoded.group == 2 and len(encoded) == 2 and encoded.segments is None
    assert encoded.input_ids.tolist() == expected["input_ids"] and encoded.cuts.tolist() == [False, True]
    assert np.array_equal(encoded.labels, labels)  # type: ignore[arg-type]
    single = encode_examples(Examples("embedding", ["dog"]), [], MINILM, 8, query_prefix="passage: ")
    assert single.group == 1 and single.labels is None
    assert single.input_ids.tolist() == theirs(MINILM, ["passage: dog"], length=8)["input_ids"]


def test_targets_of_the_other_kinds_and_of_windows() -> None:
    texts = ["dog " * 20, "cat"]
    several = encode_examples(Examples("multi_label", texts, targets=[("b", "a"), ()]), ["a", "b"], MINILM, 12, 2)
    assert several.labels is not None and several.labels.dtype == np.float32
    assert several.examples.tolist() == [0, 0, 0, 1]
    assert several.labels.tolist() == [[1, 1], [1, 1], [1, 1], [0, 0]]
    number = encode_examples(Examples("regression", texts, targets=[1.5, 2.0]), [], MINILM, 12)
    assert number.labels is not None and number.labels.dtype == np.float32 and number.labels.tolist() == [1.5, 2.0]
    with pytest.raises(ValueError, match="'c' is not among the task's 2 labels"):
        encode_examples(Examples("classification", ["x"], targets=["c"]), ["a", "b"], MINILM, 12)


def test_a_batch_is_as_long_as_its_longest_row_and_features_stand_for_tokens() -> None:
    tags = [["N"] * 9, ["N"]]
    examples = Examples("tagging", ["dog " * 9, "cat"], words=[["dog"] * 9, ["cat"]], targets=tags)
    encoded = encode_examples(examples, ["N"], MINILM, 32)
    batch = encoded.batch(np.array([1]))
    assert {name: values.shape for name, values in batch.items()} == {
        "input_ids": (1, 3), "attention_mask": (1, 3), "word_ids": (1, 3), "labels": (1, 3),
    }  # fmt: skip
    assert batch["input_ids"].dtype == batch["attention_mask"].dtype == np.int64
    assert encoded.batch(np.array([1, 0]))["attention_mask"].sum(1).tolist() == [3, 11]
    pooled = Encoded(**{**vars(encoded), "features": np.ones((2, 4)), "labels": np.array([3, 4])})
    assert {name: values.tolist() for name, values in pooled.batch(np.array([1])).items()} == {
        "features": [[1, 1, 1, 1]], "labels": [4]
    }  # fmt: skip


@pytest.mark.parametrize(
    ("examples", "length", "stride", "told"),
    [
        (
            Examples("classification", ["x"]),
            2,
            None,
            "finetune.length=2: this tokenizer puts 2 special tokens .* give 3",
        ),
        (Examples("classification", ["x"], ["y"]), 4, None, "puts 3 special tokens into a row of two texts; give 5"),
        (Examples("answering", ["x"], ["y"]), 4, None, "finetune.length=4"),
        (Examples("multiple_choice", ["x"], choices=[["a", "b"]]), 4, None, "finetune.length=4"),
        (Examples("tagging", ["x"], words=[["x"]]), 8, 6, "finetune.stride=6: a window .* reads 6 tokens"),
        (Examples("classification", ["x"]), 8, 7, "give a stride below 6"),
        (Examples("answering", ["x"], ["y"]), 16, 7, "finetune.stride=7: .* reads 7 tokens"),
    ],
)
def test_a_length_or_stride_with_which_nothing_is_read(
    examples: Examples, length: int, stride: int | None, told: str
) -> None:
    with pytest.raises(UserError, match=told) as error:
        encode_examples(examples, [], MINILM, length, stride)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "empty",
    [
        Examples("classification", [""]), Examples("classification", [""], [""]), Examples("tagging", [""]),
        Examples("tagging", [""], words=[[]]), Examples("answering", [""], [""]), Examples("embedding", [""]),
        Examples("multiple_choice", [""], choices=[["", ""]]), Examples("embedding", [""], [""]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", KINDS)
def test_empty_texts_and_no_examples_at_all(folders: dict[str, Path], kind: str, empty: Examples) -> None:
    reader = open_reader(folders[kind])
    encoded = encode_examples(empty, [], reader, 16, segments=True)
    assert len(encoded) == 1 and encoded.lengths.max() <= 4 and not encoded.cuts.any()
    none = encode_examples(empty.take([]), [], reader, 16, 2)
    assert len(none) == 0 and none.input_ids.shape[0] == 0


@pytest.mark.parametrize("kind", ["minilm", "bpe"])
def test_a_hundred_thousand_tokens_take_time_in_proportion(folders: dict[str, Path], kind: str) -> None:
    reader = open_reader(folders[kind])

    def seconds(words: int) -> float:
        text = "dog sleeps " * (words // 2)
        began = time.perf_counter()
        for examples in (
            Examples("classification", [text]), Examples("tagging", [text], targets=[["N"] * (words // 2 * 2)]),
            Examples("answering", ["Who?"], [text], targets=[[(0, "dog")]]),
        ):  # fmt: skip
            encoded = encode_examples(examples, ["N"], reader, 128, 16)
            assert encoded.lengths.sum() > words
        return time.perf_counter() - began

    short, long = min(seconds(10_000) for _ in range(2)), seconds(100_000)
    assert long < 30 * short + 1, f"{short:.2f} s and {long:.2f} s"


@pytest.mark.parametrize("kind", KINDS)
def test_one_word_of_a_hundred_thousand_characters(folders: dict[str, Path], kind: str) -> None:
    """Of WordPiece it is one unknown token, by its rule."""
    word = "ab1x" * 25_000
    examples = Examples("tagging", [word], words=[[word]], targets=[["N"]])
    encoded = encode_examples(examples, ["N"], folders[kind], 128, 16)
    assert encoded.labels is not None and (encoded.labels != IGNORED).sum() == 1
    assert (len(encoded) > 800) is (kind in ("bpe", "unigram"))
