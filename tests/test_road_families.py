"""Every family with every objective learns from the embedded corpus: rows of the store, masks, the one loop, held-out
rows. In one process: what workers add stands in the other tests of the road."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from data.batches import PAIRS, Part, micro_batches
from data.config import Corpus, Masking, Rows, Tokenizer
from data.docstrings import build
from data.masking import Vocabulary, mask_rows, token_draws
from data.prepare import prepare
from data.store import Store
from data.tokenizer import load_tokenizer
from model.config import Encoder, Objective
from model.export import export_objective
from model.objectives.catalogue import build_objective
from orchestration.engine import PlainEngine
from orchestration.steps import evaluate, train_steps
from orchestration.stream import order_of

pytestmark = [pytest.mark.road, pytest.mark.timeout(300)]
STEPS, BATCH, HELD_OUT = 40, 16, 64
REPLACED = {"mask_share": 1.0, "random_share": 0.0}
# name -> family, tokenizer, packing, masking, objective
RUNS: dict[str, tuple[str, str, str, dict[str, Any], dict[str, Any]]] = {
    "bert-mlm": ("bert", "wordpiece", "full_sentences", {}, {"name": "mlm"}),
    "bert-nsp": ("bert", "wordpiece", "next_sentence", {}, {"name": "mlm_nsp"}),
    "bert-clm": ("bert", "wordpiece", "full_sentences", {}, {"name": "clm"}),
    "spanbert": ("bert", "wordpiece", "full_sentences", {"strategy": "span"}, {"name": "mlm_sbo"}),
    "roberta": ("roberta", "bpe", "packed", {}, {"name": "mlm"}),
    "albert": ("albert", "unigram", "sentence_order", {"strategy": "ngram"}, {"name": "mlm_sop"}),
    "electra": ("electra", "wordpiece", "full_sentences", REPLACED, {"name": "rtd", "generator_size": 0.5}),
    "deberta-v2": ("deberta-v2", "wordpiece", "full_sentences", {}, {"name": "mlm"}),
    "deberta-v3": ("deberta-v3", "wordpiece", "full_sentences", REPLACED, {"name": "rtd", "generator_size": 0.5}),
    "modernbert": ("modernbert", "bpe", "packed", {"mlm_probability": 0.3}, {"name": "mlm"}),
    "distilbert": ("distilbert", "wordpiece", "full_sentences", {}, {"name": "distillation"}),
}


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


def read(store: Store, part: str, row_ids: np.ndarray, masking: Masking, draws: bool) -> list[dict[str, torch.Tensor]]:
    """One micro-batch of rows, masked as at their first visit."""
    shards, tokenizer, packing = getattr(store, part), store.manifest["tokenizer"], store.manifest["rows"]["packing"]
    rows, visits = shards.read(row_ids), np.zeros(len(row_ids), np.int64)
    vocabulary = Vocabulary(tokenizer["vocab_size"], tokenizer["mask_id"], tuple(tokenizer["special_ids"]))
    share = np.full(len(row_ids), masking.mlm_probability)
    inputs, labels = mask_rows(rows.input_ids, rows.word_starts, row_ids, visits, share, 0, masking, vocabulary)
    whole = Part(False, 0, 1, 0, 0, np.zeros(len(row_ids), np.int64), row_ids, rows.lengths, inputs, labels)
    if packing in (*PAIRS, "packed"):
        whole = replace(whole, segments=rows.segments, pair_labels=rows.labels if packing in PAIRS else None)
    if draws:
        whole = replace(whole, draws=token_draws(row_ids, visits, inputs.shape[1], 0))
    batches = micro_batches(whole, np.arange(len(row_ids)), len(row_ids), 1, tokenizer["pad_id"])
    return [{name: torch.from_numpy(array) for name, array in batch.items()} for batch in batches]


@pytest.mark.parametrize("name", RUNS)
def test_the_family_learns_its_objective_and_its_export_loads(name: str, stores, teacher, tmp_path, one_thread) -> None:
    from transformers import AutoModel

    family, kind, packing, masks, wanted = RUNS[name]
    store, masking = stores(kind, packing), Masking.model_validate(masks)
    given = {**wanted, "teacher": str(teacher)} if wanted["name"] == "distillation" else wanted
    objective = Objective.model_validate(given)
    module = build_objective(objective, shape(family), store.manifest["tokenizer"], seed=1)[0]
    engine = PlainEngine(module)
    ids = np.arange(min(HELD_OUT, store.held_out.num_rows))
    held_out = read(store, "held_out", ids, masking, objective.needs_draws)
    before = evaluate(engine, held_out)

    order = order_of(store, (1.0,), 0, BATCH)
    rows = [row_ids for window in range(STEPS) for row_ids in order.window(window).rows][:STEPS]
    steps = ((k, read(store, "train", row_ids, masking, objective.needs_draws)) for k, row_ids in enumerate(rows))
    torch.manual_seed(0)
    records = list(train_steps(engine, steps, lambda step: 3e-3))
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
