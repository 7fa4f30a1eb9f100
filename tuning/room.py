"""Whether there is room for the trials of a sweep: what each asks for, and what the nodes have.

In: a Config, nodes. Out: nothing, or a UserError before any trial starts; later, where nodes were lost, a word and in
the end an error. Knows no Tune, and Ray only to ask for nodes.
"""

import time
from collections.abc import Iterator, Sequence

from data.config import UserError
from model.config import Head
from orchestration.cluster import Node
from orchestration.config import Config
from orchestration.progress import Update
from tuning.config import Sweep
from tuning.space import MODES, points

ASKED = ("workers_per_trial", "cpus_per_trial", "gpus_per_trial")
LOOK_SECONDS = 10
PATIENCE_SECONDS = 600  # a node that was lost comes back within it, or its sweep is to be started again


def check_resources(config: Config, nodes: Sequence[Node]) -> None:
    """Raise UserError, one line per fault, where the nodes could never hold one trial (Ray would wait for ever), or
    where its workers could not share it.

    A worker has its place on one node; the workers of a trial may spread over several.
    """
    sweep, faults = config.sweep, dict[str, None]()
    for key in ASKED:
        given = getattr(sweep, key)
        if isinstance(given, dict) and (unknown := [mode for mode in given if mode not in MODES]):
            allowed = ", ".join(MODES)
            faults[f"sweep.{key}={given!r}: no such mode: {', '.join(unknown)}; allowed: {allowed}"] = None
    for point in points(config):
        mode = point.config.finetune.mode
        workers, cpus, gpus = sweep.asked(mode)
        head = point.config.head
        if mode == "frozen" and (head.kind is None or head.reads_features):  # trains on cached features
            workers = 1
        if not config.cluster.autoscales:
            faults |= dict.fromkeys(_lacks(sweep, mode, workers, cpus, gpus, nodes))
        if workers > 1:
            faults |= dict.fromkeys(_unshared(workers, gpus, head))
    if faults:
        raise UserError("\n".join(faults))


def _unshared(workers: int, gpus: float, head: Head) -> Iterator[str]:
    """Why workers cannot share a trial, in one line each."""
    if 0 < gpus < 1:
        yield (
            f"sweep.gpus_per_trial={gpus:g}: {workers} workers that share a trial need a GPU each, NCCL takes no part "
            f"of one; give a whole number or 0, or sweep.workers_per_trial=1"
        )
    if head.kind == "embedding" and head.loss == "in_batch":
        yield (
            f"sweep.workers_per_trial={workers}: head.loss=in_batch compares the texts of a whole batch, which workers "
            f"would share; give 1, or another loss"
        )


def _lacks(
    sweep: Sweep, mode: str, workers: int, cpus: float, gpus: float, nodes: Sequence[Node]
) -> Iterator[str]:
    """What hinders a trial of a mode, in one line; nothing where there is room for it."""
    remedy = "or, where the cluster starts nodes on demand, cluster.autoscales=true"
    given = {key: getattr(sweep, key) for key in ASKED}
    trial = f"a trial of mode {mode}" if any(isinstance(one, dict) for one in given.values()) else "a trial"
    largest = {"CPU": max((n.cpus for n in nodes), default=0.0), "GPU": max((n.gpus for n in nodes), default=0.0)}
    for key, name, wanted in (("cpus_per_trial", "CPU", cpus), ("gpus_per_trial", "GPU", gpus)):
        if wanted > largest[name]:
            shown = f"{given[key]:g}" if isinstance(given[key], float) else repr(given[key])
            yield (
                f"sweep.{key}={shown}: {trial} needs {wanted:g} {name}s, the largest node has {largest[name]:g}; give "
                f"sweep.{key}<={largest[name]:g}, a larger node, {remedy}"
            )
            return
    each = _amounts(cpus, gpus)
    room = [_places(node, cpus, gpus) for node in nodes]
    if not any(room):
        have = ", ".join(dict.fromkeys(_amounts(node.cpus, node.gpus) for node in nodes))
        yield f"sweep: {trial} needs {each} on one node, nodes have: {have}; ask for less, {remedy}"
    elif sum(room) < workers:
        needs = _amounts(workers * cpus, workers * gpus)
        has = _amounts(sum(node.cpus for node in nodes), sum(node.gpus for node in nodes))
        yield (
            f"sweep.workers_per_trial={sweep.workers_per_trial!r}: {trial} needs {needs} ({workers} workers with "
            f"{each} each), the cluster has {has}, room for {sum(room)} of them; give "
            f"sweep.workers_per_trial<={sum(room)}, more nodes, {remedy}"
        )


def _places(node: Node, cpus: float, gpus: float) -> int:
    """How many workers a node has room for; a share of a GPU lies on one of them. A millionth: 0.3 / 0.1 < 3."""
    by_cpu = int(node.cpus / cpus + 1e-6)
    if not gpus:
        return by_cpu
    by_gpu = int(node.gpus / gpus + 1e-6) if gpus >= 1 else int(node.gpus) * int(1 / gpus + 1e-6)
    return min(by_cpu, by_gpu)


def _amounts(cpus: float, gpus: float) -> str:
    return f"{cpus:g} CPU{'s' * (cpus != 1)}" + (f" and {gpus:g} GPU{'s' * (gpus != 1)}" if gpus else "")


def nodes_of_ray() -> list[Node]:
    """The living nodes of the Ray that this process joined."""
    import ray

    alive = (node["Resources"] for node in ray.nodes() if node["Alive"])
    return [Node(float(resources.get("CPU", 0)), float(resources.get("GPU", 0))) for resources in alive]


class Patience:
    """Watches whether what waits could run at all: nodes may be lost after the start."""

    def __init__(self, config: Config, progress: Update, seconds: float = PATIENCE_SECONDS) -> None:
        self._config, self._progress, self._seconds = config, progress, seconds
        self._held = self._looked = time.monotonic()

    def look(self, is_running: bool) -> None:
        """To be called often; `is_running`: whether any trial runs. Says what is lacking where none could.

        Raises RuntimeError where that has been so for too long.
        """
        now = time.monotonic()
        if not is_running and now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        try:
            if not is_running:
                check_resources(self._config, nodes_of_ray())
            self._held = now
        except UserError as error:
            if now - self._held >= self._seconds:
                raise RuntimeError(
                    f"no trial could run for {now - self._held:.0f} s: {error}; the same command goes on"
                ) from None
            self._progress(f"waiting for nodes: {error}", None)
