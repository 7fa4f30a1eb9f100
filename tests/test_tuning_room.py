"""What trials ask of a cluster, against what it has: nothing waits for ever."""

from typing import Any

import pytest
from test_tuning_sweep import configure

from data.config import UserError
from orchestration.cluster import Node
from orchestration.config import Config
from tuning.room import Patience, check_resources, nodes_of_ray

BOTH = {"finetune.mode": ["frozen", "full"]}


def check(tmp_path, nodes: list[Node], space: dict[str, Any] | None = None, **asked: Any) -> None:
    named = {f"sweep.{key}": value for key, value in asked.items() if key != "autoscales"}
    changes = {"head.kind": "classification", "cluster.autoscales": asked.get("autoscales", False), **named}
    check_resources(configure(tmp_path, space or BOTH, **{"sweep.cpus_per_trial": 1, **changes}), nodes)


@pytest.mark.parametrize(
    ("nodes", "asked"),
    [
        ([Node(2, 0)], {"cpus_per_trial": 2}),
        ([Node(4, 2)], {"gpus_per_trial": {"full": 1, "frozen": 0.5}, "workers_per_trial": {"full": 2}}),
        ([Node(0.3, 0)], {"cpus_per_trial": 0.1, "workers_per_trial": 3}),  # 0.3 / 0.1 is less than 3
        ([Node(2, 1), Node(2, 1)], {"workers_per_trial": {"full": 2}, "gpus_per_trial": {"full": 1}}),
        ([Node(1, 0)], {"workers_per_trial": {"frozen": 9}}),  # on cached features: one
        ([Node(1, 0)], {"cpus_per_trial": {"lora": 9}}),  # no point of that mode
        ([Node(1, 0)], {"cpus_per_trial": 9, "autoscales": True}),
    ],
)
def test_what_fits_passes_also_where_a_group_spreads_over_nodes(tmp_path, nodes: list[Node], asked: dict) -> None:
    check(tmp_path, nodes, **asked)


@pytest.mark.parametrize(
    ("nodes", "asked", "words"),
    [
        ([Node(4, 0), Node(3, 0)], {"cpus_per_trial": 5}, ["sweep.cpus_per_trial=5", "needs 5 CPUs", "has 4", "<=4"]),
        ([Node(4, 0)], {"gpus_per_trial": 0.5}, ["sweep.gpus_per_trial=0.5", "needs 0.5 GPUs", "has 0"]),
        (
            [Node(4, 0)], {"cpus_per_trial": {"full": 8}},
            ["sweep.cpus_per_trial={'full': 8.0}", "of mode full needs 8 CPUs", "has 4"],
        ),
        (
            [Node(8, 0), Node(1, 4)], {"cpus_per_trial": 2, "gpus_per_trial": 1},
            ["2 CPUs and 1 GPU on one node", "nodes have: 8 CPUs, 1 CPU and 4 GPUs", "cluster.autoscales=true"],
        ),
        (
            [Node(2, 0)], {"workers_per_trial": 8},
            ["sweep.workers_per_trial=8: a trial needs 8 CPUs (8 workers with 1 CPU each)", "has 2 CPUs", "<=2"],
        ),
        (
            [Node(8, 2)], {"workers_per_trial": {"full": 5}, "gpus_per_trial": 1},
            ["needs 5 CPUs and 5 GPUs", "8 CPUs and 2 GPUs", "room for 2"],
        ),
        (
            [Node(8, 2)], {"workers_per_trial": 2, "gpus_per_trial": 0.5},
            ["sweep.gpus_per_trial=0.5: 2 workers that share a trial need a GPU each", "a whole number or 0"],
        ),
        (
            [Node(8, 2)], {"workers_per_trial": 2, "gpus_per_trial": 0.5, "autoscales": True},
            ["sweep.gpus_per_trial=0.5"],
        ),
        (
            [Node(3, 0), Node(3, 0)], {"workers_per_trial": {"full": 3}, "cpus_per_trial": 2},
            ["needs 6 CPUs", "has 6 CPUs", "room for 2"],  # no worker lies on two nodes
        ),
        ([Node(4, 0)], {"cpus_per_trial": {"fulll": 1}}, ["sweep.cpus_per_trial", "no such mode: fulll; allowed: f"]),
    ],
)  # fmt: skip
def test_what_never_fits_is_refused_with_what_it_needs_and_what_there_is(
    tmp_path, nodes: list[Node], asked: dict, words: list[str]
) -> None:
    with pytest.raises(UserError) as error:
        check(tmp_path, nodes, **asked)
    assert "\n" not in str(error.value) and all(word in str(error.value) for word in words)


def test_negatives_of_a_whole_batch_are_not_shared_by_workers(tmp_path) -> None:
    changes = {"head.kind": "embedding", "head.loss": "in_batch", "sweep.workers_per_trial": 2}
    with pytest.raises(UserError, match="sweep.workers_per_trial=2: head.loss=in_batch compares the texts of a whole"):
        check_resources(configure(tmp_path, {"finetune.mode": "full"}, **changes), [Node(8, 0)])
    check_resources(configure(tmp_path, {"finetune.mode": "full"}, **changes | {"head.loss": "cosine"}), [Node(8, 0)])


def test_a_cluster_that_can_hold_no_trial_any_more_is_said_and_ends_the_wait(ray_4_cpus, tmp_path) -> None:
    said = list[str]()

    def progress(text: str, fraction: float | None = None, **facts: object) -> None:
        said.append(text)

    config = configure(tmp_path, BOTH, **{"head.kind": "classification", "sweep.gpus_per_trial": 100})
    watch = Patience(config, progress)
    watch.look(True)
    watch.look(False)  # too soon to look again
    assert not said
    patient, hasty = (Patience(config, progress, seconds) for seconds in (600, 0))
    for one in (patient, hasty):
        one._looked -= 60  # as if a minute had passed
    patient.look(False)
    assert said == [f"waiting for nodes: {refusal(config)}"]
    with pytest.raises(RuntimeError, match="no trial could run for .* needs 100 GPUs, the largest node has 8"):
        hasty.look(False)


def refusal(config: Config) -> UserError:
    with pytest.raises(UserError) as error:
        check_resources(config, nodes_of_ray())
    return error.value
