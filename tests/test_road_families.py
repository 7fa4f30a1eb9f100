"""Every family with every objective learns from the embedded corpus: rows of the store, masks, the one loop, held-out
rows. In one process: what workers add stands in the other tests of the road."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from family_runs import RUNS, read, training

from data.config import Corpus, Masking, Rows, Tokenizer
from data.docstrings import build
from data.prepare import prepare
from data.store import Store
from data.tokenizer import load_tokenizer
from model.config import Encoder, Objective
from model.export import export_objective
from model.objectives.catalogue import build_objective
from orchestration.plain_engine import PlainEngine
from orchestration.steps import evaluate, train_steps

pytestmark = [pytest.mark.road, pytest.mark.timeout(300)]
STEPS, BATCH, HELD_OUT = 40, 16, 64


@pytest.fixture(scope="module")
def stores(ray_4_cpus, tmp_path_factory) -> Any:
    """Stores of the docstrings of three packages, by tokenizer and packing, made when asked for."""
    cache = tmp_path_factory.mktemp("families")
    corpus = build(cache, lambda *_: None, packages=("fsspec", "jinja2", "joblib"), classes=("fsspec", "jinja2"))
    made: dict[tuple[str, str], Store] = {}

    def store_of(kind: str, packing: str) -> Store:
        if (kind, packing) not in made:
            given = {"sources": str(corpus / "corpus-*.parquet"), "held_out": 0.1}
            tokenizer = Tokenizer.model_validate({"kind": kind, "vocab_size": 600})
            rows = Rows.model_validate({"length": 64, "packing": packing})
            made[kind, packing] = prepare(Corpus.model_validate(given), tokenizer, rows, cache, lambda *_: None)
        return made[kind, packing]

    return store_of


@pytest.fixture(scope="module")
def teacher(stores, tmp_path_factory) -> Path:
    """A BERT of four layers with the store's tokenizer, for distillation."""
    folder = tmp_path_factory.mktemp("teacher") / "export"
    store = stores("wordpiece", "full_sentences")
    module = build_objective(Objective(), shape("bert", 4), store.manifest["tokenizer"], 5)[0]
    export_objective(module, module.state_dict(), store.tokenizer_folder, folder, {})
    return folder


def shape(family: str, layers: int = 2) -> Encoder:
    return Encoder.model_validate({
        "family": family, "hidden_size": 64, "num_hidden_layers": layers, "num_attention_heads": 2,
        "intermediate_size": 128, "embedding_size": 32 if family in ("albert", "electra") else None,
        "max_position_embeddings": 64,
    })  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_the_family_learns_its_objective_and_its_export_loads(name: str, stores, teacher, tmp_path, one_thread) -> None:
    from transformers import AutoModel

    run = RUNS[name]
    store, masking = stores(run.tokenizer, run.packing), Masking.model_validate(run.masking)
    taught = {"teacher": str(teacher)} if run.objective["name"] == "distillation" else {}
    objective = Objective.model_validate({**run.objective, **taught})
    module = build_objective(objective, shape(run.family), store.manifest["tokenizer"], seed=1)[0]
    engine, draws = PlainEngine(module), objective.needs_draws
    held_out = read(store, "held_out", np.arange(min(HELD_OUT, store.held_out.num_rows)), 0, masking, draws)
    before = evaluate(engine, held_out)
    torch.manual_seed(0)
    records = list(train_steps(engine, training(store, STEPS, BATCH, masking, draws), lambda step: 3e-3))
    after = evaluate(engine, held_out)
    assert len(records) == STEPS
    assert after["loss"] < 0.97 * before["loss"], (before, after)
    assert after["accuracy"] >= before["accuracy"], (before, after)

    export_objective(module, module.state_dict(), store.tokenizer_folder, tmp_path / "export", {"title": name})
    tokenizer = load_tokenizer(tmp_path / "export")
    encoder = AutoModel.from_pretrained(tmp_path / "export").eval()
    with torch.no_grad():
        hidden = encoder(**tokenizer("Returns the path of a file.", return_tensors="pt")).last_hidden_state
    assert hidden.shape[-1] == 64 and torch.isfinite(hidden).all()
