"""Training: equal in every process, as many tokens as asked for, honest about a corpus that is too small."""

import hashlib
import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from pydantic import ValidationError

from data import vocabulary
from data.config import Tokenizer, UserError
from data.families import SPECIALS, WORD_CHARACTERS, normalizer_of, pre_tokenizer_of
from data.tokenizer import load_tokenizer, save_tokenizer
from data.vocabulary import count_words, train_tokenizer

TEXTS = [
    f"Clo\u00e8ze {word} fills the blanks in {other}wards sentences, {i}th time; \u4eba\u6743\u5ba3\u8a00!"
    for i, (word, other) in enumerate(
        (a + b, b + a) for a in ("un", "re", "over", "mis") for b in ("done", "take", "read", "lead", "turn", "play")
    )
]
SMALL = {
    "wordpiece": Tokenizer(vocab_size=140),
    "bpe": Tokenizer(kind="bpe", vocab_size=320),
    "unigram": Tokenizer(kind="unigram", vocab_size=60),
}
KINDS = pytest.mark.parametrize("kind", SMALL)
# Accents, no spaces, Hangul, emoji of several characters, white space of all sorts, long words, code.
AWKWARD = (
    "", " ", " leads", "tabs\tand  double   spaces\n\nlines \r\n", "def f(x):\n    return x  # done",
    "Caf\u00e9 na\u00efve \u00c0\u00c9\u00ce \u0130", "\ud55c\uad6d\uc5b4 \ubb38\uc790",
    "\u4eba\u6743\u5ba3\u8a00\uff0c\u7b2c\u4e00\u6761\u3002abc\u3042\u30a2",
    "\u0939\u093f\u0928\u094d\u0926\u0940", "mug \U0001f600 \U0001f469\u200d\U0001f680",
    "x" * 5000, "ab" * 2500 + " end", "don't we'll 12345",
    "\ufdfa \u00bd \u2121 \u00a0 nbsp \u3000 \x00 \x85 \ufeff \u2581x",
)  # fmt: skip


def train(folder: Path, texts: list[str], tokenizer: Tokenizer, length: int = 128) -> Path:
    save_tokenizer(train_tokenizer(count_words(texts, tokenizer), tokenizer), folder, tokenizer, length)
    return folder


def train_all(folder: Path, texts: list[str], sizes: dict[str, int]) -> None:
    for kind, size in sizes.items():
        train(folder / kind, texts, Tokenizer(kind=kind, vocab_size=size))


def in_processes(folder: Path, texts: str, sizes: dict[str, int]) -> None:
    """Train every kind in three processes, the last of which sees the texts in reverse; all files must be equal."""
    script = (
        "import sys; sys.path.insert(0, sys.argv[2]); from pathlib import Path; import test_data_vocabulary as t;"
        f"t.train_all(Path(sys.argv[1]), ({texts})[::int(sys.argv[3])], {sizes})"
    )
    for seed, step in (("1", "1"), ("2", "1"), ("3", "-1")):
        subprocess.run(
            [sys.executable, "-c", script, str(folder / seed), str(Path(__file__).parent), step],
            check=True, env={**os.environ, "PYTHONHASHSEED": seed, "TOKENIZERS_PARALLELISM": "true"}, timeout=120,
        )  # fmt: skip
    for kind in sizes:
        names = sorted(path.name for path in (folder / "1" / kind).iterdir())
        assert {"tokenizer.json", "tokenizer_config.json"} <= set(names)
        for name in names:
            hashes = {hashlib.sha256((folder / seed / kind / name).read_bytes()).digest() for seed in "123"}
            assert len(hashes) == 1, (kind, name)


def test_three_processes_and_another_order_of_texts_give_one_tokenizer(tmp_path: Path):
    in_processes(tmp_path, "t.TEXTS", {kind: tokenizer.vocab_size for kind, tokenizer in SMALL.items()})


@pytest.mark.shared
def test_real_text_gives_one_tokenizer_too(shared: Path, tmp_path: Path):
    files = [str(shared / "pre_en_wikitext2/wiki.test.txt"), str(shared / "pre_zh_debian_docs/install_zh_CN.txt")]
    texts = f"[line for file in {files} for line in open(file, encoding='utf-8').readlines()[:1500]]"
    in_processes(tmp_path, texts, {"wordpiece": 3000, "bpe": 3000, "unigram": 3000})


@KINDS
def test_parts_of_a_corpus_count_like_the_whole(kind: str):
    whole, parts = count_words(TEXTS, SMALL[kind]), Counter[str]()
    for start in range(0, len(TEXTS), 5):
        parts.update(count_words(TEXTS[start : start + 5], SMALL[kind]))
    assert parts == whole and whole.total() > len(TEXTS)


@KINDS
@pytest.mark.parametrize("lowercase", [True, False])
def test_words_are_those_that_the_tokenizer_sees(kind: str, lowercase: bool):
    """Counting takes short cuts; this compares with the tokenizer's own normaliser and pre-tokenizer."""
    tokenizer = SMALL[kind].model_copy(update={"lowercase": lowercase})
    normalizer, pre_tokenizer = normalizer_of(tokenizer), pre_tokenizer_of(tokenizer)
    compared = 0
    for text in (*TEXTS, *AWKWARD):
        text = text.replace("\x85", " ")  # white space for Python, a control character for BERT
        normal = text if normalizer is None else normalizer.normalize_str(text)
        seen = Counter(word for word, _ in pre_tokenizer.pre_tokenize_str(normal))
        counted = count_words([text], tokenizer)
        assert max(map(len, counted), default=0) <= WORD_CHARACTERS
        if max(map(len, seen), default=0) <= vocabulary.CLAUSE_CHARACTERS:  # longer ones are cut
            assert counted == seen, text
            compared += 1
    assert compared >= 10


def test_long_words_are_counted_in_parts_that_lose_nothing():
    sentence = "\u4eba\u6743\u5ba3\u8a00\uff0c" * 60 + "x" * 250
    for kind in ("bpe", "unigram"):
        counted = count_words([sentence], SMALL[kind])
        assert sum(len(word) * count for word, count in counted.items()) == {
            "bpe": len(sentence.encode()), "unigram": 1 + len(sentence),
        }[kind]  # fmt: skip
    assert {"\u4eba\u6743\u5ba3\u8a00", ","} <= count_words([sentence], SMALL["unigram"]).keys()
    assert count_words(["x" * 101], SMALL["wordpiece"]) == Counter()


@KINDS
def test_vocabulary_has_the_size_asked_for_and_five_special_tokens(kind: str, tmp_path: Path):
    loaded = load_tokenizer(train(tmp_path, TEXTS, SMALL[kind]))
    size = SMALL[kind].vocab_size
    ids = {name: getattr(loaded, f"{name}_token_id") for name in SPECIALS[kind]}
    assert len(loaded) == size and sorted(loaded.get_vocab().values()) == list(range(size))
    assert list(ids.values()) == [0, 1, 2, 3, size - 1 if kind == "bpe" else 4]
    assert {name: getattr(loaded, f"{name}_token") for name in ids} == SPECIALS[kind]


@KINDS
def test_corpus_that_cannot_fill_the_vocabulary_names_both_numbers_and_the_way_out(kind: str, tmp_path: Path):
    told = r"tokenizer.vocab_size=8192: .* only (\d+) tokens; .* tokenizer.vocab_size=\1$"
    with pytest.raises(UserError, match=told) as error:
        train(tmp_path, TEXTS, Tokenizer(kind=kind))
    fitting = int(str(error.value).rpartition("=")[2])
    assert len(load_tokenizer(train(tmp_path, TEXTS, Tokenizer(kind=kind, vocab_size=fitting)))) == fitting


@pytest.mark.parametrize(("kind", "size"), [("wordpiece", 6), ("unigram", 7)])
def test_corpus_for_less_than_the_smallest_vocabulary_is_told_to_give_more_text(kind: str, size: int):
    with pytest.raises(UserError, match=rf"fills only {size} tokens; give more text$"):
        train_tokenizer(count_words(["a"], SMALL[kind]), SMALL[kind])


def test_bpe_needs_room_for_all_bytes():
    with pytest.raises(ValidationError, match="260 is too small for bpe, which has a token for each of 256 bytes"):
        Tokenizer(kind="bpe", vocab_size=260)
    assert train_tokenizer(Counter(), Tokenizer(kind="bpe", vocab_size=261)).get_vocab_size() == 261


@KINDS
def test_five_words_make_a_tokenizer_too(kind: str, tmp_path: Path):
    text = "five words are a corpus"
    with pytest.raises(UserError) as error:
        train(tmp_path, [text], Tokenizer(kind=kind))
    fitting = int(str(error.value).rpartition("=")[2])
    loaded = load_tokenizer(train(tmp_path, [text], Tokenizer(kind=kind, vocab_size=fitting)))
    assert loaded.unk_token_id not in loaded(text)["input_ids"]
    assert loaded.decode(loaded(text)["input_ids"], skip_special_tokens=True) == text


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_more_characters_than_the_vocabulary_keeps_the_commonest(kind: str, tmp_path: Path):
    rare = [chr(0x4E00 + i) for i in range(500)]
    texts = ["\u4eba\u6743 the same old words, the same old song"] * 50 + ["".join(rare)]
    loaded = load_tokenizer(train(tmp_path, texts, Tokenizer(kind=kind, vocab_size=40)))
    assert loaded.unk_token_id not in loaded(texts[0])["input_ids"]
    assert loaded(rare[-1])["input_ids"][-2] == loaded.unk_token_id


def test_of_too_many_words_the_commonest_train(monkeypatch: pytest.MonkeyPatch):
    words = Counter({f"word{i:03d}": 1 + i // 50 for i in range(100)})
    assert vocabulary._commonest(words) is words
    monkeypatch.setattr(vocabulary, "TRAINED_CHARACTERS", 7 * 60)
    kept = vocabulary._commonest(words)
    assert len(kept) == 60 and kept.total() == 50 * 2 + 10
    shuffled = random.Random(7).sample(sorted(words), 100)
    assert vocabulary._commonest(Counter({word: words[word] for word in shuffled})) == kept
    assert sorted(word for word in kept if kept[word] == 1) != [f"word{i:03d}" for i in range(10)]  # not the first


def test_unigram_pieces_keep_to_letters_or_punctuation():
    texts = ["words, words; words!"] * 30 + TEXTS
    backend = train_tokenizer(count_words(texts, SMALL["unigram"]), SMALL["unigram"])
    pieces = [piece for piece, _ in json.loads(backend.to_str())["model"]["vocab"][5:]]
    mixed = [p for p in pieces if any(map(str.isalpha, p)) and any(character in ",;!" for character in p)]
    assert any("words" in piece for piece in pieces) and not mixed


def test_unigram_leaves_no_word_out():
    """SentencePiece by itself drops lines that hold some characters, and text that reads like its control symbols."""
    texts = ["say [CLS] or <unk> aloud", "ab\x00cd", "ef\u2585gh"] * 20
    with pytest.raises(UserError) as error:
        train_tokenizer(count_words(texts, large := Tokenizer(kind="unigram", lowercase=False)), large)
    fitting = int(str(error.value).rpartition("=")[2])
    tokenizer = Tokenizer(kind="unigram", lowercase=False, vocab_size=fitting)
    backend = train_tokenizer(count_words(texts, tokenizer), tokenizer)
    backend.encode_special_tokens = True
    for word in ("abcd", "efgh", "CLSk"):
        assert 1 not in backend.encode(word, add_special_tokens=False).ids, word
