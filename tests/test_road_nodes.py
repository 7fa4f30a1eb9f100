"""The road over two nodes, each with two CPUs and, of a bucket, a mirror of its own: pretrain, sweep, predict.

The second node lives in a mount namespace where the folder of mirrors is empty, as on another machine: what was not
carried to the bucket is not there. Without the right to make one (a container without CAP_SYS_ADMIN) these tests skip.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import free_port

from data import storage

pytestmark = [pytest.mark.road, pytest.mark.soak, pytest.mark.timeout(420)]

MIRRORS = Path(f"/tmp/cloze-mirror-{os.getuid()}")
STEPS = 40
SMALL = [
    "corpus.sources=corpus.txt", "tokenizer.vocab_size=140", "rows.length=32", "corpus.held_out=0.1",
    "encoder.hidden_size=32", "encoder.num_attention_heads=2", "encoder.intermediate_size=64", "encoder.dropout=0.0",
    f"pretrain.steps={STEPS}", "pretrain.global_batch=8", "pretrain.micro_batch=2", "pretrain.learning_rate=5e-3",
    "pretrain.eval_every_steps=20", "checkpoints.every_steps=10", "zero.persistence_threshold=0",
    "scaling.workers=4", "scaling.cpus_per_worker=0.75", "scaling.max_restarts=1",
]  # fmt: skip


@pytest.fixture(scope="module")
def second_node_pid(nodes) -> int:
    return nodes[1].pid


@pytest.fixture(scope="module")
def nodes(s3, tmp_path_factory):
    """Two nodes of one cluster: (address, process of the second node)."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        message = "no right to make a mount namespace"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    MIRRORS.mkdir(exist_ok=True)
    folder = Path("/tmp") / f"cz{os.getpid()}"  # short: paths of sockets may have 107 characters
    ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=2", "--disable-usage-stats"]
    address = f"127.0.0.1:{free_port()}"
    environment = {**os.environ, **s3, "RAY_AUTH_MODE": "disabled", "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "1"}
    head = [*ray, "--head", "--node-ip-address=127.0.0.1", f"--port={address.rpartition(':')[2]}",
            "--include-dashboard=false", f"--temp-dir={folder}", "--object-store-memory=200000000"]  # fmt: skip
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    processes = [subprocess.Popen(head, env=environment, **quiet, start_new_session=True)]
    wait_for_nodes(address, 1, environment)
    worker = [*ray, f"--address={address}", "--node-ip-address=127.0.0.1", "--object-store-memory=200000000"]
    own_mirrors = f"mount -t tmpfs tmpfs {MIRRORS} && exec \"$@\""
    processes.append(
        subprocess.Popen(
            ["unshare", "-m", "sh", "-c", own_mirrors, "sh", *worker], env=environment, **quiet, start_new_session=True
        )
    )
    wait_for_nodes(address, 2, environment)
    yield address, processes[1]
    for process in processes[::-1]:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=60)
    shutil.rmtree(folder, ignore_errors=True)


def wait_for_nodes(address: str, number: int, environment: dict[str, str]) -> None:
    """Until the cluster has so many living nodes."""
    program = f"""
import ray, time
deadline = time.monotonic() + 90
while True:
    try:
        ray.init({address!r}, log_to_driver=False, logging_level="CRITICAL")
        if sum(node["Alive"] for node in ray.nodes()) >= {number}:
            break
        ray.shutdown()
    except Exception:
        pass
    assert time.monotonic() < deadline
    time.sleep(0.5)
"""
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=120, capture_output=True)


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A folder with a corpus and a task: is there a cat in it?"""
    folder = tmp_path_factory.mktemp("nodes")
    draw = random.Random(0)
    subjects, verbs = ["cat", "dog", "clerk", "judge", "court"], ["saw", "heard", "paid", "asked", "left"]

    def sentence() -> str:
        return f"the {draw.choice(subjects)} {draw.choice(verbs)} the {draw.choice(subjects)} and nobody else"

    (folder / "corpus.txt").write_text("\n\n".join(f"doc{n:04d} {sentence()} {sentence()}" for n in range(300)))
    for name, size in (("train", 96), ("dev", 48), ("test", 48)):
        rows = [sentence() for _ in range(size)]
        lines = [f"{text},{'cat' if 'cat' in text else 'none'}" for text in rows]
        (folder / f"{name}.csv").write_text("text,label\n" + "\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def run(nodes, s3, home):
    def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "orchestration", *words], cwd=home, capture_output=True, text=True, timeout=240,
            stdin=subprocess.DEVNULL, env={**os.environ, **s3, "RAY_ADDRESS": nodes[0], **environment},
        )  # fmt: skip

    return run


def losses(path: Path) -> dict[int, float]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


@pytest.fixture(scope="module")
def bucket(s3, run):
    """A run whose storage is a bucket, with a worker of the second node killed on the way; the mirror of its folder."""
    os.environ.update(s3)
    done = run("pretrain", "name=b", "storage=s3://cloze-test/nodes", *SMALL, CLOZE_FAULT="kill:3:25")
    assert done.returncode == 0, done.stderr
    assert "encoder s3://cloze-test/nodes/b/export" in done.stdout
    folder = storage.place("s3://cloze-test/nodes")
    shutil.rmtree(folder)  # the test reads what lies in the bucket
    return folder


def test_two_nodes_share_a_folder_or_a_bucket(run, home, bucket):
    """The same training, though one run lost a worker and went on from a checkpoint that lay in the bucket only."""
    done = run("pretrain", "name=a", *SMALL)
    assert done.returncode == 0, done.stderr
    storage.fetch(bucket / "b" / "metrics.jsonl")
    shared = losses(home / "runs" / "a" / "metrics.jsonl")
    assert list(shared) == list(range(STEPS))
    assert losses(bucket / "b" / "metrics.jsonl") == pytest.approx(shared, abs=1e-6)
    manifest = json.loads((home / "runs" / "a" / "checkpoints" / "step-00000040" / "manifest.json").read_text())
    assert manifest["world_size"] == 4


def test_what_lies_in_the_bucket_is_a_whole_run(bucket, run):
    names = storage.children(bucket / "b")
    assert names == ["checkpoints", "config.yaml", "corpus.json", "export", "log", "metrics.jsonl", "quarantine.jsonl",
                     "spent.json", "status.json", "summary.json", "tokenizer"]  # fmt: skip
    assert storage.children(bucket / "b" / "checkpoints") == ["step-00000030", "step-00000040"]
    storage.fetch(bucket / "b" / "export")
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    AutoModelForMaskedLM.from_pretrained(bucket / "b" / "export")
    assert AutoTokenizer.from_pretrained(bucket / "b" / "export").mask_token == "[MASK]"
    again = run("pretrain", "name=b", "storage=s3://cloze-test/nodes", *SMALL)
    assert again.returncode == 0 and "finished: nothing to do" in again.stdout


def test_a_sweep_over_two_nodes_in_a_bucket(bucket, run, second_node_pid, home):
    words = [
        "sweep", "name=b", "storage=s3://cloze-test/nodes", "task.train=train.csv", "task.validation=dev.csv",
        "task.test=test.csv", "sweep.seeds=2", "finetune.length=32", "finetune.epochs=2",
        'sweep.space={finetune.mode: [frozen, full], finetune.learning_rate: [3e-3]}',
        "sweep.cpus_per_trial=1.5",  # one trial a node
    ]  # fmt: skip
    done = run(*words)
    assert done.returncode == 0, done.stderr
    shutil.rmtree(bucket / "b-sweep", ignore_errors=True)
    names = storage.children(bucket / "b-sweep")
    assert {"best", "leaderboard.csv", "leaderboard.json", "report.html", "trials", "config.yaml"} <= set(names)
    trials = storage.children(bucket / "b-sweep" / "trials")
    assert len(trials) == 8
    assert not [name for name in storage.sizes(bucket / "b-sweep" / "trials") if name.endswith("safetensors")]
    storage.fetch(bucket / "b-sweep" / "trials")
    results = [json.loads(path.read_text()) for path in (bucket / "b-sweep" / "trials").glob("*/result.json")]
    assert {result["status"] for result in results} == {"done"}
    assert {r["mode"] for r in results if r["cached_features"]} == {"frozen"}
    elsewhere = Path(f"/proc/{second_node_pid}/root{bucket}/b-sweep/trials")
    there = {path.parent.name for path in elsewhere.glob("*/result.json")}
    assert 0 < len(there) < 8, "both nodes ran trials"

    (home / "letters.txt").write_text("the cat saw the dog\nthe judge paid the clerk\n")
    done = run("predict", "s3://cloze-test/nodes/b-sweep/best", "letters.txt", "-o", "labels.jsonl")
    assert done.returncode == 0, done.stderr
    assert {json.loads(line)["label"] for line in (home / "labels.jsonl").read_text().splitlines()} <= {"cat", "none"}
