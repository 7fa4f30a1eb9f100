"""Trials that several processes share: ranks of DeepSpeed ZeRO in the trial's own placement group.

In: what a trial trains on, and its share of the cluster. Out: its outcome and weights, as one process would have them,
and its reports as they come. The trial's own process asks for nothing: it waits for its ranks, and takes them
away when it ends, however it ends; where it is killed itself, Ray does. Knows no points and writes no result.
"""

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.tune import PlacementGroupFactory
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from data.storage import alone, fetch
from orchestration.cause import cause_of, is_broken
from orchestration.config import Zero

if TYPE_CHECKING:  # torch is for the ranks
    from tuning.finetune import Work

SETTLE_SECONDS = 5  # a rank that lost its peer says so before Ray knows that the peer is dead

Saves = tuple[Path, Mapping[str, Any], float]  # arguments of Halfway: folder, owner, seconds
Told = Callable[[dict[str, Any]], None]


class RankLost(RuntimeError):
    """A process of the group is gone: no fault of the trial, which is tried again."""


@dataclass(frozen=True)
class Share:
    """What a trial has of the cluster."""

    workers: int
    cpus: float
    """Of each worker."""
    gpus: float
    zero: Zero

    def facts(self) -> dict[str, Any]:
        """What must be equal for these ranks to go on where others left off."""
        return {"ranks": self.workers, "zero": self.zero.model_dump(mode="json")}


class RanksFailed(RuntimeError):
    """Carries what went wrong on each rank, as orchestration/cause.py reads it."""

    def __init__(self, failures: Mapping[int, BaseException]) -> None:
        super().__init__(f"{len(failures)} ranks failed")
        self.worker_failures = dict(failures)


def bundles(workers: int, cpus: float, gpus: float) -> PlacementGroupFactory:
    """What a trial asks of Ray: `cpus` and `gpus` for each worker, on as few nodes as hold them."""
    each = {"CPU": cpus, "GPU": gpus}
    return PlacementGroupFactory([each] if workers == 1 else [{}, *[each] * workers])


def train_group(
    name: str, work: "Work", saves: Saves, report: Told, share: Share, last_epoch: int | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train a trial in `share.workers` actors, in the last bundles of this process's placement group.

    Raises RankLost where one of them is gone, RuntimeError where the training failed; both name the rank.
    """
    group = ray.util.get_current_placement_group()
    assert group is not None, "a trial of several workers has a placement group with a bundle for each"
    first = len(group.bundle_specs) - share.workers
    actor: Any = ray.remote(Rank)
    ranks = [
        actor.options(
            num_cpus=share.cpus, num_gpus=share.gpus, max_restarts=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, first + number),
        ).remote(name, number, share)
        for number in range(share.workers)
    ]  # fmt: skip
    try:
        places = _each({number: rank.place.remote() for number, rank in enumerate(ranks)})
        device = "cuda" if all(place[0] == "cuda" for place in places.values()) else "cpu"
        payload = ray.put((work, saves, last_epoch))
        streams = {
            rank.train.options(num_returns="streaming").remote(payload, device, places[0][1]): number
            for number, rank in enumerate(ranks)
        }
        return _outcome(streams, report)
    finally:
        for rank in ranks:
            ray.kill(rank)


def _each(answers: Mapping[int, Any]) -> dict[int, Any]:
    """The answer of each rank."""
    found, failures = {}, {}
    for number, answer in answers.items():
        try:
            found[number] = ray.get(answer)
        except RayError as error:
            failures[number] = error
    if failures:
        raise _failure(failures)
    return found


def _outcome(streams: Mapping[Any, int], report: Told) -> tuple[dict[str, Any], dict[str, Any]]:
    """What rank 0 yields last, a pair, once all ranks have ended; the records that it yields before are reported."""
    waiting, failures = dict(streams), dict[int, BaseException]()
    outcome: Any = None
    deadline: float | None = None
    while waiting:
        seconds = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready, _ = ray.wait(list(waiting), timeout=seconds)
        if not ready:
            break
        stream: Any = ready[0]
        try:
            told: Any = ray.get(next(stream))
        except StopIteration:
            del waiting[stream]
        except RayError as error:
            failures[waiting.pop(stream)] = error
            deadline = deadline or time.monotonic() + SETTLE_SECONDS
        else:
            if isinstance(told, dict):
                if not failures:
                    report(told)
            else:
                outcome = told
    if failures:
        raise _failure(failures)
    assert outcome is not None, "rank 0 ended without an outcome"
    return outcome


def _failure(failures: Mapping[int, BaseException]) -> RuntimeError:
    """One error out of those of the ranks: of the one that is the others' cause."""
    line = cause_of(RanksFailed(failures))
    lost = any(isinstance(one, RayActorError) or not isinstance(one, RayTaskError) for one in failures.values())
    return RankLost(line) if lost or all(map(is_broken, failures.values())) else RuntimeError(line)


class Rank:
    """One process of a group."""

    def __init__(self, name: str, number: int, share: Share) -> None:
        self._name, self._number, self._share = name, number, share

    def __repr__(self) -> str:
        return f"{self._name} rank {self._number}"  # shown of its process on the dashboard

    def place(self) -> tuple[str, tuple[str, int]]:
        """Where it computes, and an address at which the ranks can meet."""
        import torch

        device = "cuda" if self._share.gpus and torch.cuda.is_available() else "cpu"
        with socket.socket() as probe:
            probe.bind(("", 0))
            return device, (ray.util.get_node_ip_address(), probe.getsockname()[1])

    def train(self, payload: tuple["Work", Saves, int | None], device: str, address: tuple[str, int]) -> Iterator[Any]:
        """Train this rank's share; rank 0 yields each epoch's record, then outcome and weights."""
        import torch
        import torch.distributed as dist

        from orchestration.engine import gathered
        from tuning.engines import zero_engine
        from tuning.finetune import train_trial
        from tuning.halfway import Halfway

        number, ranks = self._number, self._share.workers
        work, saves, last_epoch = payload
        saves[0].mkdir(parents=True, exist_ok=True)
        with alone(Path(work.encoder)):  # which may lie in a bucket
            fetch(Path(work.encoder))
        torch.set_num_threads(max(1, int(self._share.cpus)))
        # DeepSpeed reads them; an actor sees its own GPUs alone, the first of which is its device.
        os.environ.update(RANK=str(number), WORLD_SIZE=str(ranks), LOCAL_RANK="0", MASTER_ADDR=address[0])
        os.environ["MASTER_PORT"] = str(address[1])
        dist.init_process_group("nccl" if device == "cuda" else "gloo", rank=number, world_size=ranks)
        training = train_trial(
            work, device, make_engine=zero_engine(self._share.zero), last_epoch=last_epoch,
            halfway=Halfway(*saves, number, gathered),
        )  # fmt: skip
        while True:
            try:
                record = next(training)
            except StopIteration as end:
                outcome = end.value
                break
            if number == 0:
                yield record
        dist.barrier()
        dist.destroy_process_group()
        if number == 0:
            yield outcome
