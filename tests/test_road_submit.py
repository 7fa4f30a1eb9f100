"""Jobs on a real head, by the command line: shipped, followed, refused, stopped, resumed, and lost with their cluster.

The head has no Cloze. The checkout that jobs are submitted from is a copy, renamed after the upload: what runs is what
was shipped.
"""

import json
import os
import pty
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from job_head import TOKEN, api, processes_of, running_head, wait, written_recipe

from orchestration.ship import ROOMS, root, shipped

pytestmark = [pytest.mark.road, pytest.mark.timeout(420)]

SECRETS = {  # planted where a user would have them
    "the recipe": "AKIA" + "RECIPE0" + "Q" * 9,
    "a file in the tree": "AKIA" + "DOTENV0" + "Q" * 9,
    "an override": "AKIA" + "STORAGE" + "Q" * 9,
    "the corpus": "signature" + "0f" * 20,
    "the environment": "wJalrXUtnFEMIK7MDENGbPxRfiCY",
}


@pytest.fixture(scope="module")
def head():
    with running_head() as ready:
        yield ready


@pytest.fixture(scope="module")
def home(head) -> Path:
    """A user's folder: a corpus on storage that all nodes read, a recipe, a checkout with all that lies in one."""
    folder = head.folder / "user"
    checkout = folder / "checkout"
    for room in ROOMS:
        shutil.copytree(root() / room, checkout / room, ignore=shutil.ignore_patterns("__pycache__"))
    (checkout / ".gitignore").write_text("data/\n*.yaml\n")
    (checkout / ".env").write_text(f"AWS_ACCESS_KEY_ID={SECRETS['a file in the tree']}\n")
    (checkout / "orchestration" / ".env").write_text(f"AWS_ACCESS_KEY_ID={SECRETS['a file in the tree']}\n")
    (checkout / "weights.bin").touch()
    os.truncate(checkout / "weights.bin", 150_000_000)
    recipe = written_recipe(head)
    (checkout / "law.yaml").write_text(recipe)
    (checkout / "secret.yaml").write_text(recipe + f"# {SECRETS['the recipe']}\n")
    (folder / "home" / ".ray").mkdir(parents=True)
    (folder / "home" / ".ray" / "auth_token").write_text(TOKEN)
    return checkout


@pytest.fixture(scope="module")
def start(head, home):
    """Start the command line of a checkout, as the user: token in ~/.ray, secrets in the environment."""

    def start(*words: str, cwd: Path | None = None, **more: str) -> subprocess.Popen[str]:
        environment = {
            **os.environ, "HOME": str(head.folder / "user" / "home"), "RAY_API_SERVER_ADDRESS": head.url,
            "AWS_SECRET_ACCESS_KEY": SECRETS["the environment"], "PYTHONPATH": str(cwd or home), **more,
        }  # fmt: skip
        for name in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
            if name not in more:
                environment.pop(name, None)
        return subprocess.Popen(
            [sys.executable, "-m", "orchestration", *words], cwd=cwd or home, env=environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip

    return start


@pytest.fixture(scope="module")
def cloze(start):
    """Run it to its end."""

    def run(*words: str, timeout: float = 180, **more):
        process = start(*words, **more)
        out, error = process.communicate(timeout=timeout)
        assert "Traceback" not in out + error, out + error
        return SimpleNamespace(returncode=process.returncode, stdout=out, stderr=error)

    return run


def submission_of(out: str) -> str:
    return next(line.split()[1] for line in out.splitlines() if line.startswith("job "))


def losses(run: Path) -> dict[int, float]:
    path = run / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def test_a_job_runs_from_what_was_shipped_alone(head, home, cloze):
    done = cloze("submit", "--detach", "--env", "OMP_NUM_THREADS=1", "--env", "PYTHONWARNINGS=once",
                 "pretrain", "-c", "law.yaml", "name=law")  # fmt: skip
    assert done.returncode == 0, done.stderr
    identity = submission_of(done.stdout)
    away = home.rename(home.with_name("renamed"))
    try:
        followed = cloze("logs", "-f", identity, cwd=root())
    finally:
        away.rename(home)
    assert followed.returncode == 0, followed.stdout + followed.stderr
    assert followed.stderr == f"cloze: job {identity} succeeded\n"
    assert sorted(losses(head.folder / "runs" / "law")) == list(range(10))
    shown = done.stdout.splitlines()
    assert " files, 0." in shown[0] and shown[0].endswith("left out 1 that are neither .py nor .yaml nor .yml nor "
                                                          ".json nor .jinja: orchestration/.env")  # fmt: skip
    assert shown[2] == f"dashboard {head.url}/#/jobs/{identity}"
    job = api(head, f"/api/jobs/{identity}")
    metadata = {"job_name": "law", "run": "law", "verb": "pretrain", "recipe": "law.yaml"}
    assert job["metadata"].items() >= metadata.items()
    assert job["entrypoint"] == "python -m orchestration pretrain -c recipe.yaml name=law"
    variables = job["runtime_env"]["env_vars"]
    assert variables["PYTHONWARNINGS"] == "once" and variables["RAY_JOB_STOP_SIGNAL"] == "SIGINT"
    assert any(line.startswith("torch==") for line in job["runtime_env"]["pip"]["packages"])
    assert not any(line.startswith("ray==") for line in job["runtime_env"]["pip"]["packages"])
    listed = cloze("jobs")
    assert listed.stdout.splitlines()[1].split()[:4] == [identity, "SUCCEEDED", "law", "pretrain"]
    assert cloze("logs", "law").stdout == followed.stdout
    assert "has ended already: succeeded" in cloze("stop", "law").stdout


def test_a_job_that_fails_hands_its_exit_code_on_and_words_arrive_as_they_are(head, cloze):
    """No shell takes quotes, spaces, $(...) or new lines out of a path, or runs what they say."""
    path = f"{head.folder}/it's $(touch {head.folder}/owned) `id` \"x\" ;\n&& exit 9 #.txt"
    done = cloze("submit", "predict", str(head.folder), path, "cluster.requirements=null")
    assert done.returncode == 2, done.stdout + done.stderr
    assert not (head.folder / "owned").exists()
    identity = submission_of(done.stdout)
    assert done.stderr.endswith(f"cloze: job {identity} failed with exit code 2\n")
    python, *words = shlex.split(api(head, f"/api/jobs/{identity}")["entrypoint"])
    assert python == str(head.folder / "venv/bin/python")
    assert words == ["-m", "orchestration", "predict", str(head.folder), path]
    assert "cloze: " in done.stdout


def test_a_jobs_variables_win_over_the_products_and_reach_the_workers(head, cloze):
    """Also in a job that Ray's own command submits: a second runtime environment would be a conflict."""
    program = (
        "import os, ray; from orchestration.cluster import joined; from orchestration.config import Cluster\n"
        "with joined(Cluster()):\n"
        "    print('saw', os.environ['TOKENIZERS_PARALLELISM'], ray.get(ray.remote(lambda: "
        "os.environ['TOKENIZERS_PARALLELISM']).remote()))"
    )
    submit = (
        "import sys, json; from ray.job_submission import JobSubmissionClient; c = JobSubmissionClient(sys.argv[1])\n"
        "print(c.submit_job(entrypoint=sys.argv[2], runtime_env=json.loads(sys.argv[3])))"
    )
    with shipped() as shipment:
        runtime_env = {"working_dir": str(shipment.archive), "env_vars": {"TOKENIZERS_PARALLELISM": "job"}}
        sent = subprocess.run(
            [sys.executable, "-c", submit, head.url, shlex.join([str(head.folder / "venv/bin/python"), "-c", program]),
             json.dumps(runtime_env)],
            env={**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "RAY_ADDRESS": ""},
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert sent.returncode == 0, sent.stderr
    done = cloze("logs", "-f", sent.stdout.split()[-1])
    assert done.returncode == 0 and "saw job job" in done.stdout, done.stdout


@pytest.mark.soak
def test_a_run_by_hand_takes_its_code_to_the_nodes(head, home, cloze):
    """The nodes have no Cloze: workers need the code."""
    done = cloze("pretrain", "-c", "law.yaml", "name=hand", "pretrain.steps=4", RAY_ADDRESS=head.gcs,
                 RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(losses(head.folder / "runs" / "hand")) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "environment, line",
    [
        (dict(RAY_AUTH_TOKEN_PATH="/nowhere/token", RAY_AUTH_MODE="disabled"), "wants a token and got none (401); s"),
        (dict(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="0123456789"), "the token is not this cluster's (403); set RAY"),
        (dict(RAY_AUTH_TOKEN="0123456789"), "the token is not this cluster's (403); set RAY_AUTH_MODE=token and RAY_"),
    ],
)
def test_a_wrong_token_is_explained(cloze, environment, line):
    begun = time.monotonic()
    done = cloze("submit", "pretrain", "-c", "law.yaml", "name=x", **environment)
    assert done.returncode == 2 and line in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
    assert "0123456789" not in done.stderr.replace("RAY_AUTH_TOKEN=TOKEN", "")
    assert time.monotonic() - begun < 20


def test_an_address_of_gcs_serves_too(head, cloze):
    for words, environment in (
        (["--address", head.gcs], {}),
        ([], dict(RAY_ADDRESS=head.gcs, RAY_API_SERVER_ADDRESS="")),
        (["--address", head.url.removeprefix("http://")], dict(RAY_API_SERVER_ADDRESS="http://127.0.0.1:1")),
    ):
        done = cloze("jobs", *words, **environment)
        assert done.returncode == 0 and done.stdout.startswith("ID "), done.stderr
    wrong = cloze("jobs", "--address", head.gcs, RAY_AUTH_TOKEN="0123456789")
    assert wrong.returncode == 2 and "the token is missing, or not this cluster's" in wrong.stderr


def test_credentials_go_nowhere(head, home, cloze):
    """Planted where users have them: refused where they would be kept, and in nothing that was written or shipped."""
    assert cloze("submit", "predict", "/nowhere", "/x.txt", "cluster.requirements=null").returncode == 2  # shipped
    for words, line in (
        (["-c", "secret.yaml", "name=s"], "secret.yaml, line 10: holds an AWS access key"),
        (["name=s", f"storage=s3://{SECRETS['an override']}:x@bucket/runs"], "submit: the value holds a"),
        (["name=s", f"corpus.sources=https://h/c.txt?X-Amz-Signature={SECRETS['the corpus']}"], "holds a key in a URI"),
        (["name=s", f"corpus.sources=/x/{SECRETS['the environment']}.txt"], "holds the value of AWS_SECRET_ACCESS_KEY"),
        (["name=s", f"corpus.sources=/x/{TOKEN}.txt"], "Ray's token of "),
    ):
        done = cloze("submit", "pretrain", *words)
        assert done.returncode == 2 and line in done.stderr, done.stderr
        assert not any(secret in done.stdout + done.stderr for secret in (*SECRETS.values(), TOKEN))
    found = []
    planted = [*SECRETS.items(), ("token", TOKEN)]
    written = [path for place in ("t", "runs", "home", "user/home") for path in (head.folder / place).rglob("*")]
    written += Path(tempfile.gettempdir()).glob("cloze-*.log")
    for path in written:
        if path.is_file() and not path.is_symlink() and path.name != "auth_token":
            content = path.read_bytes()
            found += [(path, what) for what, secret in planted if secret.encode() in content]
    jobs = json.dumps(api(head, "/api/jobs/"))
    assert len(written) > 100 and not found and not [what for what, secret in planted if secret in jobs]
    everything = b"".join(path.read_bytes() for path in head.folder.glob("t/session_*/runtime_resources/**/*.py"))
    assert b"def pretrain_worker" in everything


@pytest.fixture(scope="module")
def long_job(start) -> tuple[subprocess.Popen[str], str]:
    """A job that trains for long: the process that follows it, and its identity."""
    process = start("submit", "pretrain", "-c", "law.yaml", "name=long", "pretrain.steps=100000")
    assert process.stdout is not None
    identity = ""
    for line in process.stdout:
        identity = line.split()[1] if line.startswith("job ") else identity
        if line.startswith("Running entrypoint"):
            break
    return process, identity


def test_ctrl_c_without_a_terminal_leaves_the_job_running(head, long_job):
    process, identity = long_job
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 130, error
    assert error == f"cloze: the job goes on; `cloze logs -f {identity}` follows it, `cloze stop {identity}` stops it\n"
    assert api(head, f"/api/jobs/{identity}")["status"] == "RUNNING"


@pytest.mark.soak
def test_ctrl_c_at_a_terminal_asks_and_once_more_is_no(head, home, cloze, long_job):
    """The terminal is a real one, so that Ctrl-C is a character typed."""
    terminal, inside = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", "import os; os.setsid(); import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
         "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
         "from orchestration import cli; raise SystemExit(cli.main(['logs', '-f', 'long']))"],
        cwd=home, stdin=inside, stdout=inside, stderr=inside,
        env={**os.environ, "RAY_API_SERVER_ADDRESS": head.url, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN},
    )  # fmt: skip
    os.close(inside)  # what is read then ends with the process
    shown = b""
    try:
        for awaited in (b"Running entrypoint", b"let it go on without you? [s/G]"):
            while awaited not in shown:
                shown += os.read(terminal, 4096)
            os.write(terminal, b"\x03")
        assert process.wait(30) == 130
    finally:
        process.kill()
        os.close(terminal)
    assert cloze("jobs").stdout.splitlines()[1].split()[1] == "RUNNING"


@pytest.mark.soak
def test_a_stopped_job_has_saved_leaves_nothing_and_resumes_until_its_cluster_dies(head, start, cloze, long_job):
    run = head.folder / "runs" / "long"
    wait(lambda: len(losses(run)) > 5, 120)
    stopped = cloze("stop", "long")
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    assert stopped.stdout.splitlines()[1].endswith(": stopped; the same command goes on from where it was saved")
    (saved,) = [int(path.parent.name.removeprefix("step-")) for path in run.glob("checkpoints/step-*/manifest.json")]
    assert saved == len(losses(run)) and not (run / "lease.json").exists()
    groups = api(head, "/api/v0/placement_groups")["data"]["result"]["result"]
    assert groups and {group["state"] for group in groups} == {"REMOVED"}
    wait(lambda: not [p for p in processes_of(head.folder) if "RayTrainWorker" in " ".join(p.cmdline())], 20)

    again = start("submit", "pretrain", "-c", "law.yaml", "name=long", "pretrain.steps=100000")
    wait(lambda: len(losses(run)) > saved + 3, 120, lambda: str(again.poll()))
    assert sorted(losses(run)) == list(range(len(losses(run))))
    for process in processes_of(head.folder):
        process.kill()
    begun = time.monotonic()
    _, error = again.communicate(timeout=60)
    assert again.returncode == 1 and len(error.splitlines()) == 1, error
    assert error.startswith(f"cloze: the cluster at {head.url} does not answer any more; ")
    assert "goes on from its newest checkpoint when the same command is given" in error
    assert time.monotonic() - begun < 45
