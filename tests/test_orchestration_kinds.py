"""predict of every kind of head: answers equal transformers' own; columns, Chinese, long texts."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_encoder import write_encoder
from tokenizers import processors
from transformers import (
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

from data.config import UserError
from model.config import Head
from model.heads.building import build_head
from model.heads.description import Description
from model.heads.exporting import export_head
from model.heads.loading import load_head
from orchestration.inference import Loaded, load
from orchestration.predict import Fields, answer_texts, check, columns_of, predict, shown

TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
LABELS = {"classification": ["yes", "no\nor", "may\x1bbe"], "multi_label": ["a", "b", "c"], "tagging": TAGS}
FULL = 32


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Path:
    """Its tokenizer puts [SEP] between two texts, as BERT's does."""
    folder = write_encoder(tmp_path_factory.mktemp("encoder") / "export", positions=FULL)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.backend_tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(encoder, tmp_path_factory) -> dict[str, Path]:
    """A folder of every kind, with heads of random weights that say different things of different texts."""
    place = tmp_path_factory.mktemp("kinds")
    heads = {
        "classification": Head(), "multi_label": Head(kind="multi_label", pooling="mean"), "answering":
        Head(kind="answering"), "regression": Head(kind="regression"), "tagging": Head(kind="tagging"),
        "multiple_choice": Head(kind="multiple_choice"), "embedding": Head(kind="embedding", pooling="mean"),
    }  # fmt: skip
    windows = Description("tagging", tuple(TAGS), 8, heads["tagging"], "bio", stride=2)
    crf = Head(kind="tagging", crf=True)
    written = [(kind, head, describe(kind, head)) for kind, head in heads.items()]
    for name, head, about in [*written, ("windows", heads["tagging"], windows), ("crf", crf, describe("tagging", crf))]:
        module = build_head(encoder, head, about.labels, num_choices=about.num_choices, seed=3).eval()
        with torch.no_grad():
            for parameter_name, parameter in module.named_parameters():
                if parameter.ndim > 1 and not parameter_name.startswith(f"model.{module.model.base_model_prefix}."
                        if hasattr(module.model, "base_model_prefix") else "model.encoder."):  # fmt: skip
                    parameter.mul_(20)
        export_head(module, encoder, place / name, {}, about)
    return {folder.name: folder for folder in place.iterdir()}


def describe(kind: str, head: Head) -> Description:
    scheme = "bio" if kind == "tagging" else None
    return Description(
        kind, tuple(LABELS.get(kind, ())), FULL, head, scheme, num_choices=3 if kind == "multiple_choice" else None
    )


@cache
def open_folder(folder: Path) -> Loaded:
    return load(*load_head(folder), folder)


def ask(folder: Path, *lines: Any, scores: bool = False) -> list[dict[str, Any]]:
    """What predict writes for lines."""
    loaded = open_folder(folder)
    return [shown(answer, scores) for answer in answer_texts(loaded, list(lines), "cpu")]


def run_transformers(auto_class: Any, folder: Path, *texts: Any) -> tuple[Any, Any]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(*texts, return_tensors="pt", return_token_type_ids=True)
    with torch.inference_mode():
        return inputs, auto_class.from_pretrained(folder).eval()(**inputs)


def test_classification_of_a_text_and_of_a_pair(folders):
    folder = folders["classification"]
    single, pair = ask(folder, ("w1 w2 w3",))[0], ask(folder, ("w1 w2", "w3 w4 w5"), scores=True)[0]
    for answer, texts in ((single, ("w1 w2 w3",)), (pair, ("w1 w2", "w3 w4 w5"))):
        shares = run_transformers(AutoModelForSequenceClassification, folder, *texts)[1].logits[0].softmax(-1)
        assert answer["label"] == LABELS["classification"][int(shares.argmax())]
        assert answer["score"] == pytest.approx(shares.max().item(), abs=2e-5)
    assert set(single) == {"label", "score"}
    assert set(pair["scores"]) == set(LABELS["classification"])
    assert sum(pair["scores"].values()) == pytest.approx(1, abs=1e-5)


def test_several_labels_and_a_number(folders):
    line = ("w1 w2 w3 w4",)
    found = ask(folders["multi_label"], line, scores=True)[0]
    assert [one["label"] for one in found["labels"]] == sorted(
        (label for label, score in found["scores"].items() if score >= 0.5), key=lambda label: -found["scores"][label]
    )
    value = ask(folders["regression"], line)[0]
    theirs = run_transformers(AutoModelForSequenceClassification, folders["regression"], *line)[1].logits
    assert value == {"value": pytest.approx(theirs.item(), abs=2e-5)}


def test_tags_of_words_and_entities_with_characters(folders):
    folder = folders["tagging"]
    text = "w1 w2, w3\u3000我爱w4"
    from_text, from_words = ask(folder, (text,), (("w1", "w2", "w3"),))
    assert from_text["words"] == ["w1", "w2", ",", "w3", "我", "爱", "w4"]
    assert len(from_text["tags"]) == 7 and set(from_text["tags"]) <= set(TAGS)
    assert from_words["words"] == ["w1", "w2", "w3"]
    logits = run_transformers(AutoModelForTokenClassification, folder, "w1 w2 w3")[1].logits[0]
    assert from_words["tags"] == [TAGS[i] for i in logits.argmax(-1)[1:-1].tolist()]
    for answer, shown_text in ((from_text, text), (from_words, "w1 w2 w3")):
        for entity in answer["entities"]:
            assert shown_text[entity["start"] : entity["end"]] == entity["text"]
    entities = [e for answer in ask(folder, *[(f"w{i} w{i + 1}, w{i + 2} 我",) for i in range(40)])
                for e in answer["entities"]]  # fmt: skip
    assert {entity["label"] for entity in entities} == {"PER", "LOC"}
    assert all(set(entity) == {"label", "text", "start", "end", "score"} for entity in entities)


def test_a_long_text_is_read_in_windows_or_cut_as_its_folder_tells(folders):
    """20 words in windows of 8 tokens, and 100,000 words in one of 32: a tag for each."""
    text = " ".join(f"w{i}" for i in range(20))
    loaded = open_folder(folders["windows"])
    answer = answer_texts(loaded, [(text,)], "cpu")[0]
    assert len(answer["tags"]) == 20 and not answer["cut"]
    assert len(loaded.read(_tagging(text)).input_ids) == 5
    long = answer_texts(open_folder(folders["tagging"]), [("w1 " * 100_000,)], "cpu")[0]
    assert long["cut"] and len(long["tags"]) == 100_000 and set(long["tags"][FULL:]) == {"O"}
    for kind in ("classification", "multi_label", "regression"):
        assert answer_texts(open_folder(folders[kind]), [("w1 " * 100_000,)], "cpu")[0]["cut"]


def _tagging(text: str) -> Any:
    from orchestration.predict import examples_of

    return examples_of("tagging", [(text,)])


def test_a_crf_tags_in_its_own_folder(folders):
    answers = ask(folders["crf"], ("w1 w2 w3",), ("w4",))
    assert [len(answer["tags"]) for answer in answers] == [3, 1]


def test_answers_stand_in_their_context(folders):
    folder = folders["answering"]
    question, context = "w1 w2", "w3 w4, w5 w6 w7 w8"
    answer = ask(folder, (question, context))[0]
    assert context[answer["start"] : answer["end"]] == answer["answer"] != ""
    inputs, theirs = run_transformers(AutoModelForQuestionAnswering, folder, question, context)
    inside = [i for i, number in enumerate(inputs.sequence_ids(0)) if number == 1]
    offsets = AutoTokenizer.from_pretrained(folder)(question, context, return_offsets_mapping=True)["offset_mapping"]
    starts, ends = theirs.start_logits[0].tolist(), theirs.end_logits[0].tolist()
    spans = [(i, j) for i in inside for j in inside if i <= j]
    first, last = max(spans, key=lambda span: starts[span[0]] + ends[span[1]])
    assert (answer["start"], answer["end"]) == (offsets[first][0], offsets[last][1])
    long = ask(folder, (question, "w9 " * 5_000 + "w5"), ("w1 " * 300, context))
    assert all(set(one) - {"cut"} == {"answer", "start", "end", "score"} for one in long)


def test_choices(folders):
    folder = folders["multiple_choice"]
    loaded = open_folder(folder)
    choices = ["w2 w3", "w4", "w5 w6 w7"]
    answer = answer_texts(loaded, [("w1", *choices)], "cpu")[0]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(["w1"] * 3, choices, return_tensors="pt", padding=True, return_token_type_ids=True)
    with torch.inference_mode():
        logits = AutoModelForMultipleChoice.from_pretrained(folder)(**{k: v[None] for k, v in inputs.items()}).logits[0]
    assert answer["choice"] == int(logits.argmax())
    assert answer["score"] == pytest.approx(logits.softmax(-1).max().item(), abs=1e-5)


def test_likeness_of_two_texts(folders):
    alike, other = ask(folders["embedding"], ("w1 w2", "w1 w2"), ("w1 w2", "w30 w31 w32"))
    assert alike == {"cosine": pytest.approx(1, abs=1e-5)}
    assert other["cosine"] < 0.9999


def test_answers_do_not_depend_on_their_neighbours(folders):
    lines = [(" ".join(f"w{(i * j) % 50}" for j in range(1, 2 + i % 20)),) for i in range(60)]
    for name in ("classification", "tagging", "windows", "crf"):
        together = ask(folders[name], *lines)
        alone = [ask_one for line in lines[::13] for ask_one in ask(folders[name], line)]
        for one, other in zip(together[::13], alone, strict=True):
            assert {k: v for k, v in one.items() if k in ("label", "tags")} == {
                k: v for k, v in other.items() if k in ("label", "tags")
            }


@pytest.mark.parametrize(
    ("name", "fields", "columns"),
    [
        ("classification", Fields(), ("text",)),
        ("classification", Fields("body", "title"), ("body", "title")),
        ("answering", Fields(), ("question", "context")),
        ("answering", Fields("q", "c"), ("q", "c")),
        ("multiple_choice", Fields("start", None, ("a", "b", "c")), ("start", "a", "b", "c")),
        ("embedding", Fields(pair="other"), ("text", "other")),
    ],
)
def test_columns(name, fields, columns, folders):
    assert columns_of(load_head(folders[name])[1], fields) == columns


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("tagging", Fields(pair="title"), "--pair-field title: tagging reads one text; leave it out"),
        ("classification", Fields(choices=("a", "b")), "--choices a,b: this model's kind is classification"),
        ("multiple_choice", Fields(), "--choices is missing: this model reads a column for each of 3 choices"),
        ("multiple_choice", Fields(choices=("a", "b")), "--choices a,b: this model reads a column for each of 3"),
        ("embedding", Fields(), "write vectors with `cloze embed`"),
        ("answering", Fields(), "a text file has one text a line, and question, context are needed"),
    ],
)
def test_columns_that_a_head_does_not_read_are_refused_at_once(name, fields, message, folders, tmp_path):
    input = tmp_path / "a.txt"
    input.write_text("w1\n")
    with pytest.raises(UserError, match=message) as caught:
        check(folders[name], input, None, fields)
    assert "\n" not in str(caught.value)


def test_an_encoder_without_a_head_is_refused_with_a_hint(encoder, tmp_path):
    input = tmp_path / "a.txt"
    input.write_text("w1\n")
    with pytest.raises(UserError, match="an encoder has no labels yet: `cloze sweep` trains a head") as caught:
        check(encoder, input, None)
    assert "\n" not in str(caught.value)


def test_a_file_of_questions_over_the_pool(ray_4_cpus, folders, tmp_path):
    """Missing sides, a context of 100,000 words, Chinese: a line for each, in order, each a JSON object."""
    rows: list[dict[str, Any]] = [
        {"question": f"w{i % 50}", "context": " ".join(f"w{(i * j) % 60}" for j in range(1, 2 + i % 30))}
        for i in range(300)
    ]
    rows[7] = {"question": "w1"}
    rows[8] = {"question": "w1", "context": " "}
    rows[9] = {"question": "w1", "context": "w1 " * 100_000}
    rows[10] = {"question": "谁？", "context": " \t 我今天去买了苹果 w5"}
    input = tmp_path / "questions.jsonl"
    input.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    written = predict(folders["answering"], input, tmp_path / "out.jsonl", lambda *_: None)
    answers = [json.loads(line) for line in written.read_text().splitlines()]
    assert len(answers) == len(rows)
    assert [row for row, answer in enumerate(answers) if "error" in answer] == [7, 8]
    assert answers[8]["error"] == "line 9: context: blank"
    for row, answer in zip(rows, answers, strict=True):
        if "error" not in answer:
            assert row["context"][answer["start"] : answer["end"]] == answer["answer"]
    alone = ask(folders["answering"], *[(row["question"], row["context"]) for row in rows[20:300:40]])
    assert [(one["start"], one["end"]) for one in alone] == [(one["start"], one["end"]) for one in answers[20:300:40]]
    assert np.allclose([one["score"] for one in alone], [one["score"] for one in answers[20:300:40]], atol=2e-5)
