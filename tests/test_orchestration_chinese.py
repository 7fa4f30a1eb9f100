"""Chinese from a folder to an answer: what a model learnt is filled in, tagged and told of pairs, in characters."""

from pathlib import Path
from typing import Any

import pytest
import torch
from test_model_blanks import write_model

from data.alignment import encode_examples
from data.examples import Examples
from model.config import Head
from model.heads.building import build_head
from model.heads.description import Description
from model.heads.exporting import export_head
from model.heads.loading import load_head
from orchestration.fill import fill
from orchestration.inference import load
from orchestration.predict import answer_texts, shown

SENTENCE = "我今天去买了苹果"
FIRST, NEXT, OTHER = "今天天气很好。", "我们决定去公园散步。", "量子力学中的波函数描述系统状态。"
TAGGED = "张三去北京大学参观"
TAGS = ["B-PER", "I-PER", "O", "B-ORG", "I-ORG", "I-ORG", "I-ORG", "O", "O"]
LENGTH = 48


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Path:
    """A masked language model that learnt one sentence by heart, under a tokenizer of these characters."""
    from transformers import AutoTokenizer, BertForMaskedLM

    characters = len(set(SENTENCE + FIRST + NEXT + OTHER + TAGGED))
    folder = tmp_path_factory.mktemp("chinese") / "export"
    write_model(folder, "wordpiece", [SENTENCE, FIRST + NEXT + OTHER, TAGGED], "Bert", 5 + characters)
    tokenizer, model = AutoTokenizer.from_pretrained(folder), BertForMaskedLM.from_pretrained(folder).train()
    whole = tokenizer(SENTENCE, return_tensors="pt")["input_ids"].repeat(len(SENTENCE), 1)
    masked = whole.clone()
    masked[range(len(SENTENCE)), range(1, len(SENTENCE) + 1)] = tokenizer.mask_token_id
    labels = whole.masked_fill(masked == whole, -100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(0)
    for _ in range(60):
        model(input_ids=masked, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    return folder


def learn(encoder: Path, folder: Path, kind: Any, examples: Examples, labels: list[str]) -> Any:
    """A head that learnt the examples by heart, written to a folder and loaded from there."""
    head = Head(kind=kind)
    module = build_head(encoder, head, labels, seed=0).train()
    encoded = encode_examples(examples, labels, encoder, LENGTH, segments=True)
    batch = {name: torch.from_numpy(array) for name, array in encoded.batch(torch.arange(len(encoded)).numpy()).items()}
    optimizer = torch.optim.AdamW(module.parameters(), lr=5e-3)
    torch.manual_seed(0)
    for _ in range(60):
        sum(module(batch)[0].values()).backward()  # pyright: ignore[reportAttributeAccessIssue]
        optimizer.step()
        optimizer.zero_grad()
    about = Description(kind, tuple(labels), LENGTH, head, "bio" if kind == "tagging" else None)
    export_head(module, encoder, folder, {}, about)
    return load(*load_head(folder), folder)


@pytest.mark.parametrize("mask", ["[MASK]", "<mask>"])
def test_the_missing_character_is_filled_in(encoder, mask):
    best = fill(encoder, f"我今天去{mask}了苹果", 1)[0][0]
    assert (best.token, best.text) == ("买", SENTENCE)
    assert [guesses[0].token for guesses in fill(encoder, f"我{mask}天去买了苹{mask}", 1)] == ["今", "果"]


def test_entities_are_told_by_their_characters(encoder, tmp_path):
    examples = Examples("tagging", [TAGGED], words=[list(TAGGED)], targets=[TAGS])
    loaded = learn(encoder, tmp_path / "tagger", "tagging", examples, sorted(set(TAGS)))
    lines = [(TAGGED,), (f"\u3000 {TAGGED}",), (tuple(TAGGED),), (" ".join(TAGGED),)]
    for line, answer in zip(lines, answer_texts(loaded, lines, "cpu"), strict=True):
        text = line[0] if isinstance(line[0], str) else " ".join(line[0])
        assert (answer["words"], answer["tags"]) == (list(TAGGED), TAGS)
        assert [(one["label"], one["text"].replace(" ", "")) for one in answer["entities"]] == [
            ("PER", "张三"), ("ORG", "北京大学")
        ]  # fmt: skip
        assert all(text[one["start"] : one["end"]] == one["text"] for one in answer["entities"])


def test_two_sentences_that_follow_each_other_or_not(encoder, tmp_path):
    examples = Examples("classification", [FIRST, FIRST], [NEXT, OTHER], targets=["IsNext", "NotNext"])
    loaded = learn(encoder, tmp_path / "pairs", "classification", examples, ["IsNext", "NotNext"])
    answers = [shown(answer, False) for answer in answer_texts(loaded, [(FIRST, NEXT), (FIRST, OTHER)], "cpu")]
    assert [answer["label"] for answer in answers] == ["IsNext", "NotNext"]
    assert all(answer["score"] > 0.8 for answer in answers)
