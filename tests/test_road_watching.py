"""A run and a sweep on a Ray with a dashboard, watched the ways a user can: status, endpoints, Prometheus, Ray's API.

Both work at the same time and are stopped when everything was seen, so that one start of everything serves all tests.
"""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import free_port
from tiny_encoder import write_encoder

pytestmark = [pytest.mark.road, pytest.mark.timeout(420)]

ROOT = Path(__file__).parent.parent
EVERY_SECOND = {"RAY_metrics_report_interval_ms": "1000"}  # Ray's default is 10 s
PRETRAIN = [
    "pretrain", "name=law", "corpus.sources=corpus.txt", "tokenizer.vocab_size=60", "rows.length=32",
    "rows.packing=document", "corpus.held_out=0.1", "encoder.hidden_size=32", "encoder.num_attention_heads=2",
    "encoder.intermediate_size=64", "pretrain.steps=100000", "pretrain.global_batch=8", "pretrain.micro_batch=2",
    "pretrain.eval_every_steps=20", "checkpoints.every_steps=20",
]  # fmt: skip
SWEEP = [
    "sweep", "name=law", "sweep.encoders=encoder", "task.train=train.csv", "task.validation=train.csv",
    "finetune.length=16", "finetune.global_batch=8", "sweep.seeds=100",
    "sweep.cpus_per_trial=2.5",  # one at a time, and CPUs are left for the other run
    "sweep.space={finetune.mode: full, finetune.learning_rate: [1e-3, 1e-4], finetune.epochs: 5}",
]  # fmt: skip


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:  # the machine's cores are all at work
        return answer.read().decode()


def until(look: Callable[[], Any], seconds: float, what: str) -> Any:
    """The first true answer; fails with the last one after so many seconds."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            found = look()
        except (OSError, ValueError) as error:
            found = None
            last: Any = error
        else:
            last = found
        if found:
            return found
        assert time.monotonic() < deadline, f"{what}: {last!r}"
        time.sleep(0.5)


def end(process: subprocess.Popen, number: int) -> int:
    process.send_signal(number)
    try:
        return process.wait(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        raise


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("watching")
    draw = random.Random(0)
    words = ["cat", "dog", "clerk", "judge", "court", "saw", "heard", "paid", "asked", "left"]
    texts = [" ".join(draw.choice(words) for _ in range(draw.randint(5, 20))) for _ in range(300)]
    (folder / "corpus.txt").write_text("\n\n".join(texts))
    rows = [f"{text},{'long' if len(text) > 60 else 'short'}" for text in texts]
    (folder / "train.csv").write_text("\n".join(["text,label", *rows]))
    write_encoder(folder / "encoder")
    (folder / "dashboards").mkdir()
    printed = cloze(folder, "cluster", "grafana")
    assert printed.returncode == 0, printed.stderr
    (folder / "dashboards/cloze.json").write_text(printed.stdout)
    return folder


@pytest.fixture(scope="module")
def head(home):
    """A Ray as `ray start --head` makes it, with dashboard and metrics; yields (gcs address, dashboard, temp dir)."""
    temporary = Path("/tmp") / f"cz{os.getpid()}"  # short: the path of a socket has room for 107 characters
    gcs, dashboard, *others = (free_port() for _ in range(6))
    environment = {
        **os.environ, **EVERY_SECOND, "HOME": str(home), "RAY_AUTH_MODE": "disabled",
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        "RAY_METRICS_GRAFANA_DASHBOARD_OUTPUT_DIR": str(home / "dashboards"),
    }  # fmt: skip
    names = ("metrics-export", "dashboard-agent-listen", "dashboard-agent-grpc", "runtime-env-agent")
    process = subprocess.Popen(
        [
            Path(sys.executable).with_name("ray"), "start", "--head", "--block", f"--port={gcs}", "--num-cpus=4",
            "--num-gpus=0", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}", f"--temp-dir={temporary}",
            "--object-store-memory=300000000", "--node-ip-address=127.0.0.1", "--disable-usage-stats",
            *(f"--{name}-port={port}" for name, port in zip(names, others, strict=True)),
        ],
        cwd=home, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until(lambda: get(f"http://127.0.0.1:{dashboard}/api/version"), 60, "the dashboard")
        yield f"127.0.0.1:{gcs}", f"http://127.0.0.1:{dashboard}", temporary
    finally:
        end(process, signal.SIGTERM)
        shutil.rmtree(temporary, ignore_errors=True)


@pytest.fixture(scope="module")
def working(home, head):
    """A pretraining run and a sweep at work; both are stopped at the end."""
    environment = {**os.environ, **EVERY_SECOND, "RAY_ADDRESS": head[0], "HOME": str(home)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "orchestration", *words], cwd=home, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        for words in (PRETRAIN, SWEEP)
    ]  # fmt: skip

    def at_work() -> bool:
        for process in processes:
            assert process.poll() is None, process.communicate()[1]
        return all((home / "runs" / name).exists() for name in ("law/checkpoints/step-00000020", "law-sweep/trials"))

    try:
        until(at_work, 200, "the runs")
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                end(process, signal.SIGINT)


@pytest.fixture(scope="module")
def prometheus(home, head, working):
    """A real Prometheus that finds Ray's endpoints as Ray's documentation says; yields a function that asks it."""
    program = shutil.which("prometheus")
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("prometheus is absent in CI: apt-get install prometheus")
        pytest.skip("prometheus is absent: apt-get install prometheus")
    discovery = head[2] / "prom_metrics_service_discovery.json"
    until(discovery.exists, 60, "Ray's list of endpoints")
    (home / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s}\n"
        f"scrape_configs: [{{job_name: ray, file_sd_configs: [{{files: ['{discovery}'], refresh_interval: 2s}}]}}]\n"
    )
    port = free_port()
    process = subprocess.Popen(
        [program, f"--config.file={home / 'prometheus.yml'}", f"--storage.tsdb.path={home / 'tsdb'}",
         f"--web.listen-address=127.0.0.1:{port}"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def ask(query: str) -> list[Any]:
        url = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        return json.loads(get(url))["data"]["result"]

    try:
        yield ask
    finally:
        end(process, signal.SIGTERM)


def cloze(home: Path, *words: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "orchestration", *words], cwd=home, capture_output=True, text=True, timeout=60
    )


def series(head: tuple[str, str, Path]) -> dict[str, list[dict[str, str]]]:
    """Every series of ours that Ray's endpoints expose: name -> labels, the value as "value"."""
    found: dict[str, list[dict[str, str]]] = {}
    groups = json.loads((head[2] / "prom_metrics_service_discovery.json").read_text())
    for target in (target for group in groups for target in group["targets"]):
        try:
            lines = get(f"http://{target}/metrics")
        except OSError:  # the list holds fixed ports of the dashboard's and the autoscaler's own, which may be taken
            continue
        for name, labels, value in re.findall(r"^(ray_cloze_\w+){(.*)} (\S+)$", lines, re.M):
            found.setdefault(name, []).append({**dict(re.findall(r'(\w+)="([^"]*)"', labels)), "value": value})
    return found


def test_one_series_per_rank_on_rays_own_endpoints(home, head, working):
    from orchestration.gauges import COUNTERS, METRICS

    names = {f"ray_{name}{'_total' if name in COUNTERS else ''}" for name in METRICS}
    of_ranks = ("step_seconds", "data_wait_fraction", "memory_bytes")

    def seen() -> Any:
        """Everything, of both ranks: their processes are collected at different moments."""
        there = series(head)
        return there.keys() >= names and all(len(there[f"ray_cloze_{name}"]) > 1 for name in of_ranks) and there

    found = until(seen, 120, "endpoints")
    assert found.keys() == names
    for name in of_ranks:
        lines = found[f"ray_cloze_{name}"]
        assert sorted(line["rank"] for line in lines) == ["0", "1"]
        assert {line["run"] for line in lines} == {"law"}
        assert all(float(line["value"]) >= 0 for line in lines)
    for name in ("loss", "learning_rate", "tokens_total", "flops_utilisation", "eta_seconds", "restarts"):
        assert [line["run"] for line in found[f"ray_cloze_{name}"]] == ["law"], name
    (utilisation,) = found["ray_cloze_flops_utilisation"]
    assert utilisation["peak"] == "measured" and 0 < float(utilisation["value"]) < 1
    states = {line["state"] for line in found["ray_cloze_trials"]}
    assert states == {"waiting", "running", "done", "stopped", "failed", "nan"}
    assert {line["run"] for line in found["ray_cloze_trials"]} == {"law-sweep"}
    trials = {path.name for path in (home / "runs/law-sweep/trials").iterdir()}
    assert {line["trial"] for line in found["ray_cloze_trial_score"]} <= trials


def test_every_panel_of_the_dashboard_shows_data(home, prometheus):
    board = json.loads((home / "dashboards/cloze.json").read_text())
    queries = [(p["title"], target["expr"]) for p in board["panels"] for target in p.get("targets", [])]
    assert len(queries) > 15
    for title, query in queries:
        filled = query.replace("$run", "law|law-sweep").replace("$__rate_interval", "10s")
        assert "$" not in filled
        until(lambda asked=filled: prometheus(asked), 30, f"{title}: {filled}")
    (variable,) = (v for v in board["templating"]["list"] if v["name"] == "run")
    selector = re.fullmatch(r"label_values\((.*), run\)", variable["query"]["query"])
    assert selector is not None
    assert {one["metric"]["run"] for one in prometheus(selector[1])} == {"law", "law-sweep"}


def test_ray_provisions_the_dashboard_beside_its_own(home, head):
    boards = home / "dashboards"
    until(lambda: len(list(boards.glob("*_dashboard.json"))) > 3, 30, "Ray's own boards")
    assert json.loads((boards / "cloze.json").read_text())["title"] == "Cloze"
    provisioned = head[2] / "session_latest/metrics/grafana/provisioning/dashboards/default.yml"
    assert str(boards) in provisioned.read_text()


def test_ray_lists_the_run_and_its_executions_by_name(home, head, working):
    runs = json.loads(get(f"{head[1]}/api/train/v2/runs/v1"))["train_runs"]
    assert [(run["name"], run["status"]) for run in runs] == [("law", "RUNNING")]
    jobs = {job["job_id"] for job in json.loads(get(f"{head[1]}/api/jobs/")) if job["status"] == "RUNNING"}
    datasets = [
        dataset["dataset"].split("_")[0]
        for job in jobs
        for dataset in json.loads(get(f"{head[1]}/api/data/datasets/{job}"))["datasets"]
    ]
    assert {"law-scan", "law-rows", "law-stream"} <= set(datasets)


def test_status_tells_the_same_without_prometheus(home, working):
    seen = cloze(home, "status", "law")
    assert seen.returncode == 0, seen.stderr
    facts = dict(line.split(maxsplit=1) for line in seen.stdout.splitlines()[1:])
    assert seen.stdout.splitlines()[0] == "law"
    assert facts["state"] == "running" and facts["stage"].startswith("pretrain")
    assert facts["step"].endswith("of 100,000") and float(facts["loss"]) > 0
    assert facts["speed"].endswith("tokens/s") and (facts["workers"], facts["restarts"]) == ("2", "0")

    def led() -> str | bool:
        """Between two trials none is running, for a moment."""
        out = cloze(home, "status", "law-sweep").stdout
        return "best so far" in out and re.search(r"trials +.* running, \d+ done", out) is not None and out

    swept = until(led, 60, "a leader")
    assert re.search(r"encoder +full +0.001 +\d\.\d{3}", swept)

    every = cloze(home, "status").stdout.splitlines()
    assert every[0].split() == ["run", "state", "stage", "done", "left"]
    assert sorted(line.split()[:3] for line in every[1:]) == [
        ["law", "running", "pretrain"], ["law-sweep", "running", "sweep"],
    ]  # fmt: skip


def test_watching_ends_with_the_run(home, working):
    watch = subprocess.Popen(
        [sys.executable, "-m", "orchestration", "status", "law", "--watch"], cwd=home, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert watch.stdout is not None
    seen = ""
    while "state" not in seen and (line := watch.stdout.readline()):
        seen += line
    assert end(working[0], signal.SIGINT) == 130
    out, error = watch.communicate(timeout=60)
    assert watch.returncode == 0, error
    states = re.findall(r"state +(.*)", seen + out)
    assert states[0] == "running" and states[-1].startswith("stopped (stopped and saved at step ")

    working[1].kill()  # a driver that is gone without a word
    working[1].wait()
    lost = cloze(home, "status", "law-sweep", "--watch")
    assert lost.returncode == 1
    assert "lost (its driver is gone without a word" in lost.stdout
