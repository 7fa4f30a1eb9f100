"""What is refused before a run starts, and what its user is told."""

import dataclasses
from pathlib import Path

import pytest
from made_store import made_store

from data.config import UserError
from model.families import FAMILIES
from orchestration.checks import check_model, remarks
from orchestration.recipe import build_config


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
