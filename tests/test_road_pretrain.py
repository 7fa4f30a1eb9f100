"""The road through the command line: train, kill, resume, refuse, export. All runs share one tiny corpus and config."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml
from stranger import PRELUDE

pytestmark = [pytest.mark.road, pytest.mark.timeout(420)]

STEPS = 120
SMALL = [
    "tokenizer.vocab_size=150", "rows.length=32", "rows.packing=document", "corpus.held_out=0.1",
    "encoder.hidden_size=32", "encoder.num_attention_heads=2", "encoder.intermediate_size=64", "encoder.dropout=0.0",
    f"pretrain.steps={STEPS}", "pretrain.global_batch=7", "pretrain.micro_batch=2", "pretrain.learning_rate=5e-3",
    "pretrain.eval_every_steps=50", "checkpoints.every_steps=20", "zero.persistence_threshold=0",
    "scaling.max_restarts=1", "scaling.cpus_per_worker=1.75",  # all that may be asked for beside Ray Data, of 4
]  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A folder with a corpus of 300 short documents, each with words of its own."""
    folder = tmp_path_factory.mktemp("road")
    draw = random.Random(0)
    subjects, verbs = ["cat", "dog", "clerk", "judge", "court"], ["saw", "heard", "paid", "asked", "left"]
    lines = [
        f"doc{n:04d} the {draw.choice(subjects)} {draw.choice(verbs)} the {draw.choice(subjects)} and the "
        f"{draw.choice(subjects)} {draw.choice(verbs)} nobody " * draw.randint(1, 2)
        for n in range(300)
    ]
    (folder / "corpus.txt").write_text("\n\n".join(lines))
    return folder


def words(name: str, *more: str) -> list[str]:
    return ["pretrain", f"name={name}", "corpus.sources=corpus.txt", *SMALL, *more]


def losses(run: Path) -> dict[int, float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in lines if "loss" in line]
    assert steps == sorted(set(steps)), "a step stands twice"
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def dumped(folder: Path) -> dict[int, list[int]]:
    """step -> row ids of all ranks."""
    steps: dict[int, list[int]] = {}
    for path in folder.glob("rank*.jsonl"):
        for line in path.read_text().splitlines():
            batch = json.loads(line)
            assert all(len(ids) == len(labels) for ids, labels in zip(batch["input_ids"], batch["labels"], strict=True))
            steps.setdefault(batch["step"], []).extend(batch["row_ids"])
    return {step: sorted(rows) for step, rows in steps.items()}


def tokenizer_ids(run: Path, text: str) -> list[int]:
    """Ids by the tokenizer that the run trained with."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(run / "tokenizer")(text)["input_ids"]


@pytest.fixture(scope="module")
def cloze_module(cloze, home):
    """The command line in the module's folder, on the tests' Ray."""
    return partial(cloze, cwd=home)


@pytest.fixture(scope="module")
def first(cloze_module) -> subprocess.CompletedProcess[str]:
    done = cloze_module(*words("a", "--dump-batches", "dump-a"))
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def undisturbed(first, home) -> Path:
    return home / "runs" / "a"


@pytest.fixture(scope="module")
def broken(cloze_module) -> subprocess.CompletedProcess[str]:
    """Run d: a worker raised an error at step 45."""
    return cloze_module(*words("d", "scaling.max_restarts=0"), CLOZE_FAULT="raise:1:45")


def test_a_pipe_sees_a_line_per_stage_and_the_result(first, undisturbed):
    """The libraries' chatter is in the log."""
    assert {line.split()[0] for line in first.stderr.splitlines()} == {"corpus", "pretrain"}
    assert len(first.stdout.splitlines()) == 3 and "held-out loss" in first.stdout
    assert (undisturbed / "log" / "driver.log").exists()


def test_a_run_leaves_what_it_promises(undisturbed, home):
    summary = json.loads((undisturbed / "summary.json").read_text())
    assert summary["steps"] == STEPS == len(losses(undisturbed))
    assert summary["eval_loss_after"] < summary["eval_loss_before"] - 1
    assert summary["eval_accuracy_after"] > summary["eval_accuracy_before"] + 0.1
    assert (summary["workers"], summary["zero_stage"], summary["documents_read"]) == (2, 1, 300)
    assert summary["tokens_per_second"] > 0 and summary["data_wait_fraction"] < 0.5
    lines = [json.loads(line) for line in (undisturbed / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "eval_loss" in line] == [0, 50, 100, STEPS]
    assert set(next(line for line in lines if "loss" in line)) == {
        "step", "epoch", "tokens", "targets", "loss", "learning_rate", "gradient_norm", "tokens_per_second",
        "data_wait_fraction", "workers",
    }  # fmt: skip
    assert yaml.safe_load((undisturbed / "config.yaml").read_text())["pretrain"]["steps"] == STEPS
    kept = sorted(path.name for path in (undisturbed / "checkpoints").iterdir())
    assert kept == ["step-00000100", "step-00000120"]
    best = Path(home / summary["best_checkpoint"]["path"])
    assert best.parent == undisturbed / "checkpoints" and best.name in kept and (best / "manifest.json").exists()
    assert not (undisturbed / "lease.json").exists()
    status = json.loads((undisturbed / "status.json").read_text())
    assert (status["state"], status["step"], status["steps"], status["restarts"]) == ("finished", STEPS, STEPS, 0)


def test_what_was_trained_on_is_the_order(undisturbed, home):
    rows = dumped(home / "dump-a")
    num_rows = json.loads((undisturbed / "summary.json").read_text())["rows"]
    assert list(sorted(rows)) == list(range(STEPS))
    per_epoch = -(-num_rows // 7)
    assert per_epoch < STEPS
    assert sorted(row for step in range(per_epoch) for row in rows[step]) == list(range(num_rows))
    assert all(len(rows[step]) == 7 for step in range(per_epoch - 1))


def test_the_export_is_the_trained_model_elsewhere(undisturbed, tmp_path):
    """Loaded where Cloze cannot be imported; logits equal those of the weights in the last checkpoint."""
    program = PRELUDE + f"""
import json, torch
from transformers import AutoModelForMaskedLM, AutoTokenizer, BertForMaskedLM
folder = {str(undisturbed / "export")!r}
tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForMaskedLM.from_pretrained(folder).eval()
state = torch.load({str(undisturbed)!r} + "/checkpoints/step-00000120/state/mp_rank_00_model_states.pt",
                   weights_only=False)["module"]
trained = BertForMaskedLM(model.config).eval()
trained.load_state_dict({{k.removeprefix("model."): v for k, v in state.items()}})
batch = tokenizer(["the cat saw the [MASK]", "nobody paid"], return_tensors="pt", padding=True)
with torch.no_grad():
    one, other = model(**batch).logits, trained(**batch).logits
assert torch.allclose(one, other, atol=1e-5), (one - other).abs().max()
assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight
print(json.dumps([tokenizer.mask_token, batch["input_ids"].tolist()]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    mask, ids = json.loads(done.stdout.splitlines()[-1])
    assert mask == "[MASK]" and ids[0][0] == 2
    assert tokenizer_ids(undisturbed, "the cat saw the [MASK]") == ids[0]
    assert "the cat" not in (undisturbed / "export" / "README.md").read_text()


def test_killed_and_resumed_is_the_undisturbed_training(undisturbed, home, ray_4_cpus, cloze_module):
    run = home / "runs" / "b"
    command = words("b", "--dump-batches", "dump-b")
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestration", *command], cwd=home, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "RAY_ADDRESS": ray_4_cpus},
    )  # fmt: skip
    deadline = time.monotonic() + 180
    second = None
    while not list(run.glob("checkpoints/step-*/manifest.json")):
        assert process.poll() is None and time.monotonic() < deadline
        if second is None and (run / "lease.json").exists():
            second = cloze_module(*command)
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert second is not None and second.returncode == 2
    assert "run b is held by process" in second.stderr
    assert not (run / "summary.json").exists()

    done = cloze_module(*command)
    assert done.returncode == 0, done.stderr
    assert losses(run) == pytest.approx(losses(undisturbed), abs=1e-6)
    assert dumped(home / "dump-b") == dumped(home / "dump-a")

    before = (run / "metrics.jsonl").stat().st_mtime_ns
    again = cloze_module(*command)
    assert again.returncode == 0 and "finished: nothing to do" in again.stdout
    assert (run / "metrics.jsonl").stat().st_mtime_ns == before
    changed = cloze_module(*command, "pretrain.global_batch=9", "seed=4")
    assert changed.returncode == 2
    assert "pretrain.global_batch: run b was started with 7, now 9" in changed.stderr
    assert "seed: run b was started with 0, now 4" in changed.stderr


@pytest.mark.soak
def test_a_killed_worker_costs_the_steps_since_the_checkpoint(undisturbed, home, cloze_module):
    done = cloze_module(*words("c"), CLOZE_FAULT="kill:1:70")
    assert done.returncode == 0, done.stderr
    assert losses(home / "runs" / "c") == pytest.approx(losses(undisturbed), abs=1e-6)
    assert json.loads((home / "runs/c/status.json").read_text())["restarts"] == 1


def test_a_failure_names_rank_step_and_log_and_loses_nothing(home, broken):
    done = broken
    assert done.returncode == 1
    last = done.stderr.splitlines()[-2:]
    assert last[0].startswith("cloze: pretrain failed: ") and "rank 1, step 45: RuntimeError: the fault" in last[0]
    assert last[1] == "cloze: log: runs/d/log/driver.log"
    status = json.loads((home / "runs/d/status.json").read_text())
    assert status["state"] == "failed" and "rank 1, step 45" in status["cause"]
    assert "Traceback" not in done.stderr
    assert "Traceback" in (home / "runs" / "d" / "log" / "driver.log").read_text()
    assert (home / "runs" / "d" / "checkpoints" / "step-00000040" / "manifest.json").exists()


@pytest.mark.soak
def test_fewer_workers_at_another_stage_finish_what_broke(undisturbed, broken, home, cloze_module):
    """Goes on from run d's checkpoint of two workers at stage 1."""
    done = cloze_module(*words("d", "scaling.workers=1", "zero.stage=2"))
    assert done.returncode == 0, done.stderr
    assert losses(home / "runs" / "d") == pytest.approx(losses(undisturbed), abs=1e-4)
    lines = [json.loads(line) for line in (home / "runs/d/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(STEPS))


@pytest.mark.soak
def test_one_worker_at_stage_3_is_the_same_training(undisturbed, home, cloze_module):
    """1 x 8 rows for 2 x 4: the same rows, the same losses; and sharded parameters are exported whole."""
    done = cloze_module(*words("e", "scaling.workers=1", "pretrain.micro_batch=4", "zero.stage=3",
                               "--dump-batches", "dump-e"))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert dumped(home / "dump-e") == dumped(home / "dump-a")
    assert losses(home / "runs" / "e") == pytest.approx(losses(undisturbed), abs=1e-4)
    ours, theirs = (
        [json.loads(line) for line in (home / "runs" / name / "metrics.jsonl").read_text().splitlines()]
        for name in "ea"
    )
    rates = [[line["learning_rate"] for line in lines if "loss" in line] for lines in (ours, theirs)]
    assert rates[0] == rates[1]
    assert ours[-1]["eval_loss"] == pytest.approx(theirs[-1]["eval_loss"], abs=1e-4)
    from transformers import AutoModelForMaskedLM

    one, other = (AutoModelForMaskedLM.from_pretrained(home / "runs" / name / "export") for name in "ae")
    for (name, a), b in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-3), name


@pytest.mark.soak
def test_a_run_without_a_cadence_saves_at_its_end(home, cloze_module):
    done = cloze_module(*words("f", "pretrain.steps=4"))
    assert done.returncode == 0, done.stderr
    summary = json.loads((home / "runs" / "f" / "summary.json").read_text())
    assert (summary["steps"], summary["checkpoints_saved"]) == (4, 1) and summary["loss"] > 0, "none before the end"


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.soak), signal.SIGTERM])
def test_stopped_is_saved_and_exit_130(home, ray_4_cpus, cloze_module, number):
    name = f"stopped-{number}"
    command = words(name, "pretrain.steps=5000")
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestration", *command], cwd=home, stdin=subprocess.DEVNULL, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "RAY_ADDRESS": ray_4_cpus},
        # Where the tests run in a shell's background SIGINT is ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not list((home / "runs" / name).glob("checkpoints/step-*/manifest.json")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    stop = re.fullmatch(r"cloze: stopped and saved at step ([\d,]+); the same command goes on from there",
                        error.splitlines()[-1])  # fmt: skip
    assert stop, error
    step = int(stop[1].replace(",", ""))
    newest = max((home / "runs" / name / "checkpoints").iterdir())
    assert newest.name == f"step-{step:08d}" and (newest / "manifest.json").exists()
    assert max(losses(home / "runs" / name)) == step - 1
    assert not (home / "runs" / name / "lease.json").exists()


@pytest.mark.soak
def test_a_loss_that_is_no_number_ends_the_run_at_once(home, cloze_module):
    """All ranks agree on it, and a restart would meet it again: none is tried."""
    done = cloze_module(*words("h", "pretrain.learning_rate=1e30", "pretrain.gradient_clipping=null"))
    assert done.returncode == 1
    last = done.stderr.splitlines()[-2]
    assert last.startswith("cloze: pretrain failed: step ") and "the loss is " in last and "learning rate" in last
    assert (home / "runs" / "h" / "log" / "driver.log").exists()
    lines = (home / "runs" / "h" / "metrics.jsonl").read_text().splitlines()
    told = [json.loads(line) for line in lines if '"skipped": true' in line]
    assert [line["step"] for line in told] == list(range(told[0]["step"], told[0]["step"] + 10)), "all of them"
    assert last.startswith(f"cloze: pretrain failed: step {told[-1]['step']}: ")


@pytest.mark.soak
def test_one_held_out_row_and_fewer_rows_than_workers_do_not_hang(home, cloze_module):
    """Every rank evaluates and trains equally often, also the one that gets filler rows only."""
    (home / "two.txt").write_text("the cat saw the dog\n\nthe judge asked the clerk\n")
    small = [word for word in SMALL if "vocab_size" not in word and "eval_every" not in word and "steps" not in word]
    words = ["pretrain", "name=two", "corpus.sources=two.txt", *small, "tokenizer.vocab_size=30", "pretrain.steps=3"]
    done = cloze_module(*words, "pretrain.eval_every_steps=1", "scaling.workers=2", "scaling.cpus_per_worker=0.5")
    assert done.returncode == 0, done.stderr
    summary = json.loads((home / "runs" / "two" / "summary.json").read_text())
    assert (summary["rows"], summary["held_out_rows"], summary["steps"]) == (1, 1, 3)


@pytest.mark.soak
def test_two_runs_share_a_cluster_whose_cpus_their_workers_take(home, ray_4_cpus):
    """Neither leaves a CPU to the other's rows; both train all the same."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "orchestration", *words(name, "pretrain.steps=30", "scaling.cpus_per_worker=1")],
            cwd=home, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "RAY_ADDRESS": ray_4_cpus},
        )  # fmt: skip
        for name in ("twin-a", "twin-b")
    ]
    for process in processes:
        _, error = process.communicate(timeout=240)
        assert process.returncode == 0, error
    assert losses(home / "runs" / "twin-a") == losses(home / "runs" / "twin-b")
