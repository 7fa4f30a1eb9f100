"""Token ids and words: what is looked up is what the tokenizer itself says, whatever the tokenizer and the text."""

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from data import encoding
from data.config import UserError
from data.encoding import Encoder, open_encoder
from data.splitting import split_before_blanks, split_before_spaces, word_splitter
from data.tokenizer import text_backend

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEXTS = [
    "The lobsters are blue, only becoming red on cooking: 3.50 each!", "Σίσυφος naïve CAFÉ don't  stop\tnow \n then",
    "北京天安门在中国的首都，我爱它。", "deux mots, et l'été", "[SEP] is text, [MASK] too", "don't can't won't",
] * 3  # fmt: skip


def build(kind: str) -> tokenizers.Tokenizer:
    """A small tokenizer of each kind that is cut at spaces, and of two that are not."""
    if kind.startswith("wordpiece"):
        backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))  # type: ignore[call-arg]
        backend.normalizer = normalizers.BertNormalizer(lowercase=kind == "wordpiece")
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=SPECIALS, show_progress=False)
    elif kind.startswith("unigram"):
        backend = tokenizers.Tokenizer(models.Unigram())
        backend.normalizer = normalizers.NFKC()
        metaspace = pre_tokenizers.Metaspace(prepend_scheme="always", split=kind != "unigram, unsplit")
        whole = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])
        backend.pre_tokenizer = whole if kind == "unigram of words" else metaspace
        trainer = trainers.UnigramTrainer(
            vocab_size=200, special_tokens=SPECIALS, unk_token="[UNK]", show_progress=False
        )
    else:
        backend = tokenizers.Tokenizer(models.BPE())
        if kind == "bpe, folded":
            backend.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=kind == "bpe, prefixed")
        backend.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=400, special_tokens=SPECIALS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )  # fmt: skip
    backend.train_from_iterator(TEXTS, trainer)
    return backend


CUT = ["wordpiece", "wordpiece, cased", "bpe", "bpe, prefixed", "unigram", "unigram of words"]
BACKENDS = {kind: build(kind) for kind in [*CUT, "bpe, folded", "unigram, unsplit"]}
CHARACTERS = "abΣé'.,3    \n\n\t\u0301\u00a8\u3000\u200b\x1c北京。\u2581[]\u00adfi"


def plain(kind: str, texts: list[str]) -> list[tuple[list[int], list[bool]]]:
    """Ids and word starts as the tokenizer tells them of each whole text."""
    backend = text_backend(BACKENDS[kind].to_str())
    result = []
    for text in texts:
        whole = backend.encode(text, add_special_tokens=False)
        words = [None, *whole.word_ids]
        result.append((whole.ids, [one != two for one, two in zip(words, words[1:], strict=False)]))
    return result


def looked_up(encoder: Encoder, texts: list[str]) -> list[tuple[list[int], list[bool]]]:
    encoded = encoder.encode(texts)
    starts = [0, *encoded.ends.tolist()]
    return [
        (encoded.input_ids[start:end].tolist(), encoded.word_starts[start:end].tolist())
        for start, end in zip(starts, starts[1:], strict=False)
    ]


@pytest.mark.parametrize("kind", BACKENDS)
def test_which_tokenizers_are_cut_at_spaces(kind: str):
    assert (word_splitter(json.loads(BACKENDS[kind].to_str())) is not None) == (kind in CUT)


def test_a_tokenizer_with_words_of_its_own_or_dropout_is_not_cut():
    backend = build("wordpiece")
    backend.add_tokens(["New York"])
    assert word_splitter(json.loads(backend.to_str())) is None
    facts = json.loads(BACKENDS["bpe"].to_str())
    facts["model"]["dropout"] = 0.1
    assert word_splitter(facts) is None


@pytest.mark.parametrize("kind", [*CUT, "bpe, folded"])
def test_tokens_and_words_are_those_of_the_whole_text(kind: str):
    encoder = Encoder(text_backend(BACKENDS[kind].to_str()), None)

    @settings(max_examples=150, deadline=None)
    @given(st.lists(st.text(alphabet=st.sampled_from(CHARACTERS), max_size=25) | st.text(max_size=12), max_size=4))
    def check(texts: list[str]) -> None:
        assert looked_up(encoder, texts) == plain(kind, texts)

    check()
    assert looked_up(encoder, TEXTS) == plain(kind, TEXTS)


@given(st.text(alphabet=st.sampled_from(CHARACTERS), max_size=25))
def test_pieces_are_the_text_with_a_space_between(text: str):
    for split in (split_before_spaces, split_before_blanks):
        assert "".join(piece[1:] if piece.startswith(" ") else " " + piece for piece in split(text)) == text


def test_special_tokens_in_text_are_text():
    encoded = Encoder(text_backend(BACKENDS["wordpiece"].to_str()), None).encode(["a [SEP] [MASK] [PAD]"])
    assert not {0, 2, 3, 4} & set(encoded.input_ids.tolist())


def test_words_of_a_tokenizer_that_tells_none_begin_at_its_mark_of_a_space():
    encoder = Encoder(text_backend(BACKENDS["unigram, unsplit"].to_str()), None)
    text = "the lobsters are blue"
    tokens = [BACKENDS["unigram, unsplit"].id_to_token(i) for i in encoder.encode([text]).input_ids.tolist()]
    assert encoder.encode([text]).word_starts.tolist() == [token.startswith("▁") for token in tokens]
    assert 1 < encoder.encode([text]).word_starts.sum() < len(tokens)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_words_of_chinese_are_the_segmenters_and_others_stay(kind: str):
    rjieba = pytest.importorskip("rjieba")
    text = "北京天安门在中国, lobsters 小明硕士毕业于中国科学院计算所，后在京都大学深造。 like乒乓球拍卖完了"
    begins = set()
    for run in re.finditer("[一-龥]+", text):
        ends = itertools.accumulate(map(len, rjieba.cut(run[0])), initial=run.start())
        begins |= set(list(ends)[:-1])
    assert 12 < len(begins) < 30
    whole = BACKENDS[kind].encode(text, add_special_tokens=False)
    encoded = Encoder(text_backend(BACKENDS[kind].to_str()), "rjieba").encode([text])
    assert encoded.input_ids.tolist() == whole.ids
    seen: set[int] = set()
    words = [None, *whole.word_ids]
    for number, (start, end) in enumerate(whole.offsets):
        if "一" <= text[start] <= "龥":  # the first token that holds the first character of a word begins it
            expected = any(start <= begin < end and begin not in seen for begin in begins)
        else:
            expected = words[number] != words[number + 1]
        assert encoded.word_starts[number] == expected
        seen |= set(range(start, end))


def test_a_segmenter_that_is_not_installed_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "rjieba", None)
    with pytest.raises(UserError, match=r"rows\.word_segmenter=rjieba: .*pip install rjieba"):
        Encoder(text_backend(BACKENDS["wordpiece"].to_str()), "rjieba")


def test_memory_of_pieces_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(encoding, "PIECES_KEPT", 50)
    monkeypatch.setattr(encoding, "BATCH_CHARACTERS", 400)
    encoder = Encoder(text_backend(BACKENDS["wordpiece"].to_str()), None)
    texts = [f"word{i} stone{i} the" for i in range(400)]
    assert looked_up(encoder, texts) == plain("wordpiece", texts)
    assert len(encoder._numbers) < 50 + 400


def test_memory_of_long_pieces_is_bounded_too(monkeypatch: pytest.MonkeyPatch):
    """Of a tokenizer that treats whole sentences, few pieces are many tokens."""
    backend = text_backend(BACKENDS["unigram, unsplit"].to_str())
    texts = [" ".join([f"the stone number {i}"] * 20) for i in range(100)]
    expected = looked_up(Encoder(backend, None), texts)
    monkeypatch.setattr(encoding, "TOKENS_KEPT", 1000)
    monkeypatch.setattr(encoding, "BATCH_CHARACTERS", 4000)
    encoder = Encoder(backend, None)
    assert looked_up(encoder, texts) == expected
    assert len(encoder._ids) < 1000 + 4000


def test_an_encoder_is_known_by_the_tokenizer_not_by_its_folder(tmp_path: Path):
    for kind in ("wordpiece", "bpe", "wordpiece"):
        BACKENDS[kind].save(str(tmp_path / "tokenizer.json"))
        encoder = open_encoder(tmp_path)
        assert looked_up(encoder, TEXTS[:2]) == plain(kind, TEXTS[:2])
        assert open_encoder(tmp_path) is encoder


def test_no_texts_no_tokens():
    encoded = Encoder(text_backend(BACKENDS["bpe"].to_str()), None).encode([])
    assert [len(part) for part in encoded] == [0, 0, 0]
    encoded = Encoder(text_backend(BACKENDS["wordpiece"].to_str()), None).encode(["", " \t", "\u200b"])
    assert encoded.ends.tolist() == [0, 0, 0]
    assert np.issubdtype(encoded.input_ids.dtype, np.int32)


@pytest.mark.parametrize("kind", ["unigram", "unigram of words", "unigram, unsplit", "wordpiece", "bpe"])
def test_a_sentence_that_goes_on_without_a_space_is_given_none(kind: str):
    """Sentences of Chinese touch: their tokens are those of the whole text, without a mark of a space between."""
    sentences = ["\u5317\u4eac\u5929\u5b89\u95e8\u3002", "\u6211\u7231\u5b83\uff01", " deux mots.", "\u9996\u90fd"]
    backend = text_backend(BACKENDS[kind].to_str())
    whole = backend.encode("".join(sentences), add_special_tokens=False).tokens
    encoded = Encoder(backend, None).encode(sentences, [False, True, False, True])
    apart = [backend.id_to_token(i) for i in encoded.input_ids.tolist()]
    assert apart.count("\u2581") == whole.count("\u2581")
    assert "".join(apart) == "".join(whole)
    again = Encoder(backend, None).encode(sentences)
    assert (len(again.input_ids) > len(encoded.input_ids)) == ("unigram" in kind)
