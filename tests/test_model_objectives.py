"""Masked-LM: the loss at the masked positions is transformers' own dense loss."""

from typing import Any

import pytest
import torch

from model.config import Encoder, Objective
from model.objectives.catalogue import build_objective
from model.objectives.contract import IGNORED

ENCODER = Encoder(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, dropout=0.0)



def built() -> Any:
    return build_objective(Objective(), ENCODER, {"vocab_size": 120, "pad_id": 0}, 1)[0]


def batch(seed: int, rows: int = 6, tokens: int = 20) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 120, (rows, tokens), generator=draw)
    lengths = torch.randint(3, tokens + 1, (rows, 1), generator=draw)
    mask = (torch.arange(tokens) < lengths).long()
    chosen = (torch.rand(rows, tokens, generator=draw) < 0.3) & (mask == 1)
    return {"input_ids": ids * mask, "attention_mask": mask, "labels": torch.where(chosen, ids, IGNORED)}


def test_loss_and_gradient_equal_the_dense_ones():
    objective = built()
    model = objective.model
    for seed in range(4):
        b = batch(seed)
        sums, metrics = objective(b)
        targets = objective.count_targets(b)["mlm"]
        dense = model(**b)
        assert (sums["mlm"] / targets).item() == pytest.approx(dense.loss.item(), abs=1e-5)
        guessed = dense.logits.argmax(-1)[b["labels"] != IGNORED]
        assert metrics["correct"] == (guessed == b["labels"][b["labels"] != IGNORED]).sum()
        assert metrics["tokens"] == b["attention_mask"].sum()
        ours = torch.autograd.grad(sums["mlm"] / targets, list(model.parameters()), allow_unused=True)
        theirs = torch.autograd.grad(dense.loss, list(model.parameters()), allow_unused=True)
        for (name, _), one, other in zip(model.named_parameters(), ours, theirs, strict=True):
            assert (one is None) == (other is None), name
            assert one is None or torch.allclose(one, other, atol=1e-5), name


def test_the_vocabulary_is_projected_at_targets_only():
    """Counted at the decoder itself: as many rows as targets."""
    objective = built()
    model = objective.model
    seen = []
    model.cls.predictions.decoder.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    b = batch(1)
    objective(b)
    assert seen == [(int((b["labels"] != IGNORED).sum()), 120)]


def test_no_target_is_a_loss_of_zero_with_a_gradient():
    objective = built()
    b = batch(1)
    b["labels"][:] = IGNORED
    sums, _ = objective(b)
    assert sums["mlm"].item() == 0.0
    sums["mlm"].backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in objective.parameters())


def test_packed_documents_are_as_if_each_had_a_row_of_its_own():
    """Loss and gradient of two documents in one row equal those of two rows: nothing leaks, positions begin anew."""
    objective = built()
    apart = batch(3, rows=2, tokens=9)
    apart = {name: value[:, :9] for name, value in apart.items()} | {"attention_mask": torch.ones(2, 9).long()}
    apart["input_ids"] = apart["input_ids"].clamp(min=5)
    apart["labels"][:, 4] = 50
    padding = torch.zeros(1, 3).long()
    places = torch.arange(9)[None]
    packed = {
        "input_ids": torch.cat([*apart["input_ids"][:, None], padding], 1),
        "labels": torch.cat([*apart["labels"][:, None], padding + IGNORED], 1),
        "attention_mask": torch.cat([torch.ones(1, 18).long(), padding], 1),
        "document_ids": torch.cat([places * 0, places * 0 + 1, padding - 1], 1),
        "position_ids": torch.cat([places, places, torch.arange(3)[None]], 1),
    }
    gradients = []
    for sums, _ in (objective(apart), objective(packed)):
        gradients.append(torch.autograd.grad(sums["mlm"], list(objective.parameters()), allow_unused=True))
    assert objective(packed)[0]["mlm"].item() == pytest.approx(objective(apart)[0]["mlm"].item(), rel=1e-6)
    for one, other in zip(*gradients, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.allclose(one, other, atol=1e-6)
    leaking = {name: value for name, value in packed.items() if name != "document_ids"}
    assert abs(objective(leaking)[0]["mlm"].item() - objective(apart)[0]["mlm"].item()) > 1e-3


def test_segments_reach_the_encoder():
    objective = built()
    b = batch(1)
    with_segments = {**b, "token_type_ids": torch.ones_like(b["input_ids"])}
    assert abs(objective(b)[0]["mlm"].item() - objective(with_segments)[0]["mlm"].item()) > 1e-3
