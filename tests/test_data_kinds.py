"""The kind of a task found from its files, and the columns of its texts; what could be of two kinds is asked for."""

import json
from pathlib import Path
from typing import Any

import pytest
from test_data_tasks import FORMATS, squad, write

from data.config import Task, UserError
from data.kinds import MANY, Found, find_kind


def find(path: Path, implied: str | None = None, **task: Any) -> Found:
    return find_kind(Task(train=str(path), **task), implied)


TEXTS = ["dogs bark", "cats  purr", "go"]


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize(
    ("labels", "kind", "why"),
    [
        (["good", "bad", "good"], "classification", "2 different labels in label"),
        (["1", "2", "2"], "classification", "2 different labels in label"),
        (["N V", " N  V ", "V"], "tagging", "as many tags in label as words"),
        ([0.5, 2, 3], "regression", "numbers with fractions in label"),
        (["1.0", "-2", "3e0"], "classification", "3 different labels in label"),
        (["a, b", "a", "c"], "classification", "3 different labels in label, 1 of them with commas: not read as seve"),
        (['["a", "b"]', "[]", '["a"]'], "multi_label", "lists of labels in label"),
    ],
)
def test_labels_tell_the_kind(tmp_path: Path, suffix: str, labels: list[Any], kind: str, why: str) -> None:
    path = write(tmp_path / f"a.{suffix}", {"text": TEXTS, "label": labels})
    found = find(path)
    assert found == Found(kind, "text", None, found.note)
    assert found.note.startswith(f"kind {kind}, found from task.train={path} ({why}")
    assert found.note.endswith("; give head.kind=KIND for another")


@pytest.mark.parametrize("suffix", ["jsonl", "json", "parquet", "arrow"])
def test_lists_are_tags_where_there_are_as_many_as_words(tmp_path: Path, suffix: str) -> None:
    tags = write(tmp_path / f"a.{suffix}", {"text": [["a", "b"], ["c"]], "label": [["X", "Y"], ["X"]]})
    assert find(tags).kind == "tagging"
    written = write(tmp_path / f"b.{suffix}", {"text": TEXTS, "label": [["N", "V"], ["N", "V"], ["V"]]})
    assert find(written).kind == "tagging"
    labels = write(tmp_path / f"c.{suffix}", {"text": TEXTS, "label": [["N", "V"], [], ["V"]]})
    assert find(labels).kind == "multi_label"
    answers = [{"text": ["dogs"], "answer_start": [0]}, *[{"text": [], "answer_start": []}] * 2]
    asked = write(tmp_path / f"d.{suffix}", {"text": TEXTS, "label": answers})
    assert find(asked).kind == "answering" and "text and answer_start in label" in find(asked).note


def test_single_words_and_chinese_are_no_tags(tmp_path: Path) -> None:
    """One word with one label says nothing of tags; a label without spaces is one."""
    single = write(tmp_path / "a.csv", {"text": ["dog", "Hund"], "label": ["en", "de"]})
    assert find(single).kind == "classification"
    chinese = write(tmp_path / "b.csv", {"text": ["很好", "不好"], "label": ["好评", "差评"]})
    assert find(chinese).kind == "classification"
    tagged = write(tmp_path / "c.csv", {"text": ["很好", "不好"], "label": ["D A", "D A"]})
    assert find(tagged).kind == "tagging"


def test_many_whole_numbers_are_measured_and_few_are_classes(tmp_path: Path) -> None:
    texts = [f"text number {i}" for i in range(100)]
    for number, kind in ((MANY, "classification"), (MANY + 1, "regression")):
        for values in ([i % number for i in range(100)], [float(i % number) for i in range(100)]):
            path = write(tmp_path / "a.parquet", {"text": texts, "label": values})
            assert find(path).kind == kind
    holes = write(tmp_path / "b.csv", {"text": texts[:4], "label": [0.5, None, "", "2"]})
    assert find(holes).kind == "regression"  # the two without one are told when they are read
    flags = write(tmp_path / "c.jsonl", {"text": texts[:2], "label": [True, False]})
    assert find(flags).kind == "classification"


def test_labels_that_stand_once_are_asked_for(tmp_path: Path) -> None:
    texts = [f"text number {i}" for i in range(60)]
    path = write(tmp_path / "a.csv", {"text": texts, "label": [f"title {min(i, 40)}" for i in range(60)]})
    with pytest.raises(UserError) as error:
        find(path)
    assert str(error.value) == (
        f"task.train={path}: 40 of 41 different labels in column 'label' stand once, so they seem to be no classes; "
        f"give head.kind=KIND, or another task.label=COLUMN"
    )
    path = write(tmp_path / "a.csv", {"text": texts, "label": [f"title {i % 30}" for i in range(60)]})
    assert find(path).kind == "classification"


def test_files_of_their_own_shape_and_settings_tell_too(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(squad({"id": "1", "question": "who?", "answers": []}))
    (tmp_path / "a.conll").write_text("a O\nb B-X\n")
    (tmp_path / "a.txt").write_text("a O\nb B-X\n")
    (tmp_path / "a.conllu").write_text("")
    table = write(tmp_path / "a.csv", {"text": ["x", "y"], "label": ["a", "b"]})
    assert find(tmp_path / "a.json").kind == "answering" and "(SQuAD's JSON)" in find(tmp_path / "a.json").note
    assert find(tmp_path / "a.conll").kind == find(tmp_path / "a.conllu").kind == "tagging"
    assert find(tmp_path / "a.txt", format="conll").kind == "tagging"
    assert find(table, choices=("a", "b")).note.startswith("kind multiple_choice, found from task.choices; give")
    assert find(table, passages="p.csv").kind == "embedding"
    assert find(table, implied="tagging").note.startswith("kind tagging, found from the settings of head; give")
    built_in = find_kind(Task())
    assert (built_in.kind, built_in.note) == ("classification", "")


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize(
    ("names", "text", "pair"),
    [
        (("sentence1", "sentence2"), "sentence1", "sentence2"),
        (("premise", "hypothesis", "idx"), "premise", "hypothesis"),
        (("sentence_A", "sentence_B"), "sentence_A", "sentence_B"),
        (("question1", "question2"), "question1", "question2"),
        (("text", "text_pair"), "text", "text_pair"),
        (("text", "text2"), "text", "text2"),
        (("text", "second"), "text", None),
        (("sentence", "idx"), "sentence", None),
    ],
)
def test_columns_of_known_names_are_read(
    tmp_path: Path, suffix: str, names: tuple[str, ...], text: str, pair: str | None
) -> None:
    columns = {name: ["one text", "another one"] for name in names} | {"label": ["a", "b"]}
    found = find(write(tmp_path / f"a.{suffix}", columns))
    assert (found.kind, found.text, found.text_pair) == ("classification", text, pair)
    assert (f"; texts in {text}" in found.note) == ((text, pair) != ("text", None))
    assert (f" and {pair})" in found.note) == (pair is not None)


@pytest.mark.parametrize(
    "columns",
    [("question", "sentence"), ("sentence1", "sentence2", "premise", "hypothesis"), ("sentence1",), ("body",)],
)
def test_columns_that_could_mean_anything_are_named_and_not_guessed(tmp_path: Path, columns: tuple[str, ...]) -> None:
    path = write(tmp_path / "a.jsonl", {name: ["one text", "two"] for name in columns} | {"label": ["a", "b"]})
    with pytest.raises(UserError) as error:
        find(path)
    told = ", ".join([*columns, "label"])
    assert str(error.value) == (
        f"{path}: no column 'text'; the columns there are: {told}; name them with task.text=COLUMN, task.label=COLUMN "
        f"(a second text with task.text_pair=COLUMN), or give head.kind=embedding for pairs without a label"
    )
    given = find(path, text=columns[0])  # what is named is read, and nothing is looked for beside it
    assert (given.text, given.text_pair) == (columns[0], None)


def test_files_that_cannot_be_read_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a b\n")
    (tmp_path / "b.json").write_text("{")
    (tmp_path / "c.csv").write_bytes("text;label\ncafé;a\n".encode("cp1252"))
    (tmp_path / "d.csv").write_bytes("text,label\nx,a\n".encode("utf-16"))
    for name, told in [
        ("none.csv", f"task.train={tmp_path}/none.csv: no such file; correct the path"),
        ("a.txt", "its suffix tells no format; give one of .jsonl .ndjson .json .csv .tsv .parquet .arrow .conll"),
        ("b.json", f"{tmp_path}/b.json:1: no JSON: "),
        ("c.csv", "it seems to be delimited by semicolons (';'): write it with commas instead"),
        ("d.csv", "it begins with a byte order mark of UTF-16; give task.encoding=utf-16"),
    ]:
        with pytest.raises(UserError) as error:
            find(tmp_path / name)
        assert told in str(error.value) and len(str(error.value).splitlines()) == 1
    with pytest.raises(UserError, match="task.encoding=rot13: no text encoding; give one such as utf-8 or cp1252"):
        find(tmp_path / "c.csv", encoding="rot13")


@pytest.mark.shared
def test_the_kind_of_every_real_set_is_found(shared: Path, tmp_path: Path) -> None:
    sick = shared / "pair_en_sick" / "SICK_train.txt"
    slots = [
        (shared / "slot_en_snips" / "train" / name).read_text(encoding="utf-8").splitlines()
        for name in ("seq.in", "seq.out", "label")
    ]
    snips = write(tmp_path / "snips.jsonl", dict(zip(("text", "tags", "intent"), slots, strict=True)))
    lines = (shared / "mc_en_codah" / "full_data.tsv").read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines]
    codah = tmp_path / "codah.jsonl"
    names = ("category", "text", "a", "b", "c", "d", "label")
    codah.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows), encoding="utf-8")
    expected: list[tuple[Path, dict[str, Any], tuple[str, str, str | None]]] = [
        (shared / "tsv" / "sst2_train.tsv", {}, ("classification", "text", None)),
        (shared / "tsv" / "trec_train.tsv", {}, ("classification", "text", None)),
        (shared / "tsv" / "trec_train.tsv", {"label": "fine"}, ("classification", "text", None)),
        (sick, {"format": "tsv", "label": "relatedness_score"}, ("regression", "sentence_A", "sentence_B")),
        (sick, {"format": "tsv", "label": "entailment_judgment"}, ("classification", "sentence_A", "sentence_B")),
        (shared / "ner_en_wnut17" / "train.conll", {}, ("tagging", "text", None)),
        (shared / "pos_en_ud_ewt" / "en_ewt-ud-dev.conllu", {}, ("tagging", "text", None)),
        (shared / "qa_multi_xquad" / "xquad.zh.json", {}, ("answering", "text", None)),
        (snips, {"label": "tags"}, ("tagging", "text", None)),
        (snips, {"label": "intent"}, ("classification", "text", None)),
        (codah, {"choices": ("a", "b", "c", "d")}, ("multiple_choice", "text", None)),
    ]
    for path, settings, kind in expected:
        found = find(path, **settings)
        assert (found.kind, found.text, found.text_pair) == kind
