"""blanks: top tokens equal transformers' own probabilities, wherever the mask stands and however it is written."""

from pathlib import Path

import pytest
import torch
from tiny_encoder import write_encoder

from model.blanks import fill_masks, load_filler


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("blanks") / "export")


def of_transformers(folder: Path, text: str) -> list[list[tuple[str, float]]]:
    """All tokens at each mask with their probabilities, likeliest first, special ones left out."""
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(text, return_tensors="pt")
    with torch.inference_mode():
        shares = AutoModelForMaskedLM.from_pretrained(folder)(**inputs).logits[0].softmax(-1)
    masks = (inputs["input_ids"][0] == tokenizer.mask_token_id).nonzero()[:, 0].tolist()
    special = set(tokenizer.all_special_ids)
    return [
        [(tokenizer.convert_ids_to_tokens(id), shares[mask, id].item())
         for id in shares[mask].argsort(descending=True).tolist() if id not in special]
        for mask in masks
    ]  # fmt: skip


def test_several_masks_in_two_spellings(folder):
    found = fill_masks(load_filler(folder), "w1 [MASK] w3 <mask> w5", 4)
    expected = of_transformers(folder, "w1 [MASK] w3 [MASK] w5")
    assert [[one.token for one in guesses] for guesses in found] == [[name for name, _ in one[:4]] for one in expected]
    for guesses, right in zip(found, expected, strict=True):
        assert [one.probability for one in guesses] == pytest.approx([share for _, share in right[:4]], abs=1e-6)
    assert found[0][0].text == f"w1 {found[0][0].token} w3 <mask> w5"
    assert found[1][0].text == f"w1 [MASK] w3 {found[1][0].token} w5"


def test_more_tokens_than_there_are_is_all_of_them(folder):
    found = fill_masks(load_filler(folder), "[MASK]", 1000)[0]
    assert len(found) == len({one.token for one in found}) == 60
    assert sum(one.probability for one in found) == pytest.approx(1, abs=0.2)


def test_a_text_without_a_mask_and_a_special_token_in_it(folder):
    with pytest.raises(ValueError, match=r"no mask in 'w1 w2'; write \[MASK\]") as caught:
        fill_masks(load_filler(folder), "w1 w2", 5)
    assert "\n" not in str(caught.value)


def test_a_text_of_100_000_tokens_is_read_around_its_masks(folder):
    filler = load_filler(folder)
    far = "w7 " * 50_000
    found = fill_masks(filler, f"[MASK] {far} w1 [MASK] w3 {far} [MASK]", 2)
    assert len(found) == 3
    room = filler.length - 2
    around = ["w7"] * (room // 2 - 1) + ["w1", "[MASK]", "w3"] + ["w7"] * (room - room // 2 - 2)
    expected = of_transformers(folder, " ".join(around))[0]
    assert [one.probability for one in found[1]] == pytest.approx([share for _, share in expected[:2]], abs=1e-6)


def write_model(folder: Path, kind: str, texts: list[str], family: str, vocab_size: int) -> Path:
    """A masked language model of random weights under a tokenizer trained on the texts."""
    import transformers

    from data.config import Tokenizer
    from data.tokenizer import describe_tokenizer, save_tokenizer
    from data.vocabulary import count_words, train_tokenizer

    settings = Tokenizer(kind=kind, vocab_size=vocab_size)
    save_tokenizer(train_tokenizer(count_words(texts, settings), settings), folder, settings, 64)
    facts = describe_tokenizer(folder)
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(
        vocab_size=facts["vocab_size"], hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=66, pad_token_id=facts["pad_id"], initializer_range=0.3,
    )  # fmt: skip
    getattr(transformers, f"{family}ForMaskedLM")(config).save_pretrained(folder)
    return folder


CHINESE = ["我今天去买了苹果", "今天天气很好。我们决定去公园散步。", "量子力学中的波函数描述系统状态。"] * 5
ENGLISH = ["The cat sat on the mat.", "The dog sat on the log, barking and singing."] * 5


@pytest.mark.parametrize(("kind", "family"), [("wordpiece", "Bert"), ("bpe", "Roberta"), ("unigram", "Albert")])
def test_chinese_and_english_with_every_kind_of_tokenizer(kind, family, tmp_path):
    size = {"wordpiece": 88, "bpe": 380, "unigram": 64}[kind]
    filler = load_filler(write_model(tmp_path / kind, kind, CHINESE + ENGLISH, family, size))
    for text in ("我今天去[MASK]了苹果", "The <mask> sat on the mat"):
        guesses = fill_masks(filler, text, 400)[0]
        before, _, behind = text.replace("<mask>", "[MASK]").partition("[MASK]")
        assert all(one.text.startswith(before.rstrip()) and one.text.endswith(behind) for one in guesses)
        assert [one.probability for one in guesses] == sorted((one.probability for one in guesses), reverse=True)
    tokens = {one.token: one.text for one in guesses}
    begins = {"wordpiece": "on", "bpe": "on", "unigram": "s"}[kind]
    assert tokens[begins] == f"The {begins} sat on the mat"
    glued = {text for token, text in tokens.items() if token in ("##ing", "##t", "##g")}
    assert glued and glued <= {f"The{end} sat on the mat" for end in ("ing", "t", "g")}
