"""Freezing: exact counts, the rest in evaluation mode, and frozen weights that are bit-equal after training."""

import pytest
import torch
from tiny_encoder import write_encoder

from model.config import Head
from model.freezing import count_parameters, freeze, rest_frozen
from model.heads.building import build_head
from orchestration.engine import PlainEngine
from orchestration.steps import train_steps

WIDTH, CLASSES = 16, 3
HEAD = WIDTH * WIDTH + WIDTH + CLASSES * WIDTH + CLASSES  # pooler and classifier


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return write_encoder(tmp_path_factory.mktemp("encoder"))


def batch() -> dict[str, torch.Tensor]:
    ids = torch.randint(5, 60, (6, 10), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.arange(6) % CLASSES}


def test_counts_are_exact(encoder) -> None:
    frozen, full = (build_head(encoder, Head(), ["a", "b", "c"], mode=mode) for mode in ("frozen", "full"))
    total = sum(p.numel() for p in full.parameters())
    assert frozen.parameter_counts == {"trained": HEAD, "total": total}
    assert full.parameter_counts == count_parameters(full.model) == {"trained": total, "total": total}


def test_frozen_weights_are_bit_equal_after_training_and_the_head_moved(encoder) -> None:
    objective = build_head(encoder, Head(), ["a", "b", "c"], mode="frozen")
    before = {name: p.detach().clone() for name, p in objective.model.named_parameters()}
    engine = PlainEngine(objective, weight_decay=0.1)
    for _ in train_steps(engine, ((step, [batch()]) for step in range(5)), lambda step: 0.01):
        pass
    for name, parameter in objective.model.named_parameters():
        is_head = name.startswith(("bert.pooler", "classifier"))
        assert torch.equal(parameter, before[name]) != is_head, name


def test_full_moves_everything_that_the_batch_reaches(encoder) -> None:
    objective = build_head(encoder, Head(), ["a", "b", "c"], mode="full")
    before = {name: p.detach().clone() for name, p in objective.model.named_parameters()}
    list(train_steps(PlainEngine(objective), ((step, [batch()]) for step in range(3)), lambda step: 0.01))
    assert not [name for name, p in objective.model.named_parameters() if torch.equal(p, before[name])]


def test_a_frozen_encoder_has_no_dropout_even_in_training(encoder) -> None:
    frozen = build_head(encoder, Head(), ["a", "b"], mode="frozen")
    frozen.train()
    assert frozen.training and frozen.model.dropout.training and frozen.model.bert.pooler.training
    assert not frozen.model.bert.encoder.training and not frozen.model.bert.embeddings.dropout.training
    assert torch.equal(frozen.features(batch()), frozen.features(batch()))
    full = build_head(encoder, Head(), ["a", "b"], mode="full")
    full.train()
    assert not torch.equal(full.features(batch()), full.features(batch()))


def test_refusals() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout())
    with pytest.raises(ValueError, match="nothing to train"):
        freeze(module, ["1"], "frozen")
    with pytest.raises(ValueError, match="half"):
        freeze(module, ["0"], "half")
    with pytest.raises(AttributeError):
        freeze(module, ["pooler"], "frozen")


def test_dropout_beside_trained_weights_stays_on() -> None:
    module = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout()), torch.nn.Dropout())
    module[0][0].requires_grad_(False)
    last = torch.nn.Sequential(module, torch.nn.Linear(2, 2))
    last.train()
    rest_frozen(last)
    assert not module[0][1].training and last[1].training
