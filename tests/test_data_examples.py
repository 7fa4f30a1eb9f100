"""Some examples of a task as a model reads them: their units, rows, labels and features, whatever a unit is."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_encoder import make_examples, write_tokenizer

from data.alignment import encode_examples
from data.examples import Encoded, Examples
from tuning.finetune import Part

TEXTS = make_examples(30, 1, longest=30).texts
WORDS = [text.split() for text in TEXTS]
KINDS: dict[str, tuple[Examples, tuple[str, ...]]] = {
    "classification": (Examples("classification", TEXTS, targets=["a", "b", "c"] * 10), ("a", "b", "c")),
    "pairs": (Examples("regression", TEXTS, pairs=TEXTS[::-1], targets=[k / 2 for k in range(30)]), ()),
    "tagging": (Examples("tagging", TEXTS, words=WORDS, targets=[["N"] * len(some) for some in WORDS]), ("N",)),
    "answering": (Examples("answering", ["w5"] * 30, pairs=TEXTS, targets=[[(0, some[0])] for some in WORDS]), ()),
    "multiple_choice": (
        Examples("multiple_choice", TEXTS, choices=[["w1", some[0], "w2 w3"] for some in WORDS], targets=[1] * 30), ()
    ),
    "embedding": (Examples("embedding", TEXTS, pairs=["w1 w2", *TEXTS[:28], "w1 w2"], targets=[None] * 30), ()),
}  # fmt: skip
WINDOWED = ("classification", "tagging", "answering")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return folder


@pytest.mark.parametrize("on_tokens", [None, False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_taking_and_reading_are_the_same_in_either_order(tokenizer, kind: str, on_tokens: bool | None) -> None:
    """What is taken of examples that were read equals reading those examples alone; features follow their rows."""
    examples, labels = KINDS[kind]
    stride = 4 if kind in WINDOWED else None
    whole = encode_examples(examples, labels, tokenizer, 16, stride, segments=True)
    assert (len(whole) > 30) is (kind in WINDOWED)
    vectors = np.random.default_rng(1).normal(size=(int(whole.lengths.sum()), 4)).astype(np.float32)
    if on_tokens is False and kind == "tagging":
        return  # its labels are of tokens
    if on_tokens is not None:
        whole = whole.with_features(vectors if on_tokens else vectors[: len(whole.lengths)], on_tokens)
    for numbers in (np.arange(30), np.array([3, 4, 17, 29]), np.array([5]), np.array([9, 2])):
        taken = whole.take(numbers)
        alone = encode_examples(examples.take([int(n) for n in numbers]), labels, tokenizer, 16, stride, segments=True)
        for name, value in vars(alone).items():
            if name not in ("features", "starts", "passage_ids") and value is not None:
                np.testing.assert_array_equal(getattr(taken, name), value, err_msg=name)
                assert name == "group" or name == "pad_id" or getattr(taken, name).dtype == value.dtype
        if kind == "embedding":
            same = [ids[:, None] == ids for one in (taken, alone) if (ids := one.passage_ids) is not None]
            assert len(same) == 2 and (same[0] == same[1]).all()
        # The batch of the taken units is that of the same units of the whole.
        units = np.concatenate([np.flatnonzero(whole.examples == number) for number in numbers])
        for name, value in whole.batch(units).items():
            np.testing.assert_array_equal(taken.batch(np.arange(len(taken)))[name], value, err_msg=name)


def test_features_of_tokens_stand_where_their_tokens_do(tokenizer) -> None:
    examples, labels = KINDS["tagging"]
    whole = encode_examples(examples, labels, tokenizer, 16, 4)
    starts = np.cumsum(whole.lengths) - whole.lengths
    values = np.repeat(np.arange(len(whole.lengths)), whole.lengths)[:, None] + np.zeros(3, np.float32)
    taken = whole.with_features(values, True).take(np.array([2, 7]))
    batch = taken.batch(np.arange(len(taken)))
    assert batch.keys() == {"features", "attention_mask", "word_ids", "labels"}
    for unit, whose in enumerate(np.flatnonzero(np.isin(whole.examples, [2, 7]))):
        length = int(whole.lengths[whose])
        assert starts[whose] + length <= len(values)
        assert (batch["features"][unit, :length] == whose).all() and not batch["features"][unit, length:].any()
        assert batch["attention_mask"][unit].tolist() == [1] * length + [0] * (batch["features"].shape[1] - length)
    assert taken.features is values  # a memory map is not read to take of it


def test_a_part_keeps_what_is_searched(tokenizer) -> None:
    examples, _ = KINDS["embedding"]
    passages = encode_examples(Examples("embedding", TEXTS), (), tokenizer, 16)
    right = np.arange(30)[::-1].copy()
    part = Part(examples, encode_examples(examples, (), tokenizer, 16), passages, right).take(np.array([1, 8]))
    assert part.examples.texts == [TEXTS[1], TEXTS[8]] and part.passages is passages
    assert part.right is not None and part.right.tolist() == [28, 21]
    assert isinstance(part.encoded, Encoded) and part.encoded.examples.tolist() == [0, 1]
    assert replace(part, passages=None, right=None).take(np.array([1])).right is None
