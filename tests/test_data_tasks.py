"""Tasks of every kind from files: real sets read whole, every fault told in one line, splits that fit together."""

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.fs
import pytest

from data.config import Task, UserError
from data.examples import NO_ANSWER, TaskData
from data.tasks import load_task


def write(path: Path, columns: dict[str, list[Any]]) -> Path:
    """A file of the format that its suffix tells."""
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    elif path.suffix == ".parquet":
        pd.DataFrame(rows, columns=list(columns)).to_parquet(path)
    elif path.suffix == ".arrow":
        pd.DataFrame(rows, columns=list(columns)).to_feather(path, compression="uncompressed")
    else:
        pd.DataFrame(rows, columns=list(columns)).to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
    return path


def load(kind: str, train: Path, validation: Path | None = None, loss: str = "in_batch", **task: Any) -> TaskData:
    seed = task.pop("seed", 0)
    section = Task(train=str(train), validation=str(validation or train), **task)
    return load_task(section, kind, seed, Path("unused"), lambda text, fraction: None, loss=loss)


def fault(kind: str, train: Path, validation: Path | None = None, **task: Any) -> str:
    """The one line that is told; of a file that is read twice the line on the first."""
    with pytest.raises(UserError) as error:
        load(kind, train, validation or train, **task)
    lines = str(error.value).splitlines()
    assert len(lines) <= (1 if validation is not None else 2)
    assert all(line.startswith("task.validation=") for line in lines[1:])
    return lines[0]


FORMATS = ["csv", "tsv", "jsonl", "json", "parquet", "arrow"]


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_gives_the_same_task(tmp_path: Path, suffix: str) -> None:
    texts = ['a fine, "quoted" film', "café 人权", "dull", "none"]
    path = write(
        tmp_path / f"a.{suffix}", {"text": texts, "second": ["x"] * 4, "label": ["good", "bad", "bad", "good"]}
    )
    task = load("classification", path, test=str(path))
    assert task.labels == ["bad", "good"] and task.scheme is None and task.test is not None
    for split in (task.train, task.validation, task.test):
        assert split.texts == texts and split.targets == ["good", "bad", "bad", "good"] and split.pairs is None
        assert split.places is not None and all(place.startswith(f"{path}:") for place in split.places)
    assert load("classification", path, text_pair="second").train.pairs == ["x"] * 4


def test_files_of_a_bucket(tmp_path: Path, s3: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    bucket, _ = pyarrow.fs.FileSystem.from_uri("s3://cloze-test")

    def upload(path: Path) -> Any:
        with bucket.open_output_stream(f"cloze-test/tasks/{path.name}", compression=None) as file:
            file.write(path.read_bytes())
        return f"s3://cloze-test/tasks/{path.name}"

    columns = {"id": [1, 2, 3], "text": ["café 人权", "dull", "none"], "label": ["a", "b", "a"]}
    for suffix in FORMATS:
        path = write(tmp_path / f"a.{suffix}", columns)
        here, there = load("classification", path), load("classification", upload(path))
        assert (there.train.texts, there.train.targets) == (here.train.texts, here.train.targets), suffix
    sentences = tmp_path / "a.conll"
    sentences.write_text(CONLL)
    assert load("tagging", upload(sentences)).train.words == [["John", "lives"], ["#", "Paris"]]
    articles = tmp_path / "squad.json"
    question = {"id": "1", "question": "b?", "answers": [{"text": "b", "answer_start": 2}]}
    articles.write_text(json.dumps({"data": [{"paragraphs": [{"context": "a b", "qas": [question]}]}]}))
    assert load("answering", upload(articles)).train.texts == ["b?"]
    queries = write(tmp_path / "queries.csv", {"text": ["x", "y"], "label": ["1", "3"]})
    searched = load("embedding", upload(queries), passages="s3://cloze-test/tasks/a.csv")
    assert searched.passages is not None and searched.passages["3"] == "none"
    nowhere: Any = "s3://cloze-test/tasks/none.csv"
    assert fault("classification", nowhere).startswith(f"task.train={nowhere}: no such file or folder in the bucket;")
    folder: Any = "s3://cloze-test/tasks"
    assert "not one file" in fault("classification", folder)


@pytest.mark.parametrize("suffix", FORMATS)
def test_targets_of_the_other_kinds(tmp_path: Path, suffix: str) -> None:
    lists = suffix in ("jsonl", "json", "parquet", "arrow")
    several = [["b", "a"], [], ["a"]] if lists else ["b, a", "", "a"]
    tags = [["N", "V"], ["N", "V"], ["V"]] if lists else ["N V", " N  V ", "V"]
    columns = {
        "text": ["dogs bark", " cats  purr ", "go"], "number": [1, 2.5, -3e2], "several": several, "tags": tags,
        "first": ["x", "y", "z"], "second": ["p", "q", "r"], "right": ["A", "b", "1"],
        "cosine": [1, 0.25, -0.5],
    }  # fmt: skip
    path = write(tmp_path / f"a.{suffix}", columns)
    assert load("regression", path, label="number").train.targets == [1.0, 2.5, -300.0]
    labelled = load("multi_label", path, label="several")
    assert labelled.labels == ["a", "b"] and labelled.train.targets == [("b", "a"), (), ("a",)]
    tagged = load("tagging", path, label="tags").train
    assert tagged.words == [["dogs", "bark"], ["cats", "purr"], ["go"]]
    assert tagged.targets == [["N", "V"], ["N", "V"], ["V"]]
    choosing = load("multiple_choice", path, choices=("first", "second"), label="right")
    assert choosing.train.choices == [["x", "p"], ["y", "q"], ["z", "r"]] and choosing.train.targets == [0, 1, 1]
    assert choosing.labels == []
    pairs = load("embedding", path, text_pair="first")
    assert pairs.train.pairs == ["x", "y", "z"] and pairs.train.targets == [None] * 3 and pairs.labels == []
    alike = load("embedding", path, text_pair="first", label="cosine", loss="cosine")
    assert alike.train.targets == [1.0, 0.25, -0.5]
    softmax = load("embedding", path, text_pair="first", label="right", loss="softmax")
    assert softmax.labels == ["1", "A", "b"] and softmax.train.targets == ["A", "b", "1"]


def test_words_may_be_lists_and_chinese_without_spaces(tmp_path: Path) -> None:
    tags = "B-PER I-PER O B-ORG I-ORG I-ORG I-ORG O O"
    path = write(
        tmp_path / "a.jsonl",
        {"text": ["张三去北京大学参观", list("张三去北京大学参观")], "label": [tags, tags.split()]},
    )
    task = load("tagging", path)
    assert task.scheme == "bio" and task.train.words == [list("张三去北京大学参观")] * 2
    assert (
        task.train.texts == ["张三去北京大学参观", "张 三 去 北 京 大 学 参 观"]
        and task.train.targets == [tags.split()] * 2
    )


CONLL = "-DOCSTART- -X- O\n\nJohn NNP B-PER\nlives VB O\n\n\n# NN O\nParis NNP B-LOC\n"


@pytest.mark.parametrize("name", ["a.conll", "a.txt", "a.bio", "a.conll.gz"])
@pytest.mark.parametrize("separator", [" ", "\t", "   "])
def test_conll_has_a_word_on_each_line(tmp_path: Path, name: str, separator: str) -> None:
    path = tmp_path / name
    written = CONLL.replace(" ", separator).replace("\n", "\r\n").encode()
    path.write_bytes(gzip.compress(written) if name.endswith("gz") else written)
    task = load("tagging", path)
    assert task.train.words == [["John", "lives"], ["#", "Paris"]]
    assert task.train.targets == [["B-PER", "O"], ["O", "B-LOC"]] and task.labels == ["B-LOC", "B-PER", "O"]
    assert task.train.places == [f"{path}:3", f"{path}:7"] and task.train.texts == ["John lives", "# Paris"]


def test_white_space_may_be_a_word_and_stand_behind_a_tag(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text("a O \n\u3000 B-X\n \t\nb\tO\t\n\u00a0\tB-X\t\t\n", encoding="utf-8")
    task = load("tagging", path)
    assert task.train.words == [["a", "\u3000"], ["b", "\u00a0"]] and task.train.targets == [["O", "B-X"]] * 2
    listed = write(tmp_path / "a.jsonl", {"text": [["a", " ", "\n"], ["b"]], "label": [["N", "_", "_"], ["N"]]})
    assert load("tagging", listed).train.words == [["a", " ", "\n"], ["b"]]
    listed = write(tmp_path / "b.jsonl", {"text": [["a", ""]], "label": [["N", "_"]]})
    assert "word 2 of text is empty" in fault("tagging", listed)


def test_text_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"text,label\nx,a\ny,\xff\n")
    assert f"{path}:3: label is not valid text" in fault("classification", path)
    path.write_bytes(b"text,label\nx,a\n\xff,b\n")
    assert f"{path}:3: text is not valid text" in fault("classification", path)
    (tmp_path / "deep.json").write_text("[" * 100_000)
    assert "deep.json: no JSON of SQuAD's: nested too deeply" in fault("answering", tmp_path / "deep.json")


@pytest.mark.parametrize(
    "answers",
    [5, {"text": 5}, {"text": ["Bob"], "answer_start": [0, 1]}, {"text": ["Bob"], "answer_start": {}}, [5], [[]], [{}]],
)
def test_answers_of_no_known_shape(tmp_path: Path, answers: Any) -> None:
    path = write(tmp_path / "a.json", {"text": ["who?"], "context": ["Bob"], "label": [answers]})
    assert f"{path}:1: " in fault("answering", path) and "answer" in fault("answering", path)
    (tmp_path / "b.json").write_text(squad({"id": "7", "question": "who?", "answers": answers}, context="Bob"))
    assert "question 7: " in fault("answering", tmp_path / "b.json")


@pytest.mark.parametrize("article", [5, {}, {"paragraphs": 5}, {"paragraphs": [{"context": "x", "qas": 5}]}])
def test_articles_of_no_known_shape(tmp_path: Path, article: Any) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"data": [article]}))
    assert "article 1: no paragraphs with context and qas" in fault("answering", tmp_path / "a.json")


def test_tags_that_break_their_scheme_are_counted_and_mended(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text("a\tB-X\nb\tI-X\n\nc\tO\nd\tI-X\n\ne\tI-X\nf\tB-Y\ng\tI-X\n" + "\nh\tB-X\ni\tO\n" * 2)
    task = load("tagging", path)
    assert task.scheme == "bio"
    assert task.train.targets == [["B-X", "I-X"], ["O", "B-X"], ["B-X", "B-Y", "B-X"], *[["B-X", "O"]] * 2]
    (told, *_) = task.notes
    assert told == (
        f"task.train={path}: 3 tags in 2 sentences break the scheme bio, first {path}:4 word 2: I-X behind O; read as "
        f"conlleval reads them"
    )
    assert load("tagging", path, scheme="io").train.targets[2] == ["I-X", "I-Y", "I-X"]  # type: ignore[index]


def test_conllu_has_named_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.conllu"
    lines = ["# text = Don't", "1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_", "1\tDo\tdo\tAUX\tVBP\t_\t3\taux\t_\t_"]
    lines += ["2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_", "2.1\tgo\t_\tVERB\t_\t_\t_\t_\t_\t_", ""]
    path.write_text("\n".join(lines) + "\n")
    task = load("tagging", path)
    assert task.train.words == [["Do", "n't"]] and task.train.targets == [["AUX", "PART"]] and task.scheme is None
    assert load("tagging", path, label="xpos").train.targets == [["VBP", "RB"]]
    assert "task.label=tag: CoNLL-U has no such column; give one of id form" in fault("tagging", path, label="tag")
    path.write_text("1\tDo\tdo\tAUX\n\n")
    assert "first " + str(path) + ":1: sentence 1: 4 columns between tabs, not 10" in fault("tagging", path)


def squad(*questions: dict[str, Any], context: Any = "张三去北京。 Bob sleeps.") -> str:
    return json.dumps({"version": "1.1", "data": [{"paragraphs": [{"context": context, "qas": list(questions)}]}]})


def test_squad_with_several_answers_and_with_none(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    answers = [
        {"text": "北京", "answer_start": 3},
        {"text": "Bob ", "answer_start": 7},
        {"text": "Bob", "answer_start": 7},
    ]
    path.write_text(
        squad(
            {"id": "1", "question": " who? ", "answers": answers},
            {"id": "2", "question": "why?", "answers": [], "is_impossible": True},
            {"id": "3", "question": " ", "answers": []},
        )
    )
    task = load("answering", path)
    assert task.labels == [NO_ANSWER] and task.train.num_blank == 1
    assert task.train.texts == ["who?", "why?"] and task.train.targets == [[(3, "北京"), (7, "Bob")], []]
    assert task.train.places == [f"{path}: question 1", f"{path}: question 2"]
    only = tmp_path / "only.json"
    only.write_text(squad({"id": "1", "question": "who?", "answers": answers}))
    task = load("answering", only, path)
    assert task.labels == [] and "1 questions have no answer, in training all have" in " ".join(task.notes)


@pytest.mark.parametrize(
    ("question", "told"),
    [
        ({"id": "q7", "question": "who?", "answers": [{"text": "Bob", "answer_start": 8}]},
         "question q7: the answer 'Bob' does not stand in the context at character 8; there is 'ob '"),
        ({"id": "q7", "question": "who?", "answers": [{"text": "Bob", "answer_start": -1}]}, "at character -1"),
        ({"id": "q7", "question": "who?", "answers": [{"text": "Bob", "answer_start": "x"}]}, "at character x"),
        ({"id": "q7", "question": "who?", "answers": [{"text": " ", "answer_start": 5}]}, "the answer ' ' is no text"),
        ({"id": "q7", "question": 5, "answers": []}, "question or context is not text"),
        ({"id": "q7", "question": "who?"}, "article 1: a question without question and answers"),
        ({"id": "q7", "question": "who?", "answers": []}, "none of its 1 questions has an answer"),
    ],
)  # fmt: skip
def test_faults_of_squad_name_the_question(tmp_path: Path, question: dict[str, Any], told: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(squad(question))
    assert told in fault("answering", path)


def test_answers_in_columns(tmp_path: Path) -> None:
    answers = [{"text": ["Bob"], "answer_start": [4]}, {"text": [], "answer_start": []}]
    path = write(
        tmp_path / "a.parquet", {"question": ["who?", "why?"], "context": ["Bob Bob", "x"], "answers": answers}
    )
    task = load("answering", path, text="question", label="answers")
    assert task.train.targets == [[(4, "Bob")], []] and task.labels == [NO_ANSWER]
    told = fault("answering", path, text="question", label="answer")
    assert (
        "no column 'answer'; the columns there are: question, context, answers" in told and "task.label=COLUMN" in told
    )
    texts = write(tmp_path / "a.csv", {"text": ["who?"], "passage": ["Bob Bob"], "label": ["Bob"]})
    assert load("answering", texts, text_pair="passage").train.targets == [[(0, "Bob")]]
    texts = write(tmp_path / "b.csv", {"text": ["who?"], "context": ["Bob Bob"], "label": ["Tom"]})
    assert "b.csv:2: the answer 'Tom' does not stand in the context" in fault("answering", texts)


def test_queries_and_passages_by_id(tmp_path: Path) -> None:
    passages = write(tmp_path / "p.csv", {"id": [1, 2, 3], "text": ["one", "two", "three"]})
    queries = write(tmp_path / "q.csv", {"text": ["b?", "c?"], "label": [2, 3]})
    task = load("embedding", queries, passages=str(passages))
    assert task.passages == {"1": "one", "2": "two", "3": "three"}
    assert task.train.pairs == ["two", "three"] and task.train.passage_ids == ["2", "3"]
    assert task.train.targets == [None, None]
    lost = write(tmp_path / "l.csv", {"text": ["b?", "c?"], "label": [2, 9]})
    told = fault("embedding", lost, passages=str(passages))
    assert f"1 examples cannot be used, first {lost}:3: task.passages has no passage with the id '9'" in told
    for columns, told in [
        ({"id": [1, 1], "text": ["a", "b"]}, "p2.csv:3: another text for the id '1'"),
        ({"id": [1, 2], "text": ["a", " "]}, "p2.csv:3: no valid text"),
        ({"id": [1], "body": ["a"]}, "no column 'text'"),
        ({"id": [], "text": []}, "holds no passages"),
    ]:
        assert told in fault("embedding", queries, passages=str(write(tmp_path / "p2.csv", columns)))
    assert "no such file" in fault("embedding", queries, passages=str(tmp_path / "none.csv"))
    told = fault("embedding", queries, passages=str(passages), encoding="utf-9")
    assert told.startswith("task.encoding=utf-9: no text encoding")
    from_nought = write(tmp_path / "p.parquet", {"id": [0, 1], "text": ["none", "one"]})
    asked = write(tmp_path / "n.csv", {"text": ["a?"], "label": [0]})
    assert load("embedding", asked, passages=str(from_nought)).train.pairs == ["none"]


@pytest.mark.parametrize(
    ("kind", "columns", "told"),
    [
        ("classification", {"text": ["x", "y"], "label": ["a", "a"]}, "its 2 examples all have the label 'a' in"),
        ("classification", {"text": ["x", "y"], "label": ["a", "  "]}, "a.csv:3: no label"),
        ("classification", {"text": ["x"], "target": ["a"]}, "no column 'label'; the columns there are: text, target"),
        ("classification", {"text": [], "label": []}, "holds no examples"),
        ("classification", {"text": [" ", None], "label": ["a", "b"]}, "holds no examples (2 with a blank text)"),
        ("multi_label", {"text": ["x"], "label": [""]}, "have no label at all"),
        ("multi_label", {"text": ["x", "y"], "label": ["[0, 1, 0]", "[1, 1, 0]"]}, "is a vector of 0 and 1; give the"),
        ("multi_label", {"text": ["x"], "label": ["[" * 100_000]}, "no list in JSON nor labels between commas"),
        ("regression", {"text": ["x", "y"], "label": ["1", "9" * 400]}, "not a number"),
        ("multi_label", {"text": ["x"], "label": ["['a', 'b']"]}, "no list in JSON nor labels between commas"),
        ("regression", {"text": ["x", "y"], "label": [1, "three"]}, "a.csv:3: label is 'three', not a number"),
        ("regression", {"text": ["x", "y"], "label": ["1", "nan"]}, "a.csv:3: label is 'nan', not a number"),
        ("regression", {"text": ["x", "y"], "label": ["1", "1_0"]}, "label is '1_0', not a number"),
        ("regression", {"text": ["x", "y"], "label": ["1", None]}, "label is '', not a number"),
        ("tagging", {"text": ["a b", "a b c"], "label": ["N V", "N V"]}, "a.csv:3: 3 words in text, but 2 tags in"),
        ("tagging", {"text": ["a b"], "label": ["N N"]}, "all have the label 'N'"),
        ("multiple_choice", {"text": ["x"], "c": ["p"], "d": ["q"], "label": [2]}, "label is '2', not the number of a"),
        ("multiple_choice", {"text": ["x"], "c": ["p"], "d": ["q"], "label": ["C"]}, "0 to 1, nor A to B"),
        ("multiple_choice", {"text": ["x"], "c": ["p"], "d": [" "], "label": [0]}, "a.csv:2: no d"),
        ("embedding", {"text": ["x", "y"], "passage": ["p", " "]}, "a.csv:3: no passage, one side of a pair"),
        ("embedding", {"text": ["x", ""], "passage": ["p", "q"]}, "a.csv:3: no text, one side of a pair"),
        ("embedding", {"text": ["x"], "body": ["p"]}, "no column 'passage'; the columns there are: text, body"),
        ("answering", {"text": [""], "context": ["p"], "label": [""]}, "holds no examples (1 with a blank text)"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line(tmp_path: Path, kind: str, columns: dict[str, list[Any]], told: str) -> None:
    path = write(tmp_path / "a.csv", columns)
    line = fault(kind, path, choices=("c", "d"))
    assert line.startswith(f"task.train={path}: ") or "no column" in line
    assert told in line


def test_examples_with_a_blank_text_are_told(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", {"text": ["x", " ", "y", ""], "label": ["a", "b", "b", "a"]})
    assert f"task.train={path}: 2 examples with a blank text left out" in load("classification", path).notes


def test_a_slip_among_tags_does_not_make_them_parts_of_speech(tmp_path: Path) -> None:
    """Whose score would be of tokens, nearly all O, and not of entities."""
    sentences = "Ada B-PER\nLovelace I-PER\nsat O\n\n" * 10
    path = tmp_path / "a.conll"
    path.write_text(sentences + "Bob B_PER\n\n")
    told = f"task.train={path}: most tags mark entities, but 'B_PER' is of no scheme; repair the file"
    assert fault("tagging", path) == told
    path.write_text("Ada U-PER\nNew B-LOC\nYork L-LOC\nsat O\n\n" * 10 + "Bob U_PER\n\n")
    assert "'U_PER' is of no scheme" in fault("tagging", path)
    path.write_text("Ada NOUN\nsat VERB\nO X-ray\n\n" * 2)
    assert load("tagging", path).scheme is None
    path.write_text("".join(f"# id {n}  domain=en\n{sentences}" for n in range(3)))
    assert load("tagging", path).scheme == "bio"


def test_a_word_that_is_the_sign_of_a_comment(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text("# sentence 1 of 2\n# O\n1 O\nAda B-PER\n\nhome B-LOC\n# O\n")
    train = load("tagging", path).train
    assert train.words == [["#", "1", "Ada"], ["home", "#"]]


def test_a_validation_file_is_repaired_with_the_letters_of_the_training_file(tmp_path: Path) -> None:
    train, dev = tmp_path / "a.conll", tmp_path / "b.conll"
    train.write_text("Ada U-PER\nsat O\n\nNew B-LOC\nYork L-LOC\nCity O\n\n")
    dev.write_text("York L-LOC\nsat O\n\nNew B-LOC\nYork L-LOC\n\n")
    with pytest.raises(UserError, match="labels that task.train has not: 'U-LOC'"):
        load("tagging", train, dev)


def test_a_pair_with_one_side_missing(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", {"text": ["x", "y", ""], "second": ["p", "", ""], "label": ["a", "b", ""]})
    told = fault("classification", path, text_pair="second")
    assert f"1 examples cannot be used, first {path}:3: no second, one side of a pair" in told
    assert "a tagging task has no second text" in fault("tagging", path, text_pair="second")
    assert "task.choices=[]: a multiple_choice task has two or more" in fault("multiple_choice", path)
    twice = fault("multiple_choice", path, choices=("second", "second"))
    assert twice == "task.choices=['second', 'second']: a column stands twice; name each choice's own"


def test_numbers_that_no_cosine_can_be_are_refused(tmp_path: Path) -> None:
    """Likeness from 0 to 5, as the STS sets have it, would only pull all vectors together."""
    path = write(tmp_path / "a.csv", {"text": ["x", "y"], "passage": ["p", "q"], "label": [1, 4.2]})
    told = f"first {path}:3: label is 4.2, no cosine (-1 to 1); divide all by the largest that there may be"
    assert told in fault("embedding", path, loss="cosine")


def test_faults_of_conll_name_file_and_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text("a O\nb B-X\n\nc O\nd\n\ne O\nf\n")
    assert f"2 examples cannot be used, first {path}:5: sentence 2: it holds a word without a tag" in fault(
        "tagging", path
    )
    path.write_text("a\tO\n\tB-X\n")
    assert f"{path}:2: sentence 1: it holds a tag without a word" in fault("tagging", path)
    path.write_bytes(b"a O\n\xff O\n")
    assert f"{path}:2: sentence 1: it is not valid text" in fault("tagging", path)
    path.write_text("\n\n-DOCSTART- O\n\n")
    assert "holds no examples; give a file with words and tags" in fault("tagging", path)
    path.write_text("a NOUN\nb VERB\n")
    assert "task.scheme=bio: tags of" in fault("tagging", path, scheme="bio")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    good = write(tmp_path / "good.csv", {"text": ["x", "y"], "label": ["a", "b"]})
    assert "no such file" in fault("classification", tmp_path / "none.csv", good)
    (tmp_path / "words.txt").write_text("x")
    assert "its suffix tells no format; give one of .jsonl" in fault("classification", tmp_path / "words.txt", good)
    (tmp_path / "a.json").write_text('{"data": [')
    assert "a.json:1: no JSON: " in fault("answering", tmp_path / "a.json")
    (tmp_path / "cut.conll.gz").write_bytes(gzip.compress(b"a O\n" * 1000)[:-20])
    assert "cut.conll.gz: cannot be read: " in fault("tagging", tmp_path / "cut.conll.gz")
    with pytest.raises(UserError) as error:
        load("classification", tmp_path / "none.csv", tmp_path / "also.csv", test=str(good))
    assert [line.split("=")[0] for line in str(error.value).splitlines()] == ["task.train", "task.validation"]
    told = fault("regression", Path("docstrings"), good)
    assert told.startswith(
        "task.train=docstrings: the built-in task is of kind classification, head.kind is regression"
    )


@pytest.mark.parametrize(
    ("kind", "train", "other", "named"),
    [
        (
            "classification",
            ["a", "b"],
            ["a", "c"],
            "1 example with labels that task.train has not: 'c' (it has 'a', 'b')",
        ),
        ("multi_label", ["a,b", ""], ["a,d,c", "d"], "2 examples with labels that task.train has not: 'c', 'd'"),
        ("tagging", ["N", "V"], ["N", "X"], "1 example with labels that task.train has not: 'X'"),
    ],
)
def test_labels_that_training_has_not(tmp_path: Path, kind: str, train: list, other: list, named: str) -> None:
    first = write(tmp_path / "a.csv", {"text": ["x", "y"], "label": train})
    second = write(tmp_path / "b.csv", {"text": ["p", "q"], "label": other})
    assert fault(kind, first, second).startswith(f"task.validation={second}: {named}")
    with pytest.raises(UserError, match=r"task.validation=.*\ntask.test="):
        load(kind, first, second, test=str(second))


def test_copies_across_splits_and_constant_numbers_are_notes(tmp_path: Path) -> None:
    first = write(tmp_path / "a.csv", {"text": ["x", "y", "z"], "label": [1, 1, 1]})
    second = write(tmp_path / "b.csv", {"text": ["x", "q", "x"], "label": [1, 2, 1]})
    notes = load("regression", first, second).notes
    assert notes[0].startswith(f"task.train={first}: label is 1 in all examples")
    assert notes[1].startswith(f"task.validation={second}: 2 of 3 examples (66.7%) stand in task.train too")


def test_train_size_is_a_prefix_of_one_shuffle_of_whole_examples(tmp_path: Path) -> None:
    texts = [f"w{i} w{i}" for i in range(100)]
    path = write(tmp_path / "a.csv", {"text": texts, "label": [f"t{i} t{i}" for i in range(100)]})
    ten, twenty = (load("tagging", path, train_size=size).train for size in (10, 20))
    assert twenty.texts[:10] == ten.texts and ten.texts != texts[:10] and len(twenty) == 20
    assert ten.words == [text.split() for text in ten.texts]
    assert ten.targets == [text.replace("w", "t").split() for text in ten.texts]
    assert ten.places == [f"{path}:{int(text.split()[0][1:]) + 2}" for text in ten.texts]
    assert load("tagging", path, train_size=10).labels == load("tagging", path).labels  # of the whole file
    assert load("tagging", path, train_size=10, seed=1).train.texts != ten.texts
    assert load("tagging", path, train_size=1000).train.texts == texts


@pytest.mark.shared
def test_real_sets_are_read_whole(shared: Path, tmp_path: Path) -> None:
    sst = load("classification", shared / "tsv" / "sst2_train.tsv", shared / "tsv" / "sst2_dev.tsv",
               test=str(shared / "tsv" / "sst2_test.tsv"))  # fmt: skip
    assert sst.test is not None and sst.labels == ["negative", "positive"]
    assert [len(split) for split in (sst.train, sst.validation, sst.test)] == [6920, 872, 1821]
    trec = load("classification", shared / "tsv" / "trec_train.tsv", shared / "tsv" / "trec_test.tsv", label="fine")
    assert (len(trec.train), len(trec.validation), len(trec.labels)) == (5452, 500, 50)
    folder = shared / "pair_en_sick"
    sick = {}
    for split in ("train", "trial", "test_annotated"):
        sick[split] = tmp_path / f"{split}.tsv"  # the suffix is all that is missing
        sick[split].symlink_to(folder / f"SICK_{split}.txt")
    columns = {"text": "sentence_A", "text_pair": "sentence_B", "test": str(sick["test_annotated"])}
    pairs = load("classification", sick["train"], sick["trial"], label="entailment_judgment", **columns)
    assert pairs.labels == ["CONTRADICTION", "ENTAILMENT", "NEUTRAL"] and pairs.test is not None
    assert [len(split) for split in (pairs.train, pairs.validation, pairs.test)] == [4500, 500, 4927]
    numbers = load("regression", sick["train"], sick["trial"], label="relatedness_score", **columns).train
    assert numbers.targets is not None and numbers.pairs is not None
    assert numbers.targets[0] == 4.5 and min(numbers.targets) == 1 and max(numbers.targets) == 5
    words = load("tagging", shared / "pos_en_ud_ewt" / "en_ewt-ud-dev.conllu")
    assert (len(words.train), sum(map(len, words.train.words or [])), len(words.labels)) == (2001, 25147, 17)
    assert words.scheme is None


@pytest.mark.shared
def test_real_slots_and_choices_by_columns(shared: Path, tmp_path: Path) -> None:
    files = {}
    for split in ("train", "dev"):
        texts, tags = (
            (shared / "slot_en_snips" / split / name).read_text(encoding="utf-8").splitlines()
            for name in ("seq.in", "seq.out")
        )
        files[split] = write(tmp_path / f"{split}.jsonl", {"text": texts, "label": tags})
    slots = load("tagging", files["train"], files["dev"])
    assert (len(slots.train), len(slots.validation), slots.scheme, len(slots.labels)) == (13084, 700, "bio", 72)
    assert slots.train.words is not None and all(slots.train.words)
    with (shared / "mc_en_codah" / "full_data.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    names = ("category", "text", "a", "b", "c", "d", "label")
    path = write(tmp_path / "codah.jsonl", dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
    choosing = load("multiple_choice", path, choices=tuple("abcd")).train
    assert len(choosing) == 2776 and choosing.targets is not None and set(choosing.targets) == {0, 1, 2, 3}
