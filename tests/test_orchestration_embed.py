"""embed: a row for every line, equal to sentence-transformers on a real model; whole or not there."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_data_tokenizer import real_folder
from tiny_encoder import write_encoder

from data.config import UserError
from model.embedder import load_embedder
from orchestration.cli import main
from orchestration.embed import Vector, VectorFile, check, embed, embed_texts
from orchestration.inference import MICRO_BATCH_TOKENS, load
from orchestration.output import replacing
from orchestration.pool import Answered

SENTENCES = [
    "The cat sat on the mat.", "我今天去买了苹果", "句子 A：今天天气很好。", "He deposited some money in the bank", "x",
    "", "word " * 100_000, "He’s walking along the bank where he works at the bank",
]  # fmt: skip


def test_vectors_of_a_real_model_equal_sentence_transformers(ray_4_cpus, tmp_path):
    import sentence_transformers

    texts = [" ".join(SENTENCES[(i * j) % 5] for j in range(1, 1 + i % 7)) for i in range(60)] + SENTENCES
    input = tmp_path / "texts.txt"
    input.write_text("\n".join(texts) + "\n")
    seen: list[str] = []
    written = embed(real_folder(), input, None, lambda text, fraction: seen.append(text))
    assert written == tmp_path / "texts.txt.vectors.parquet"
    assert seen[-1] == "58 vectors of 384 numbers, 10 lines with an error instead, 1 cut at 256 tokens"
    table = pq.read_table(written)
    assert table.schema.field("vector").type == pa.list_(pa.float32(), 384)
    assert table.column("line").to_pylist() == list(range(1, len(texts) + 1))
    errors = {line + 1: f"line {line + 1}: blank" for line, text in enumerate(texts) if not text.strip()}
    assert {i + 1: error for i, error in enumerate(table.column("error").to_pylist()) if error} == errors
    vectors = table.column("vector").to_pylist()
    assert {i + 1 for i, vector in enumerate(vectors) if vector is None} == set(errors)
    there = [row for row in range(len(texts)) if row + 1 not in errors]
    model = sentence_transformers.SentenceTransformer(str(real_folder()), device="cpu")
    theirs = model.encode([texts[i] for i in there])
    assert np.abs(np.array([vectors[i] for i in there]) - theirs).max() < 1e-5
    assert not list(tmp_path.glob("*.part"))


def test_ragged_texts_are_padded_by_15_percent_at_most(tmp_path):
    """Counted where the model is: positions that went through it over tokens."""
    folder = write_encoder(tmp_path / "model", positions=256)
    module, about, prefix, _ = load_embedder(folder)
    loaded = load(module, about, folder, prefix)
    counted = [0, 0]
    module.encoder.register_forward_pre_hook(
        lambda module, args, inputs: counted.__setitem__(slice(None), [
            counted[0] + inputs["attention_mask"].numel(), counted[1] + int(inputs["attention_mask"].sum())
        ]), with_kwargs=True,
    )  # fmt: skip
    random = np.random.default_rng(0)
    texts = [("w1 " * int(n),) for n in np.clip(random.lognormal(3, 1, 1500), 1, 500)]
    assert len(embed_texts(loaded, texts, "cpu")) == 1500
    assert counted[1] > 3 * MICRO_BATCH_TOKENS
    assert counted[0] / counted[1] <= 1.15


def test_mistakes_of_the_command_line_are_seen_before_ray(tmp_path, monkeypatch, capfd):
    write_encoder(tmp_path / "runs" / "demo" / "export")
    (tmp_path / "a.jsonl").write_text('{"body": "w1 w2"}\n{"body": 5}\n')
    monkeypatch.chdir(tmp_path)
    assert main(["embed", "demo", "a.jsonl"]) == 2
    assert "no 'text' in its first 2 lines" in capfd.readouterr().err
    assert main(["embed", "demo", "a.jsonl", "--text-field", "body", "--as", "query"]) == 2
    assert "runs/demo/export: it tells no prefix for a query" in capfd.readouterr().err
    assert sorted(os.listdir(tmp_path)) == ["a.jsonl", "runs"]


def test_a_failure_leaves_the_old_file_and_no_part_of_a_new_one(tmp_path):
    target = tmp_path / "old.parquet"
    target.write_text("old")
    with pytest.raises(RuntimeError, match="a node died"), replacing(target) as part, VectorFile(part, 4) as file:
        file.add(Answered(1, Vector(np.ones(4, np.float32), False), None))
        raise RuntimeError("a node died")
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["old.parquet"]


def test_a_file_of_which_no_line_can_be_read(tmp_path):
    with VectorFile(tmp_path / "v.parquet", 4) as file:
        file.add(Answered(1, None, "line 1: broken json"))
    assert pq.read_table(tmp_path / "v.parquet").to_pylist() == [
        {"line": 1, "vector": None, "error": "line 1: broken json"}
    ]


def test_row_groups_bound_the_memory(tmp_path):
    """10,000 lines: three row groups, of which one is in memory."""
    with VectorFile(tmp_path / "v.parquet", 4) as file:
        for line in range(10_000):
            vector = Vector(np.full(4, line, np.float32), False)
            file.add(Answered(line + 1, None, f"line {line + 1}: blank") if line % 7 == 0 else
                     Answered(line + 1, vector, None))  # fmt: skip
    read = pq.ParquetFile(tmp_path / "v.parquet")
    assert [read.metadata.row_group(i).num_rows for i in range(read.num_row_groups)] == [4096, 4096, 1808]
    table = read.read()
    vectors, errors = table.column("vector").to_pylist(), table.column("error").to_pylist()
    assert all((vector is None) == (error is not None) for vector, error in zip(vectors, errors, strict=True))
    assert all(vectors[line] == [line] * 4 for line in range(10_000) if line % 7)


def test_bad_places_are_refused_before_any_work(tmp_path):
    input = tmp_path / "a.txt"
    input.write_text("w1\n")
    folder = write_encoder(tmp_path / "model")
    for output, message in ((input, "is the input"), (tmp_path, "is a folder"), (tmp_path / "no" / "x", "not exist")):
        with pytest.raises(UserError, match=message):
            check(folder, input, output)
    with pytest.raises(UserError, match="no such folder") as caught:
        check(tmp_path / "nowhere", input, None)
    assert str(tmp_path / "nowhere") in str(caught.value)
