"""Masked-LM: the loss at the masked positions is transformers' own dense loss."""

import pytest
import torch

from model.config import Encoder, Objective
from model.encoder import build_encoder
from model.objectives import IGNORED, build_objective

ENCODER = Encoder(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, dropout=0.0)


def batch(seed: int, rows: int = 6, tokens: int = 20) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 120, (rows, tokens), generator=draw)
    lengths = torch.randint(3, tokens + 1, (rows, 1), generator=draw)
    mask = (torch.arange(tokens) < lengths).long()
    chosen = (torch.rand(rows, tokens, generator=draw) < 0.3) & (mask == 1)
    return {"input_ids": ids * mask, "attention_mask": mask, "labels": torch.where(chosen, ids, IGNORED)}


def test_loss_and_gradient_equal_the_dense_ones():
    model = build_encoder(ENCODER, 120, 0, 1)
    objective = build_objective(Objective(), model)
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
    model = build_encoder(ENCODER, 120, 0, 1)
    seen = []
    model.cls.predictions.decoder.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    b = batch(1)
    build_objective(Objective(), model)(b)
    assert seen == [(int((b["labels"] != IGNORED).sum()), 120)]


def test_no_target_is_a_loss_of_zero_with_a_gradient():
    objective = build_objective(Objective(), build_encoder(ENCODER, 120, 0, 1))
    b = batch(1)
    b["labels"][:] = IGNORED
    sums, _ = objective(b)
    assert sums["mlm"].item() == 0.0
    sums["mlm"].backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in objective.parameters())
