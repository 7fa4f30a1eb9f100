"""Several tasks in one command: their configs, their folders, the table, a task that fails as a whole."""

import json
from pathlib import Path

import pytest
from test_tuning_sweep import configure, quiet, stamps
from tiny_encoder import make_examples, write_encoder

from data.config import UserError
from orchestration.task_configs import task_configs
from tuning.suite import suite


def write_task(folder: Path, name: str, number: int, classes: int = 3) -> dict[str, object]:
    """Files of a task, as a sweep's tasks name them."""
    for split, seed in (("train", 1), ("dev", 2)):
        examples = make_examples(number, seed, classes)
        pairs = zip(examples.texts, examples.targets or [], strict=True)
        (folder / f"{name}-{split}.tsv").write_text("text\tlabel\n" + "".join(f"{t}\t{c}\n" for t, c in pairs))
    files = {"task.train": f"{folder}/{name}-train.tsv", "task.validation": f"{folder}/{name}-dev.tsv"}
    return {**files, "head.kind": "classification"}


def test_each_task_is_the_common_config_with_its_own_keys(tmp_path) -> None:
    tasks = {
        "one": {"task.train": "a.tsv", "finetune.length": 12},
        "two": {"task": {"train": "b.tsv", "validation": "c.tsv"}, "sweep.space": {"finetune.learning_rate": [1e-2]}},
    }
    config = configure(tmp_path, {"finetune.epochs": [1]}, **{"sweep.tasks": tasks, "sweep.encoders": ["x"]})
    found = task_configs(config)
    assert list(found) == ["one", "two"] and all(not one.sweep.tasks for one in found.values())
    assert (found["one"].task.train, found["one"].finetune.length, found["one"].sweep.space) == (
        "a.tsv", 12, {"finetune.epochs": [1]},
    )  # fmt: skip
    two = found["two"]
    assert (two.task.train, two.task.validation, two.finetune.length) == ("b.tsv", "c.tsv", 16)
    assert two.sweep.space == {"finetune.learning_rate": [1e-2]} and two.sweep.encoders == ("x",)


@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        ({"a/b": {}}, ["sweep.tasks.a/b", "no name of a folder"]),
        ({"best": {}}, ["sweep.tasks.best", "no name of a folder"]),
        ({"a": {"storage": "x"}}, ["sweep.tasks.a.storage", "in common"]),
        ({"a": {"sweep.tasks": {}}}, ["sweep.tasks.a.sweep.tasks", "without sweep.tasks"]),
        ({"a": {"task.trian": "x"}}, ["sweep.tasks.a: task.trian", "did you mean train?"]),
        ({"a": {"finetune.length": 1}}, ["sweep.tasks.a: finetune.length", "greater than or equal to 4"]),
    ],
)
def test_wrong_tasks_are_one_line_each(tmp_path, tasks: dict, words: list[str]) -> None:
    with pytest.raises(UserError) as error:
        task_configs(configure(tmp_path, {}, **{"sweep.tasks": tasks}))
    assert "\n" not in str(error.value) and all(word in str(error.value) for word in words)


def test_a_suite_makes_a_table_and_a_task_that_fails_ends_no_other(ray_4_cpus, tmp_path) -> None:
    write_encoder(tmp_path / "tiny" / "export")
    tasks = {
        "three": write_task(tmp_path, "three", 40),
        "few": {**write_task(tmp_path, "few", 12), "sweep.train_sizes": [30]},
        "two": write_task(tmp_path, "two", 40, 2),
    }
    space = {"finetune.mode": "frozen", "finetune.epochs": 2}
    config = configure(tmp_path, space, **{"sweep.tasks": tasks, "sweep.seeds": 1})
    run, seen, told = tmp_path / "tiny-sweep", list[tuple[str, float | None]](), list[str]()

    def progress(text: str, fraction: float | None = None, **facts: object) -> None:
        seen.append((text, fraction))

    boards = suite(config, run, progress, told.append)
    assert list(boards) == ["three", "two"]
    for name, entries in boards.items():
        assert json.loads((run / name / "leaderboard.json").read_text()) == entries
        assert {entry["encoder"] for entry in entries} == {"pretrained", "random"}
        assert (run / name / "best" / "config.json").is_file() and len(stamps(run / name)) == 2
    rows = json.loads((run / "suite.json").read_text())
    assert [row["task"] for row in rows] == ["three", "three", "two", "two", "few"]
    assert "12 training examples, not 30" in rows[-1]["error"] and not (run / "few").exists()
    assert len((run / "suite.csv").read_text().splitlines()) == 6
    fractions = [fraction for _, fraction in seen if fraction is not None]
    assert {text.split(":")[0] for text, _ in seen} == set(tasks) and max(fractions) <= 1.0

    before = {name: stamps(run / name) for name in boards}
    assert suite(config, run, quiet) == boards and {name: stamps(run / name) for name in boards} == before


def test_a_suite_of_which_nothing_came_says_why(tmp_path) -> None:
    tasks = {"one": {"task.train": str(tmp_path / "missing.tsv"), "head.kind": "classification"}}
    write_encoder(tmp_path / "tiny" / "export")
    config = configure(tmp_path, {"finetune.epochs": 1}, **{"sweep.tasks": tasks})
    (tmp_path / "run").mkdir()
    with pytest.raises(RuntimeError, match="no task came to anything; one: .*missing.tsv"):
        suite(config, tmp_path / "run", quiet)
    assert json.loads((tmp_path / "run" / "suite.json").read_text())[0]["status"] == "failed"
