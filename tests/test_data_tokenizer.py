"""The tokenizer: equal in every process, complete, loadable elsewhere, and honest about a corpus that is too small."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from data.config import Tokenizer, UserError
from data.tokenizer import SPECIALS, count_words, load_tokenizer, save_tokenizer, train_wordpiece

TEXTS = [
    f"Clo\u00e8ze {word} fills the blanks in {other}wards sentences, {i}th time; \u4eba\u6743\u5ba3\u8a00!"
    for i, (word, other) in enumerate(
        (a + b, b + a) for a in ("un", "re", "over", "mis") for b in ("done", "take", "read", "lead", "turn", "play")
    )
]
SMALL = Tokenizer(vocab_size=140)


def train(folder: Path, texts: list[str], tokenizer: Tokenizer = SMALL) -> Path:
    backend = train_wordpiece(count_words(texts, tokenizer.lowercase), tokenizer)
    save_tokenizer(backend, folder, tokenizer.lowercase, length=128)
    return folder


def test_three_processes_and_another_order_of_texts_give_one_tokenizer(tmp_path: Path):
    script = (
        "import sys; sys.path.insert(0, sys.argv[2]); from pathlib import Path; import test_data_tokenizer as t;"
        "t.train(Path(sys.argv[1]), t.TEXTS[::int(sys.argv[3])])"
    )
    for seed, step in (("1", "1"), ("2", "1"), ("3", "-1")):
        subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / seed), str(Path(__file__).parent), step],
            check=True, env={**os.environ, "PYTHONHASHSEED": seed}, timeout=60,
        )  # fmt: skip
    for name in ("tokenizer.json", "vocab.txt", "tokenizer_config.json"):
        assert len({hashlib.sha256((tmp_path / seed / name).read_bytes()).digest() for seed in "123"}) == 1, name


@pytest.mark.parametrize("lowercase", [True, False])
def test_folder_loads_elsewhere_with_the_same_ids(tmp_path: Path, lowercase: bool):
    tokenizer = SMALL.model_copy(update={"lowercase": lowercase})
    backend = train_wordpiece(count_words(TEXTS, lowercase), tokenizer)
    save_tokenizer(backend, tmp_path, lowercase, length=64)
    loaded = load_tokenizer(tmp_path)
    assert type(loaded).__name__ == "BertTokenizer"
    assert (len(loaded), loaded.model_max_length) == (140, 64)
    assert loaded.convert_tokens_to_ids(list(SPECIALS)) == [0, 1, 2, 3, 4]
    assert [getattr(loaded, f"{name}_token_id") for name in ("pad", "unk", "cls", "sep", "mask")] == [0, 1, 2, 3, 4]
    for text in (*TEXTS, "", "NEW Words, caf\u00e9 [MASK] x", "pair\tand\x00control\u200b"):
        assert loaded(text)["input_ids"] == backend.encode(text).ids
    assert loaded("a", "b")["token_type_ids"] == [0, 0, 0, 1, 1]


def test_what_was_never_seen_is_unknown_not_lost(tmp_path: Path):
    loaded = load_tokenizer(train(tmp_path, TEXTS))
    assert loaded.tokenize("done \U0001f600 \u9f8d done") == ["done", "[UNK]", "[UNK]", "done"]


def test_known_words_are_pieces_that_join_to_the_word(tmp_path: Path):
    loaded = load_tokenizer(train(tmp_path, TEXTS))
    assert loaded.decode(loaded("overplay mislead")["input_ids"], skip_special_tokens=True) == "overplay mislead"


def test_corpus_that_cannot_fill_the_vocabulary_names_both_numbers_and_the_way_out(tmp_path: Path):
    told = r"tokenizer.vocab_size=8192: .* only (\d+) tokens; .* tokenizer.vocab_size=\1$"
    with pytest.raises(UserError, match=told) as error:
        train(tmp_path, TEXTS, Tokenizer())
    fitting = int(str(error.value).rpartition("=")[2])
    assert len(load_tokenizer(train(tmp_path, TEXTS, Tokenizer(vocab_size=fitting)))) == fitting


def test_corpus_for_less_than_the_smallest_vocabulary_is_told_to_give_more_text():
    with pytest.raises(UserError, match=r"fills only 6 tokens; give more text$"):
        train_wordpiece(count_words(["a"], True), SMALL)


def test_five_words_make_a_tokenizer_too(tmp_path: Path):
    with pytest.raises(UserError) as error:
        train(tmp_path, ["five words are a corpus"], Tokenizer())
    fitting = int(str(error.value).rpartition("=")[2])
    loaded = load_tokenizer(train(tmp_path, ["five words are a corpus"], Tokenizer(vocab_size=fitting)))
    assert "[UNK]" not in loaded.tokenize("five words are a corpus")


def test_more_characters_than_the_vocabulary_keeps_the_commonest(tmp_path: Path):
    rare = [chr(0x4E00 + i) for i in range(500)]
    texts = ["\u4eba\u6743 the same old words, the same old song"] * 50 + ["".join(rare)]
    loaded = load_tokenizer(train(tmp_path, texts, Tokenizer(vocab_size=64)))
    assert "[UNK]" not in loaded.tokenize(texts[0])
    assert loaded.tokenize(rare[-1]) == ["[UNK]"]


def test_folder_without_needed_tokens_or_tokenizer_is_refused_by_name(tmp_path: Path):
    from tokenizers import Tokenizer as Backend
    from tokenizers import models
    from transformers import PreTrainedTokenizerFast

    PreTrainedTokenizerFast(
        tokenizer_object=Backend(models.WordLevel({"<unk>": 0, "</s>": 1}, unk_token="<unk>")),
        unk_token="<unk>", pad_token="</s>",
    ).save_pretrained(str(tmp_path / "lacking"))  # fmt: skip
    with pytest.raises(UserError, match="lacking: lacks mask_token, cls_token, sep_token"):
        load_tokenizer(tmp_path / "lacking")
    with pytest.raises(UserError, match="tokenizer.path=.*nowhere: no such folder"):
        load_tokenizer(tmp_path / "nowhere")
    (tmp_path / "void").mkdir()
    with pytest.raises(UserError, match="void: holds no tokenizer"):
        load_tokenizer(tmp_path / "void")
