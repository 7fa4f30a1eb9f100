"""What `cloze status` reads out of a run's files, and how the driver writes them."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_orchestration_progress import run_in_terminal

from data import storage
from data.config import UserError
from orchestration import pulse
from orchestration.cli import main
from orchestration.progress import Progress
from orchestration.pulse import beating
from orchestration.recipe import build_config
from orchestration.run import held
from orchestration.status import find_run, find_runs, is_over, overview, page, read_status

STATUS = {
    "run": "law", "state": "running", "cause": None, "stage": "pretrain", "text": "step 40/100", "fraction": 0.4,
    "eta_seconds": 90.0, "steps": 100, "step": 40, "loss": 5.25, "tokens_per_second": 12345.6, "workers": 2,
    "restarts": 1, "host": "here", "pid": 1,
}  # fmt: skip


class Lines:
    """Takes what progress says."""

    def write(self, text: str) -> None: ...

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return False


def write(storage: Path, name: str, **facts) -> Path:
    run = storage / name
    run.mkdir(parents=True)
    now = time.time()
    (run / "config.yaml").write_text("name: x")
    (run / "status.json").write_text(json.dumps({**STATUS, "run": name, "began": now - 60, "beat": now, **facts}))
    return run


def status_of(run: Path) -> dict:
    return json.loads((run / "status.json").read_text())


def test_the_driver_says_where_it_is_and_how_it_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(pulse, "BEAT_SECONDS", 0.05)
    with beating(tmp_path, {"steps": 10, "workers": 2}) as heart:
        assert status_of(tmp_path)["state"] == "running"
        with Progress(Lines(), heart.watch).stage("pretrain") as update:
            assert status_of(tmp_path)["stage"] == "pretrain"
            update("step 5/10", 0.5, step=5, loss=2.0)
            until = time.monotonic() + 30
            while status_of(tmp_path).get("step") != 5 and time.monotonic() < until:
                time.sleep(0.02)
            status = status_of(tmp_path)
            assert (status["step"], status["steps"], status["loss"], status["fraction"]) == (5, 10, 2.0, 0.5)
            update("step 10/10", 1.0, step=10)
    status = status_of(tmp_path)
    assert (status["state"], status["cause"], status["step"], status["loss"]) == ("finished", None, 10, 2.0)


@pytest.mark.parametrize(
    ("error", "state", "cause"),
    [
        (RuntimeError("rank 1, step 7: ValueError: x"), "failed", "rank 1, step 7: ValueError: x"),
        (KeyboardInterrupt("stopped and saved at step 7"), "stopped", "stopped and saved at step 7"),
        (KeyboardInterrupt(), "stopped", None),
        (UserError("a mistake"), "failed", "a mistake"),
    ],
)
def test_an_end_with_an_exception_is_told(tmp_path, error, state, cause):
    with pytest.raises(type(error)), beating(tmp_path, {}):
        raise error
    assert (status_of(tmp_path)["state"], status_of(tmp_path)["cause"]) == (state, cause)


def test_a_status_that_cannot_be_written_ends_no_run(tmp_path):
    with beating(tmp_path / "gone", {}):
        pass


def test_running_is_believed_while_the_driver_lives(tmp_path):
    config = build_config({"name": "law", "storage": str(tmp_path)}, {})
    run = tmp_path / "law"
    with held(run, config), beating(run, {"steps": 10}):
        assert read_status(run)["state"] == "running"
        kept = (run / "status.json").read_text()
    assert read_status(run)["state"] == "finished"
    (run / "status.json").write_text(kept)  # as a killed driver leaves it
    lost = read_status(run)
    assert lost["state"] == "lost" and is_over(lost)
    assert "its driver is gone without a word" in "\n".join(page(lost))


def test_a_page_tells_all_that_is_known(tmp_path):
    run = write(tmp_path, "law", state="finished")
    *lines, began = page(read_status(run))
    assert lines == [
        "law",
        "  state     finished",
        "  stage     pretrain  40%",
        "  step      40 of 100",
        "  loss      5.250",
        "  speed     12,346 tokens/s",
        "  workers   2",
        "  restarts  1",
    ]
    assert re.fullmatch(r"  began     1 min \d\d s ago on here", began)


def test_a_sweep_shows_its_trials_and_who_leads(tmp_path):
    entry = {"encoder": "pretrained", "mode": "full", "learning_rate": 2e-3, "score_mean": 0.68, "score_ci95": 0.126,
             "seeds": 2, "train_size": 2000, "status": "done"}  # fmt: skip
    failed = {**entry, "mode": "frozen", "score_mean": None, "score_ci95": None, "train_size": None, "status": "failed"}
    stopped = {**entry, "seeds": 1, "score_ci95": None, "status": "stopped"}
    trials = {"waiting": 5, "running": 2, "done": 3, "stopped": 1, "failed": 0, "nan": 0}
    run = write(tmp_path, "law-sweep", stage="sweep", step=None, loss=None, tokens_per_second=None, workers=None,
                restarts=None, trials=trials, leaderboard=[entry, stopped, failed])  # fmt: skip
    lines = page(read_status(run))
    assert "  trials    5 waiting, 2 running, 3 done, 1 stopped" in lines
    assert [line.split() for line in lines[-3:]] == [
        ["pretrained", "full", "0.002", "0.680", "±", "0.126", "2", "2,000"],
        ["pretrained", "full", "0.002", "0.680", "(stopped)", "1", "2,000"],
        ["pretrained", "frozen", "0.002", "failed", "2", "all"],
    ]


def test_one_line_for_each_run_the_newest_last(tmp_path):
    write(tmp_path, "b", state="finished", began=1.0)
    write(tmp_path, "a", state="failed", cause="rank 0, step 3: OSError: no space", began=2.0)
    (tmp_path / ".cache").mkdir()
    (tmp_path / "notes").mkdir()
    lines = overview([read_status(run) for run in find_runs(str(tmp_path))])
    assert [line.split()[0] for line in lines] == ["run", "b", "a"]
    assert lines[2].endswith("rank 0, step 3: OSError: no space")


@pytest.mark.parametrize("damage", ["", "{", "[1]", '{"state": "odd"}', "\x00\xff"])
def test_a_damaged_status_is_told_from_the_other_files(tmp_path, damage):
    run = write(tmp_path, "law")
    (run / "status.json").write_text(damage)
    line = {"step": 41, "loss": 4.5, "tokens_per_second": 10.0}
    (run / "metrics.jsonl").write_text(json.dumps(line) + "\n" + json.dumps({"step": 42, "eval_loss": 1}) + '\n{"cut')
    status = read_status(run)
    assert (status["state"], status["step"], status["loss"]) == ("unknown", 42, 4.5)
    assert "told from its other files" in "\n".join(page(status))
    (run / "summary.json").write_text("{}")
    assert read_status(run)["state"] == "finished"


def test_a_run_of_before_has_no_status(tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.yaml").write_text("name: old")
    assert "it has no status.json" in "\n".join(page(read_status(find_run("old", str(tmp_path)))))


def test_unknown_names_and_folders_are_mistakes(tmp_path):
    write(tmp_path, "law")
    with pytest.raises(UserError, match=r"lawn: no such run in .*; there are: law \(another folder: --storage DIR\)"):
        find_run("lawn", str(tmp_path))
    assert find_run(str(tmp_path / "law"), "nowhere") == tmp_path / "law"  # a path will do
    with pytest.raises(UserError, match="no such folder; give the one that runs were started with"):
        find_runs(str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["nothing"], 2, "cloze: nothing: no such run in runs; there are: law (another folder: --storage DIR)\n"),
        (["--storage", "nowhere"], 2, "cloze: --storage nowhere: no such folder; give the one that runs were started "
         "with (storage=...)\n"),
        (["law", "--watch"], 1, ""),
    ],
)  # fmt: skip
def test_the_command_line(tmp_path, words, code, text):
    write(tmp_path / "runs", "law", state="failed", cause="x")
    done = subprocess.run(
        [sys.executable, "-m", "orchestration", "status", *words], cwd=tmp_path, capture_output=True, text=True,
        timeout=60, env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (code, text)


def test_no_run_is_no_mistake(tmp_path):
    assert find_runs(str(tmp_path)) == []


def test_runs_in_a_bucket_are_told_from_any_machine(s3, monkeypatch):
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    uri = "s3://cloze-test/status"
    mirror = storage.place(uri)
    with held(mirror / "law", build_config({"name": "law", "storage": uri}, {})), beating(mirror / "law", {"steps": 9}):
        shutil.rmtree(mirror)  # as on a machine that has nothing of it
        (run,) = find_runs(uri)
        assert (read_status(run)["state"], read_status(run)["steps"]) == ("running", 9)
    shutil.rmtree(mirror)
    assert read_status(find_run("law", uri))["state"] == "finished"
    shutil.rmtree(mirror)


def test_a_bucket_that_does_not_answer_is_one_line(s3, monkeypatch):
    for name, value in {**s3, "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="--storage s3://silent/x: cannot be read .*give another, or credentials"):
        find_runs("s3://silent/x")


def test_watching_on_a_terminal_redraws_and_ends(tmp_path):
    write(tmp_path, "law", state="failed", cause="rank 0, step 3: OSError: no space")
    seen = run_in_terminal(f"""
        from orchestration.cli import main
        raise SystemExit(main(["status", "law", "--watch", "--storage", {str(tmp_path)!r}]))
    """)
    assert seen.count("failed (rank 0, step 3: OSError: no space)") >= 1
    assert seen.count("\x1b[?25l") == seen.count("\x1b[?25h") == 1  # the cursor is back


@pytest.mark.parametrize(
    "odd",
    [
        {"state": "finished", "fraction": "x"}, {"state": ["a"]}, {"state": "finished", "text": 5},
        {"state": "failed", "began": 1}, {"state": "finished", "began": "then", "host": "h", "beat": 1},
        {"state": "stopped", "run": 5},
    ],
)  # fmt: skip
def test_one_odd_status_does_not_hide_the_others(tmp_path, odd, capsys):
    for name in ("odd", "good"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text("name: x\n")
    (tmp_path / "odd" / "status.json").write_text(json.dumps(odd))
    (tmp_path / "odd" / "metrics.jsonl").write_text('{"loss": 3}\n{"step": null, "loss": 1, "tokens_per_second": 1}\n')
    assert main(["status", "--storage", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "good" in shown and "odd" in shown
    assert main(["status", "odd", "--storage", str(tmp_path)]) == 0
    assert "status.json is damaged" in capsys.readouterr().out
