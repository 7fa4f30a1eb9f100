"""predict: a line out for every line in, in order, equal to transformers' own answer; refusals before any work."""

import csv
import json
import shutil
from pathlib import Path

import pytest

from data.config import UserError
from model.heads.loading import load_head
from orchestration.inference import load
from orchestration.predict import answer_texts, predict

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
    loaded = load(*load_head(classifier), classifier)
    texts = [(text,) for text in make_texts(700)]
    answers = answer_texts(loaded, texts, "cpu")
    assert answer_texts(loaded, texts, "cpu") == answers
    backwards = answer_texts(loaded, texts[::-1], "cpu")[::-1]
    assert [a["label"] for a in backwards] == [a["label"] for a in answers]
    assert [a["score"] for a in backwards] == pytest.approx([a["score"] for a in answers], abs=2e-6)


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
    assert [row for row, answer in enumerate(answers) if "cut" in answer] == [10]
    assert all(set(answer) - {"cut"} in ({"error"}, {"label", "score"}) for answer in answers)


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
        (lambda f: change_config(f, problem_type="regression"), "weights are missing or misshapen"),
        (lambda f: change_config(f, model_type="unheard"), "unheard"),
        (lambda f: (f / "model.safetensors").unlink(), "holds no weights"),
        (lambda f: (f / "model.safetensors").write_bytes(b"\0" * 100), "cannot be loaded"),
        (lambda f: change_config(f, num_hidden_layers=2), "not a whole encoder"),
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
