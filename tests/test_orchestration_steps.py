"""The loop: the learning rate of each step, and what becomes of a loss or gradient that is no finite number.

Two processes over gloo train every ZeRO stage and precision; plain torch does the same in this one.
"""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_processes import (
    ROWS,
    STEPS,
    engine_of,
    equal,
    held_by,
    objective,
    rate_of,
    spawn,
    spoil,
    steps_of,
    train,
)  # fmt: skip

from orchestration.bad_steps import BadSteps, hint
from orchestration.gate import Gate
from orchestration.plain_engine import PlainEngine
from orchestration.steps import StepRecord, train_steps

pytestmark = pytest.mark.timeout(300)

CASES = (
    *({"stage": stage} for stage in range(4)),
    *({"stage": stage, "offload": "optimizer"} for stage in (1, 2, 3)),
    *({"stage": stage, "precision": "bf16"} for stage in range(4)),
)
NAMES = ["-".join(map(str, case.values())) for case in CASES]


def bad_run(rank: int, world_size: int, folder: Path) -> list[dict[str, Any]]:
    """Of each case: steps 0, 1, then one whose loss and one whose gradient is none on rank 1, then 4 and 5; and the
    same without the bad ones."""
    seen = []
    for case in CASES:
        kind, gate, told = [""], Gate(3), []
        gate._tell = told.append
        engine = engine_of(**case, world_size=world_size)
        spoil(engine.module, lambda kind=kind: kind[0] if rank == 1 else None)
        records = train(engine, [0, 1], gate=gate)
        before = held_by(engine)
        kept = []
        for number, what in ((2, "loss"), (3, "gradient")):
            kind[0] = what
            records += train(engine, [number], gate=gate)
            kept.append(equal(held_by(engine), before))
        kind[0] = ""
        records += train(engine, [4, 5], gate=gate)
        other = engine_of(**case, world_size=world_size)
        undisturbed = train(other, [0, 1, 4, 5])
        seen.append({
            "records": records, "kept": kept, "told": told, "row": gate.in_a_row,
            "equal": equal(held_by(engine), held_by(other)), "undisturbed": [r.loss for r in undisturbed],
        })  # fmt: skip
    return [*seen, *rates(rank, world_size)]


def rates(rank: int, world_size: int) -> list[dict[str, Any]]:
    """Eight optimizer steps with 1 and 4 micro-batches each: what the optimizer had for a learning rate and a count."""
    seen = []
    for stage in range(4):
        for micro_batch in (4, 1):
            engine = engine_of(stage, world_size, micro_batch)
            inner = getattr(engine.engine.optimizer, "optimizer", engine.engine.optimizer)
            used = []
            for number in range(STEPS):
                (record,) = train(engine, [number], micro_batch)
                used.append((record.learning_rate, *(group["lr"] for group in inner.param_groups)))
            counts = {float(state["step"]) for state in inner.state.values()}
            seen.append({"stage": stage, "micro_batch": micro_batch, "used": used, "counts": counts})
    return seen


@pytest.fixture(scope="module")
def seen(tmp_path_factory) -> list[list[dict[str, Any]]]:
    """rank -> what it saw."""
    return spawn(2, bad_run, tmp_path_factory.mktemp("bad"))


@pytest.mark.parametrize("case", range(len(CASES)), ids=NAMES)
def test_a_bad_step_moves_nothing_and_the_next_one_trains(seen, case):
    """Weights and optimizer state are bit for bit those before; afterwards those of a run without the bad steps."""
    for rank in range(2):
        got = seen[rank][case]
        assert got["kept"] == [True, True]
        assert got["equal"]
        assert [r.loss for r in got["records"] if not r.skipped] == got["undisturbed"]
        assert [r.step for r in got["records"] if r.skipped] == [2, 3] and got["row"] == 0
        assert [r.learning_rate for r in got["records"]] == [rate_of(step) for step in range(6)]


@pytest.mark.parametrize("case", range(len(CASES)), ids=NAMES)
def test_all_ranks_know_whose_rows_were_bad(seen, case):
    """Of a loss the rank and its rows; of a gradient, which is a sum over ranks, all rows of the step."""
    for rank in range(2):
        of_loss, of_gradient = (record for record in seen[rank][case]["told"])
        assert math.isnan(of_loss.loss) and dict(of_loss.suspects) == {1: [16 + row for row in (1, 3, 5, 7)]}
        assert math.isfinite(of_gradient.loss) and not math.isfinite(of_gradient.gradient_norm)
        assert dict(of_gradient.suspects) == {r: [24 + row for row in range(r, ROWS, 2)] for r in range(2)}


def test_the_learning_rate_goes_by_optimizer_steps_whatever_the_accumulation(seen):
    """Warm-up over 2 of 8 steps towards 0.01, then linearly to 0, in closed form; Adam counted 8 updates."""
    expected = [1e-2 / 3, 2e-2 / 3, *(1e-2 * (STEPS - step) / (STEPS - 2) for step in range(2, STEPS))]
    for got in seen[0][len(CASES) :]:
        for step, used in enumerate(got["used"]):
            assert used == pytest.approx([expected[step]] * len(used), abs=1e-9), got
        assert got["counts"] == {STEPS}, got


def plain(what: dict[int, str]) -> tuple[PlainEngine, Any]:
    """An engine of plain torch whose steps go wrong as told, and its steps."""
    engine, now = PlainEngine(objective()), [0]
    spoil(engine.module, lambda: what.get(now[0]))

    def steps(numbers):
        for step in steps_of(numbers, 0, 1, 4):
            now[0] = step.number
            yield step

    return engine, steps


@pytest.mark.parametrize("kind", ["loss", "gradient"])
def test_plain_torch_skips_a_bad_step_too(kind):
    engine, steps = plain({2: kind, 3: kind})
    records = list(train_steps(engine, steps(range(6)), rate_of, gate=Gate(3)))
    assert [record.skipped for record in records] == [False, False, True, True, False, False]
    other, steps = plain({})
    undisturbed = list(train_steps(other, steps([0, 1, 4, 5]), rate_of))
    assert [r.loss for r in records if not r.skipped] == [r.loss for r in undisturbed]
    assert equal(list(engine.module.parameters()), list(other.module.parameters()))


def test_only_the_micro_batch_that_went_wrong_is_suspect():
    engine, _ = plain({})
    rows, calls = [], [0]

    def what():
        calls[0] += 1
        return "loss" if calls[0] == 2 else None

    spoil(engine.module, what)
    list(train_steps(engine, steps_of([0], 0, 1, 4), rate_of, gate=Gate(2, rows.append)))
    assert dict(rows[0].suspects) == {0: [4, 5, 6, 7]}


def test_so_many_in_a_row_end_training_also_across_evaluations(tmp_path):
    """The count lives as long as the gate, not as one call; the error names step, rank, rows and how to see them."""
    engine, steps = plain({0: "loss", 2: "loss", 3: "gradient", 4: "loss"})
    listed = BadSteps(tmp_path, 0)
    gate = Gate(3, listed.add, lambda record: hint(tmp_path, record))
    records = list(train_steps(engine, steps(range(4)), rate_of, gate=gate))
    assert [record.skipped for record in records] == [True, False, True, True] and gate.last is None
    with pytest.raises(FloatingPointError) as error:
        list(train_steps(engine, steps(range(4, 6)), rate_of, gate=gate))
    assert gate.last and (gate.last.step, gate.last.skipped) == (4, True)
    text = str(error.value)
    assert text.startswith("step 4: the loss is nan (learning rate 0.00666667), as of 3 steps in a row; rank 0 had ")
    assert f"cloze inspect -c {tmp_path / 'config.yaml'} --step 4 --row-ids 32,33,34,35,36,37,38,39 shows them" in text
    lines = [json.loads(line) for line in listed.path.read_text().splitlines()]
    assert [(line["step"], line["rank"], line["row_ids"][0], line["loss"] is None) for line in lines] == [
        (0, 0, 0, True), (2, 0, 16, True), (3, 0, 24, False), (4, 0, 32, True),
    ]  # fmt: skip
    assert all(line["gradient_norm"] is None for line in lines)
    again = BadSteps(tmp_path, 3)  # a restart at step 3
    assert [json.loads(line)["step"] for line in listed.path.read_text().splitlines()] == [0, 2]
    part = tmp_path / "bad_steps.jsonl.part"
    part.mkdir()  # it cannot be written, as on a full disk: training goes on
    again.add(records[2])
    part.rmdir()
    again.add(records[3])
    assert [json.loads(line)["step"] for line in listed.path.read_text().splitlines()] == [0, 2, 2, 3]


def test_a_scale_that_is_looked_for_is_no_bad_step():
    """fp16: an overflow that lowers the loss scale is skipped without a word; one at the lowest scale is told."""
    gate, told = Gate(1), []
    gate._tell = told.append
    engine, steps = plain({1: "gradient"})
    engine.rescaled = lambda: True
    records = list(train_steps(engine, steps(range(3)), rate_of, gate=gate))
    assert [record.skipped for record in records] == [False, True, False] and not told
    engine.rescaled = lambda: False
    with pytest.raises(FloatingPointError, match="step 1: the gradient's norm is"):
        list(train_steps(engine, steps(range(3)), rate_of, gate=gate))


def overflowing(rank: int, world_size: int, folder: Path) -> list[dict[str, Any]] | None:
    """fp16 at every stage, from a scale that overflows down to one that does not, and at the lowest one."""
    from deepspeed.accelerator import get_accelerator

    if not get_accelerator().is_fp16_supported():
        return None
    seen = []
    for stage in range(4):
        kind = [""]
        engine = engine_of(stage, world_size, precision="fp16")
        spoil(engine.module, lambda kind=kind: kind[0])
        scales = [engine.loss_scale()]
        records: list[StepRecord] = train(engine, [0, 1])
        kind[0] = "gradient"
        for _ in range(18):  # 2 ** 16 is halved at every overflow but the first
            records += train(engine, [2], gate=Gate(99))
            scales.append(engine.loss_scale())
        kind[0] = ""
        records += train(engine, [3])
        seen.append({"scales": scales, "records": records})
    return seen


def test_fp16_looks_for_its_scale_at_every_stage(tmp_path):
    """On a GPU; a CPU that can is slow at it, and shows the same."""
    (got,) = spawn(1, overflowing, tmp_path)
    if got is None:
        pytest.skip("this CPU does not compute in fp16")
    engine = PlainEngine(objective(), weight_decay=0.1)
    plain = [record.loss for record in train_steps(engine, steps_of([0, 1, 3], 0, 1, 2), rate_of)]
    for stage in range(4):
        records, scales = got[stage]["records"], got[stage]["scales"]
        assert [r.loss for r in records if not r.skipped] == pytest.approx(plain, abs=5e-3)
        assert (scales[0], scales[-1]) == (2.0**16, 1.0)
        assert [bool(r.suspects) for r in records[2:-1]] == [scale == 1.0 for scale in scales[:-1]]
        assert torch.isfinite(torch.tensor(records[0].gradient_norm))
