"""What a first user gets wrong in a cluster file about commands, versions and containers, one small check each.

In: the file as given, and as Ray completes it with its defaults: a key left out is Ray's, and may be the fault. Out:
lines: key=value, what is wrong, what to do. Knows neither Ray nor networks.
"""

import re
from collections.abc import Callable, Iterator

from orchestration.launcher_machines import Tree, images_of, texts_of
from orchestration.pins import LOWEST_PYTHON, PINNED

GPU_MACHINE = re.compile(r"^(p\d|g\d|gr\d)[a-z0-9-]*\.")  # AWS' families with NVIDIA GPUs
EXACT_RAY = f"ray[default,data,train,tune]=={PINNED['ray']}"


def _start_commands(given: Tree, full: Tree) -> Iterator[str]:
    ports: dict[str, str] = {}
    for role, needed in (("head", "--head"), ("worker", "--address")):
        key = f"{role}_start_ray_commands"
        where = key if key in given else f"{key} (Ray's default)"
        lines = full[key]
        starts = [number for number, line in enumerate(lines) if re.search(r"\bray start\b", line)]
        if not starts:
            yield f"{where}: no `ray start`; give: ray stop, then ray start {needed} ..."
            continue
        start = lines[starts[-1]]
        if not any(re.search(r"\bray stop\b", line) for line in [*lines[: starts[-1]], start.split("ray start")[0]]):
            yield f"{where}: no `ray stop` before `ray start`: a second `ray up` would meet a running Ray; add it"
        if needed not in start:
            hint = "" if role == "head" else ": each worker would be a cluster of its own"
            value = "" if role == "head" else "=$RAY_HEAD_IP:6379"
            yield f"{where}: `ray start` without {needed}{hint}; add {needed}{value}"
        if role == "head" and "--autoscaling-config" not in start:
            yield (
                f"{where}: `ray start` without --autoscaling-config: no worker would ever start; "
                f"add --autoscaling-config=~/ray_bootstrap_config.yaml"
            )
        bound = re.search(r"--dashboard-host[= ]+['\"]?([^\s'\"]+)", start)
        if bound and bound.group(1) not in ("127.0.0.1", "localhost", "::1"):
            yield (
                f"{where}: --dashboard-host={bound.group(1)} lets everyone who reaches the machine run code on it; "
                f"give --dashboard-host=127.0.0.1 and open it with: ray dashboard FILE"
            )
        name = re.search(r"--address[= ]+['\"]?\$\{?(\w+)", start)
        if role == "worker" and name and name[1] != "RAY_HEAD_IP":
            yield f"{where}: --address=${name[1]}: Ray sets RAY_HEAD_IP only; give --address=$RAY_HEAD_IP:6379"
        if port := re.search(r"--port[= ]+(\d+)" if role == "head" else r"--address[= ]+\S*?:(\d+)", start):
            ports[role] = port.group(1)
    if len(set(ports.values())) > 1:
        yield (
            f"worker_start_ray_commands: --address has port {ports['worker']}, the head --port={ports['head']}: "
            f"no worker would find it; give the same"
        )


def _versions(given: Tree, full: Tree) -> Iterator[str]:
    ray = PINNED["ray"]
    pythons: dict[str, str] = {}
    for key, text in texts_of({k: v for k, v in full.items() if k == "docker" or k.endswith("setup_commands")}):
        where = key if key.split(".")[0] in given else f"{key} (Ray's default)"
        if key.startswith(("head_setup", "worker_setup")) and text in full["setup_commands"]:
            continue  # Ray puts setup_commands before both
        for image in re.finditer(r"\brayproject/ray(?:-ml|-llm)?(?::(\S+))?$", text):
            tag = image.group(1) or "latest"
            if tag.split("-")[0].split(".")[:3] != ray.split("."):
                yield f"{where}={text}: another Ray than Cloze's, {ray}; give rayproject/ray:{ray}-py312"
            if python := re.search(r"-py3(\d+)", tag):
                pythons[where] = f"3.{python.group(1)}"
        for wanted in re.finditer(r"\bray(?:\[[^\]]*\])?\s*(==|>=|~=|<=|@|-)\s*(\S+?)[\"']?(?=\s|$)", text):
            if "pip" in text and not wanted.group(2).startswith(ray) and wanted.group(1) != "-":
                yield f"{where}: installs Ray {wanted.group(1)}{wanted.group(2)}; give {EXACT_RAY}"
        constrained = re.search(r"(-c|--constraint)[= ]", text)
        if re.search(r"pip install[^;&|]*[\s\"']ray(\[[^\]]*\])?[\"']?(\s|$)", text) and not constrained:
            yield f"{where}: installs whichever Ray is newest; give {EXACT_RAY}"
        for python in re.finditer(r"\bpython=?=?(3\.\d+)", text):
            pythons[where] = python.group(1)
    for where, version in pythons.items():
        if tuple(int(part) for part in version.split(".")) < LOWEST_PYTHON:
            lowest = ".".join(map(str, LOWEST_PYTHON))
            yield f"{where}: Python {version}; Cloze needs {lowest} or later, give an image with -py312"
    if len(set(pythons.values())) > 1:
        both = ", ".join(f"{where}: {version}" for where, version in pythons.items())
        yield f"{both}: Ray refuses nodes of different Pythons; give the same everywhere"


def _gpu_containers(given: Tree, full: Tree) -> Iterator[str]:
    docker, images = given.get("docker") or {}, images_of(given)
    if not all(images) or full["provider"]["type"] == "local":
        return
    for name, kind in full["available_node_types"].items():
        machine = str(kind["node_config"].get("InstanceType", ""))
        head = name == full["head_node_type"]
        if not (kind.get("resources") or {}).get("GPU", bool(GPU_MACHINE.match(machine)) and not head):
            continue
        role = "head" if head else "worker"
        own = kind.get("docker", {})
        options = " ".join(
            [*docker.get("run_options", []), *own.get(f"{role}_run_options", docker.get(f"{role}_run_options", []))]
        )
        where, image = f"docker.{role}_run_options", own.get(f"{role}_image", images[role == "worker"])
        if not re.search(r"--gpus\b|--runtime[= ]nvidia", options):
            yield f"{where}: node type {name} has GPUs, and torch would see none in the container; add --gpus=all"
        if "--shm-size" not in options:
            yield (
                f"{where}: no --shm-size for node type {name}: docker gives 64 MB to Ray's object store and NCCL; "
                f"add --shm-size with a third of the machine's memory"
            )
        if re.search(r"rayproject/ray:\S*$", image) and not re.search(r"-(gpu|cu\d+)", image):
            yield f"docker.{role}_image={image}: without CUDA, and node type {name} has GPUs; give the image with -gpu"


def _token(given: Tree, full: Tree) -> Iterator[str]:
    texts = " ".join(text for _, text in texts_of(full))
    for mode in dict.fromkeys(re.findall(r"RAY_AUTH_MODE=['\"]?(\w*)", texts)):
        if mode not in ("token", "disabled"):
            yield f"RAY_AUTH_MODE={mode}: Ray knows token and disabled; give RAY_AUTH_MODE=token"
    if "RAY_AUTH_MODE=token" not in texts:
        return
    mounts = {remote: str(local) for remote, local in (full.get("file_mounts") or {}).items()}
    path = re.search(r"RAY_AUTH_TOKEN_PATH=['\"]?([^\s'\"]+)", texts)
    target = path.group(1) if path else "~/.ray/auth_token"
    if not any(target == remote or target.startswith(remote.rstrip("/") + "/") for remote in mounts):
        yield (
            f"file_mounts.{target}: missing, and RAY_AUTH_MODE=token: Ray copies no token by itself, no node could "
            f"join; add {target}: ~/.ray/auth_token"
        )


FULL: tuple[Callable[[Tree, Tree], Iterator[str]], ...] = (_start_commands, _versions, _gpu_containers, _token)
