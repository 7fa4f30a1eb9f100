"""The Ray cluster under a run: joined quietly, and asked whether it can hold what the config wants.

In: the cluster and scaling sections. Out: a joined Ray, or a UserError with both numbers. The only place that starts
or joins Ray for the command line.
"""

import logging
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from data.config import UserError
from orchestration.config import Cluster, Scaling
from orchestration.pins import PINNED
from orchestration.ship import shipped
from orchestration.switches import logical_gpus

DATA_CPUS = 0.5  # what the stream's two reading tasks ask for; without it training waits for ever

# Ray's, Tune's and the tokenizers' word about themselves; set before Ray is imported.
QUIET = {
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_TRAIN_ENABLE_STATE_TRACKING": "1",  # /api/train/v2/runs/v1 lists the run by its name
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "PYTHONWARNINGS": "ignore",
}


@dataclass(frozen=True)
class Node:
    """What one node offers."""

    cpus: float
    gpus: float


def in_job() -> bool:
    """Whether this process is the driver of a submitted job: Ray hands it the job's runtime environment."""
    return "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ


def address_of(cluster: Cluster) -> str | None:
    """The cluster to join, a job its own; None: a private Ray on this machine."""
    return (None if in_job() else cluster.address) or os.environ.get("RAY_ADDRESS") or None


def check_address(address: str | None) -> None:
    """Refuse an address where nothing listens: Ray would try for minutes without a word. Raises UserError."""
    if address in (None, "auto", "local"):
        return
    if address.startswith(("http://", "https://")):
        raise UserError(
            f"cluster.address={address}: that is a dashboard; a run joins HOST:6379 of `ray start` (RAY_ADDRESS or "
            f"cluster.address), or goes there as a job: cloze submit"
        )
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, ValueError) as error:
        raise UserError(
            f"cluster.address={address}: no Ray answers there ({error}); give HOST:PORT of one that runs "
            f"(`ray start --head` prints it), or unset RAY_ADDRESS for a private one"
        ) from None


@contextmanager
def joined(cluster: Cluster) -> Iterator[list[Node]]:
    """Join the cluster (or start a private one) and yield its nodes; leave it at the end."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    import ray
    from ray.data import DataContext

    address = address_of(cluster)
    check_address(address)
    extra: dict[str, Any] = {} if address else {"include_dashboard": False}
    with ExitStack() as stack:
        if address not in (None, "local") and not in_job():  # a job's own code is on every node already
            extra["runtime_env"] = {"working_dir": str(stack.enter_context(shipped()).archive)}
        _init(address, extra)
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    # Ray's own handler leaves with SystemExit(1); to us a SIGTERM is a Ctrl-C from a scheduler.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        yield [Node(float(r.get("CPU", 0)), float(r.get("GPU", 0))) for r in alive]
    finally:
        ray.shutdown()


def _init(address: str | None, extra: dict[str, Any]) -> None:
    """Start or join Ray, quietly. Raises UserError."""
    import ray

    try:
        ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **extra)
    except (ConnectionError, ValueError) as error:
        raise UserError(
            f"cluster.address={address}: Ray could not be joined there ({str(error).splitlines()[0]}): no Ray, or a "
            f"token that is missing or not its own (RAY_AUTH_MODE=token, RAY_AUTH_TOKEN); start one with "
            f"`ray start --head`, or unset RAY_ADDRESS for a private one"
        ) from None
    except RuntimeError as error:
        if "Version mismatch" not in str(error):
            raise
        ray_there, python_there, *_, ray_here, python_here = re.findall(r"(?:Ray|Python): (\S+)", str(error))
        raise UserError(
            f"cluster.address={address}: runs Ray {ray_there} on Python {python_there}, this is Ray {ray_here} on "
            f"Python {python_here}; use the same in both, Ray {PINNED['ray']}, or submit a job: cloze submit"
        ) from None


def ask_for_cpus() -> Callable[[float], bool]:
    """Ask the cluster for what a run's first task needs; returns a function that waits some seconds for the answer.

    What asks is a task that waits, so nothing is left asking when this process dies, and a cluster that starts nodes on
    demand starts one.
    """
    import ray

    there = ray.remote(num_cpus=DATA_CPUS)(lambda: None).remote()
    return lambda seconds: bool(ray.wait([there], timeout=seconds)[0])


def free_cpus() -> str:
    """How many CPUs nobody holds, for those who wait for some."""
    import ray

    free, there = (all_of().get("CPU", 0) for all_of in (ray.available_resources, ray.cluster_resources))
    return f"{free:g} of the cluster's {there:g} CPUs are free"


def this_machine() -> list[Node]:
    """What a private Ray on this machine would offer, without starting it."""
    import torch

    return [Node(float(os.cpu_count() or 1), float(torch.cuda.device_count()))]


def check_workers(scaling: Scaling, nodes: list[Node], autoscales: bool = False) -> None:
    """Refuse where the nodes cannot hold the fewest workers beside Ray Data. Raises UserError with both numbers.

    Ray would wait for ever without a word. A cluster that autoscales may have nodes tomorrow that nobody sees today.
    """
    share = scaling.gpus_per_worker
    if (share > 1 or (0 < share < 1 and scaling.max_workers > 1)) and not logical_gpus():
        why = "a worker computes on one GPU" if share > 1 else "NCCL joins no workers that share a GPU"
        raise UserError(
            f"scaling.gpus_per_worker={share:g}, scaling.workers={scaling.told_workers}: {why}; give "
            f"scaling.gpus_per_worker=1 and a worker for each GPU"
        )
    if autoscales:
        return
    cpus, gpus = sum(node.cpus for node in nodes), sum(node.gpus for node in nodes)
    workers = scaling.min_workers
    wanted_cpus, wanted_gpus = workers * scaling.cpus_per_worker, workers * scaling.gpus_per_worker
    asked = f"scaling.workers={scaling.told_workers} x scaling.cpus_per_worker={scaling.cpus_per_worker:g}"
    if wanted_gpus > gpus:
        raise UserError(
            f"scaling.workers={scaling.told_workers} x scaling.gpus_per_worker={scaling.gpus_per_worker:g}: needs "
            f"{wanted_gpus:g} GPUs, the cluster has {gpus:g}; give fewer workers, scaling.gpus_per_worker=0, or, where "
            f"the cluster starts nodes on demand, cluster.autoscales=true"
        )
    if not cpus:
        raise UserError(
            f"{asked}: the cluster has no CPUs for work; add a node that offers some (ray start --num-cpus), or, where "
            f"it starts nodes on demand, cluster.autoscales=true"
        )
    if wanted_cpus + DATA_CPUS > cpus:
        fitting = int((cpus - DATA_CPUS) / scaling.cpus_per_worker + 1e-9)
        key = "scaling.workers" if isinstance(scaling.workers, int) else "the fewest scaling.workers"
        raise UserError(
            f"{asked}: needs {wanted_cpus:g} CPUs and {DATA_CPUS:g} for Ray Data, the cluster has {cpus:g}; "
            f"give {f'{key}<={fitting}, ' if fitting > 0 else ''}a smaller scaling.cpus_per_worker, or, where the "
            f"cluster starts nodes on demand, cluster.autoscales=true"
        )
    if (places := places_for(scaling, nodes)) < scaling.min_workers:
        raise UserError(f"{asked}: the nodes have room for {places} such workers; ask less of each worker")


def places_for(scaling: Scaling, nodes: list[Node]) -> int:
    """How many workers the nodes have room for."""
    return sum(_places(scaling, node) for node in nodes)


def _places(scaling: Scaling, node: Node) -> int:
    """How many workers one node can hold."""
    by_cpu = int(node.cpus / scaling.cpus_per_worker + 1e-9)
    share = scaling.gpus_per_worker
    if not share:
        return by_cpu
    # A share of a GPU lies on one of them.
    by_gpu = int(node.gpus / share + 1e-9) if share >= 1 else int(node.gpus) * int(1 / share + 1e-9)
    return min(by_cpu, by_gpu)
