"""Token ids and words: what is looked up is what the tokenizer itself says, whatever the tokenizer and the text."""

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from data import encoding
from data.config import UserError
from data.encoding import Encoder, cuts_at_spaces, open_encoder, split_words

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEXTS = [
    "The lobsters are blue, only becoming red on cooking: 3.50 each!", "Σίσυφος naïve CAFÉ don't  stop\tnow \n then",
    "北京天安门在中国的首都，我爱它。", "deux mots, et l'été", "[SEP] is text, [MASK] too", "don't can't won't lobsterlike",
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
CHARACTERS = "abΣé'.,3 \u0301\u00a8\u3000\u200b\x1c\t\n北京。\u2581[]\u00adfi"


def plain(kind: str, texts: list[str]) -> list[tuple[list[int], list[bool]]]:
    """Ids and word starts as the tokenizer tells them of each whole text."""
    backend = BACKENDS[kind]
    backend.encode_special_tokens = True
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
    assert cuts_at_spaces(json.loads(BACKENDS[kind].to_str())) == (kind in CUT)


def test_a_tokenizer_with_words_of_its_own_or_dropout_is_not_cut():
    backend = build("wordpiece")
    backend.add_tokens(["New York"])
    assert not cuts_at_spaces(json.loads(backend.to_str()))
    facts = json.loads(BACKENDS["bpe"].to_str())
    facts["model"]["dropout"] = 0.1
    assert not cuts_at_spaces(facts)


@pytest.mark.parametrize("kind", [*CUT, "bpe, folded"])
def test_tokens_and_words_are_those_of_the_whole_text(kind: str):
    encoder = Encoder(BACKENDS[kind].to_str(), None)

    @settings(max_examples=150, deadline=None)
    @given(st.lists(st.text(alphabet=st.sampled_from(CHARACTERS), max_size=25) | st.text(max_size=12), max_size=4))
    def check(texts: list[str]) -> None:
        assert looked_up(encoder, texts) == plain(kind, texts)

    check()
    assert looked_up(encoder, TEXTS) == plain(kind, TEXTS)


@given(st.text(alphabet=st.sampled_from(CHARACTERS), max_size=25))
def test_pieces_are_the_text_with_a_space_between(text: str):
    pieces = split_words(text)
    assert "".join(piece[1:] if piece.startswith(" ") else " " + piece for piece in pieces) == text


def test_special_tokens_in_text_are_text():
    encoded = Encoder(BACKENDS["wordpiece"].to_str(), None).encode(["a [SEP] [MASK] [PAD]"])
    assert not {0, 2, 3, 4} & set(encoded.input_ids.tolist())


def test_words_of_a_tokenizer_that_tells_none_begin_at_its_mark_of_a_space():
    encoder = Encoder(BACKENDS["unigram, unsplit"].to_str(), None)
    text = "the lobsters are blue"
    tokens = [BACKENDS["unigram, unsplit"].id_to_token(i) for i in encoder.encode([text]).input_ids.tolist()]
    assert encoder.encode([text]).word_starts.tolist() == [token.startswith("▁") for token in tokens]
    assert 1 < encoder.encode([text]).word_starts.sum() < len(tokens)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_words_of_chinese_are_the_segmenters_and_others_stay(kind: str):
    pytest.importorskip("rjieba")
    text = "北京天安门在中国 lobsters are 我爱北京"
    encoder = Encoder(BACKENDS[kind].to_str(), "rjieba")
    encoded = encoder.encode([text])
    offsets = BACKENDS[kind].encode(text, add_special_tokens=False).offsets
    begins = {start for (start, _), begin in zip(offsets, encoded.word_starts, strict=True) if begin}
    words = {text.index(word) for word in ("北京", "天安门", "在", "中国", "lobsters", "are", "我", "爱北京")} | {text.rindex("北京")}
    # A token may span several words (one begins with it), or hold the space before its word.
    covered = {
        start: any(start <= word < max(end, start + 1) for word in words) or text[start] == " " for start, end in offsets
    }
    assert all(covered[start] for start in begins)
    if kind == "wordpiece":  # a token for each character
        assert begins == words
    if kind == "bpe":  # a character is up to three tokens: those that continue it begin no word
        assert encoded.word_starts.sum() == len(begins)


def test_a_segmenter_that_is_not_installed_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "rjieba", None)
    with pytest.raises(UserError, match=r"rows\.word_segmenter=rjieba: .*pip install rjieba"):
        Encoder(BACKENDS["wordpiece"].to_str(), "rjieba")


def test_memory_of_pieces_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(encoding, "PIECES_KEPT", 50)
    monkeypatch.setattr(encoding, "BATCH_CHARACTERS", 400)
    encoder = Encoder(BACKENDS["wordpiece"].to_str(), None)
    texts = [f"word{i} stone{i} the" for i in range(400)]
    assert looked_up(encoder, texts) == plain("wordpiece", texts)
    assert len(encoder._numbers) < 50 + 400


def test_an_encoder_is_known_by_the_tokenizer_not_by_its_folder(tmp_path: Path):
    for kind in ("wordpiece", "bpe", "wordpiece"):
        BACKENDS[kind].save(str(tmp_path / "tokenizer.json"))
        encoder = open_encoder(tmp_path)
        assert looked_up(encoder, TEXTS[:2]) == plain(kind, TEXTS[:2])
        assert open_encoder(tmp_path) is encoder


def test_no_texts_no_tokens():
    encoded = Encoder(BACKENDS["bpe"].to_str(), None).encode([])
    assert [len(part) for part in encoded] == [0, 0, 0]
    encoded = Encoder(BACKENDS["wordpiece"].to_str(), None).encode(["", " \t", "\u200b"])
    assert encoded.ends.tolist() == [0, 0, 0]
    assert np.issubdtype(encoded.input_ids.dtype, np.int32)
