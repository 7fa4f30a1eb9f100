"""The doctor: asks every node of a joined cluster, and judges. Its quick part runs at the start of every run.

In: a config, and a Ray that this process has joined. Out: findings, or a UserError with a line per fault. A node that
does not answer in time is a finding; what counts as a fault stands in orchestration/findings.py.
"""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from data.config import UserError
from data.storage import place
from orchestration import probe
from orchestration.cause import cause_of
from orchestration.cluster import address_of
from orchestration.config import Config
from orchestration.findings import FULL, QUICK, asks_gpus, judge
from orchestration.pins import PACKAGES
from orchestration.probe import REDUCED_BYTES, Facts, Probe
from orchestration.survey import Finding, Place, Ring, Survey
from orchestration.switches import logical_gpus

PATIENCE_SECONDS = 40.0  # a node's first process may have to import Ray from a network's disk


def examine(config: Config, patience: float = PATIENCE_SECONDS) -> list[Finding]:
    """The whole examination: some ten seconds."""
    places = _places()
    with _asked(config, places, patience, gpus=True) as (survey, actors):
        head = next((actors[p.id] for p in places if p.head and p.id in actors), None)
        dashboard, prometheus = _pages(head)
        survey = Survey(
            **{
                **vars(survey),
                "clocks": {key: clock for key, actor in actors.items() if (clock := _clock(actor))},
                "rings": tuple(_rings(survey, actors, patience)),
                "dashboard": dashboard,
                "prometheus": prometheus,
            }
        )
    return judge(survey, FULL)


def check_nodes(config: Config, patience: float = PATIENCE_SECONDS) -> None:
    """The quick part, a second or so: versions, storage and GPUs. Raises UserError, a line per fault.

    Of a Ray of its own the lone node is this machine: the driver's own view of it is enough, and no process is started.
    """
    places = _places()
    gpus = asks_gpus(config)
    if len(places) == 1 and address_of(config.cluster) is None:
        facts = _look(config, places[0], gpus)
        survey = Survey(config, facts, places, {places[0].id: facts}, logical_gpus=logical_gpus())
    else:
        with _asked(config, places, patience, gpus) as (survey, _):
            pass
    faults = [finding for finding in judge(survey, QUICK) if finding.state == "fault"]
    if faults:
        lines = [f"{fault.check} on {fault.where}: {fault.found}; {fault.remedy}" for fault in faults]
        raise UserError("\n".join([*lines, "`cloze doctor` with the same words shows all that is wrong"]))


def _places() -> tuple[Place, ...]:
    """The nodes that live and stay, the head first: one that is drained takes no new process, and is soon gone."""
    import ray
    from ray._private.state import state

    found, going = [], state.get_draining_nodes()
    for node in ray.nodes():
        if node["Alive"] and node["NodeID"] not in going:
            has = node["Resources"]
            found.append(
                Place(
                    node["NodeID"], node["NodeManagerAddress"], float(has.get("CPU", 0)), float(has.get("GPU", 0)),
                    float(has.get("object_store_memory", 0)), "node:__internal_head__" in has,
                )
            )  # fmt: skip
    return tuple(sorted(found, key=lambda place: (not place.head, place.address, place.id)))


def _look(config: Config, where: Place, gpus: bool) -> Facts:
    """The driver's own facts; `where` is its node."""
    return probe.look(PACKAGES, _storage(config), "", None, where.gpus if gpus and not logical_gpus() else None)


def _storage(config: Config) -> str:
    """The folder, absolute as nodes have other working folders, or the URI of the bucket."""
    return config.storage if "://" in config.storage else str(place(config.storage))


@contextmanager
def _asked(
    config: Config, places: tuple[Place, ...], patience: float, gpus: bool
) -> Iterator[tuple[Survey, dict[str, Any]]]:
    """What all nodes told, and the actors that did; they end with the block. gpus: whether torch is asked too."""
    import ray

    until = time.monotonic() + patience
    actors: dict[str, Any] = {}
    try:
        with _drivers_file(config) as folder:
            answers: dict[str, Facts | str] = {}
            words = {}
            for node in places:
                actors[node.id] = _actor(node)
                counted = node.gpus if gpus and not logical_gpus() else None
                word = actors[node.id].look.remote(PACKAGES, _storage(config), folder, node.id, counted)
                words[word] = node.id
            ray.wait(list(words), num_returns=len(words), timeout=max(until - time.monotonic(), 1))
            unseen: dict[str, str] = {}
            for word, key in words.items():
                answers[key] = _answer(word, patience)
                told = answers[key]
                if isinstance(told, str):
                    ray.kill(actors.pop(key))
                elif told["storage"] is None and (fault := _not_seen(config, folder, key)):
                    unseen[key] = fault
            facts = _look(config, places[0], gpus=False)
        yield Survey(config, facts, places, answers, unseen, logical_gpus=logical_gpus()), actors
    finally:
        for actor in actors.values():
            ray.kill(actor)


def _actor(node: Place, gpus: float = 0) -> Any:
    """A Probe on that node, sent by value; without CPUs, so that a busy node answers too."""
    import ray
    from ray import cloudpickle
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    cloudpickle.register_pickle_by_value(probe)
    try:
        strategy = NodeAffinitySchedulingStrategy(node.id, soft=False)
        return ray.remote(Probe).options(num_cpus=0, num_gpus=gpus, scheduling_strategy=strategy).remote()
    finally:
        cloudpickle.unregister_pickle_by_value(probe)


def _answer(word: Any, patience: float) -> Any:
    """What a node said; a text saying why it did not."""
    import ray
    from ray.exceptions import GetTimeoutError

    try:
        return ray.get(word, timeout=0.1)
    except GetTimeoutError:
        return f"no answer within {patience:.0f} s"
    except Exception as error:
        return f"no process could work there: {cause_of(error)}"


@contextmanager
def _drivers_file(config: Config) -> Iterator[str]:
    """A folder in the storage with the driver's file in it; removed at the end, with a storage that was made for it."""
    from pyarrow import fs

    place(config.storage)  # refuses what is neither a folder nor a bucket
    folder = f".doctor-{uuid.uuid4().hex[:8]}"
    try:
        system, root = probe.filesystem(_storage(config))
        fresh = system.get_file_info(root).type == fs.FileType.NotFound
        system.create_dir(f"{root}/{folder}", recursive=True)
        with system.open_output_stream(f"{root}/{folder}/driver") as stream:
            stream.write(probe.WORDS)
    except OSError as error:
        raise UserError(
            f"storage={config.storage}: cannot be written ({str(error).splitlines()[0]}); give storage=FOLDER that can"
        ) from None
    try:
        yield folder
    finally:
        try:
            system.delete_dir(f"{root}/{folder}")
        except OSError as error:
            raise UserError(
                f"storage={config.storage}: what was written cannot be deleted ({str(error).splitlines()[0]}); give "
                f"storage=FOLDER that can, and delete {folder} there"
            ) from None
        if fresh and not system.get_file_info(fs.FileSelector(root, allow_not_found=True)):
            system.delete_dir(root)


def _not_seen(config: Config, folder: str, key: str) -> str | None:
    """Whether the driver sees what a node wrote, and no longer what it deleted."""
    system, root = probe.filesystem(_storage(config))
    if not probe.found(system, f"{root}/{folder}/{key}"):
        return "the driver does not see what this node wrote"
    with system.open_input_stream(f"{root}/{folder}/{key}") as stream:
        return None if stream.read() == probe.WORDS + key.encode() else "the driver reads other words than were written"


def _clock(actor: Any) -> tuple[float, float] | None:
    """How far a node's clock is ahead, and half the shortest of five round trips: it cannot be off by more.

    None: the node has gone since; the all-reduce says so.
    """
    import ray
    from ray.exceptions import RayError

    best = (0.0, float("inf"))
    for _ in range(5):
        sent = time.time()
        try:
            there: Any = ray.get(actor.clock.remote(), timeout=10)
        except RayError:
            return None
        received = time.time()
        best = min(best, (there - (sent + received) / 2, (received - sent) / 2), key=lambda clock: clock[1])
    return best


def _rings(survey: Survey, actors: dict[str, Any], patience: float) -> Iterator[Ring]:
    """gloo over all nodes that answered; NCCL over those whose GPUs both Ray and torch see, on one GPU each."""
    import ray
    from ray._private.state import available_resources_per_node

    if len(actors) > 1:
        yield _ring("gloo", list(actors.values()), patience)
    real = [p for p, facts in survey.told() if p.gpus >= 1 and facts["torch_gpus"] and p.id in actors]
    free = available_resources_per_node() if len(real) > 1 else {}
    if len(real) > 1 and (busy := [node for node in real if free.get(node.id, {}).get("GPU", 0) < 1]):
        yield Ring("nccl", len(real), None, busy=len(busy))
    elif len(real) > 1:
        ranks = [_actor(node, gpus=1) for node in real]
        try:
            yield _ring("nccl", ranks, patience)
        finally:
            for rank in ranks:
                ray.kill(rank)


def _ring(backend: str, ranks: list[Any], patience: float) -> Ring:
    """One all-reduce. Bus bandwidth, as of an ideal ring: each rank sends and receives 2 (n - 1) / n of the tensor.

    Source: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
    """
    import ray

    number = len(ranks)
    try:
        point = ray.get(ranks[0].meeting_point.remote(), timeout=patience)
        words = [rank.all_reduce.remote(backend, point, i, number, patience) for i, rank in enumerate(ranks)]
        done, waiting = ray.wait(words, num_returns=number, timeout=patience)
        seconds = max(ray.get(done, timeout=1), default=0.0)
    except Exception as error:
        return Ring(backend, number, None, cause_of(error))
    if waiting:
        return Ring(backend, number, None, f"{len(waiting)} of {number} did not finish within {patience:.0f} s")
    return Ring(backend, number, 2 * (number - 1) / number * REDUCED_BYTES / seconds / 1e9)


def _pages(head: Any) -> tuple[tuple[int, str] | None, tuple[int, str] | None]:
    """Dashboard, and Prometheus as the dashboard reaches it, asked from the head: both may be bound to its loopback."""
    import ray
    from ray._private.worker import get_dashboard_url
    from ray.exceptions import RayError

    url = get_dashboard_url()
    if not url or head is None:
        return None, None

    def ask(page: str) -> tuple[int, str]:
        try:
            return ray.get(head.ask.remote(f"http://{url}/api/{page}"), timeout=30)
        except RayError as error:
            return 0, cause_of(error)

    status, text = ask("version")
    return ((status, f"http://{url}"), ask("prometheus_health")) if status == 200 else ((status, text), None)
