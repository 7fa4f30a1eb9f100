"""What a first user gets wrong in a cluster file about its machines, files and secrets, one small check each.

In: the file as given; it has passed Ray's schema, so shapes can be relied on. Out: lines: key=value, what is wrong,
what to do. Knows neither Ray nor networks; looks at local paths only.
"""

import importlib.util
import re
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from orchestration.credentials import complaints

Tree = dict[str, Any]
PROVIDERS = ("aws", "local", "gcp", "azure", "aliyun", "vsphere", "external")
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"
RESOURCES = {"cpu": "CPU", "gpu": "GPU", "memory": "memory", "object_store_memory": "object_store_memory"}
PLACEHOLDER = re.compile(r"\b(HEAD_IP|WORKER_IP\w*|YOUR_\w+|IMAGE|BUCKET)\b|<[^>]+>")


def _name(given: Tree) -> Iterator[str]:
    name = given["cluster_name"]
    if not re.fullmatch(NAME, name):
        yield (
            f"cluster_name={name!r}: letters, digits, - _ . only, at most 63: it becomes part of paths, and docker "
            f"cuts a path at a colon; give another name"
        )


def _provider(given: Tree) -> Iterator[str]:
    kind = given["provider"]["type"]
    if kind in ("kuberay", "kubernetes"):
        yield f"provider.type={kind}: `ray up` does not start pods; print a manifest for kubectl: cloze cluster kuberay"
    elif kind not in PROVIDERS:
        yield f"provider.type={kind!r}: unknown to Ray; one of: {', '.join(PROVIDERS)}"
    zones, region = given["provider"].get("availability_zone"), given["provider"].get("region")
    if kind == "aws" and not region:
        yield "provider.region: missing; give the region of AWS to start machines in, such as us-west-2"
    if kind == "aws" and region and zones:
        outside = [zone.strip() for zone in zones.split(",") if not zone.strip().startswith(region)]
        if outside:
            yield (
                f"provider.availability_zone={','.join(outside)}: not in provider.region={region}; "
                f"give zones of that region, such as {region}a, or leave the key out"
            )


def _own_machines(given: Tree) -> Iterator[str]:
    provider = given["provider"]
    if provider["type"] != "local":
        return
    for key in ("available_node_types", "head_node_type"):
        if given.get(key):
            yield f"{key}: not for provider.type=local, whose machines are provider.head_ip and worker_ips; remove it"
    if "coordinator_address" in provider:
        return
    head, workers = provider.get("head_ip"), provider.get("worker_ips")
    if not head:
        yield "provider.head_ip: missing; give the address under which the workers reach the head"
    if workers is None:
        yield "provider.worker_ips: missing; give the addresses of the other machines, [] for none"
    workers = workers or []
    if workers and head in ("localhost", "127.0.0.1", "::1"):
        yield f"provider.head_ip={head}: the workers would look for the head on themselves; give its network address"
    if head in workers:
        yield f"provider.worker_ips={head}: is the head already, two Rays would fight for it; list it once, as head_ip"
    twice = sorted({str(ip) for ip in workers if workers.count(ip) > 1})
    if twice:
        yield f"provider.worker_ips={','.join(twice)}: stands twice; list every machine once"
    for key in ("min_workers", "max_workers"):
        number = given.get(key, len(workers))
        if number != len(workers):
            what = "only the head would start" if number == 0 else f"{number} of the {len(workers)} would be used"
            what = what if number < len(workers) else f"there are {len(workers)} machines"
            yield f"{key}={number}: {what}; give {len(workers)}, the number of provider.worker_ips, or leave it out"
    if not given.get("auth", {}).get("ssh_user"):
        yield "auth.ssh_user: missing; give the user that logs in on the machines"


def _node_types(given: Tree) -> Iterator[str]:
    types, head, most = given.get("available_node_types"), given.get("head_node_type"), given.get("max_workers")
    if given["provider"]["type"] == "local" or not types:
        return
    if head not in types:
        yield f"head_node_type={head}: no such type; give one of available_node_types: {', '.join(types)}"
    for name, kind in types.items():
        low, high = kind.get("min_workers", 0), kind.get("max_workers")
        if low < 0:
            yield f"available_node_types.{name}.min_workers={low}: less than none; give 0 or more"
        for resource in kind.get("resources") or {}:
            exact = RESOURCES.get(resource.lower())
            if exact and resource != exact:
                yield f"available_node_types.{name}.resources.{resource}: Ray calls it {exact}; write it so"
        if given["provider"]["type"] == "aws":
            yield from _machine(f"available_node_types.{name}.node_config", kind["node_config"])
        if high is not None and low > high:
            yield (
                f"available_node_types.{name}.min_workers={low}: more than its max_workers={high}; "
                f"lower the one or raise the other"
            )
        if "ssh_private_key" in given.get("auth", {}) and given["provider"]["type"] == "aws":
            config = kind["node_config"]
            if "KeyName" not in config and "UserData" not in config:
                yield (
                    f"available_node_types.{name}.node_config.KeyName: missing, and auth.ssh_private_key is given: "
                    f"machines would not know that key; give its name at AWS, or leave ssh_private_key out"
                )
    total = sum(kind.get("min_workers", 0) for kind in types.values())
    if most is not None and total > most:
        yield f"max_workers={most}: less than the {total} that min_workers of all node types ask for; raise it"
    workers = [kind for name, kind in types.items() if name != head]
    if workers and (most == 0 or all(kind.get("max_workers") == 0 for kind in workers)):
        yield "max_workers=0: only the head would start; give the number of workers that you want at most"
    if head in types and "InstanceMarketOptions" in types[head]["node_config"]:
        yield (
            f"available_node_types.{head}.node_config.InstanceMarketOptions: a spot head may be taken away, and the "
            f"cluster's state and every job with it; remove it, spot is for workers"
        )


def _machine(where: str, config: Tree) -> Iterator[str]:
    """Keys that AWS does not know of a machine. Source: the model of its API that boto3 carries."""
    if importlib.util.find_spec("botocore") is None:  # its absence is told by itself
        return
    import botocore.session

    machine: Any = botocore.session.get_session().get_service_model("ec2").operation_model("RunInstances").input_shape
    known = {*machine.members, "SubnetIds"}  # the last is Ray's
    for key in config:
        if key not in known:
            close = get_close_matches(str(key), known, n=1)
            hint = f"did you mean {close[0]}?" if close else "see RunInstances of AWS EC2"
            yield f"{where}.{key}: AWS knows no such key; {hint}"


def _files(given: Tree) -> Iterator[str]:
    for remote, local in (given.get("file_mounts") or {}).items():
        if not isinstance(local, str):
            yield f"file_mounts.{remote}={local!r}: must be a local path"
        elif not Path(local).expanduser().exists():
            token = "auth_token" in local
            what = "make the token: ray get-auth-token --generate" if token else "give a path that exists"
            from_here = "" if local.startswith(("/", "~")) else f" in {Path.cwd()}, where relative paths begin"
            yield f"file_mounts.{remote}={local}: no such file or folder{from_here}; {what}"
        elif re.search(r"(^|/)\.(aws|ssh|boto|netrc|kube)(/|$)", local):
            yield (
                f"file_mounts.{remote}={local}: would copy your own credentials to every node; "
                f"give the nodes a role (node_config.IamInstanceProfile) instead"
            )
    key = (given.get("auth") or {}).get("ssh_private_key")
    if key and not Path(key).expanduser().is_file():
        yield f"auth.ssh_private_key={key}: no such file; give the key that the machines know"


def _placeholders(given: Tree) -> Iterator[str]:
    for key, text in texts_of(given):
        if found := PLACEHOLDER.fullmatch(text):
            yield f"{key}={found.group()}: a placeholder; give your own value"


def texts_of(tree: object, key: str = "") -> Iterator[tuple[str, str]]:
    """All texts of a tree with their dotted keys."""
    if isinstance(tree, dict):
        for name, child in tree.items():
            yield from texts_of(child, f"{key}.{name}".lstrip("."))
    elif isinstance(tree, list):
        for number, child in enumerate(tree):
            yield from texts_of(child, f"{key}.{number}")
    elif isinstance(tree, str):
        yield key, tree


def images_of(given: Tree) -> list[str | None]:
    """The images of the head and of the workers."""
    docker = given.get("docker") or {}
    return [docker.get(f"{role}_image") or docker.get("image") for role in ("head", "worker")]


def _container(given: Tree) -> Iterator[str]:
    name, images = (given.get("docker") or {}).get("container_name"), images_of(given)
    if any(images) and not name:
        yield "docker.container_name: missing beside an image; give a name, such as cloze"
    if not all(images) and (name or any(images)):
        yield "docker.image: missing; give docker.image, or both head_image and worker_image"


GIVEN: tuple[Callable[[Tree], Iterator[str]], ...] = (
    _name, _provider, _own_machines, _node_types, _files, _container, complaints, _placeholders,
)  # fmt: skip
