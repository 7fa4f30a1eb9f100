"""Recomputing activations: the same losses and gradients, dropout included, from layers that run twice."""

from pathlib import Path
from typing import Any

import pytest
import torch

from model.activations import recompute_activations
from model.families import FAMILIES, family_of
from model.objectives.catalogue import build_objective
from tests.objective_batches import TOKENIZER, batch, objective_of, tiny, write_teacher

CASES = [
    *(("mlm", family) for family in FAMILIES), ("rtd", "electra"), ("rtd", "deberta-v3"), ("mlm_sbo", "bert"),
    ("mlm_nsp", "bert"), ("mlm_sop", "albert"), ("distillation", "distilbert"),
]  # fmt: skip


@pytest.fixture(scope="module")
def teacher(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("activations") / "teacher"
    write_teacher(folder)
    return folder


def trained(name: str, family: str, teacher: Path, recomputed: bool) -> tuple[dict[str, Any], dict[str, Any], int]:
    """Loss sums, gradients, and how often the first layer of an encoder ran."""
    section = objective_of(name, teacher if name == "distillation" else None)
    encoder = tiny(family).model_copy(update={"dropout": 0.2})
    module = build_objective(section, encoder, TOKENIZER, seed=3)[0].train()
    if recomputed:
        recompute_activations(module)
    model: Any = next(part for part in module.modules() if getattr(part, "base_model", None) is part)
    layer, runs = model.get_submodule(family_of(model.config).layers)[0], [0]
    if hasattr(layer, "albert_layers"):
        layer = layer.albert_layers[0]
    first = next(part for part in layer.modules() if isinstance(part, torch.nn.Linear))
    first.register_forward_hook(lambda *_: runs.__setitem__(0, runs[0] + 1))
    torch.manual_seed(7)
    sums = module(batch(1, rows=4))[0]
    torch.stack(list(sums.values())).sum().backward()
    gradients = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    return {key: float(value) for key, value in sums.items()}, gradients, runs[0]


@pytest.mark.parametrize("name, family", CASES)
def test_recomputed_layers_give_the_same_losses_and_gradients(teacher, name, family):
    kept, recomputed = (trained(name, family, teacher, again) for again in (False, True))
    assert kept[0] == recomputed[0]
    assert kept[1].keys() == recomputed[1].keys()
    for parameter, gradient in kept[1].items():
        assert torch.allclose(gradient, recomputed[1][parameter], atol=1e-6), parameter
    assert recomputed[2] == 2 * kept[2] > 0
