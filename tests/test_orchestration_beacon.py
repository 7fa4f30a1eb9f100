"""Where a worker is, and the faults that tests ask for."""

import subprocess
import sys

import pytest

from data.config import UserError
from orchestration.beacon import Beacon, faults_of


def test_a_beacon_counts_stages_and_keeps_the_step():
    beacon = Beacon(1)
    beacon.at("forward", 3)
    beacon.at("backward")
    assert (beacon.stage, beacon.step, beacon.passed) == ("backward", 3, 2)
    beacon.passes("saving:file", 2)
    assert (beacon.stage, beacon.step, beacon.passed) == ("backward", 3, 2), "a thread beside training moves nothing"


def test_while_a_part_is_waited_for_the_stage_is_reading():
    beacon, stages = Beacon(0), []

    def parts():
        for part in "ab":
            stages.append(beacon.stage)
            yield part

    for _ in beacon.reading(parts()):
        beacon.at("forward", 0)
    assert stages == ["reading", "reading"] and beacon.stage == "reading"


def test_a_fault_strikes_its_rank_step_and_stage():
    strike = faults_of("raise:1:5:evaluating")[0]
    for stage, rank, step in (("evaluating", 0, 5), ("evaluating", 1, 4), ("forward", 1, 5)):
        strike(stage, rank, step)
    with pytest.raises(RuntimeError, match="CLOZE_FAULT=raise:1:5:evaluating"):
        strike("evaluating", 1, 5)


def test_the_nth_fault_is_for_the_nth_worker_group():
    none, strike = faults_of("- raise:0:7")
    none("forward", 0, 7)
    with pytest.raises(RuntimeError):
        strike("forward", 0, 7)
    assert faults_of("") == []


def test_a_point_of_a_save_has_a_colon_of_its_own():
    beacon = Beacon(0, faults_of("raise:0:50:saving:manifest")[0])
    beacon.at("saving", 50)
    with pytest.raises(RuntimeError):
        beacon.passes("saving:manifest", 50)


def test_a_kill_is_sigkill():
    program = "from orchestration.beacon import *; Beacon(0, faults_of('kill:0:2')[0]).at('forward', 2)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == -9


@pytest.mark.parametrize(
    "asked",
    ["kill", "kill:1", "kill:a:2", "hang:1:2", "kill:1:-2", "raise:0:5 x", "kill:1:3:sleeping", "kill:1:3:saving:",
     "nan:1:3:backward"],
)  # fmt: skip
def test_a_fault_that_is_none_is_one_line(asked):
    with pytest.raises(UserError) as error:
        faults_of(asked)
    assert "CLOZE_FAULT=" in str(error.value) and "\n" not in str(error.value)
