"""Outputs to predictions: what is right comes back for every example, windows merge as documented, nothing is lost."""

from pathlib import Path

import numpy as np
import pytest
from family_tokenizers import MINILM, write_tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from data.alignment import encode_examples
from data.config import Task
from data.decoding import ANSWER_TOKENS, decode
from data.examples import NO_ANSWER, Encoded, Examples
from data.tasks import load_task


def right_tags(encoded: Encoded) -> dict[str, np.ndarray]:
    """What a tagger puts out that is always right: a tag for each token, of continuations any."""
    assert encoded.labels is not None
    return {"tags": np.maximum(encoded.labels, 0), "scores": np.ones(encoded.labels.shape)}


def right_spans(encoded: Encoded) -> dict[str, np.ndarray]:
    """What an answerer puts out that is always right; nothing stands out where a window holds no answer."""
    assert encoded.labels is not None
    places = np.arange(encoded.input_ids.shape[1])
    is_there = encoded.labels[:, :1] > 0
    return {
        name: np.where((places == encoded.labels[:, [i]]) & is_there, 9.0, 0.0)
        for i, name in enumerate(("starts", "ends"))
    }


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_tokenizers(tmp_path_factory.mktemp("tokenizers"))


KINDS = ("minilm", "wordpiece", "bpe", "unigram")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["张三去北京大学参观", "张 三 去 北 京 大 学 参 观"])
def test_a_tagged_chinese_sentence_comes_back_with_its_entities(folders: dict[str, Path], kind: str, text: str) -> None:
    tags = ["B-PER", "I-PER", "O", "B-ORG", "I-ORG", "I-ORG", "I-ORG", "O", "O"]
    labels = sorted(set(tags))
    words = None if " " not in text else [text.split()]
    examples = Examples("tagging", [text], words=words, targets=[tags])
    for length, stride in ((64, None), (8, 3), (6, 1)):
        encoded = encode_examples(examples, labels, folders[kind], length, stride)
        (found,) = decode(encoded, right_tags(encoded), examples, labels, "bio")
        assert found["tags"] == tags and not found["cut"]
        assert [(one["label"], one["text"]) for one in found["entities"]] == [
            ("PER", text[: text.index("去")].strip()), ("ORG", text[text.index("北") : text.index("参")].strip()),
        ]  # fmt: skip
        for one in found["entities"]:
            assert text[one["start"] : one["end"]] == one["text"] and one["score"] == 1.0
        assert decode(encoded, right_tags(encoded), examples, labels, None)[0]["entities"] == []


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text(min_size=1, max_size=8).filter(str.strip), max_size=25), st.integers(5, 12), st.integers(1, 6),
    st.sampled_from(KINDS), st.randoms(use_true_random=False),
)  # fmt: skip
def test_there_is_a_tag_for_every_word_whatever_it_is(
    folders: dict[str, Path], words: list[str], length: int, stride: int, kind: str, random
) -> None:
    labels = ["A", "B", "O"]
    tags = [random.choice(labels) for _ in words]
    examples = Examples("tagging", [" ".join(words)], words=[words], targets=[tags])
    encoded = encode_examples(examples, labels, folders[kind], length, min(stride, length - 3))
    assert decode(encoded, right_tags(encoded), examples, labels)[0]["tags"] == tags


def test_a_word_is_taken_from_the_window_where_it_is_farthest_from_an_edge() -> None:
    words = ["dog"] * 12
    examples = Examples("tagging", [" ".join(words)], words=[words])
    encoded = encode_examples(examples, ["0", "1"], MINILM, 10, 4)  # words 0-7 and 4-11
    units = np.repeat([[0], [1]], 10, axis=1)
    (found,) = decode(encoded, {"tags": units, "scores": units / 2}, examples, ["0", "1"])
    # Word 5 has 2 words on its shorter side in the first window and 1 in the second; word 6 the other way round.
    assert "".join(found["tags"]) == "000000" + "111111"


def test_a_sentence_that_is_cut_still_has_a_tag_for_every_word() -> None:
    words = [f"w{i}" for i in range(300)]
    tags = ["O"] * 290 + ["B-PER"] + ["O"] * 9
    examples = Examples("tagging", [" ".join(words)], words=[words], targets=[tags])
    labels = ["B-PER", "O"]
    cut = encode_examples(examples, labels, MINILM, 64)
    (found,) = decode(cut, right_tags(cut), examples, labels, "bio")
    assert found["tags"] == ["O"] * 300 and found["entities"] == [] and found["cut"] is True
    whole = encode_examples(examples, labels, MINILM, 64, 16)
    (found,) = decode(whole, right_tags(whole), examples, labels, "bio")
    assert found["tags"] == tags and [one["text"] for one in found["entities"]] == ["w290"] and found["cut"] is False


def test_windows_count_alike_in_the_mean_of_logits() -> None:
    examples = Examples("classification", ["dog " * 20, "cat"])
    encoded = encode_examples(examples, ["a", "b"], MINILM, 12, 2)
    assert encoded.examples.tolist() == [0, 0, 0, 1]
    logits = np.array([[0.0, 3.0], [1.0, 0.0], [2.0, 0.0], [1.0, 0.5]])
    first, second = decode(encoded, {"logits": logits}, examples, ["a", "b"])
    assert first["label"] == "a" and second["label"] == "a"  # logits of the first: 1 and 1, the lower number wins
    assert first["scores"] == {"a": 0.5, "b": 0.5} and first["score"] == 0.5
    assert second["score"] == pytest.approx(1 / (1 + np.exp(-0.5)))
    values = decode(encoded, {"value": np.array([1.0, 2.0, 6.0, -1.0])}, Examples("regression", ["", ""]), [])
    assert values == [{"value": 3.0, "cut": False}, {"value": -1.0, "cut": False}]


def test_several_labels_are_those_above_one_half() -> None:
    examples = Examples("multi_label", ["dog", "cat"])
    encoded = encode_examples(examples, ["a", "b", "c"], MINILM, 12)
    found = decode(encoded, {"logits": np.array([[1.0, -2, 3], [-900.0, -1, -1]])}, examples, ["a", "b", "c"])
    assert [label["label"] for label in found[0]["labels"]] == ["c", "a"] and found[1]["labels"] == []
    assert found[0]["scores"]["b"] == pytest.approx(1 / (1 + np.exp(2))) and found[1]["scores"]["a"] == 0


def test_choices_and_pairs_and_single_vectors() -> None:
    choosing = Examples("multiple_choice", ["I", "you"], choices=[["a", "b"], ["c", "d"]])
    encoded = encode_examples(choosing, [], MINILM, 12)
    found = decode(encoded, {"logits": np.array([[0.0, 1.0], [5.0, 5.0]])}, choosing, [])
    assert [one["choice"] for one in found] == [1, 0] and found[1]["score"] == 0.5
    pairs = Examples("embedding", ["I", "you"], ["a", "b"])
    vectors = np.array([[1.0, 0], [0.6, 0.8], [0, 1], [0, 1]])
    encoded = encode_examples(pairs, [], MINILM, 12)
    found = decode(encoded, {"vectors": vectors}, pairs, [])
    assert [one["cosine"] for one in found] == [pytest.approx(0.6), 1.0]
    found = decode(encoded, {"vectors": vectors, "logits": np.array([[2.0, 1], [1, 2]])}, pairs, ["x", "y"])
    assert [(one["label"], one["cosine"]) for one in found] == [("x", pytest.approx(0.6)), ("y", 1.0)]
    single = Examples("embedding", ["I", "you"])
    found = decode(encode_examples(single, [], MINILM, 12), {"vectors": vectors[:2]}, single, [])
    assert [one["vector"] for one in found] == [[1.0, 0.0], [0.6, 0.8]]


def naive_answer(encoded: Encoded, outputs: dict[str, np.ndarray], longest: int) -> tuple[int, int, float]:
    """The best span by trying all: characters, and its probability."""
    assert encoded.offsets is not None
    best, sums = (-np.inf, 0, 0), [0.0, 0.0]
    for unit in range(len(encoded)):
        read = [i for i in range(encoded.lengths[unit]) if encoded.offsets[unit, i, 0] >= 0]
        starts, ends = outputs["starts"][unit], outputs["ends"][unit]
        sums = [sums[0] + sum(np.exp(starts[i]) for i in read), sums[1] + sum(np.exp(ends[i]) for i in read)]
        for first in read:
            for last in read:
                if first <= last < first + longest and starts[first] + ends[last] > best[0]:
                    place = int(encoded.offsets[unit, first, 0]), int(encoded.offsets[unit, last, 1])
                    best = (starts[first] + ends[last], *place)
    return best[1], best[2], float(np.exp(best[0]) / sums[0] / sums[1])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 60), st.sampled_from([1, 3, 30]))
def test_an_answer_is_the_best_of_all_spans(seed: int, words: int, longest: int) -> None:
    random = np.random.default_rng(seed)
    context = " ".join(random.choice(["dog", "unquestionable", "京"], words))
    examples = Examples("answering", ["Who?"], [context])
    encoded = encode_examples(examples, [], MINILM, 24)
    outputs = {name: random.normal(0, 2, encoded.input_ids.shape) for name in ("starts", "ends")}
    (found,) = decode(encoded, outputs, examples, [], None, longest)
    start, end, score = naive_answer(encoded, outputs, longest)
    assert (found["start"], found["end"], found["answer"]) == (start, end, context[start:end])
    assert found["score"] == pytest.approx(score) and 0 <= found["score"] <= 1


def test_no_answer_only_where_training_had_such_questions() -> None:
    examples = Examples("answering", ["Who?", ""], ["The dog sleeps. " * 8, ""], targets=[[], []])
    encoded = encode_examples(examples, [], MINILM, 24)
    outputs = {name: np.zeros(encoded.input_ids.shape) for name in ("starts", "ends")}
    for values in outputs.values():
        values[:, 0] = 4.0
        values[1, 6] = 1.0
    found = decode(encoded, outputs, examples, [NO_ANSWER])
    nothing = {"answer": "", "start": 0, "end": 0, "cut": False}
    assert {**found[0], "score": 0} == {**nothing, "score": 0} and 0 < found[0]["score"] < 1
    assert decode(encoded, outputs, examples, [])[0]["answer"] != ""
    outputs["starts"][1, 0] = outputs["ends"][1, 0] = 0.0  # one window is sure that there is an answer
    assert decode(encoded, outputs, examples, [NO_ANSWER])[0]["answer"] != ""
    assert decode(encoded, outputs, examples, [])[1] == {**nothing, "score": 0.0}  # there is no text to answer from


@pytest.mark.shared
@pytest.mark.parametrize(("language", "longer", "inside"), [("en", 0, 1), ("zh", 14, 0)])
def test_right_outputs_give_every_answer_of_a_real_set(shared: Path, language: str, longer: int, inside: int) -> None:
    """All but those whose end lies inside a token ("2,70" of 2,700), and those longer than an answer may be."""
    file = str(shared / "qa_multi_xquad" / f"xquad.{language}.json")
    task = load_task(Task(train=file, validation=file), "answering", 0, Path("unused"), lambda text, fraction: None)
    examples = task.validation
    assert len(examples) == 1190 and task.labels == [] and examples.targets is not None
    encoded = encode_examples(examples, [], MINILM, 192, 80, segments=True)
    assert encoded.labels is not None and len(encoded) > 1190
    for most, wrong in ((1000, inside), (ANSWER_TOKENS, longer + inside)):
        found = decode(encoded, right_spans(encoded), examples, [], None, most)
        places = [(one["start"], one["answer"]) for one in found]
        assert sum(place != target[0] for place, target in zip(places, examples.targets, strict=True)) == wrong
    spans = encoded.labels[:, 1] - encoded.labels[:, 0] + 1
    too_long = {int(encoded.examples[unit]) for unit in np.flatnonzero(spans > ANSWER_TOKENS)}
    assert len(too_long) == longer


@pytest.mark.shared
def test_right_outputs_give_every_tag_of_a_real_set(shared: Path, folders: dict[str, Path]) -> None:
    files = {split: str(shared / "ner_en_wnut17" / f"{split}.conll") for split in ("train", "dev")}
    task = load_task(
        Task(train=files["train"], validation=files["dev"]), "tagging", 0, Path("unused"), lambda text, fraction: None
    )
    assert task.scheme == "bio" and len(task.labels) == 13 and (len(task.train), len(task.validation)) == (3394, 1009)
    assert task.notes == ()
    for kind, length, stride in (("minilm", 32, 8), ("bpe", 24, 4)):
        encoded = encode_examples(task.validation, task.labels, folders[kind], length, stride)
        assert len(encoded) > 1009
        found = decode(encoded, right_tags(encoded), task.validation, task.labels, task.scheme)
        assert [one["tags"] for one in found] == task.validation.targets
        assert sum(len(one["entities"]) for one in found) == 836
