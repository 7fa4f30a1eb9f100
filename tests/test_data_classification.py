"""Labelled files: all formats alike, every fault told in one line before anything starts, tokens as transformers'."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from data.classification import TaskData, load_task, tokenise
from data.config import Tokenizer, UserError
from data.tokenizer import load_tokenizer, save_tokenizer
from data.vocabulary import count_words, train_tokenizer

EXAMPLES = [('a fine, "quoted" film', "good"), ("two\nlines", "bad"), ("café 人权", "good"), ("dull", "bad")] * 3


def write(path: Path, rows: list[tuple[Any, Any]] = EXAMPLES, columns: tuple[str, str] = ("text", "label")) -> Path:
    frame = pd.DataFrame(rows, columns=list(columns))
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows))
    else:
        frame.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
    return path


def load(train: Path, validation: Path, test: Path | None = None, **choice: Any) -> TaskData:
    choice = {"text": "text", "label": "label", "seed": 0, "train_size": None, **choice}
    told: list[str] = []
    return load_task(
        str(train), str(validation), str(test) if test else None, cache=Path("unused"),
        progress=lambda text, fraction: told.append(text), **choice,
    )  # fmt: skip


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet"])
def test_every_format_gives_the_same_task(tmp_path: Path, suffix: str):
    path = write(tmp_path / f"a.{suffix}")
    task = load(path, path, path)
    assert task.labels == ["bad", "good"] and task.test is not None
    for split in (task.train, task.validation, task.test):
        assert split.texts == [text for text, _ in EXAMPLES]
        assert split.labels.dtype == np.int64
        assert split.labels.tolist() == [["bad", "good"].index(label) for _, label in EXAMPLES]


def test_integer_labels_and_other_column_names(tmp_path: Path):
    train = write(tmp_path / "a.parquet", [("x", 10), ("y", 2)], ("sentence", "stars"))
    validation = write(tmp_path / "b.csv", [("x", 10.0), ("y", 2.0)], ("sentence", "stars"))  # nulls made it float once
    frame = pd.read_csv(validation)
    frame.to_parquet(tmp_path / "b.parquet")
    task = load(train, tmp_path / "b.parquet", text="sentence", label="stars")
    assert task.labels == ["10", "2"] and task.validation.labels.tolist() == [0, 1]


def test_stray_quotes_of_a_tsv_are_text(tmp_path: Path):
    path = tmp_path / "a.tsv"
    path.write_text('text\tlabel\n" so it begins\tgood\nthe " end\tbad\n"no"\tbad\n')
    assert load(path, path).train.texts == ['" so it begins', 'the " end', '"no"']


def test_blank_texts_are_left_out_and_counted_and_never_become_nan(tmp_path: Path):
    rows = [("x", "a"), (None, "a"), ("  ", "b"), ("nan", "b"), (None, None)]
    for suffix in ("jsonl", "parquet"):
        path = write(tmp_path / f"a.{suffix}", rows)
        train = load(path, path).train
        assert (train.texts, train.num_blank) == (["x", "nan"], 3)


def test_train_size_takes_the_first_of_a_shuffle_by_seed(tmp_path: Path):
    path = write(tmp_path / "a.csv", [(f"text {i}", "ab"[i % 2]) for i in range(100)])
    ten, twenty = load(path, path, train_size=10).train, load(path, path, train_size=20).train
    assert twenty.texts[:10] == ten.texts and twenty.labels[:10].tolist() == ten.labels.tolist()
    assert ten.texts != [f"text {i}" for i in range(10)]
    assert load(path, path, train_size=10, seed=1).train.texts != ten.texts
    assert ["ab"[i] for i in ten.labels] == ["ab"[int(text.split()[1]) % 2] for text in ten.texts]
    assert load(path, path, train_size=1000).train.texts == [f"text {i}" for i in range(100)]


@pytest.mark.parametrize(
    ("rows", "columns", "told"),
    [
        ([("x", "a"), ("y", "a")], ("text", "label"), "its 2 examples all have the label 'a'.*task.label=COLUMN"),
        ([("x", "a"), ("y", "b")], ("text", "target"), "no column 'label'; the columns there are: text, target"),
        ([("x", "a"), ("y", "b")], ("body", "label"), "no column 'text'; the columns there are: body, label"),
        ([("x", "a"), ("y", None)], ("text", "label"), r"1 examples cannot be used, first .*:\d+: no label"),
        ([(" ", "a"), (None, "b")], ("text", "label"), r"holds no examples \(2 with a blank text\)"),
        ([], ("text", "label"), "holds no examples"),
    ],
)
@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet"])
def test_fault_of_the_training_file_is_one_line(
    tmp_path: Path, rows: list[tuple[Any, Any]], columns: tuple[str, str], told: str, suffix: str
):
    good, bad = write(tmp_path / "good.csv"), write(tmp_path / f"bad.{suffix}", rows, columns)
    with pytest.raises(UserError, match=f"bad.{suffix}.*{told}") as error:
        load(bad, good)
    assert "\n" not in str(error.value)


def test_label_that_training_has_not_is_named(tmp_path: Path):
    train, other = write(tmp_path / "a.csv"), write(tmp_path / "b.csv", [("x", "good"), ("y", "ugly"), ("z", "odd")])
    told = r"task.validation=.*b.csv: 2 examples .*'odd', 'ugly' \(it has 'bad', 'good'\)"
    with pytest.raises(UserError, match=told):
        load(train, other)
    with pytest.raises(UserError, match="task.test=.*b.csv: 2 examples"):
        load(train, train, other)


def test_each_faulty_file_has_its_line(tmp_path: Path):
    (tmp_path / "empty.csv").touch()
    (tmp_path / "words.txt").write_text("x")
    with pytest.raises(UserError) as error:
        load(tmp_path / "none.csv", tmp_path / "empty.csv", tmp_path / "words.txt")
    lines = str(error.value).splitlines()
    assert [line.split("=")[0] for line in lines] == ["task.train", "task.validation", "task.test"]
    assert "no such file" in lines[0] and "no examples" in lines[1] and "tells no format" in lines[2]


def test_broken_line_of_jsonl_is_named(tmp_path: Path):
    path = write(tmp_path / "a.jsonl")
    path.write_text(path.read_text() + '{"text": "cut\n{"text": 3, "label": "good"}\n')
    with pytest.raises(UserError, match=r"2 examples cannot be used, first .*a.jsonl:13: broken_json"):
        load(path, path)


def test_tokens_are_those_of_transformers_cut_and_padded(tmp_path: Path):
    texts = [text for text, _ in EXAMPLES] + ["a fine fine fine fine film with many more words than fit"]
    small = Tokenizer(vocab_size=60)
    save_tokenizer(train_tokenizer(count_words(texts * 2, small), small), tmp_path, small, length=128)
    ids, lengths = tokenise(texts, tmp_path, 12)
    expected = load_tokenizer(tmp_path)(texts, truncation=True, max_length=12, padding=True)
    assert ids.dtype == lengths.dtype == np.int32
    assert ids.tolist() == expected["input_ids"]
    assert lengths.tolist() == [sum(mask) for mask in expected["attention_mask"]]
    assert lengths[-1] == 12 and ids[-1, -1] == 3


@pytest.mark.shared
def test_real_benchmarks_are_read_whole(shared: Path):
    folder = shared / "tsv"
    sst = load(folder / "sst2_train.tsv", folder / "sst2_dev.tsv", folder / "sst2_test.tsv")
    assert sst.labels == ["negative", "positive"] and sst.test is not None
    assert [len(split.texts) for split in (sst.train, sst.validation, sst.test)] == [6920, 872, 1821]
    trec = load(folder / "trec_train.tsv", folder / "trec_test.tsv", label="fine")
    assert (len(trec.train.texts), len(trec.validation.texts), len(trec.labels)) == (5452, 500, 50)
