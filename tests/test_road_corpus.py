"""The data room's road through the command line: a corpus in a bucket and a folder, weighted, packed, masked by words.

One run on a Ray of its own, which inherits the bucket's address: killed at step 7, resumed from step 4 by itself.
"""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from pyarrow import fs

from data.order import Order
from data.store import open_store

pytestmark = [pytest.mark.road, pytest.mark.timeout(420)]

STEPS, BATCH = 15, 10
LETTERS = [{"body": {"text": f"Letter {n}. The clerk of court {n} wrote it; nobody read."}} for n in range(60)]
RECIPE = f"""
name: law
corpus:
  sources:
    - {{path: "s3://cloze-test/letters", text_field: body.text, weight: 2}}
    - {{path: notes, weight: 0.5, document: line}}
  held_out: 0.1
  max_bad_fraction: 0.1
tokenizer: {{kind: bpe, vocab_size: 300}}
rows: {{length: 48, packing: packed}}
masking: {{strategy: whole_word, mlm_probability: 0.3, final_mlm_probability: 0.1}}
encoder: {{hidden_size: 32, num_attention_heads: 2, intermediate_size: 64, dropout: 0.0}}
pretrain: {{steps: {STEPS}, global_batch: {BATCH}, micro_batch: 3, eval_every_steps: null, learning_rate: 0.005}}
checkpoints: {{every_steps: 4}}
scaling: {{cpus_per_worker: 0.5, max_restarts: 1}}
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory, s3) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "notes").mkdir()
    notes = [f"Note {n}: seen by the judge of town {n}." for n in range(80)]
    (folder / "notes" / "all.txt").write_bytes("\r\n".join([*notes, notes[3], ""]).encode() + b"caf\xe9 broken\r\n")
    (folder / "law.yaml").write_text(RECIPE)
    address = s3["AWS_ENDPOINT_URL"].removeprefix("http://")
    keys = {"access_key": "test", "secret_key": "test", "region": "us-east-1"}
    bucket = fs.S3FileSystem(**keys, endpoint_override=address, scheme="http")
    with bucket.open_output_stream("cloze-test/letters/2024/a.jsonl.gz", compression=None) as file:
        records = [*LETTERS, {"body": {"text": None}}, {"body": 1}]
        file.write(gzip.compress("\n".join(map(json.dumps, records)).encode()))
    with bucket.open_output_stream("cloze-test/letters/empty.jsonl") as file:
        file.write(b"")
    return folder


@pytest.fixture(scope="module")
def run(home, s3):
    """The command line, without the tests' Ray: `run("pretrain", ...)`."""

    def command(*words: str, **environment: str):
        own = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        return subprocess.run(
            [sys.executable, "-m", "orchestration", *words], cwd=home, env={**own, **s3, **environment}, text=True,
            capture_output=True, timeout=300, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    return command


@pytest.fixture(scope="module")
def trained(run, home):
    return run("pretrain", "-c", "law.yaml", "--dump-batches", "dump", CLOZE_FAULT="kill:1:7")


def test_every_document_is_accounted_for(trained, home):
    assert trained.returncode == 0, trained.stderr
    assert "144 documents read: 140 kept, 1 empty, 1 duplicate, 2 quarantined" in trained.stderr, trained.stderr
    facts = json.loads((home / "runs/law/corpus.json").read_text())
    letters, notes = facts["sources"]
    assert (letters["documents_read"], letters["documents_kept"], letters["documents_empty"]) == (62, 60, 1)
    assert (notes["documents_read"], notes["documents_kept"], notes["documents_duplicate"]) == (82, 80, 1)
    bads = [json.loads(line) for line in (home / "runs/law/quarantine.jsonl").read_text().splitlines()]
    assert {(Path(bad["file"]).name, bad["line"]) for bad in bads} == {("a.jsonl.gz", 62), ("all.txt", 82)}
    assert facts["empty_files"] == 1


def test_steps_are_the_weighted_order_through_the_kill(trained, home):
    """Ranks of a run that was killed and resumed trained, together, on exactly the rows that the order names."""
    facts = json.loads((home / "runs/law/corpus.json").read_text())
    train = open_store(facts["store"]).train
    order = Order(train.shard_rows, train.shard_sources, (2.0, 0.5), 0, BATCH)
    assert order.steps_per_epoch < STEPS
    found: dict[int, list[int]] = {}
    for path in (home / "dump").glob("rank*.jsonl"):
        for line in map(json.loads, path.read_text().splitlines()):
            found.setdefault(line["step"], []).extend(line["row_ids"])
    assert sorted(found) == list(range(STEPS))
    for step, rows in found.items():
        window = order.window(order.window_of(step))
        assert sorted(rows) == sorted(window.rows[step - window.first_step])
    status = json.loads((home / "runs/law/status.json").read_text())
    assert (status["state"], status["restarts"]) == ("finished", 1)


def test_whole_words_are_masked_and_inspect_shows_them(trained, run, home):
    shown = run("inspect", "-c", "law.yaml", "--json", "--rows", "4")
    assert shown.returncode == 0, shown.stderr
    facts = json.loads(shown.stdout)
    assert facts["documents"] == {"read": 144, "kept": 140, "empty": 1, "duplicate": 1, "quarantined": 2}
    dumped = {}
    for path in (home / "dump").glob("rank*.jsonl"):
        for line in map(json.loads, path.read_text().splitlines()):
            if line["step"] == 0:
                dumped.update(zip(line["row_ids"], line["labels"], strict=True))
    train = open_store(json.loads((home / "runs/law/corpus.json").read_text())["store"]).train
    rows = train.read(np.array(list(dumped)))
    targets = tokens = 0
    for i, labels in enumerate(dumped.values()):
        target = np.array(labels) >= 0
        inside = ~rows.word_starts[i, 1 : len(labels)]
        assert (target[1:] == target[:-1])[inside].all(), "half a word is a target"
        targets, tokens = targets + target.sum(), tokens + len(labels)
    assert 0.15 < targets / tokens < 0.35
    plain = run("inspect", "-c", "law.yaml", "--rows", "2")
    assert plain.returncode == 0 and "‖" in plain.stdout and "[MASK:" in plain.stdout, plain.stdout
