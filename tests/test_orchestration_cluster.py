"""Workers that cannot be placed, or that would starve Ray Data, are refused with both numbers."""

import pytest

from data.config import UserError
from orchestration.cluster import Node, check_workers, places_for
from orchestration.config import Scaling
from orchestration.plan import step_plan


@pytest.mark.parametrize(
    "scaling, nodes, word",
    [
        (dict(workers=2, cpus_per_worker=1), [Node(2, 0)], "needs 2 CPUs and 0.5 for Ray Data, the cluster has 2"),
        (dict(workers=8, cpus_per_worker=1), [Node(2, 0), Node(2, 0)], "cluster has 4; give scaling.workers<=3, "),
        (dict(workers=1), [Node(0, 0)], "the cluster has no CPUs for work; add a node"),
        (dict(workers=2, gpus_per_worker=1), [Node(8, 1)], "needs 2 GPUs, the cluster has 1"),
        (dict(workers=2, cpus_per_worker=3), [Node(4, 0), Node(2, 0), Node(2, 0)], "room for 1 such workers"),
    ],
)
def test_what_cannot_be_placed_is_refused(scaling, nodes, word):
    with pytest.raises(UserError, match=word.replace("(", r"\(")):
        check_workers(Scaling(**scaling), nodes)


def test_what_fits_is_let_through():
    check_workers(Scaling(workers=2, cpus_per_worker=0.5), [Node(2, 0)])
    check_workers(Scaling(workers=8, cpus_per_worker=4, gpus_per_worker=1), [Node(64, 8)])
    check_workers(Scaling(workers=1, cpus_per_worker=1, gpus_per_worker=0.5), [Node(4, 1), Node(4, 1)])


@pytest.mark.parametrize("autoscales", [False, True])
@pytest.mark.parametrize(("share", "why"), [(0.5, "NCCL joins no workers that share a"), (2, "computes on one GPU")])
def test_shares_of_a_gpu_that_workers_could_not_train_on_are_refused(share, why, autoscales, monkeypatch):
    monkeypatch.setenv("CLOZE_LOGICAL_GPUS", "0")
    asked = Scaling(workers=2, cpus_per_worker=1, gpus_per_worker=share)
    with pytest.raises(UserError, match=f"scaling.gpus_per_worker={share}, scaling.workers=2: .*{why}.*; give scaling"):
        check_workers(asked, [Node(8, 8)], autoscales)
    monkeypatch.setenv("CLOZE_LOGICAL_GPUS", "1")  # which nobody computes on
    check_workers(asked, [Node(8, 8)], autoscales)


def test_a_share_of_a_gpu_lies_on_one_gpu():
    assert places_for(Scaling(workers=1, cpus_per_worker=1, gpus_per_worker=0.6), [Node(8, 2)]) == 2
    assert places_for(Scaling(workers=1, cpus_per_worker=1, gpus_per_worker=0.1), [Node(64, 2)]) == 20


@pytest.mark.parametrize(
    "global_batch, micro_batch, workers, accumulation, filler",
    [(16, 8, 2, 1, 0), (9, 2, 2, 3, 3), (8, 2, 2, 2, 0), (1, 8, 3, 1, 23), (512, 32, 8, 2, 0)],
)
def test_any_batch_arithmetic_works(global_batch, micro_batch, workers, accumulation, filler):
    from orchestration.recipe import load_config

    config = load_config("demo", [f"pretrain.global_batch={global_batch}", f"pretrain.micro_batch={micro_batch}",
                                  f"scaling.workers={workers}"])  # fmt: skip
    assert (step_plan(config, workers).accumulation, step_plan(config, workers).filler_rows) == (accumulation, filler)


def test_of_fewest_and_most_the_fewest_must_fit():
    scaling = Scaling(workers=(1, 4), cpus_per_worker=1.5)
    check_workers(scaling, [Node(2, 0)])
    assert places_for(scaling, [Node(2, 0), Node(4, 0)]) == 3
    with pytest.raises(UserError) as error:
        check_workers(Scaling(workers=(3, 4), cpus_per_worker=1.5), [Node(2, 0), Node(2, 0)])
    told = str(error.value)
    assert told.startswith("scaling.workers=[3, 4] x scaling.cpus_per_worker=1.5: needs 4.5 CPUs and 0.5 for Ray Data")
    assert "give the fewest scaling.workers<=2" in told
