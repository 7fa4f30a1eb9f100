"""What is refused before a run starts, and what its user is told."""

import dataclasses
import os
from pathlib import Path

import pytest
import torch
from made_store import made_store
from tiny_encoder import write_encoder
from transformers import AutoModelForMaskedLM

from data.config import UserError
from data.families import SPECIALS
from model.encoder import encoder_config
from model.families import FAMILIES
from orchestration.checks import check_model, remarks
from orchestration.identity import flatten
from orchestration.recipe import build_config, load_config, shipped_recipes


@pytest.mark.parametrize(
    ("packing", "lacks", "what"),
    [
        ("packed", "packs", "attention and positions inside each of several documents"),
        ("next_sentence", "segments", "tell two segments apart"),
        ("sentence_order", "segments", "tell two segments apart"),
    ],
)
def test_rows_that_a_family_cannot_read_are_refused(monkeypatch, packing: str, lacks: str, what: str):
    config = build_config({"name": "x", "rows": {"packing": packing}}, {})
    check_model(config)
    monkeypatch.setitem(FAMILIES, "bert", dataclasses.replace(FAMILIES["bert"], **{lacks: False}))
    with pytest.raises(UserError, match=f"rows.packing={packing}: a bert encoder cannot .*{what}; give "):
        check_model(config)
    check_model(build_config({"name": "x", "rows": {"packing": "document"}}, {}))


def test_a_small_corpus_is_said(tmp_path: Path):
    store = made_store(tmp_path / "store", [3])
    config = build_config({"name": "x", "pretrain": {"global_batch": 64}, "scaling": {"workers": 5}}, {})
    few_rows, few_workers, no_evaluation = remarks(config, store)
    assert few_rows.startswith("3 rows are fewer than pretrain.global_batch=64: every step trains on all of them")
    assert few_workers.startswith("3 rows are fewer than scaling.workers=5")
    assert "nothing to evaluate on" in no_evaluation
    large = made_store(tmp_path / "large", [64], held_out=2)
    assert remarks(config, large) == []


def test_every_family_has_a_recipe_whose_parts_go_together():
    families = set()
    for name in shipped_recipes():
        config = load_config(name)
        families.add(config.encoder.family)
        if config.objective.teacher is None:
            check_model(config)
    assert families == set(FAMILIES)


@pytest.mark.parametrize(
    ("recipe", "parameters"),
    [  # counted in bert-base-uncased, bert-large-uncased, albert-base-v2, distilbert-base-uncased, ModernBERT-base, ...
        ("pretrain_base", 109_514_298), ("bert_large", 335_174_458), ("albert_base", 11_221_680),
        ("distilbert_base", 66_985_530), ("modernbert_base", 149_655_232), ("roberta_base", 124_697_433),
    ],
)  # fmt: skip
def test_recipes_have_the_size_of_the_published_models(recipe: str, parameters: int):
    config = load_config(recipe)
    vocabulary = config.tokenizer.vocab_size if config.tokenizer.path is None else 30_522
    pad_id = list(SPECIALS[config.tokenizer.kind]).index("pad")
    encoder = encoder_config(config.encoder, {"vocab_size": vocabulary, "pad_id": pad_id})
    with torch.device("meta"):
        model = AutoModelForMaskedLM.from_config(encoder)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


@pytest.mark.parametrize(
    ("one", "other", "differing"),
    [
        ("nsp_on", "nsp_off", {"objective.name"}),
        ("mask_80_10_10", "mask_100", {"masking.mask_share", "masking.random_share"}),
        ("masks_dynamic", "masks_static", {"masking.dynamic"}),
        ("share_15", "share_40", {"masking.mlm_probability"}),
        ("bidirectional", "causal", {"objective.name"}),
    ],
)
def test_a_pair_of_runs_differs_in_one_thing(one: str, other: str, differing: set[str]):
    first, second = (flatten(load_config(f"claims/{name}")) for name in (one, other))
    assert {key for key in first if first[key] != second[key]} == {"name", *differing}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"objective.name": "mlm_nsp"}, r"objective.name=mlm_nsp: .*give rows.packing=next_sentence"),
        ({"encoder.embedding_size": 64}, r"encoder.embedding_size=64: bert has none .*family=albert or electra"),
        ({"objective.name": "distillation"}, r"objective: name=distillation needs a teacher; give objective.teacher"),
        ({"objective.teacher": "x"}, r"objective: teacher is given, but name is mlm; leave it out"),
        ({"objective.name": "distillation", "objective.teacher": "nowhere"}, "nowhere: no such folder"),
        ({"encoder.init": "nowhere", "tokenizer.path": "x"}, "encoder.init=nowhere: .*no such folder"),
    ],
)
def test_what_does_not_go_together_is_one_line(changes: dict[str, object], told: str):
    with pytest.raises(UserError, match=told) as error:
        check_model(build_config({"name": "x"}, changes))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("cut", [5, 5000])
def test_weights_cut_short_are_told_before_workers_start(cut: int, tmp_path: Path):
    folder = write_encoder(tmp_path / "cut")
    os.truncate(folder / "model.safetensors", cut)
    changes = {"encoder.init": str(folder), "tokenizer.path": str(folder), "rows.length": 16}
    with pytest.raises(UserError, match="encoder.init=.*model.safetensors cannot be loaded: .*; copy it again"):
        check_model(build_config({"name": "x"}, changes))
