"""A job before there is a cluster: what it would be, and which mistakes are told before anything is uploaded."""

import http.server
import json
import shlex
import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from job_head import free_ports

from data.config import UserError
from orchestration import jobs
from orchestration.cli import main, parse
from orchestration.recipe import load_config
from orchestration.submit import described, environment, pinned, requested, split

RECIPE = "storage: /runs\ncorpus: {sources: [/c/it's.txt], held_out: 0.1}\npretrain: {learning_rate: 1e-5}\n"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    """A folder with a recipe and a corpus, and no word on an address."""
    monkeypatch.chdir(tmp_path)
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "law.yaml").write_text(RECIPE)
    (tmp_path / "corpus.txt").write_text("text")
    return tmp_path


def job_of(*words: str, env: tuple[str, ...] = ()):
    """The job that `cloze submit` would hand over."""
    plain, settings = split(words)
    request = requested(plain, parse(plain[0], plain[1:]), settings)
    python = "python" if request.brings_python else "/venv/bin/python"
    return described(request, environment(env), Path("/tmp/cloze.zip"), python)


def test_a_job_is_what_the_words_say():
    job = job_of("pretrain", "-c", "law.yaml", "name=law", "pretrain.steps=5", env=("NCCL_SOCKET_IFNAME=eth0",))
    assert job.entrypoint == "python -m orchestration pretrain -c recipe.yaml name=law pretrain.steps=5"
    assert job.metadata == {"job_name": "law", "run": "law", "verb": "pretrain", "recipe": "law.yaml"}
    assert job.submission_id.startswith("pretrain-law-")
    assert set(job.runtime_env) == {"working_dir", "env_vars", "pip"}
    assert job.runtime_env["env_vars"]["NCCL_SOCKET_IFNAME"] == "eth0"
    assert job.runtime_env["env_vars"]["RAY_TRAIN_ENABLE_STATE_TRACKING"] == "1"
    sweep = job_of("sweep", "-c", "demo", "name=law", "storage=/runs", "cluster.requirements=null")
    assert sweep.metadata["job_name"] == "law-sweep" and "pip" not in sweep.runtime_env
    assert sweep.entrypoint.startswith("/venv/bin/python -m orchestration sweep -c demo name=law ")


def test_a_variable_given_wins_over_the_products():
    variables = environment(["RAY_JOB_STOP_WAIT_TIME_S=300", "PYTHONWARNINGS=once"])
    assert (variables["RAY_JOB_STOP_WAIT_TIME_S"], variables["PYTHONWARNINGS"]) == ("300", "once")


def test_words_survive_the_shell_that_ray_starts_a_job_with():
    words = ["predict", "/m", "/it's $(reboot) `id` \"x\" ;\n&& exit 9 #.txt"]
    assert shlex.split(job_of(*words).entrypoint) == ["python", "-m", "orchestration", *words]


def test_a_job_in_an_image_gets_its_recipe_as_words():
    """Ray takes no files beside an image; and its own check agrees with what is asked for."""
    from ray.runtime_env import RuntimeEnv

    job = job_of("pretrain", "-c", "law.yaml", "name=law", "cluster.image=ghcr.io/me/cloze:1")
    assert set(job.runtime_env) == {"image_uri", "env_vars"} and RuntimeEnv(**job.runtime_env)
    words = shlex.split(job.entrypoint)
    assert words[:4] == ["python", "-m", "orchestration", "pretrain"]
    there = load_config(None, words[4:])
    assert there == load_config("law.yaml", ["name=law", "cluster.image=ghcr.io/me/cloze:1"])
    with pytest.raises(UserError, match="--env X: cluster.image can be handed no quote"):
        job_of("pretrain", "-c", "demo", "storage=/runs", "cluster.image=x", env=("X=it's",))


def test_pinned_is_what_is_installed_here_without_ray():
    from importlib.metadata import version

    lines = dict(line.split("==") for line in pinned())
    assert {"torch", "deepspeed", "transformers", "pyarrow", "aiohttp", "pydantic-core"} <= lines.keys()
    assert lines["torch"] == version("torch").split("+")[0] and lines["deepspeed"] == version("deepspeed")
    assert not {"ray", "pip", "setuptools", "cloze", "ruff", "pytest"} & lines.keys()


def test_a_job_that_segments_chinese_brings_the_segmenter():
    words = ("pretrain", "-c", "demo", "storage=/runs", "rows.word_segmenter=rjieba")
    assert not [line for line in job_of(*words[:-1]).runtime_env["pip"]["packages"] if line.startswith("rjieba")]
    assert [line for line in job_of(*words).runtime_env["pip"]["packages"] if line.startswith("rjieba==")]


def test_requirements_of_a_file_are_taken_as_they_stand(here):
    (here / "r.txt").write_text("# ours\n\ntorch==2.13.0  # exact\n-c /nfs/constraints.txt\n")
    job = job_of("pretrain", "-c", "law.yaml", "name=x", "cluster.requirements=r.txt")
    assert job.runtime_env["pip"]["packages"] == ["torch==2.13.0  # exact", "-c /nfs/constraints.txt"]
    (here / "r.txt").write_text("--index-url https://me:" + "hunter2hunter2@host/simple\n")
    with pytest.raises(UserError, match="r.txt: the value holds a password in a URI"):
        job_of("pretrain", "-c", "law.yaml", "name=x", "cluster.requirements=r.txt")


@pytest.mark.parametrize(
    "status, code, given, words",
    [
        ("SUCCEEDED", 0, 0, "succeeded"),
        ("FAILED", 2, 2, "failed with exit code 2"),
        ("FAILED", -9, 137, "failed with exit code 137"),
        ("STOPPED", None, 130, "stopped; the same command goes on"),
        ("FAILED", None, 1, "failed before it began: RuntimeError: no virtualenv; where the nodes have Cloze"),
    ],
)
def test_an_exit_code_is_the_jobs_own(status, code, given, words):
    message = "runtime_env setup failed\nRuntimeError: no virtualenv\n" if status == "FAILED" else None
    job = SimpleNamespace(status=SimpleNamespace(value=status), driver_exit_code=code, message=message)
    got, said = jobs.ended(job)
    assert got == given and said.startswith(words)


OTHER_RAY = {
    "/api/version": {"ray_version": "2.9.0"},
    "/api/v0/cluster_metadata": {"data": {"pythonVersion": "3.9.18"}},
}


class Answers(http.server.BaseHTTPRequestHandler):
    """Something else on the dashboard's port: a page for everything, or what a Ray of another version answers."""

    pages: dict[str, object] = {}

    def do_GET(self) -> None:
        page = self.pages.get(self.path)
        self.send_response(200 if page or not self.pages else 404)
        self.end_headers()
        self.wfile.write(json.dumps(page).encode() if page else b"<html>It works!</html>")

    def log_message(self, *_) -> None:
        pass


@pytest.mark.parametrize(
    "what, line",
    [
        ("nobody", "no Ray dashboard answers there (connection refused)"),
        ("silence", "no answer within 6 s"),
        ("a page", "what answers is no Ray dashboard (HTTP 200)"),
        ("another Ray", "the cluster runs Ray 2.9.0 on Python 3.9.18, this is Ray "),
        ("nonsense", "not an address of a cluster; give --address=http://HOST:8265"),
        ("client", "the port of Ray Client takes no jobs; give --address=http://127.0.0.1:8265"),
    ],
)
def test_a_wrong_address_is_one_line(capsys, what, line):
    (port,) = free_ports(1)
    address, stop = f"http://127.0.0.1:{port}", []
    if what == "silence":
        stop.append(socket.create_server(("127.0.0.1", port)).close)
    elif what in ("a page", "another Ray"):
        handler = type("Handler", (Answers,), {"pages": OTHER_RAY if what == "another Ray" else {}})
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        stop.append(server.shutdown)
    elif what in ("nonsense", "client"):
        address = {"nonsense": "somewhere", "client": "ray://127.0.0.1:10001"}[what]
    begun = time.monotonic()
    try:
        code = main(["submit", "--address", address, "pretrain", "name=x", "storage=/runs"])
    finally:
        for end in stop:
            end()
    error = capsys.readouterr().err
    assert code == 2 and line in error and len(error.splitlines()) == 1, error
    assert address in error and time.monotonic() - begun < 20


@pytest.mark.parametrize(
    "words, line",
    [
        ("pretrain -c law.yaml name=x storage=runs", "storage=runs: in a job a relative path is a dispo"),
        ("pretrain -c law.yaml name=x corpus.sources=corpus.txt", "corpus.txt lies here and does not travel (Cloze's "
         "code does, no other file, whatever .gitignore says); give a folder that all nodes mount"),
        ("pretrain -c law.yaml name=x --dump-batches d", "--dump-batches=d: in a job"),
        ("pretrain -c law.yaml name=x corpus.held_out_sources=dev", "corpus.held_out_sources=dev: in a job"),
        ("pretrain -c distilbert_base name=x corpus.sources=/c storage=/runs tokenizer.path=/t "
         "objective.teacher=runs/bert/export", "objective.teacher=runs/bert/export: in a job"),
        ("predict /m /x.txt --address=http://other:8265", "submit: --address stands behind predict; give it before"),
        ("sweep -c law.yaml name=x task.train=a.csv task.validation=/b.csv", "task.train=a.csv: in a job"),
        ("sweep -c law.yaml name=x task.train=/a.csv task.passages=b.csv", "task.passages=b.csv: in a job"),
        ("sweep -c law.yaml name=x sweep.encoders=[runs/law/export,random]", "sweep.encoders=runs/law/export: in a jo"),
        ('sweep -c law.yaml name=x sweep.tasks={"a":{"task.train":"/a.csv"},"b":{"task.train":"b.csv"}}',
         "sweep.tasks.b.task.train=b.csv: in a job"),
        ('sweep -c law.yaml name=x sweep.tasks={"a":{"pretrain.steps":3}}',
         "sweep.tasks.a.pretrain.steps: all tasks have"),
        ("predict runs/law-sweep/best /x.txt", "MODEL=runs/law-sweep/best: in a job"),
        ("pretrain -c law.yaml name=x pretrain.stepz=1", "pretrain.stepz: unknown key; did you mean steps?"),
        ("pretrain -c law.yaml name=x cluster.requirements=none.txt", "cluster.requirements=none.txt: cannot be read"),
        ("pretrain -c law.yaml name=x cluster.image=a;reboot", "cluster.image='a;reboot': string should match"),
        ("--env HF_TOKEN=x pretrain -c law.yaml name=x", "--env HF_TOKEN: Ray shows a job's environment to all"),
        ("--env 1X=x pretrain -c law.yaml name=x", "--env 1X: write --env NAME=VALUE"),
        ("show name=x", "show: no verb that can be a job; give one of: prepare, pretrain, sweep, predict, embed"),
        ("", "submit: nothing to run; give one of: prepare"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_before_anything_is_uploaded(here, monkeypatch, capsys, words, line):
    """With an address where nobody listens: the mistake comes first."""
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://127.0.0.1:1")
    code = main(["submit", *words.split()])
    error = capsys.readouterr().err
    assert code == 2 and line in error and len(error.splitlines()) == 1, error
