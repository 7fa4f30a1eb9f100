"""The file of `ray up`: the shipped ones are good and pinned, and every mistake of a first user is one line."""

import copy
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from orchestration.launcher import CLUSTERS, KINDS, example, find_faults
from orchestration.pins import LOWEST_PYTHON, PACKAGES, PINNED

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NEEDED = {Requirement(text).name: Requirement(text) for text in PROJECT["dependencies"]}
OWN = {"head_ip": "10.0.0.1", "worker_ips": ["10.0.0.2", "10.0.0.3"], "ssh_user": "ann", "key": "id_rsa"}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder as a user would have it: constraints, a token in HOME, and the tools of `ray up` in PATH."""
    home, tools = tmp_path / "home", tmp_path / "bin"
    for folder in (home / ".ray", home / ".ssh", tools, tmp_path / "boto3"):
        folder.mkdir(parents=True)
    (tmp_path / "constraints.txt").write_text("ray==2.60.0\n")
    (home / ".ray" / "auth_token").write_text("x" * 64)
    (home / ".ssh" / "id_rsa").write_text("key")
    (tmp_path / "boto3" / "__init__.py").touch()  # the check asks whether it can be imported, no more
    for tool in ("rsync", "ssh"):
        (tools / tool).write_text("#!/bin/sh\n")
        (tools / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tree(kind):
    """A shipped file as a tree, its placeholders filled in."""
    text = re.sub(r"\bHEAD_IP\b", OWN["head_ip"], example(kind)).replace("YOUR_USER", OWN["ssh_user"])
    for number, address in enumerate(OWN["worker_ips"], 1):
        text = text.replace(f"WORKER_IP_{number}", address)
    return yaml.safe_load(text)


def faults_of(place, cluster):
    path = place / "cluster.yaml"
    path.write_text(cluster if isinstance(cluster, str) else yaml.safe_dump(copy.deepcopy(cluster), sort_keys=False))
    return find_faults(path)


def test_the_file_at_the_top_is_the_one_that_is_shipped():
    assert (ROOT / "cluster.yaml").read_bytes() == (CLUSTERS / "aws.yaml").read_bytes(), "copy it"
    assert KINDS == ("aws", "kuberay", "local")


@pytest.mark.parametrize("kind", ["aws", "local"])
def test_a_shipped_file_has_no_fault_and_passes_rays_own_validation(place, kind):
    from ray.autoscaler._private.util import prepare_config, validate_config

    assert faults_of(place, tree(kind)) == []
    full = prepare_config(tree(kind))
    validate_config(full)
    assert full["max_workers"] == (8 if kind == "aws" else 2)


def test_the_pins_are_those_of_the_project():
    assert {name: f"=={version}" for name, version in PINNED.items()} == {n: str(NEEDED[n].specifier) for n in PINNED}
    assert set(PACKAGES) <= NEEDED.keys()
    assert PROJECT["requires-python"] == f">={'.'.join(map(str, LOWEST_PYTHON))}"


@pytest.mark.parametrize("kind", ["aws", "local"])
def test_nodes_get_exactly_what_the_project_needs(kind):
    """Every dependency, Ray in its exact version, the rest by the constraints."""
    install = next(line for line in tree(kind)["setup_commands"] if "pip" in line and "--constraint" in line)
    words = install.replace('"', "").split("constraints.txt ")[1].split()
    assert {Requirement(word).name for word in words} == {name.lower() for name in NEEDED}
    assert NEEDED["ray"] == Requirement(next(word for word in words if word.startswith("ray")))


def test_aws_trains_on_spot_workers_only_and_shows_its_dashboard_to_nobody(place):
    cluster = tree("aws")
    head, gpu = cluster["available_node_types"]["head"], cluster["available_node_types"]["gpu"]
    start = cluster["head_start_ray_commands"][-1]
    assert "--num-cpus=0" in start and head["resources"] == {"CPU": 0, "GPU": 0}
    assert "--dashboard-host=127.0.0.1" in start
    assert "InstanceMarketOptions" not in head["node_config"]
    assert gpu["node_config"]["InstanceMarketOptions"] == {"MarketType": "spot"}
    assert gpu["min_workers"] == 0 and cluster["idle_timeout_minutes"] > 0
    assert all(kind["node_config"]["IamInstanceProfile"] for kind in (head, gpu))
    assert "--gpus=all" in cluster["docker"]["worker_run_options"]


def test_kubernetes_gets_a_job_whose_head_trains_nothing(place):
    job = yaml.safe_load(example("kuberay"))
    spec = job["spec"]["rayClusterSpec"]
    assert (job["apiVersion"], job["kind"], spec["rayVersion"]) == ("ray.io/v1", "RayJob", PINNED["ray"])
    assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0" and spec["authOptions"] == {"mode": "token"}
    group = spec["workerGroupSpecs"][0]
    assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    for pod in (spec["headGroupSpec"]["template"]["spec"], group["template"]["spec"]):
        assert pod["serviceAccountName"] and pod["volumes"][0]["emptyDir"]["medium"] == "Memory"
        mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
        assert mounts == {"shm": "/dev/shm", "storage": "/mnt/cloze"}
    assert group["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "4"
    words = job["spec"]["entrypoint"].split()
    assert words[:4] == ["python", "-m", "orchestration", "pretrain"]
    from orchestration.recipe import load_config

    config = load_config(words[5], words[6:])
    workers = group["maxReplicas"] * int(group["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"])
    assert config.scaling.workers * config.scaling.cpus_per_worker < workers
    assert "a manifest of Kubernetes" in faults_of(place, example("kuberay"))[0]


def put(path, value):
    """A change: set, or with None remove, the value at a path (its parts between slashes, or in a tuple)."""

    def change(cluster):
        *parents, last = path.split("/") if isinstance(path, str) else path
        node = cluster
        for part in parents:
            node = node[int(part) if isinstance(node, list) else part]
        if value is None:
            del node[last]
        else:
            node[int(last) if isinstance(node, list) else last] = value

    return change


START = "ray start --head --port=6379 --autoscaling-config=~/ray_bootstrap_config.yaml"
MISTAKES = [
    ("aws", put("cluster_name", "law:bert"), "cluster_name='law:bert': letters, digits, - _ . only"),
    ("aws", put("cluster_name", None), "cluster_name: missing"),
    ("aws", put("max_worker", 3), "max_worker: Ray knows no such key; did you mean max_workers?"),
    ("aws", put("max_workers", "eight"), "max_workers='eight': must be a whole number"),
    ("aws", put("docker", "rayproject/ray"), "docker='rayproject/ray': must be a mapping"),
    ("aws", put("head_node", {"InstanceType": "m5.large"}), "head_node: Ray no longer reads it; move it to"),
    ("aws", put("provider/type", "awz"), "provider.type='awz': unknown to Ray; one of: aws, local"),
    ("aws", put("provider/type", "kuberay"), "cloze cluster kuberay"),
    ("aws", put("provider/region", None), "provider.region: missing"),
    ("aws", put("provider/region", "eu-west-1"), "us-west-2a,us-west-2b,us-west-2c: not in provider.region=eu-west-1"),
    ("aws", put("head_node_type", "master"), "head_node_type=master: no such type; give one of available_node_types: "),
    ("aws", put("available_node_types/gpu/min_workers", 9), "gpu.min_workers=9: more than its max_workers=8"),
    ("aws", put("available_node_types/gpu/min_workers", -1), "gpu.min_workers=-1: less than none"),
    ("aws", put("available_node_types/gpu/resources", {"CPU": 48, "gpu": 4}), "resources.gpu: Ray calls it GPU"),
    ("aws", put("available_node_types/gpu/node_config/IamInstanceProfil", {"Name": "x"}),
     "node_config.IamInstanceProfil: AWS knows no such key; did you mean IamInstanceProfile?"),
    ("aws", put("worker_start_ray_commands", ["ray stop", "ray start --address=$HEAD_IP:6379"]),
     "--address=$HEAD_IP: Ray sets RAY_HEAD_IP only"),
    ("aws", put("worker_start_ray_commands", ["ray stop", "RAY_AUTH_MODE=tokne ray start --address=$RAY_HEAD_IP:6379"]),
     "RAY_AUTH_MODE=tokne: Ray knows token and disabled"),
    ("aws", put("max_workers", 0), "max_workers=0: only the head would start"),
    ("aws", put("auth/ssh_private_key", "~/.ssh/id_rsa"), "node_config.KeyName: missing, and auth.ssh_private_key"),
    ("aws", put(("file_mounts", "~/corpus"), "./corpus"), "file_mounts.~/corpus=./corpus: no such file or folder in /"),
    ("aws", put(("file_mounts", "~/.aws"), "~/.ray/../.aws"), "file_mounts.~/.aws=~/.ray/../.aws: no such file"),
    ("aws", put(("file_mounts", "~/.ssh"), "~/.ssh"), "would copy your own credentials to every node"),
    ("aws", put("file_mounts", {}), "file_mounts./home/ray/cloze/auth_token: missing, and RAY_AUTH_MODE=token"),
    ("aws", put("head_start_ray_commands/1", START + " --dashboard-host=0.0.0.0"), "-host=0.0.0.0 lets every"),
    ("aws", put("head_start_ray_commands", None), "head_start_ray_commands (Ray's default): --dashboard-host=0.0.0.0"),
    ("aws", put("head_start_ray_commands/0", "true"), "head_start_ray_commands: no `ray stop` before `ray start`"),
    ("aws", put("head_start_ray_commands", ["ray stop"]), "head_start_ray_commands: no `ray start`; give"),
    ("aws", put("head_start_ray_commands/1", "ray start --head --port=6379"), "--autoscaling-config: no worker"),
    ("aws", put("worker_start_ray_commands/1", "ray start"), "each worker would be a cluster of its own"),
    ("aws", put("worker_start_ray_commands/1", "ray start --address=$RAY_HEAD_IP:6380"), "6380, the head --port=6379"),
    ("aws", put("docker/worker_image", "rayproject/ray:2.59.0-py312-gpu"), "another Ray than Cloze's, 2.60.0; give"),
    ("aws", put("docker/worker_image", "rayproject/ray:latest-gpu"), "another Ray than Cloze's, 2.60.0; give"),
    ("aws", put("docker/head_image", "rayproject/ray:2.60.0-py310-cpu"), "head_image: Python 3.10; Cloze needs 3.11"),
    ("aws", put("docker/head_image", "rayproject/ray:2.60.0-py311-cpu"), "Ray refuses nodes of different Pythons"),
    ("aws", put("docker/worker_image", "rayproject/ray:2.60.0-py312-cpu"), "without CUDA, and node type gpu has GPUs"),
    ("aws", put("docker/container_name", None), "docker.container_name: missing beside an image"),
    ("aws", put("docker/worker_run_options/0", "--pid=host"), "node type gpu has GPUs, and torch would see none"),
    ("aws", put("docker/worker_run_options/1", "--pid=host"), "no --shm-size for node type gpu"),
    ("aws", put("setup_commands", ["pip install 'ray[default]==2.9.0'"]), "commands.0: installs Ray ==2.9.0; give"),
    ("aws", put("setup_commands", ["pip install -U ray torch"]), "setup_commands.0: installs whichever Ray is newest"),
    ("aws", put("setup_commands", None), "(Ray's default): installs Ray @https://"),
    ("aws", put("setup_commands", ["export X=AKIAABCDEFGHIJKLMNOP"]), "setup_commands: the value holds"),
    ("aws", put("docker/run_options/1", "--env=RAY_AUTH_TOKEN=5d41402abc4b2a76b971"), "docker.run_options: the value"),
    ("aws", put("provider/aws_secret_access_key", "wJalrXUtnFEMIK7MDENG"), "provider.aws_secret_access_key: "),
    ("local", put("provider/head_ip", None), "provider.head_ip: missing"),
    ("local", put("provider/worker_ips", None), "provider.worker_ips: missing"),
    ("local", put("provider/head_ip", "127.0.0.1"), "the workers would look for the head on themselves"),
    ("local", put("provider/head_ip", "HEAD_IP"), "provider.head_ip=HEAD_IP: a placeholder; give your own value"),
    ("local", put("provider/worker_ips/0", "10.0.0.1"), "provider.worker_ips=10.0.0.1: is the head already"),
    ("local", put("provider/worker_ips/0", "10.0.0.3"), "provider.worker_ips=10.0.0.3: stands twice"),
    ("local", put("max_workers", 0), "max_workers=0: only the head would start; give 2, the number of"),
    ("local", put("max_workers", 1), "max_workers=1: 1 of the 2 would be used"),
    ("local", put("min_workers", 3), "min_workers=3: there are 2 machines; give 2"),
    ("local", put("available_node_types", {"x": {"resources": {}, "node_config": {}}}), "not for provider.type=local"),
    ("local", put("auth", {}), "auth.ssh_user: missing"),
    ("local", put("auth/ssh_private_key", "~/.ssh/none"), "auth.ssh_private_key=~/.ssh/none: no such file"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "change", "word"), MISTAKES, ids=[word[:50] for _, _, word in MISTAKES])
def test_a_mistake_is_one_line_that_says_what_to_do(place, kind, change, word):
    cluster = tree(kind)
    change(cluster)
    lines = faults_of(place, cluster)
    assert [line for line in lines if word in line], lines
    assert all("\n" not in line and len(line) < 420 for line in lines)
    assert len(lines) <= 3, lines


def test_more_workers_asked_for_than_allowed_in_sum(place):
    cluster = tree("aws")
    kinds = cluster["available_node_types"]
    kinds["cpu"] = {**copy.deepcopy(kinds["gpu"]), "resources": {"CPU": 8, "GPU": 0}, "min_workers": 4}
    kinds["gpu"]["min_workers"] = 5
    assert "max_workers=8: less than the 9 that min_workers of all node types ask for" in faults_of(place, cluster)[0]


def test_a_file_that_is_no_yaml_or_no_cluster_or_not_there(place):
    assert faults_of(place, "cluster_name: [x")[0].startswith(f"{place}/cluster.yaml, line 1: not valid YAML")
    assert "key stands twice: max_workers" in faults_of(place, "max_workers: 1\nmax_workers: 2\n")[0]
    assert "holds str, not a mapping" in faults_of(place, "hello")[0]
    assert "cannot be read" in find_faults(place / "nothing.yaml")[0]
    assert len(faults_of(place, "{}")) >= 2  # name and provider


def test_a_secret_is_never_printed(place):
    cluster = tree("aws")
    cluster["docker"]["run_options"].append("--env=RAY_AUTH_TOKEN=5d41402abc4b2a76b9719d911017c592")
    cluster["setup_commands"].append("export AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY")
    lines = "\n".join(faults_of(place, cluster))
    assert lines.count("holds a secret with its name (it is not shown)") == 2
    assert "5d41402" not in lines and "wJalr" not in lines


def cloze(*words, **environment):
    return subprocess.run(
        [sys.executable, "-m", "orchestration", "cluster", *words],
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.getcwd()}", **environment},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_the_verb_prints_checks_and_exits(place):
    """Through the command line: 0 and one line, or 2 and a line per fault; no tool is taken for granted."""
    done = cloze("aws")
    assert (done.returncode, done.stdout) == (0, example("aws"))
    (place / "cluster.yaml").write_text(done.stdout)
    done = cloze("check", "cluster.yaml")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "cluster.yaml: no fault found; next: ray up cluster.yaml\n"
    (place / "empty").mkdir()
    (place / "constraints.txt").unlink()
    done = cloze("check", "cluster.yaml", PATH=str(place / "empty"))
    lines = done.stderr.splitlines()
    assert (done.returncode, done.stdout, len(lines)) == (2, "", 3), done.stderr
    assert lines[0].startswith("cloze: file_mounts./home/ray/cloze/constraints.txt=constraints.txt: no such file")
    assert "rsync: not found on this machine" in lines[1] and "ssh: not found on this machine" in lines[2]
    assert cloze("check").returncode == 2
