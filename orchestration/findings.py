"""What is wrong with a cluster, out of facts: one small check each, each fault with its remedy.

In: a Survey: what the driver and every node told of themselves. Out: findings. Pure: collecting the facts is
orchestration/doctor.py's.
"""

from collections.abc import Callable, Iterator

from data.config import UserError
from orchestration.cluster import DATA_CPUS, Node, check_workers, places_for
from orchestration.config import Config
from orchestration.pins import LOWEST_PYTHON, PINNED
from orchestration.survey import Finding, Survey

GIB = 2**30
# Signs of life in a run's folder are judged by the clock (orchestration/lease.py), and S3 refuses one 15 minutes off;
# clocks that a time server keeps differ by less than a second.
MOST_CLOCK_SECONDS = 30.0
# Ray puts no object on a disk that is fuller (RAY_local_fs_capacity_threshold).
FULLEST_DISK = 0.95
# A checkpoint holds weights, AdamW's two moments and a copy in fp32: 1.76 GB measured for BERT-base's 110 million.
CHECKPOINT_BYTES = 16


Check = Callable[[Survey], Iterator[Finding]]


def judge(survey: Survey, checks: tuple[Check, ...]) -> list[Finding]:
    """The findings of these checks, in their order."""
    return [finding for check in checks for finding in check(survey)]


def _answers(survey: Survey) -> Iterator[Finding]:
    silent = [place for place in survey.places if isinstance(survey.answers.get(place.id), str)]
    for place in silent:
        yield Finding(
            "answer", "fault", survey.label(place), str(survey.answers[place.id]),
            "look there: disk, memory, a mount that hangs, raylet.err in /tmp/ray/session_latest/logs; or end the "
            "node: Ray goes on without it",
        )  # fmt: skip
    if not silent:
        yield Finding("answer", "good", _all(survey), "answer")


def _versions(survey: Survey) -> Iterator[Finding]:
    fine = True
    python = survey.driver["python"].split(".")[:2]
    for place, facts in survey.told():
        if facts["python"].split(".")[:2] != python:
            fine = False
            yield Finding(
                "versions", "fault", survey.label(place),
                f"Python {facts['python']}, the driver {survey.driver['python']}",
                f"start Ray there with Python {'.'.join(python)}",
            )  # fmt: skip
        for name, wanted in survey.driver["packages"].items():
            if (there := facts["packages"].get(name)) != wanted:
                fine = False
                yield Finding(
                    "versions", "fault", survey.label(place),
                    f"{name} {there or 'missing'}, the driver {wanted or 'none'}",
                    f"there, in the Python that runs Ray: pip install -c constraints.txt {name}=={wanted}; then start "
                    f"Ray again",
                )  # fmt: skip
    if fine:
        packages = survey.driver["packages"]
        text = ", ".join(f"{name} {packages.get(name)}" for name in PINNED)
        more = len(packages) - len(PINNED)
        text = f"Python {survey.driver['python']}, {text}, and {more} more: the same as the driver"
        yield Finding("versions", "good", _all(survey), text)


def _pinned(survey: Survey) -> Iterator[Finding]:
    packages = survey.driver["packages"]
    others = {name: packages.get(name) for name, wanted in PINNED.items() if packages.get(name) != wanted}
    for name, there in others.items():
        yield Finding(
            "pins", "fault", "driver", f"{name} {there or 'missing'}, Cloze is made for {PINNED[name]}",
            f"pip install -c constraints.txt {name}=={PINNED[name]}, on every node",
        )  # fmt: skip
    lowest = ".".join(map(str, LOWEST_PYTHON))
    if tuple(map(int, survey.driver["python"].split(".")[:2])) < LOWEST_PYTHON:
        yield Finding("pins", "fault", "driver", f"Python {survey.driver['python']}", f"use Python {lowest} or later")
    elif not others:
        yield Finding("pins", "good", "driver", "the versions that Cloze is made for")


def _storage(survey: Survey) -> Iterator[Finding]:
    fine = True
    for place, facts in survey.told():
        if fault := facts["storage"] or survey.unseen.get(place.id):
            fine = False
            yield Finding(
                "storage", "fault", survey.label(place), f"{survey.config.storage}: {fault} (host {facts['host']})",
                "give storage=FOLDER that all nodes mount and may write to (NFS, EFS), or storage=s3://BUCKET/FOLDER",
            )  # fmt: skip
    if fine:
        found = f"{survey.config.storage}: the same, readable, writable, deletable"
        yield Finding("storage", "good", _all(survey), found)


def _shared_memory(survey: Survey) -> Iterator[Finding]:
    fine = True
    for place, facts in survey.told():
        size, store = facts["shared_memory_bytes"], place.object_store_bytes
        if size < store:
            fine = False
            yield Finding(
                "shared memory", "fault", survey.label(place),
                f"/dev/shm {size / GIB:.2f} GiB, Ray's object store {store / GIB:.2f}: it lies on disk",
                f"give {store * 1.1 / GIB + 1:.0f} GiB: docker --shm-size, on Kubernetes an emptyDir in memory at "
                f"/dev/shm; then start Ray there again",
            )  # fmt: skip
    if fine:
        yield Finding("shared memory", "good", _all(survey), "/dev/shm holds Ray's object store")


def _gpus(survey: Survey) -> Iterator[Finding]:
    total = sum(place.gpus for place in survey.places)
    if survey.logical_gpus:
        yield Finding("GPUs", "note", _all(survey), f"{total:g} logical ones (CLOZE_LOGICAL_GPUS): not compared")
        return
    fine = True
    for place, facts in survey.told():
        seen = facts["torch_gpus"] or 0
        found = f"Ray counts {place.gpus:g}, torch sees {seen}"
        if seen < place.gpus:
            fine = False
            build = "torch is a CPU build: install the CUDA build" if facts["torch_cuda"] is None else (
                "let them through: docker --gpus=all, a driver new enough for CUDA " + facts["torch_cuda"]
            )  # fmt: skip
            yield Finding("GPUs", "fault", survey.label(place), found, f"{build}; or ray start --num-gpus={seen}")
        elif seen > place.gpus and place.cpus:  # a head without CPUs is not meant to train; fewer GPUs may be meant too
            fine = False
            yield Finding("GPUs", "note", survey.label(place), found, f"to use them all: ray start --num-gpus={seen}")
    if fine:
        yield Finding("GPUs", "good", _all(survey), f"{total:g}, the same for Ray and torch" if total else "none")


def asks_gpus(config: Config) -> bool:
    """Whether a run of this config would use GPUs at all."""
    sweep = config.sweep.gpus_per_trial
    return config.scaling.gpus_per_worker > 0 or any(sweep.values() if isinstance(sweep, dict) else (sweep,))


def _needed_gpus(survey: Survey) -> Iterator[Finding]:
    """A run on CPUs does not mind what GPUs there are."""
    if asks_gpus(survey.config):
        yield from _gpus(survey)


def _rings(survey: Survey) -> Iterator[Finding]:
    if not survey.rings:
        yield Finding("network", "note", _all(survey), "nothing to reduce over: it takes two nodes")
    for ring in survey.rings:
        where = f"{ring.nodes} nodes"
        if ring.gigabytes_per_second is not None:
            found = f"{ring.backend} all-reduce: {ring.gigabytes_per_second:.2f} GB/s"
            yield Finding("network", "good", where, found)
        elif ring.busy:
            yield Finding("network", "note", where, f"{ring.backend}: not measured, on {ring.busy} all GPUs are in use")
        else:
            names = sorted({name for _, facts in survey.told() for name in facts["interfaces"]})
            variable = f"{ring.backend.upper()}_SOCKET_IFNAME"
            yield Finding(
                "network", "fault", where, f"{ring.backend} all-reduce: {ring.fault}",
                f"open all TCP ports between the nodes; before ray start, set {variable} to the interface that joins "
                f"them (of {', '.join(names) or 'none'}); a host name must not mean 127.0.1.1 (/etc/hosts)",
            )  # fmt: skip


def _disk(survey: Survey) -> Iterator[Finding]:
    encoder, keep = survey.config.encoder, survey.config.checkpoints.keep
    width, rows = encoder.hidden_size, survey.config.tokenizer.vocab_size + survey.config.rows.longest
    parameters = rows * width + encoder.num_hidden_layers * (4 * width**2 + 2 * width * encoder.intermediate_size)
    needed = parameters * CHECKPOINT_BYTES * (keep + 1) / GIB  # the newest is written before the oldest goes
    found = f"checkpoints need about {needed:.1f} GiB"
    fine = True
    if space := survey.driver["storage_space"]:
        found += f", {survey.config.storage} has {space[0] / GIB:.1f} GiB"
        if space[0] / GIB < needed:
            fine = False
            yield Finding("disk", "fault", "storage", found, "make room, give another storage, or checkpoints.keep=1")
    for place, facts in survey.told():
        free, total = facts["session_space"]
        if free < (1 - FULLEST_DISK) * total:
            fine = False
            yield Finding(
                "disk", "fault", survey.label(place), f"Ray's disk has {free / total:.0%} free, Ray stops at 5%",
                "make room there, or start Ray with --temp-dir on a larger disk",
            )  # fmt: skip
    if fine:
        yield Finding("disk", "good", _all(survey), found)


def _clock(survey: Survey) -> Iterator[Finding]:
    late = {key: abs(ahead) - error for key, (ahead, error) in survey.clocks.items()}
    wrong = [place for place in survey.places if late.get(place.id, 0) > MOST_CLOCK_SECONDS]
    for place in wrong:
        ahead, error = survey.clocks[place.id]
        yield Finding(
            "clock", "fault", survey.label(place), f"{ahead:+.1f} s from the driver's (to {error:.1g} s)",
            "run a time service there (chrony, systemd-timesyncd): a run would be taken for abandoned, or a bucket "
            "refuse its requests",
        )  # fmt: skip
    if survey.clocks and not wrong:
        worst = max(survey.clocks.values(), key=lambda clock: abs(clock[0]))
        yield Finding("clock", "good", _all(survey), f"at most {abs(worst[0]):.3f} s apart (to {worst[1]:.1g} s)")


def _workers(survey: Survey) -> Iterator[Finding]:
    scaling, autoscales = survey.config.scaling, survey.config.cluster.autoscales
    nodes = [Node(place.cpus, place.gpus) for place in survey.places]
    workers = min(scaling.max_workers, places_for(scaling, nodes))
    left = sum(node.cpus for node in nodes) - workers * scaling.cpus_per_worker
    try:
        check_workers(scaling, nodes)
    except UserError as error:
        found, _, remedy = str(error).rpartition("; ")
        yield Finding("CPUs", "note" if autoscales else "fault", "cluster", found, "" if autoscales else remedy)
    else:
        of = "" if isinstance(scaling.workers, int) else f", of {scaling.min_workers} to {scaling.max_workers},"
        found = f"{workers} workers{of} x {scaling.cpus_per_worker:g} CPUs leave {left:g} for Ray Data"
        yield Finding("CPUs", "good", "cluster", f"{found}, which needs {DATA_CPUS:g}")


def _dashboard(survey: Survey) -> Iterator[Finding]:
    if survey.dashboard is None:
        yield Finding("dashboard", "note", "head", "none: a private Ray, or a head without ray[default]")
        return
    status, text = survey.dashboard
    if status == 200:
        yield Finding("dashboard", "good", "head", text)
    else:
        why = {0: text, 401: "asks for the token", 403: "refuses the token"}.get(status, f"answers {status}")
        remedy = "the same RAY_AUTH_MODE and token (RAY_AUTH_TOKEN_PATH) everywhere" if status in (401, 403) else (
            "look at dashboard.log under /tmp/ray/session_latest/logs on the head; pip install 'ray[default]'"
        )  # fmt: skip
        yield Finding("dashboard", "fault", "head", why, remedy)


def _prometheus(survey: Survey) -> Iterator[Finding]:
    if survey.prometheus is None:
        return
    status, text = survey.prometheus
    host = next((facts["prometheus"] for place, facts in survey.told() if place.head), None)
    if status == 200:
        yield Finding("Prometheus", "good", "head", f"reached at {host or 'http://localhost:9090'}")
    elif host:
        yield Finding(
            "Prometheus", "fault", "head", f"RAY_PROMETHEUS_HOST={host}: no answer", "start Prometheus there, or give "
            "its address in RAY_PROMETHEUS_HOST before ray start --head",
        )  # fmt: skip
    else:
        text = "none (RAY_PROMETHEUS_HOST is not set): the dashboard's Metrics page is empty"
        yield Finding("Prometheus", "note", "head", text)


def _all(survey: Survey) -> str:
    """The nodes that a good finding speaks of: those that answered."""
    told, number = len(list(survey.told())), len(survey.places)
    if told < number:
        return f"{told} of {number} nodes"
    return "1 node" if number == 1 else f"all {number} nodes"


# What a run would trip over within its first minute, and what can be asked in a second.
QUICK: tuple[Check, ...] = (_answers, _versions, _storage, _needed_gpus)
FULL: tuple[Check, ...] = (
    _answers, _versions, _pinned, _storage, _shared_memory, _gpus, _rings, _disk, _clock, _workers,
    _dashboard, _prometheus,
)  # fmt: skip
