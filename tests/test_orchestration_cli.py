"""The command line: mistakes are one line and exit code 2 before anything starts; our own faults are exit code 1."""

import os
import subprocess
import sys
import time

import pytest

from orchestration.cli import VERBS, main

TASK = ["task.train=train.csv", "task.validation=dev.csv"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder to stand in, with a corpus, a task and no Ray to join."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (tmp_path / "corpus.txt").write_text("some words\n\nand more of them\n")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "broken.yaml").write_text("name: x\npretrain: {steps: [1\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "picture.png").write_bytes(b"\x89PNG")
    (tmp_path / "train.csv").write_text("text,label\n" + "".join(f"word {i},{'ab'[i % 2]}\n" for i in range(20)))
    (tmp_path / "dev.csv").write_text("text,label\nword,a\nmore,b\n")
    (tmp_path / "three.csv").write_text("text,label\na,x\nb,y\nc,x\n")
    (tmp_path / "one.csv").write_text("text,label\nword,a\nmore,a\n")
    (tmp_path / "new.csv").write_text("text,label\nword,a\nmore,zebra\n")
    return tmp_path


@pytest.mark.parametrize(
    "words, line",
    [
        ("pretrain corpus.sources=corpus.txt", "name: missing; give name=NAME"),
        ("pretrain name=x corpus.sources=nowhere.txt", "nowhere.txt"),
        ("pretrain name=x corpus.sources=empty.txt", "empty"),
        ("pretrain name=x corpus.sources=folder", "folder"),
        ("pretrain name=x corpus.sources=*.nothing", "*.nothing"),
        ("pretrain name=x pretrain.stepz=3", "pretrain.stepz: unknown key; did you mean steps?"),
        ("pretrain name=x pretrain.steps=soon", "pretrain.steps='soon': input should be a valid integer"),
        ("pretrain name=x rows.length=9999", "rows.length=9999 is more than encoder.max_position_embeddings=512"),
        ("pretrain -c nope", "-c nope: no such recipe; give a YAML file or one of: albert_base, "),
        ("pretrain -c broken.yaml", "-c broken.yaml, line "),
        ("pretrain name=x corpus.sources=corpus.txt scaling.workers=400", "needs 200 CPUs and 0.5 for Ray Data"),
        ("pretrain name=x corpus.sources=corpus.txt scaling.gpus_per_worker=40", "needs 80 GPUs, the cluster has"),
        ("pretrain name=x corpus.sources=corpus.txt storage=corpus.txt/runs", "storage=corpus.txt/runs: "),
        ("pretrain name=x corpus.sources=corpus.txt storage=/proc", "storage=/proc: /proc cannot be written"),
        ("pretrain name=x corpus.sources=corpus.txt cluster.address=127.0.0.1:1", "no Ray answers there"),
        ("pretrain name=x corpus.sources=corpus.txt cluster.address=nonsense", "cluster.address=nonsense: no Ray"),
        ("pretrain name=x corpus.sources=corpus.txt storage=nfs://b/runs", "storage=nfs://b/runs: neither"),
        ("pretrain name=x corpus.sources=corpus.txt encoder.init=a", "encoder.init=a brings a vocabulary; give tok"),
        ("pretrain name=x corpus.sources=corpus.txt tokenizer.path=folder", "folder"),
        ("sweep name=x task.train=train.csv task.group=who", "no column 'who'; the columns there are: text, label"),
        ("sweep name=x task.train=train.csv task.metric=pearson", "task.metric=pearson: is not for kind class"),
        ("sweep name=x task.train=three.csv", "task.validation_fraction=0.1: of the 3 examples of task."),
        ("sweep name=x task.train=train.csv", "sweep.encoders=pretrained: no encoder in"),
        ("sweep name=x task.train=no.csv task.validation=dev.csv", "no.csv"),
        ("sweep name=x task.train=train.csv task.validation=dev.csv head.kind=multi_label task.label=klass", "klass"),
        ("sweep name=x task.train=one.csv task.validation=dev.csv", "one.csv"),
        ("sweep name=x task.train=train.csv task.validation=new.csv", "zebra"),
        ("sweep name=x task.train=train.csv task.validation=dev.csv", "cloze pretrain"),
        ("sweep name=x sweep.space={finetune.epoch:[1]}", "finetune.epoch"),
        ("sweep name=x sweep.space={finetune.epochs:[]}", "finetune.epochs"),
        ("sweep name=x task.metric=f2", "task.metric='f2': input should be 'accuracy'"),
        ("report nothing", "runs/nothing: no such run"),
        ("predict folder corpus.txt", "folder"),
        ("predict nowhere corpus.txt", "nowhere"),
        ("embed nowhere corpus.txt", "nowhere"),
        ("fill nowhere [MASK]", "nowhere"),
        ("pretrain name=x corpus.sources=corpus.txt pretrain.precision=fp16", "no worker asks for a GPU"),
        ("pretrain name=x corpus.sources=corpus.txt cluster.address=http://h:8265", "that is a dashboard; a run joins"),
        ("submit pretrain --detach name=x", "--detach stands behind pretrain; give it before the verb"),
    ],
)
def test_a_mistake_is_one_line_exit_2_and_leaves_nothing(here, capsys, words, line):
    begun = time.monotonic()
    code = main(words.split())
    error = capsys.readouterr().err
    assert code == 2, error
    assert all(text.startswith("cloze: ") for text in error.splitlines())
    assert len(error.splitlines()) == 1 + ("klass" in words), error  # a column that two files lack is two faults
    assert line in error
    assert not (here / "runs").exists(), sorted(here.rglob("runs/**"))
    assert time.monotonic() - begun < 60


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
@pytest.mark.parametrize(
    ("verb", "name", "value", "line"),
    [
        ("pretrain", "CLOZE_FAULT", "kill", "cloze: CLOZE_FAULT=kill: no fault; give KIND:RANK:STEP[:STAGE], KIND "),
        ("pretrain", "CLOZE_FAULT", "- kill:1:2:asleep", "cloze: CLOZE_FAULT=kill:1:2:asleep: no fault; give "),
        ("pretrain", "CLOZE_LOGICAL_GPUS", "yes", "cloze: CLOZE_LOGICAL_GPUS=yes: neither 0 nor 1; give 1 where "),
        ("sweep", "CLOZE_LOGICAL_GPUS", "2", "cloze: CLOZE_LOGICAL_GPUS=2: neither 0 nor 1; give 1 where "),
    ],
)
def test_a_switch_of_tests_that_means_nothing_is_told_at_once(here, monkeypatch, capsys, verb, name, value, line, dry):
    """Before a corpus is looked for, or Ray asked."""
    monkeypatch.setenv(name, value)
    assert main([verb, "name=x", "corpus.sources=nowhere.txt", "cluster.address=127.0.0.1:1", *dry]) == 2
    error = capsys.readouterr().err
    assert error.startswith(line) and len(error.splitlines()) == 1
    assert not (here / "runs").exists()


def test_a_folder_that_is_gone_is_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["status"]) == 2
    assert capsys.readouterr().err == "cloze: the current folder is gone; change to one that is there\n"


def test_two_workers_that_leave_ray_data_no_cpu_are_refused(here, capsys):
    """Two 1-CPU workers on two CPUs would wait for their first row for ever."""
    cpus = os.cpu_count() or 1
    code = main(["pretrain", "name=x", "corpus.sources=corpus.txt", "scaling.workers=2",
                 f"scaling.cpus_per_worker={cpus / 2}"])  # fmt: skip
    error = capsys.readouterr().err
    assert code == 2
    assert f"needs {cpus} CPUs and 0.5 for Ray Data, the cluster has {cpus}" in error
    assert "give scaling.workers<=1, a smaller scaling.cpus_per_worker" in error


def test_an_internal_error_exits_1_with_its_traceback_in_the_log(here, ray_4_cpus):
    """A fault of ours: a function of the driver that is not there."""
    program = """
from orchestration import cli, trainer
del trainer.prepare_rows
raise SystemExit(cli.main(["pretrain", "name=x", "corpus.sources=corpus.txt"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=here, capture_output=True, text=True, timeout=120,
        env={**os.environ, "RAY_ADDRESS": ray_4_cpus},
    )  # fmt: skip
    assert done.returncode == 1
    assert "cloze: pretrain failed: " in done.stderr and "cloze: log: runs/x/log/driver.log" in done.stderr
    assert "Traceback" not in done.stderr
    assert "AttributeError" in (here / "runs/x/log/driver.log").read_text()


@pytest.mark.parametrize("words", [["--help"], *[[verb, "--help"] for verb in VERBS]])
def test_help_is_quick_and_whole(words):
    """Loads no library: what costs half a second is an import."""
    program = f"""
import sys
from orchestration.cli import main
try:
    main({words!r})
except SystemExit as end:
    assert end.code == 0
heavy = {{"ray", "torch", "transformers", "pydantic", "numpy", "pyarrow", "rich", "matplotlib"}} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "usage: cloze" in done.stdout


def test_show_prints_what_reads_back(here, capsys):
    assert main(["show", "-c", "demo", "pretrain.steps=5", "pretrain.learning_rate=1e-4"]) == 0
    (here / "again.yaml").write_text(capsys.readouterr().out)
    assert main(["show", "-c", "again.yaml"]) == 0
    assert capsys.readouterr().out == (here / "again.yaml").read_text()
    budget = ["pretrain.steps=null", "pretrain.budget.tokens=5e9"]  # below a section that stands there as null
    assert main(["show", "-c", "again.yaml", *budget]) == 0 and "tokens: 5000000000" in capsys.readouterr().out
    assert "learning_rate: 0.0001" in (here / "again.yaml").read_text()


def test_a_report_is_of_the_run_though_a_folder_here_has_its_name(here, capsys):
    """That of its texts, say."""
    for folder in (here / "law", here / "runs" / "law"):
        folder.mkdir(parents=True)
    (here / "runs" / "law" / "config.yaml").write_text("name: law")
    assert main(["report", "law"]) == 2 and "runs/law: nothing to report yet" in capsys.readouterr().err
    assert main(["report", "runs/law"]) == 2 and "runs/law: nothing to report yet" in capsys.readouterr().err


def test_options_and_overrides_mix(here, capsys):
    assert main(["pretrain", "name=x", "--dry-run", "corpus.sources=corpus.txt", "-c", "demo", "zero.stage=2"]) == 0
    out = capsys.readouterr().out
    assert "ZeRO stage 2" in out and "16 = 2 workers x 1 x 8" in out
    assert not (here / "runs").exists()


def test_a_recipe_for_gpus_runs_dry_on_a_cluster(here, ray_4_cpus):
    """On logical GPUs, in a process of its own."""
    recipe, more = "pretrain_base", ["scaling.cpus_per_worker=0.4"]
    done = subprocess.run(
        [sys.executable, "-m", "orchestration", "pretrain", "-c", recipe, "--dry-run", *more], cwd=here,
        capture_output=True, text=True, timeout=120, env={**os.environ, "RAY_ADDRESS": ray_4_cpus},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "parameters" in done.stdout and "steps" in done.stdout
    assert "109,514,298" in done.stdout
    too_many = subprocess.run(
        [sys.executable, "-m", "orchestration", "pretrain", "-c", recipe, "--dry-run", "scaling.workers=9", *more],
        cwd=here, capture_output=True, text=True, timeout=120, env={**os.environ, "RAY_ADDRESS": ray_4_cpus},
    )  # fmt: skip
    assert too_many.returncode == 2
    assert "needs 9 GPUs, the cluster has 8" in too_many.stderr
    assert not (here / "runs").exists()
