"""Tasks whose splits are made of the training file, and labels that training has not: what is told, what is refused."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from test_data_tasks import squad, write

from data.config import Task, UserError
from data.examples import TaskData
from data.tasks import load_task


def load(kind: str, train: Path, seed: int = 0, loss: str = "in_batch", **task: Any) -> TaskData:
    section = Task(train=str(train), **task)
    return load_task(section, kind, seed, Path("unused"), lambda text, fraction: None, loss=loss)


def refused(kind: str, train: Path, **task: Any) -> str:
    with pytest.raises(UserError) as error:
        load(kind, train, **task)
    (line,) = str(error.value).splitlines()
    return line


def classes(path: Path, labels: list[str], **more: list[Any]) -> Path:
    return write(path, {"text": [f"text {i}" for i in range(len(labels))], "label": labels, **more})


def test_validation_and_test_are_made_where_neither_is_given(tmp_path: Path) -> None:
    path = classes(tmp_path / "a.csv", [*"ab" * 40, *"c" * 20])
    task = load("classification", path)
    assert task.test is not None and task.labels == ["a", "b", "c"]
    splits = (task.train, task.validation, task.test)
    assert [len(split) for split in splits] == [80, 10, 10]
    assert sorted(text for split in splits for text in split.texts) == sorted(f"text {i}" for i in range(100))
    for split in splits[1:]:
        assert Counter(split.targets) == {"a": 4, "b": 4, "c": 2}
        assert split.places == [f"{path}:{int(text.split()[1]) + 2}" for text in split.texts]
    assert task.notes == (
        f"task.train={path}: of its 100 examples 10 for validation and 10 for test are held out, 80 train",
    )
    assert load("classification", path).validation.texts == task.validation.texts
    assert load("classification", path, seed=1).validation.texts != task.validation.texts
    fewer = load("classification", path, train_size=20)
    assert fewer.validation.texts == task.validation.texts and set(fewer.train.texts) < set(task.train.texts)


def test_a_split_is_made_only_where_it_is_asked_for(tmp_path: Path) -> None:
    path = classes(tmp_path / "a.csv", [*"ab" * 50])
    other = write(tmp_path / "b.csv", {"text": ["x", "y"], "label": ["a", "b"]})
    tested = load("classification", path, test=str(other))
    assert (len(tested.train), len(tested.validation)) == (90, 10) and tested.test is not None
    assert tested.test.texts == ["x", "y"] and "10 for validation are held out, 90 train" in tested.notes[0]
    validated = load("classification", path, validation=str(other))
    assert len(validated.train) == 100 and validated.test is None and validated.notes == ()
    both = load("classification", path, validation=str(other), test_fraction=0.2)
    assert both.test is not None and (len(both.train), len(both.test)) == (80, 20)
    assert both.validation.texts == ["x", "y"] and "20 for test are held out, 80 train" in both.notes[0]
    shares = load("classification", path, validation_fraction=0.3, test_fraction=0.25)
    assert shares.test is not None
    assert (len(shares.train), len(shares.validation), len(shares.test)) == (45, 30, 25)


def test_copies_of_a_text_stay_together_and_given_files_are_compared(tmp_path: Path) -> None:
    texts = [text for i in range(50) for text in (f"A text {i}", f" a  TEXT {i}")]
    path = write(tmp_path / "a.csv", {"text": texts, "label": [*"ab" * 50]})
    other = write(tmp_path / "b.csv", {"text": ["a text 1", "a text 2", "new"], "label": ["a", "b", "a"]})
    task = load("classification", path, test=str(other))
    assert {text.casefold().split()[2] for text in task.validation.texts}.isdisjoint(
        text.casefold().split()[2] for text in task.train.texts
    )
    assert len(task.validation) == 10
    told = task.notes[1:]
    assert all(f"task.test={other}: " in note and "case and white space aside" in note for note in told)
    assert sum(int(note.split(": ")[1].split()[0]) for note in told) == 2  # in training or in validation, not in both


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_groups_are_in_one_split_and_told_where_there_are_few(tmp_path: Path, suffix: str) -> None:
    patients = [i // 5 for i in range(200)]
    path = classes(tmp_path / f"a.{suffix}", [*"ab" * 100], patient=patients)
    task = load("classification", path, group="patient")
    assert task.test is not None and task.train.groups is not None
    of = [set(split.groups or []) for split in (task.train, task.validation, task.test)]
    assert [len(groups) for groups in of] == [32, 4, 4] and len(of[0] | of[1] | of[2]) == 40
    few = classes(tmp_path / f"b.{suffix}", [*"ab" * 100], patient=[i // 50 for i in range(200)])
    notes = load("classification", few, group="patient", test_fraction=None, validation_fraction=0.1).notes
    assert "task.group=patient: 4 groups, so validation cannot have the 20 examples that it should" in notes
    given = load("classification", path, validation=str(path), group="patient")
    assert given.notes[0] == "task.group=patient: no split is made, so it decides nothing"


def test_labels_that_one_group_has_alone_are_told(tmp_path: Path) -> None:
    labels = [*"ab" * 50, *"c" * 10]
    path = classes(tmp_path / "a.csv", labels, who=[*[f"w{i // 4}" for i in range(100)], *["only"] * 10])
    task = load("classification", path, group="who")
    assert "c" in (task.train.targets or []) and "c" not in (task.validation.targets or [])
    told = f"task.train={path}: all examples of the label 'c' are of one group, or copies: none is in validation"
    assert told in task.notes


def test_every_kind_can_be_divided(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"data": [
        json.loads(squad({"id": f"{p}{q}", "question": f"who {q}?", "answers": [{"text": "Bob", "answer_start": 0}]
                          if q % 2 else []} , context=f"Bob {p}"))["data"][0] for p in range(30) for q in range(4)
    ]}))  # fmt: skip
    asked = load("answering", tmp_path / "a.json")
    assert asked.test is not None and asked.validation.pairs is not None
    assert [len(part) for part in (asked.train, asked.validation, asked.test)] == [96, 12, 12]
    assert set(asked.validation.pairs).isdisjoint(asked.train.pairs or [])
    words = [f"w{i}" for i in range(100)]
    columns = {"text": words, "passage": words, "number": [i / 3 for i in range(100)], "right": [0, 1] * 50,
               "several": ["a,b", "b", ""] * 33 + ["c"], "tag": [*"NV" * 50]}  # fmt: skip
    path = write(tmp_path / "a.csv", columns)
    for kind, task in {
        "regression": {"label": "number"}, "multi_label": {"label": "several"}, "tagging": {"label": "tag"},
        "multiple_choice": {"label": "right", "choices": ("text", "passage")}, "embedding": {},
    }.items():  # fmt: skip
        made = load(kind, path, **task)
        assert made.test is not None and made.validation.kind == kind
        assert [len(part) for part in (made.train, made.validation, made.test)] == [80, 10, 10]
    assert load("multi_label", path, label="several").labels == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("kind", "labels", "task", "told"),
    [
        ("classification", "aba", {}, "task.validation_fraction=0.1: of the 3 examples of task.train=FILE that is none;"
         " give task.validation=FILE, more examples or a larger fraction"),
        ("regression", "123", {}, "task.validation_fraction=0.1: of the 3 examples of task.train=FILE that is none"),
        ("regression", "123456", {"test_fraction": 0.05}, "task.test_fraction=0.05: of the 6 examples of task.train=F"),
        ("classification", "aaaa", {}, "task.train=FILE: its 4 examples all have the label 'a' in column 'label'"),
        ("classification", "abcdefgh", {}, "task.train=FILE: no example can be held out for validation without taking t"
         "he last one of a label from training (copies of a text stay together); give task.validation=FILE, or more"),
        ("classification", "abab", {"group": "who"}, "FILE: no column 'who'; the columns there are: text, label; name "
         "them with task.text=COLUMN, task.label=COLUMN, task.group=COLUMN"),
        ("classification", "ababab", {"group": "label"}, "task.group=label: the 2 groups of task.train=FILE (those tha"
         "t share a text are one) are too few to hold one out for validation and leave all labels in training; give "),
        ("regression", "1111", {"group": "label"}, "task.group=label: the 1 groups of task.train=FILE"),
    ],
)  # fmt: skip
def test_what_cannot_be_divided_is_one_line(
    tmp_path: Path, kind: str, labels: str, task: dict[str, Any], told: str
) -> None:
    path = classes(tmp_path / "a.csv", [*labels])
    if kind == "regression" and task.get("group"):
        task = {**task, "validation_fraction": 0.5}
    line = refused(kind, path, **task)
    assert line.replace(str(path), "FILE").startswith(told)


def test_a_group_must_have_a_value_and_a_column(tmp_path: Path) -> None:
    path = classes(tmp_path / "a.csv", ["a", "b"], who=["x", ""])
    assert f"1 examples cannot be used, first {path}:3: no who; repair" in refused("classification", path, group="who")
    (tmp_path / "a.conll").write_text("a O\nb B-X\n\n" * 30)
    told = f"task.group=doc: task.train={tmp_path}/a.conll has no columns; leave it out"
    assert refused("tagging", tmp_path / "a.conll", group="doc") == told


@pytest.mark.parametrize(
    ("kind", "train", "other", "wrong"),
    [
        ("classification", ["a", "b"], ["c", "a"], 1),
        ("multi_label", ["a,b", ""], ["a,d,c", "d"], 2),
        ("tagging", ["N N", "V V"], ["N X", "N V"], 1),
    ],
)
def test_unseen_labels_count_where_the_task_says_so(
    tmp_path: Path, kind: str, train: list[str], other: list[str], wrong: int
) -> None:
    first = write(tmp_path / "a.csv", {"text": ["x y", "y z"], "label": train})
    second = write(tmp_path / "b.csv", {"text": ["p q", "q r"], "label": other})
    told = f"task.validation={second}: {wrong} example{'s' * (wrong > 1)} with labels that task.train has not: "
    line = refused(kind, first, validation=str(second))
    assert line.startswith(told) and line.endswith("remove these, or give task.unseen_labels=count_wrong")
    task = load(kind, first, validation=str(second), unseen_labels="count_wrong")
    assert task.counts_unseen and task.notes[0].startswith(told) and task.notes[0].endswith("; they count as wrong")
    assert len(task.validation) == 2 and task.labels == load(kind, first, validation=str(first)).labels
    if kind == "classification":
        pairs = {"text_pair": "text", "loss": "softmax", "validation": str(second)}
        assert load("embedding", first, unseen_labels="count_wrong", **pairs).labels == ["a", "b"]
        assert refused("embedding", first, **pairs).startswith(told)


@pytest.mark.shared
def test_real_sets_are_divided(shared: Path) -> None:
    trec = load("classification", shared / "tsv" / "trec_train.tsv", label="fine")
    assert trec.test is not None and len(trec.labels) == 50
    sizes = [len(part) for part in (trec.train, trec.validation, trec.test)]
    assert sum(sizes) == 5452 and all(0.09 <= size / 5452 <= 0.12 for size in sizes[1:])
    counts = Counter(label for part in (trec.train, trec.validation, trec.test) for label in part.targets or [])
    assert {label for label, times in counts.items() if times >= 3} <= set(trec.validation.targets or [])
    assert set(trec.validation.targets or []) | set(trec.test.targets or []) <= set(trec.train.targets or [])
    wnut = load("tagging", shared / "ner_en_wnut17" / "train.conll")
    assert wnut.scheme == "bio" and 330 <= len(wnut.validation) <= 350 and len(wnut.labels) == 13
    xquad = load("answering", shared / "qa_multi_xquad" / "xquad.en.json")
    assert xquad.test is not None
    assert [len(part) for part in (xquad.train, xquad.validation, xquad.test)] == [952, 119, 119]
    assert set(xquad.validation.pairs or []).isdisjoint(xquad.train.pairs or [])
