"""A tokenizer as labelled texts are read: special tokens seen on an example, spaces before words; and it travels."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from family_tokenizers import write_tokenizers

from data.config import UserError
from data.reader import open_reader


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_tokenizers(tmp_path_factory.mktemp("tokenizers"))


@pytest.mark.parametrize(
    ("kind", "around", "segments"),
    [
        ("minilm", [("[CLS]",), ("[SEP]",), ("[SEP]",)], (0, 0, 0, 1, 1)),
        ("bpe", [("<s>",), ("</s>", "</s>"), ("</s>",)], (0, 0, 0, 0, 0)),
        ("unigram", [("[CLS]",), ("[SEP]",), ("[SEP]",)], (0, 0, 0, 1, 1)),
    ],
)
def test_special_tokens_stand_as_the_tokenizer_puts_them(
    folders: dict[str, Path], kind: str, around: list[tuple[str, ...]], segments: tuple[int, ...]
) -> None:
    reader = open_reader(folders[kind])
    names = [tuple(reader.texts.id_to_token(id) for id in part) for part in reader.pair.specials]
    assert names == around and reader.pair.size == sum(map(len, around)) and reader.pair.segments == segments
    assert reader.single.specials == (reader.pair.specials[0], (), reader.pair.specials[2])
    ids, of = reader.pair.join(np.array([7, 8], np.int32), np.array([9], np.int32))
    assert len(ids) == len(of) == 3 + reader.pair.size
    assert ids[1:3].tolist() == [7, 8] and ids[-2] == 9 and of.tolist() == sorted(of.tolist())


def test_byte_level_words_begin_with_their_space_and_texts_stay_as_they_are(folders: dict[str, Path]) -> None:
    reader = open_reader(folders["bpe"])
    tokens = reader.words.encode(["dog", "dog"], is_pretokenized=True, add_special_tokens=False).tokens
    assert sum(token.startswith("Ġ") for token in tokens) == 2
    assert not reader.texts.encode("dog", add_special_tokens=False).tokens[0].startswith("Ġ")
    others = open_reader(folders["minilm"])
    assert others.words is others.texts


@pytest.mark.parametrize("kind", ["minilm", "wordpiece", "bpe", "unigram"])
def test_a_reader_travels_between_processes(folders: dict[str, Path], kind: str) -> None:
    reader = open_reader(folders[kind])
    other = pickle.loads(pickle.dumps(reader))
    assert other.texts.encode("The dog 京").ids == reader.texts.encode("The dog 京").ids
    words = ["The", "京"]
    assert other.words.encode(words, is_pretokenized=True).ids == reader.words.encode(words, is_pretokenized=True).ids
    assert (other.single, other.pair, other.pad_id) == (reader.single, reader.pair, reader.pad_id)


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        open_reader(tmp_path / "none")
