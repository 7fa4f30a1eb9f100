"""What a sweep makes of a task that leaves its kind open, and of labels that training has not: told, and counted."""

from pathlib import Path
from typing import Any

import pytest
from test_data_tasks import squad, write
from tiny_encoder import write_encoder

from data.config import UserError
from model.config import Head
from orchestration.cluster import Node
from orchestration.config import Config
from orchestration.recipe import build_config
from tuning.config import Finetune
from tuning.finetune import Work, run_trial
from tuning.inputs import goal_of, load_task, read_part, resolved
from tuning.sweep import check

NODES = [Node(4, 0)]


def configure(tmp_path: Path, **changes: Any) -> Config:
    values = {"name": "x", "storage": str(tmp_path), "sweep": {"encoders": [str(tmp_path / "encoder")]}}
    return build_config(values, changes)


def test_what_is_open_is_found_and_told_once(tmp_path: Path) -> None:
    write_encoder(tmp_path / "encoder", positions=64)
    columns = {"sentence1": [f"w{i}" for i in range(40)], "sentence2": ["w1 w2"] * 40, "label": [*"ab" * 20]}
    path = write(tmp_path / "a.csv", columns)
    config = configure(tmp_path, **{"task.train": str(path)})
    told: list[str] = []
    known = resolved(config, told.append)
    assert (known.head.kind, known.task.text, known.task.text_pair) == ("classification", "sentence1", "sentence2")
    assert told == [
        f"kind classification, found from task.train={path} (2 different labels in label; texts in sentence1 and "
        f"sentence2); give head.kind=KIND for another"
    ]
    assert config.head.kind is None and resolved(known, told.append) is known and len(told) == 1
    notes = check(config, NODES)
    assert notes[0] == told[0] and "of its 40 examples 4 for validation and 4 for test are held out" in notes[1]
    task = load_task(known, tmp_path, lambda text, fraction: None)
    assert task.train.pairs is not None and goal_of(known, task).columns == ("sentence1", "sentence2")
    with pytest.raises(ValueError, match="head.kind is open"):
        load_task(config, tmp_path, lambda text, fraction: None)
    built_in = resolved(configure(tmp_path), told.append)
    assert built_in.head.kind == "classification" and len(told) == 1


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"head.crf": True}, "tagging"),
        ({"head.loss": "cosine"}, "embedding"),
        ({"head.query_prefix": "query: "}, "embedding"),
        ({"head.class_weights": "balanced"}, "classification"),
        ({"head.pooling": "mean"}, "classification"),
        ({"head.kind": "regression"}, "regression"),
        ({"task.choices": ["a", "b"]}, "multiple_choice"),
    ],
)
def test_settings_of_one_kind_tell_it(tmp_path: Path, changes: dict[str, Any], kind: str) -> None:
    path = write(tmp_path / "a.csv", {"text": ["w1 w2", "w3"], "label": ["a", "b"]})
    assert resolved(configure(tmp_path, **{"task.train": str(path)}, **changes)).head.kind == kind


def test_what_does_not_fit_the_kind_found_says_what_was_found(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", {"text": ["x y", "z"], "label": ["0.5", "2"]})
    for changes, line in [
        ({"head.class_weights": "balanced"}, "head: class_weights and label_smoothing are for labels, not for regress"),
        ({"task.metric": "accuracy"}, "task.metric=accuracy: is not for kind regression; give one of spearman, pear"),
    ]:
        for asked in (lambda config: resolved(config), lambda config: check(config, NODES)):
            with pytest.raises(UserError) as error:
                asked(configure(tmp_path, **{"task.train": str(path)}, **changes))
            assert str(error.value).startswith(line) and len(str(error.value).splitlines()) == 1
            assert f" (kind regression, found from task.train={path} (numbers with fractions in" in str(error.value)


def test_the_metric_of_tags_is_judged_by_what_they_mark(tmp_path: Path) -> None:
    """entity_f1 may be asked for without the scheme, which the file tells."""
    (tmp_path / "a.conll").write_text("a O\nb B-X\n\nc B-X\n" * 20)
    (tmp_path / "b.conll").write_text("a N\nb V\n\nc V\n" * 20)
    for name, fits in (("a", True), ("b", False)):
        config = resolved(configure(tmp_path, **{"task.train": f"{tmp_path}/{name}.conll", "task.metric": "entity_f1"}))
        task = load_task(config, tmp_path, lambda text, fraction: None)
        if fits:
            assert goal_of(config, task).metric == "entity_f1"
            continue
        with pytest.raises(UserError, match="task.metric=entity_f1: is not for tags that mark no entities"):
            goal_of(config, task)


def test_columns_that_the_winner_will_ask_for(tmp_path: Path) -> None:
    answers = [{"text": "Bob", "answer_start": 8}]
    (tmp_path / "a.json").write_text(squad({"id": "1", "question": "who?", "answers": answers}, context="This is Bob"))
    (tmp_path / "b.conll").write_text("a N\nb V\n\n")
    table = write(tmp_path / "c.json", {"text": ["x", "y"], "label": ["a", "b"]})
    for path, kind, columns in [
        (tmp_path / "a.json", "answering", ()),
        (tmp_path / "b.conll", "tagging", ()),
        (table, "classification", ("text",)),
    ]:
        config = resolved(configure(tmp_path, **{"task.train": str(path), "task.validation": str(path)}))
        task = load_task(config, tmp_path, lambda text, fraction: None)
        assert task.kind == kind and goal_of(config, task).columns == columns


@pytest.mark.parametrize("kind", ["classification", "multi_label", "tagging"])
def test_labels_that_training_has_not_are_errors_of_the_score(tmp_path: Path, one_thread: None, kind: str) -> None:
    """Four validation examples that a head learns, four with a label it cannot know: n is all eight."""
    encoder = write_encoder(tmp_path / "encoder", width=32)
    known = {"w1": "a", "w2": "b"}
    train = write(tmp_path / "a.jsonl", {"text": [*known] * 16, "label": [*known.values()] * 16})
    other = write(tmp_path / "b.jsonl", {"text": [*known] * 4, "label": ["a", "b"] * 2 + ["zebra"] * 4})
    changes = {"task.train": str(train), "task.validation": str(other), "head.kind": kind, "task.metric": "accuracy"}
    with pytest.raises(UserError, match="4 examples with labels that task.train has not: 'zebra' .it has 'a', 'b'."):
        load_task(configure(tmp_path, **changes), tmp_path, lambda text, fraction: None)
    config = configure(tmp_path, **changes, **{"task.unseen_labels": "count_wrong"})
    task = load_task(config, tmp_path, lambda text, fraction: None)
    goal = goal_of(config, task)
    head = Head.model_validate(config.head.model_dump())
    settings = Finetune(mode="full", learning_rate=3e-3, epochs=8, length=8, global_batch=8)
    parts = [read_part(split, task, goal, encoder, settings, head) for split in (task.train, task.validation)]
    assert goal.labels == ("a", "b")
    outcome, _ = run_trial(Work(settings, head, encoder, goal, parts[0].encoded, parts[1], 0), lambda record: None)
    assert outcome["status"] == "done" and outcome["score"] == 4 / 8
