"""The doctor on real clusters: a good one, and ones with another storage, other packages, a node that hangs.

The nodes are Rays of their own on this machine; one that lacks the storage lives in a mount namespace.
"""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from conftest import free_port

MAY_UNSHARE = subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0
namespaces = pytest.mark.skipif(not MAY_UNSHARE, reason="unshare -m is not permitted here: a node cannot lack a folder")


@contextmanager
def process(command, **environment):
    """A process, ended with all that it started."""
    root = psutil.Popen(command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    try:
        yield root
    finally:
        family = [root, *root.children(recursive=True)]
        for one in family:
            with suppress(psutil.NoSuchProcess):
                if one.name() == "raylet" and one.status() != psutil.STATUS_STOPPED:
                    one.terminate()  # it takes leave: of one that is killed the head hears after half a minute
                    psutil.wait_procs([one], timeout=10)
        for one in reversed(family):
            with suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(family, timeout=10)


def until(condition, what, seconds=90):
    """Wait for a condition; what raises is not yet true."""
    end = time.monotonic() + seconds
    while True:
        with suppress(Exception):
            if condition():
                return
        assert time.monotonic() < end, what
        time.sleep(0.3)


def ray_node(words, environment, mounts="", ray="ray.scripts.scripts"):
    """A node of `ray start --block`, perhaps behind its own mounts."""
    ports = [f"--dashboard-agent-listen-port={free_port()}", "--min-worker-port=0", "--max-worker-port=0"]
    start = [sys.executable, "-m", ray, "start", "--block", "--disable-usage-stats", *words, *ports]
    if mounts:
        start = ["unshare", "-m", "sh", "-c", f"{mounts} && exec {shlex.join(start)}"]
    return process(start, **environment)


def ray_head(folder, port, environment, *words, **more):
    """A head without CPUs."""
    words = [
        "--head", f"--port={port}", f"--dashboard-port={free_port()}", f"--temp-dir={folder}/ray", "--num-cpus=0",
        f"--ray-client-server-port={free_port()}", "--node-ip-address=127.0.0.1", "--object-store-memory=90000000",
        *words,
    ]  # fmt: skip
    return ray_node(words, environment, **more)


@dataclass
class Cluster:
    """A head, and as many nodes as a test wants."""

    address: str
    storage: Path
    environment: dict[str, str]

    @contextmanager
    def node(self, gpus=0, mounts="", **environment):
        """One more node, waited for; and waited for its end."""
        before = self.alive()
        words = [f"--address={self.address}", "--num-cpus=2", f"--num-gpus={gpus}", "--object-store-memory=90000000"]
        with ray_node(words, {**self.environment, **environment}, mounts) as root:
            until(lambda: self.alive() > before, "the node did not come")
            yield root
        until(lambda: self.alive() <= before, "the node did not go")

    def alive(self):
        """How many nodes the head counts."""
        from ray._raylet import GcsClient

        nodes = GcsClient(address=self.address).get_all_node_info(timeout=30)
        return sum(node.state == 0 for node in nodes.values())

    def cloze(self, *words, **environment):
        """The command line on this cluster: exit code, and what it said with single spaces."""
        done = self.run("-m", "orchestration", *words, f"storage={self.storage}", **environment)
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    def run(self, *words, **environment):
        return subprocess.run(
            [sys.executable, *words],
            env={**os.environ, **self.environment, "RAY_ADDRESS": self.address, **environment},
            capture_output=True, text=True, timeout=200, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def left(self):
        """What lies in the storage."""
        return sorted(path.name for path in self.storage.iterdir())


@pytest.fixture(scope="module")
def folder():
    path = Path(tempfile.mkdtemp(prefix="cz", dir="/tmp"))  # short: it becomes part of sockets' paths
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def cluster(folder):
    """A cluster whose dashboard knows of a Prometheus, a real one where Debian's package is installed."""
    port, prometheus = free_port(), free_port()
    # No logical GPUs here: what Ray counts and torch does not see is to be found.
    environment = {"CLOZE_LOGICAL_GPUS": "0", "RAY_PROMETHEUS_HOST": f"http://127.0.0.1:{prometheus}"}
    (folder / "shared" / "runs").mkdir(parents=True)
    (folder / "prometheus.yml").write_text("global: {}\n")
    serve = [
        shutil.which("prometheus") or "true", f"--config.file={folder}/prometheus.yml",
        f"--web.listen-address=127.0.0.1:{prometheus}", f"--storage.tsdb.path={folder}/tsdb",
    ]  # fmt: skip
    with process(serve), ray_head(folder, port, environment):
        made = Cluster(f"127.0.0.1:{port}", folder / "shared" / "runs", environment)
        until(lambda: made.alive() == 1, "the head did not come")
        yield made


def test_a_good_cluster_is_told_from_a_terminal_and_from_a_job(cluster):
    from ray.job_submission import JobSubmissionClient

    with cluster.node():
        code, text = cluster.cloze("doctor", "scaling.workers=1")
        bad = "FAULT Prometheus" if shutil.which("prometheus") is None else "FAULT"
        assert code == int(bad != "FAULT") and text.replace("FAULT Prometheus", "").count("FAULT") == 0, text
        assert re.search(r"gloo all-reduce: \d+\.\d\d GB/s", text)
        assert "the same, readable, writable, deletable" in text and "all 2 nodes" in text
        assert re.search(r"ok clock all 2 nodes at most \d+\.\d+ s apart", text)
        dashboard = re.search(r"ok dashboard head (http://127\.0\.0\.1:\d+)", text)[1]
        assert cluster.left() == []

        client = JobSubmissionClient(dashboard)
        words = f"{sys.executable} -m orchestration doctor scaling.workers=1 storage={cluster.storage}"
        job = client.submit_job(entrypoint=words)
        until(lambda: client.get_job_status(job).is_terminal(), "the job did not end")
        assert "the same, readable, writable, deletable" in client.get_job_logs(job)
        assert client.get_job_info(job).driver_exit_code == code
        assert cluster.left() == []


@namespaces
@pytest.mark.soak
def test_storage_that_a_node_lacks_is_found_and_pretrain_refuses_it_before_it_starts(cluster):
    """One node has another folder of that name, the other none: as where somebody forgot to mount it."""
    runs = cluster.storage
    empty = "mount -t tmpfs none"
    with cluster.node(mounts=f"{empty} {runs}"), cluster.node(mounts=f"{empty} {runs.parent}"):
        code, text = cluster.cloze("doctor", "scaling.workers=1")
        assert code == 1 and text.count("FAULT storage") == 2, text
        remedy = f"(host {socket.gethostname()}) -> give storage=FOLDER"
        assert f"{runs}: not the driver's: what the driver wrote is not there {remedy}" in text
        assert f"{runs}: not the driver's: no such folder {remedy}" in text
        code, text = cluster.cloze("pretrain", "-c", "demo", "name=law", "scaling.workers=1")
        assert code == 2 and text.count("cloze: storage on ") == 2, text
        assert cluster.left() == []


@namespaces
@pytest.mark.soak
def test_other_packages_no_gpus_for_torch_and_a_storage_that_cannot_be_written(cluster, tmp_path):
    fake = tmp_path / "transformers-5.20.0.dist-info"
    fake.mkdir()
    (fake / "METADATA").write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 5.20.0\n")
    runs, path = cluster.storage, os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    read_only = f"mount --bind {runs} {runs} && mount -o remount,ro,bind {runs}"
    with cluster.node(gpus=2, mounts=read_only, PYTHONPATH=path):
        code, text = cluster.cloze("doctor", "scaling.workers=1")
        assert code == 1, text
        assert "transformers 5.20.0, the driver 5.24.0 -> there, in the Python that runs Ray: pip install" in text
        assert f"{runs}: not writable: Read-only file system" in text
        assert "Ray counts 2, torch sees 0" in text


@pytest.mark.soak
def test_a_node_that_hangs_is_a_finding_and_no_hang(cluster):
    source = f"""
import time
from orchestration import doctor
from orchestration.cluster import joined
from orchestration.recipe import load_config
config = load_config(None, ["name=x", "storage={cluster.storage}", "scaling.workers=1"])
with joined(config.cluster):
    begun = time.monotonic()
    for finding in doctor.examine(config, patience=8):
        print(finding.state, finding.check, finding.where, finding.found)
    print("seconds", time.monotonic() - begun)
"""
    with cluster.node() as root:
        raylet = next(child for child in root.children(recursive=True) if child.name() == "raylet")
        raylet.suspend()
        done = cluster.run("-c", source)
        assert re.search(r"fault answer \S+ no answer within 8 s", done.stdout), done
        assert "good storage" in done.stdout, "the others are examined all the same"
        assert 8 < float(done.stdout.split("seconds")[1]) < 40
        assert cluster.left() == []


def test_a_cluster_of_another_ray_is_one_line(folder, tmp_path):
    """The head says that it is Ray 2.59.0, as one would that is."""
    (tmp_path / "old_ray.py").write_text(
        "import ray\nray.__version__ = '2.59.0'\nfrom ray.scripts.scripts import main\nmain()\n"
    )
    path, port = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]]), free_port()
    with ray_head(folder / "old", port, {"PYTHONPATH": path}, "--include-dashboard=false", ray="old_ray"):
        old = Cluster(f"127.0.0.1:{port}", folder, {})
        until(lambda: old.alive() == 1, "the head did not come")
        code, text = old.cloze("doctor")
        assert code == 2, text
        assert text.startswith(f"cloze: cluster.address=127.0.0.1:{port}: runs Ray 2.59.0 on Python 3."), text
        assert "this is Ray 2.60.0" in text
