"""predict: a line out for every line in, in order, equal to transformers' own answer; refusals before any work."""

import csv
import gzip
import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.config import UserError
from data.texts import check_input, read_texts
from model.classifier import label_texts, load_classifier
from orchestration.predict import check, predict

WORDS = ["the", "a", "of", "to", "court", "law", "cell", "gene", "goal", "team", "song", "film", "rain", "good", "new"]
LABELS = ["law", "biology", "sport"]
LENGTH = 16


@pytest.fixture(scope="module")
def classifier(tmp_path_factory) -> Path:
    """A tiny BERT classifier with random weights large enough that labels differ between texts."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    words = Tokenizer(models.WordPiece({word: i for i, word in enumerate(vocabulary)}, unk_token="[UNK]"))
    words.normalizer = normalizers.BertNormalizer(lowercase=True)
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    words.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]",
    )  # fmt: skip
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=LENGTH, initializer_range=0.8, id2label=dict(enumerate(LABELS)),
        label2id={label: i for i, label in enumerate(LABELS)},
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("classifier") / "best"
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def run(model: Path, input: Path, output: Path | None = None, summary: str = "lines labelled") -> list[dict]:
    seen: list[tuple[str, float | None]] = []
    written = predict(model, input, output, lambda text, fraction: seen.append((text, fraction)))
    assert seen[-1][1] == 1.0
    assert summary in seen[-1][0]
    return [json.loads(line) for line in written.read_text().splitlines()]


def make_texts(number: int) -> list[str]:
    return [" ".join(WORDS[(i * 7 + j * j) % len(WORDS)] for j in range(1 + i % 12)) for i in range(number)]


def test_every_line_has_its_answer_and_equals_transformers(ray_4_cpus, classifier, tmp_path):
    """5,000 lines make several blocks for two processes; the answers stand in the order of the lines."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    texts = make_texts(5_000)
    input = tmp_path / "many.txt"
    input.write_text("\n".join(texts) + "\n")
    answers = run(classifier, input)
    assert (tmp_path / "many.txt.predictions.jsonl").exists()
    assert len(answers) == len(texts)
    model = AutoModelForSequenceClassification.from_pretrained(classifier)
    tokenizer = AutoTokenizer.from_pretrained(classifier)
    with torch.inference_mode():
        for row in range(0, len(texts), 97):
            scores = model.eval()(**tokenizer(texts[row], return_tensors="pt")).logits.softmax(-1)[0]
            assert answers[row]["score"] == pytest.approx(scores.max().item(), abs=2e-5)
            assert answers[row]["label"] == LABELS[scores.argmax().item()]
    assert {answer["label"] for answer in answers} == set(LABELS)
    assert not list(tmp_path.glob("*.part"))


def test_labels_do_not_depend_on_the_neighbours(classifier):
    loaded = load_classifier(classifier)
    texts = make_texts(700)
    answers = label_texts(loaded, texts, "cpu")
    assert label_texts(loaded, texts, "cpu") == answers
    assert label_texts(loaded, [], "cpu") == []
    backwards = label_texts(loaded, texts[::-1], "cpu")[::-1]
    assert [a.label for a in backwards] == [a.label for a in answers]
    assert [a.score for a in backwards] == pytest.approx([a.score for a in answers], abs=2e-6)


def test_what_cannot_be_read_gets_an_error_line(ray_4_cpus, classifier, tmp_path):
    lines = [
        b'{"text": "the court"}', b"", b"{broken", b'{"other": 1}', b'{"text": null}', b'{"text": 5}', b'"a string"',
        b'{"text": "\xff\xfe"}', b'{"text": "\\ud800"}', b'{"text": "  "}', b'{"text": "' + b"cell " * 50 + b'"}',
        b"", b"",
    ]  # fmt: skip
    input = tmp_path / "mixed.jsonl"
    input.write_bytes(b"\n".join(lines) + b"\n")
    summary = f"2 lines labelled, 11 with an error instead, 1 cut at {LENGTH} tokens"
    answers = run(classifier, input, tmp_path / "out.jsonl", summary)
    assert len(answers) == len(lines)
    assert [row for row, answer in enumerate(answers) if "label" in answer] == [0, 10]
    assert [answer["error"].split(":")[0] for answer in answers[1:10]] == [f"line {n}" for n in range(2, 11)]
    assert answers[1]["error"] == "line 2: blank"
    assert all(set(answer) in ({"error"}, {"label", "score"}) for answer in answers)


def texts_of(file: Path, text_field: str = "text") -> list[str | None]:
    return [line.text for line in read_texts(file, check_input(file, text_field), text_field)]


def test_text_lines_end_at_newlines_only(tmp_path):
    file = tmp_path / "a.txt"
    file.write_bytes(b"\xef\xbb\xbfone\r\n\n two\rthree \xe2\x80\xa8 four\n\xff\nlast without newline")
    assert texts_of(file) == ["one", None, "two\rthree \u2028 four", None, "last without newline"]


def test_csv_records_with_newlines_blank_lines_and_wrong_width(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text('id,text\n1,"two\nlines, one record"\n\n2,plain\n3,too,wide\n4\n5,""\n')
    assert texts_of(file) == ["two\nlines, one record", None, "plain", None, None, None]


def test_tsv_with_stray_quotes(tmp_path):
    file = tmp_path / "a.tsv"
    file.write_text('text\tlabel\n"open quote\tx\nsay "yes"\ty\n')
    assert texts_of(file) == ['"open quote', 'say "yes"']


def test_parquet_nulls_and_another_field(tmp_path):
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"body": ["x", None, "z"], "n": [1, 2, 3]}), file)
    assert texts_of(file, "body") == ["x", None, "z"]
    assert texts_of(file, "n") == [None, None, None]


def test_a_cut_archive_gives_what_can_be_read_and_says_so(tmp_path):
    file = tmp_path / "a.txt.gz"
    whole = gzip.compress("\n".join(make_texts(5000)).encode())
    file.write_bytes(whole[: len(whole) // 2])
    lines = list(read_texts(file, "text", "text"))
    assert lines[-1].number == 0
    assert "the rest of the file" in str(lines[-1].error)
    assert all(line.text for line in lines[:-1])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.txt", None, "no such file"),
        ("empty.txt", b"", "is empty"),
        ("empty.csv", b"", "is empty"),
        ("header.csv", b"text,label\n", "holds no rows"),
        ("other.csv", b"body,label\nx,y\n", "no column 'text'; the columns there are: body, label"),
        ("other.jsonl", b'{"body": "x"}\n{"body": "y"}\n', "no 'text' in its first 2 lines"),
        ("texts.docx", b"PK", "suffix tells no format"),
    ],
)
def test_bad_input_is_refused_in_one_line(name, content, message, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        check(tmp_path / "model", tmp_path / name, None)
    assert "\n" not in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)


def pickle_weights(folder: Path) -> None:
    import torch

    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")


def change_config(folder: Path, **values: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: shutil.rmtree(f), "no such folder"),
        (lambda f: (f / "config.json").unlink(), "not a Hugging Face folder"),
        (lambda f: (f / "config.json").write_text("{"), "config.json cannot be read"),
        (lambda f: change_config(f, architectures=["BertForMaskedLM"]), "cloze sweep"),
        (lambda f: change_config(f, architectures=None), "names no architecture"),
        (lambda f: change_config(f, problem_type="regression"), "regression is not read"),
        (lambda f: change_config(f, model_type="unheard"), "cannot be loaded"),
        (lambda f: (f / "model.safetensors").unlink(), "holds no weights"),
        (lambda f: (f / "model.safetensors").write_bytes(b"\0" * 100), "cannot be loaded"),
        (lambda f: change_config(f, num_hidden_layers=2), "weights are missing"),
        (pickle_weights, "pickle"),
        (lambda f: [p.unlink() for p in f.glob("tokenizer*")], "no tokenizer"),
    ],
)
def test_what_is_no_classifier_is_refused_in_one_line(damage, message, classifier, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(classifier, folder)
    damage(folder)
    input = tmp_path / "a.txt"
    input.write_text("the court\n")
    with pytest.raises(UserError, match=message) as caught:
        predict(folder, input, None, lambda *_: None)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["a.txt"]


def test_outputs_that_cannot_be_written_are_refused(classifier, tmp_path):
    input = tmp_path / "a.txt"
    input.write_text("the court\n")
    for output, message in ((input, "is the input"), (tmp_path, "is a folder"), (tmp_path / "no" / "x", "not exist")):
        with pytest.raises(UserError, match=message):
            predict(classifier, input, output, lambda *_: None)


def test_csv_round_trip_beside_the_rows(ray_4_cpus, classifier, tmp_path):
    """The n-th answer belongs to the n-th row that Python's csv reads."""
    input = tmp_path / "rows.csv"
    with input.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "text"])
        rows.writerows([i, f'{text}\n"quoted", too'] for i, text in enumerate(make_texts(40)))
    with input.open(newline="") as file:
        assert len(list(csv.DictReader(file))) == len(run(classifier, input)) == 40
