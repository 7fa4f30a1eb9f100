"""What is known of a cluster at one moment, and what was found wrong with it.

In: nothing. Out: the shapes that orchestration/doctor.py fills and orchestration/findings.py judges.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from orchestration.config import Config
from orchestration.probe import Facts


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's table."""

    check: str
    state: Literal["good", "fault", "note"]
    where: str
    found: str
    remedy: str = ""


@dataclass(frozen=True)
class Place:
    """One node as Ray knows it."""

    id: str
    address: str
    cpus: float
    gpus: float
    object_store_bytes: float = 0
    head: bool = False


@dataclass(frozen=True)
class Ring:
    """One all-reduce over nodes: its speed, or what went wrong."""

    backend: str
    nodes: int
    gigabytes_per_second: float | None
    fault: str = ""
    busy: int = 0
    """Nodes whose GPUs others hold: not measured."""


@dataclass(frozen=True)
class Survey:
    """All facts; what a quick look leaves out is empty."""

    config: Config
    driver: Facts
    places: tuple[Place, ...]
    answers: dict[str, Facts | str]
    """By node: its facts, or why there are none."""
    unseen: dict[str, str] = field(default_factory=dict)
    """By node: what of its files in the storage the driver did not see."""
    clocks: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By node: seconds ahead of the driver, and how far off that may be."""
    rings: tuple[Ring, ...] = ()
    dashboard: tuple[int, str] | None = None
    """Status and text of its answer, 0: none; None: the cluster has no dashboard."""
    prometheus: tuple[int, str] | None = None
    logical_gpus: bool = False
    """GPUs are a number given to Ray, for tests on machines without any."""

    def label(self, place: Place) -> str:
        """A node's address; where several share one, with the beginning of its id."""
        shared = Counter(p.address for p in self.places)[place.address] > 1
        return place.address + f"#{place.id[:6]}" * shared + " (head)" * place.head

    def told(self) -> Iterator[tuple[Place, Facts]]:
        """The nodes that answered."""
        for place in self.places:
            facts = self.answers.get(place.id)
            if isinstance(facts, dict):
                yield place, facts
