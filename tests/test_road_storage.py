"""The road on storage that fails: a bucket that is away for a while, a full disk, files whose bits have changed.

Each run starts a Ray of its own, as on one machine.
"""

import json
import os
import random
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from storage_gate import Gate
from training_ranks import files_of_rank, flip

from data import storage
from orchestration import checkpoint

pytestmark = [pytest.mark.road, pytest.mark.soak, pytest.mark.timeout(580)]

SMALL = [
    "corpus.sources=corpus.txt", "tokenizer.vocab_size=110", "rows.length=32", "rows.packing=document",
    "corpus.held_out=0.1", "encoder.hidden_size=32", "encoder.num_attention_heads=2", "encoder.intermediate_size=64",
    "encoder.dropout=0.0", "pretrain.global_batch=4", "pretrain.micro_batch=2", "pretrain.learning_rate=5e-3",
    "pretrain.eval_every_steps=50", "checkpoints.every_steps=20", "zero.persistence_threshold=0",
    "scaling.max_restarts=0",
]  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A folder with a corpus of 200 short documents."""
    folder = tmp_path_factory.mktemp("storage")
    draw = random.Random(0)
    words = ["cat", "dog", "clerk", "judge", "court", "saw", "heard", "paid", "asked", "left"]
    documents = [f"doc{n:04d} " + " ".join(draw.choice(words) for _ in range(12)) for n in range(200)]
    (folder / "corpus.txt").write_text("\n\n".join(documents))
    return folder


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """For a driver that starts a Ray of its own, which must not meet another."""
    folder = Path("/tmp") / f"cz{uuid.uuid4().hex[:6]}"
    folder.mkdir()
    kept = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    yield {**kept, "RAY_TMPDIR": str(folder), "CLOZE_LOGICAL_GPUS": "0"}
    subprocess.run(["rm", "-rf", str(folder)], check=True)


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "orchestration", "pretrain", *SMALL, *words]


def start(home: Path, environment: dict[str, str], words: list[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        words, cwd=home, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def await_step(process: "subprocess.Popen[str]", run: Path, step: int) -> None:
    """Until a checkpoint of that step or a later one counts."""
    deadline = time.monotonic() + 240
    while checkpoint.newest(run)[0] < step:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.2)


def losses(run: Path) -> dict[int, float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in lines if "loss" in line]
    assert steps == sorted(set(steps)), "a step stands twice"
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def test_a_bucket_that_is_away_for_a_while_costs_no_step(home, environment, s3, monkeypatch):
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    storage._filesystem.cache_clear()
    uri = f"s3://cloze-test/{uuid.uuid4().hex[:8]}"
    run = storage.place(uri) / "away"
    with Gate(s3["AWS_ENDPOINT_URL"]) as gate:
        words = command("name=away", f"storage={uri}", "pretrain.steps=600")
        process = start(home, {**environment, **s3, "AWS_ENDPOINT_URL": gate.address}, words)
        await_step(process, run, 40)
        gate.shut("503")
        time.sleep(20)
        gate.open()
        out, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
    storage.fetch(run / "metrics.jsonl")
    storage.fetch(run / "summary.json")
    assert list(losses(run)) == list(range(600))
    storage.fetch(run / "log")
    log = (run / "log" / "driver.log").read_text()
    assert "trying again for" in log and "works again after" in log
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    storage.fetch(storage.place(summary["best_checkpoint"]["path"]))
    assert (storage.place(summary["best_checkpoint"]["path"]) / "manifest.json").exists()


def test_a_full_disk_ends_the_run_with_one_line_and_the_same_command_goes_on(home, environment):
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        message = "no right to make a mount namespace"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    runs = home / "runs"
    runs.mkdir(exist_ok=True)
    # The disk is seen through the process that lives on it.
    script = f"mount -t tmpfs -o size=12m tmpfs {runs} && exec \"$@\""
    holder = subprocess.Popen(["unshare", "-m", "sh", "-c", script, "sh", "sleep", "900"])
    try:
        time.sleep(1)
        disk = Path(f"/proc/{holder.pid}/root{runs}")
        enter = ["nsenter", f"--mount=/proc/{holder.pid}/ns/mnt", f"--wd={home}"]
        words = [*enter, *command("name=full", "pretrain.steps=800")]
        process = start(home, environment, words)
        await_step(process, disk / "full", 20)
        filling = threading.Thread(target=fill, args=(disk,))
        filling.start()
        out, error = process.communicate(timeout=300)
        filling.join()
        last = error.splitlines()[-2]
        assert process.returncode == 1, error
        assert "the disk is full" in last and ", step " in last and "MB free on" in last and str(runs) in last, error
        saved = checkpoint.newest(disk / "full")[0]
        assert saved >= 20
        (disk / "ballast").unlink()
        process = start(home, environment, words)
        out, error = process.communicate(timeout=300)
        assert process.returncode == 0, error
        assert list(losses(disk / "full")) == list(range(800))
    finally:
        holder.kill()
        holder.wait()


def fill(disk: Path) -> None:
    """Take all room there is, and what becomes free."""
    with (disk / "ballast").open("ab", buffering=0) as file:
        for _ in range(600):
            try:
                file.write(bytes(1 << 16))
            except OSError:
                time.sleep(0.05)


def test_a_flipped_bit_costs_the_steps_of_one_checkpoint(home, environment):
    words = command("name=flipped", "pretrain.steps=100")
    process = start(home, {**environment, "CLOZE_FAULT": "raise:1:70"}, words)
    _, error = process.communicate(timeout=300)
    assert process.returncode == 1 and "step 70" in error
    run = home / "runs" / "flipped"
    flip(files_of_rank(checkpoint.folder_of(run, 60), 1)[0])
    process = start(home, environment, words)
    _, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
    log = (run / "log" / "driver.log").read_text()
    assert "checkpoint passed over: step-00000060: state/" in log and "holds other bytes than were saved" in log
    assert json.loads((run / "status.json").read_text())["warning"].startswith("checkpoint passed over")
    assert list(losses(run)) == list(range(100))
