"""The doctor's judgement: every fault that facts can show is one finding, with its node and its remedy."""

import pytest
from pyarrow import fs

from data.config import UserError
from orchestration import doctor, probe
from orchestration.findings import FULL, GIB, QUICK, judge
from orchestration.pins import PACKAGES, PINNED
from orchestration.recipe import load_config
from orchestration.survey import Place, Ring, Survey


def facts(**changed):
    """What a node tells that has nothing wrong with it."""
    good = {
        "host": "gpu-7",
        "python": "3.12.4",
        "packages": {name: PINNED.get(name, "1.0") for name in PACKAGES},
        "torch_gpus": 4,
        "torch_cuda": "13.0",
        "storage": None,
        "shared_memory_bytes": 64 * GIB,
        "session_space": (50 * GIB, 100 * GIB),
        "storage_space": (500 * GIB, 1000 * GIB),
        "interfaces": ("ens5",),
        "prometheus": "http://head:9090",
    }
    return {**good, **changed}


def survey(nodes=({}, {}), driver=None, words=(), **changed):
    """A cluster of a head and workers; each of `nodes` says what differs from a good one: facts, or a text."""
    places = tuple(
        Place(f"{number:032x}", f"10.0.0.{number}", 16, 4, 30 * GIB, head=number == 0) for number in range(len(nodes))
    )
    answers = {p.id: facts(**node) if isinstance(node, dict) else node for p, node in zip(places, nodes, strict=True)}
    good = {
        "clocks": {p.id: (0.001, 0.0004) for p in places},
        "rings": (Ring("gloo", len(nodes), 1.2), Ring("nccl", len(nodes), 11.5)),
        "dashboard": (200, "http://127.0.0.1:8265"),
        "prometheus": (200, "prometheus running"),
    }
    config = load_config(None, ["name=x", "storage=/nfs/runs", *words])
    return Survey(config, facts(**(driver or {})), places, answers, **{**good, **changed})


def faults(found, checks=FULL):
    return [finding for finding in judge(found, checks) if finding.state == "fault"]


def test_a_good_cluster_has_no_fault_and_every_check_says_so():
    found = judge(survey(), FULL)
    assert [finding for finding in found if finding.state != "good"] == []
    assert {finding.check for finding in found} == {
        "answer", "versions", "pins", "storage", "shared memory", "GPUs", "network", "disk", "clock", "CPUs",
        "dashboard", "Prometheus",
    }  # fmt: skip


OLD = {**facts()["packages"], "transformers": "5.20.0"}
NONE = {**facts()["packages"], "deepspeed": None}
WORKER = f"{1:032x}"
BROKEN = [
    # what is broken, the check, the node, what is found, what the remedy says
    (dict(nodes=({}, "no answer within 40 s")), "answer", "10.0.0.1", "no answer within", "a mount that hangs"),
    (dict(nodes=({}, dict(python="3.11.7"))), "versions", "10.0.0.1", "Python 3.11.7, the driver 3.12.4", "3.12"),
    (dict(nodes=({}, dict(packages=OLD))), "versions", "10.0.0.1", "transformers 5.20.0, the dri", "==5.24.0"),
    (dict(nodes=({}, dict(packages=NONE))), "versions", "10.0.0.1", "deepspeed missing, the dr", "pip install"),
    (dict(nodes=(dict(packages=OLD),), driver=dict(packages=OLD)), "pins", "driver", "made for 5.24.0", "every node"),
    (dict(nodes=({}, dict(storage="not the driver's: no such folder"))), "storage", "10.0.0.1", "(host gpu-7)", "s3:"),
    (dict(unseen={WORKER: "the driver does not see it"}), "storage", "10.0.0.1", "does not see", "all nodes mount"),
    (dict(nodes=({}, dict(shared_memory_bytes=2**26))), "shared memory", "10.0.0.1", "0.06 GiB, Ray's", "34 GiB: "),
    (dict(nodes=({}, dict(torch_gpus=0))), "GPUs", "10.0.0.1", "Ray counts 4, torch sees 0", "--gpus=all"),
    (dict(nodes=({}, dict(torch_gpus=0, torch_cuda=None))), "GPUs", "10.0.0.1", "sees 0", "is a CPU build"),
    (dict(rings=(Ring("nccl", 2, None, "timed out"),)), "network", "2 nodes", "nccl all-reduce: timed", "(of ens5)"),
    (dict(nodes=({}, dict(session_space=(GIB, 100 * GIB)))), "disk", "10.0.0.1", "has 1% free", "--temp"),
    (dict(driver=dict(storage_space=(0, GIB))), "disk", "storage", "/nfs/runs has 0.0 GiB", "checkpoints.keep=1"),
    (dict(clocks={WORKER: (-61.0, 0.002)}), "clock", "10.0.0.1", "-61.0 s from the driver's (to 0.002 s)", "chrony"),
    (dict(words=["scaling.workers=70", "scaling.cpus_per_worker=1"]), "CPUs", "cluster", "has 32", "workers<=31"),
    (dict(dashboard=(0, "Connection refused")), "dashboard", "head", "Connection refused", "dashboard.log"),
    (dict(dashboard=(403, "")), "dashboard", "head", "refuses the token", "RAY_AUTH_TOKEN_PATH"),
    (dict(prometheus=(500, "")), "Prometheus", "head", "HOST=http://head:9090: no answer", "start Prom"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("broken", "check", "where", "found", "remedy"), BROKEN, ids=[f"{b[1]} {b[3][:30]}" for b in BROKEN]
)
def test_a_broken_fact_is_one_fault_with_its_remedy(broken, check, where, found, remedy):
    (fault,) = faults(survey(**broken))
    assert (fault.check, fault.where) == (check, where)
    assert found in fault.found and remedy in fault.remedy, fault


def test_what_is_no_fault_is_let_through():
    assert not faults(survey(clocks={WORKER: (45.0, 20.0)})), "a slow round trip proves nothing"
    assert not faults(survey(nodes=({}, dict(python="3.12.9")))), "patch releases agree"
    assert not faults(survey(nodes=({}, dict(torch_gpus=0)), logical_gpus=True))
    asked = ["scaling.workers=70", "scaling.cpus_per_worker=1", "cluster.autoscales=true"]
    assert not faults(survey(words=asked)), "nodes may come"
    more = survey(nodes=({}, dict(torch_gpus=8)))
    notes = [f.found for f in judge(more, FULL) if f.state == "note"]
    assert not faults(more) and notes == ["Ray counts 4, torch sees 8"], "fewer may be meant"
    unset = survey(nodes=(dict(prometheus=None), {}), prometheus=(500, ""), rings=(), dashboard=(200, ""))
    notes = {f.check: f.state for f in judge(unset, FULL) if f.state != "good"}
    assert notes == {"Prometheus": "note", "network": "note"}


def test_every_fault_of_every_node_is_told():
    found = faults(survey(nodes=({}, dict(packages=OLD, storage="not writable: x"), dict(packages=NONE))), QUICK)
    assert [(f.check, f.where) for f in found] == [
        ("versions", "10.0.0.1"), ("versions", "10.0.0.2"), ("storage", "10.0.0.1"),
    ]  # fmt: skip


def test_a_run_that_asks_for_no_gpu_is_not_refused_for_one():
    blind = (dict(torch_gpus=0), {})
    assert not faults(survey(nodes=blind), QUICK)
    assert len(faults(survey(nodes=blind, words=["scaling.gpus_per_worker=1"]), QUICK)) == 1
    assert len(faults(survey(nodes=blind, words=["sweep.gpus_per_trial=0.5"]), QUICK)) == 1


def test_what_is_good_is_said_of_the_nodes_that_answered():
    found = judge(survey(nodes=({}, {}, "no answer within 40 s")), QUICK)
    assert {finding.where for finding in found if finding.state == "good"} == {"2 of 3 nodes"}


def test_nodes_of_one_address_are_told_apart():
    places = (Place("a" * 32, "127.0.0.1", 1, 0, head=True), Place("b" * 32, "127.0.0.1", 1, 0))
    found = Survey(load_config(None, ["name=x"]), facts(), places, {})
    assert [found.label(place) for place in places] == ["127.0.0.1#aaaaaa (head)", "127.0.0.1#bbbbbb"]


def test_gpus_that_others_hold_are_no_fault_of_the_network():
    busy = survey(rings=(Ring("gloo", 2, 1.2), Ring("nccl", 2, None, busy=1)))
    assert not faults(busy)
    found = next(finding.found for finding in judge(busy, FULL) if "nccl" in finding.found)
    assert found == "nccl: not measured, on 1 all GPUs are in use"


@pytest.mark.parametrize("storage, line", [("az://x", "neither a folder nor a"), ("s3://cloze-no/x", "cannot be")])
def test_a_storage_that_cannot_be_asked_is_one_line(storage, line, s3, monkeypatch):
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    config = load_config(None, ["name=x", f"storage={storage}"])
    with pytest.raises(UserError, match=line), doctor._drivers_file(config):
        pass


def test_a_bucket_is_tried_as_a_folder_is(s3, monkeypatch):
    """From the driver's file to its removal, over HTTP; a node that is led elsewhere says so and leaves nothing."""
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    storage = "s3://cloze-test/doctor"
    config = load_config(None, ["name=x", f"storage={storage}"])
    system, root = probe.filesystem(storage)
    with doctor._drivers_file(config) as folder:
        assert probe.try_storage(storage, folder, "node") is None
        assert doctor._not_seen(config, folder, "node") is None
        names = {info.base_name for info in system.get_file_info(fs.FileSelector(f"{root}/{folder}"))}
        assert names == {"driver", "node"}
        fault = probe.try_storage("s3://cloze-test/elsewhere", folder, "node")
        assert fault == "not the driver's: no such folder"
        assert str(probe.try_storage("s3://cloze-nothing/x", folder, "node")).startswith("not the driver's")
    left = system.get_file_info(fs.FileSelector("cloze-test", recursive=True))
    assert not [info.path for info in left if "doctor" in info.path and info.type == fs.FileType.File]
