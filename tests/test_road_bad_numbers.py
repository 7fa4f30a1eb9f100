"""A loss that is no number, through the command line: skipped, counted, listed with its rows, and shown."""

import json
import shlex
from pathlib import Path

import pytest

pytestmark = [pytest.mark.road, pytest.mark.timeout(420)]

WORDS = [
    "pretrain", "name=x", "corpus.sources=corpus.txt", "tokenizer.vocab_size=70", "rows.length=16",
    "rows.packing=document", "corpus.held_out=0.1", "encoder.hidden_size=16", "encoder.num_attention_heads=2",
    "encoder.intermediate_size=32", "pretrain.steps=6", "pretrain.global_batch=8", "pretrain.micro_batch=2",
    "zero.stage=2", "scaling.max_restarts=0",
]  # fmt: skip


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.soak
def test_a_bad_step_is_named_with_its_rows_and_passed_where_that_is_allowed(tmp_path, cloze):
    documents = [f"the clerk number {n} saw the court of case {n % 7}" for n in range(60)]
    (tmp_path / "corpus.txt").write_text("\n\n".join(documents))
    run = tmp_path / "runs" / "x"
    failed = cloze(*WORDS, "pretrain.max_bad_steps=1", cwd=tmp_path, CLOZE_FAULT="nan:1:3")
    assert failed.returncode == 1
    assert "pretrain failed: step 3: the loss is nan (learning rate " in failed.stderr
    ended = lines_of(run / "metrics.jsonl")[-1]
    assert (ended["step"], ended["loss"], ended["gradient_norm"], ended["skipped"]) == (3, None, None, True)
    (bad,) = lines_of(run / "bad_steps.jsonl")
    assert (bad["step"], bad["rank"], bad["loss"], bad["gradient_norm"]) == (3, 1, None, None)
    assert 0 < len(bad["row_ids"]) <= 4
    shown = " ".join(failed.stderr.split())
    command = shown[shown.index("cloze inspect -c") : shown.index(" shows them")]
    assert command.endswith(f"--step 3 --row-ids {','.join(map(str, bad['row_ids']))}")
    looked = cloze(*shlex.split(command)[1:], "--json", cwd=tmp_path)
    assert looked.returncode == 0, looked.stderr
    assert [row["row_id"] for row in json.loads(looked.stdout)["rows_shown"]] == bad["row_ids"]

    done = cloze(*WORDS, "pretrain.max_bad_steps=2", cwd=tmp_path, CLOZE_FAULT="nan:1:3")
    assert done.returncode == 0, done.stderr
    steps = [line for line in lines_of(run / "metrics.jsonl") if "loss" in line]
    assert [line["step"] for line in steps] == list(range(6))
    assert [line["step"] for line in steps if line["loss"] is None or line.get("skipped")] == [3]
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["skipped_steps"], summary["loss"]) == (1, steps[-1]["loss"])
    assert lines_of(run / "bad_steps.jsonl") == [bad]
