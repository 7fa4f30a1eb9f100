"""Freezing: exact counts, the rest in evaluation mode, and frozen weights that are bit-equal after training."""

import pytest
import torch
from tiny_encoder import write_encoder

from model.config import Head
from model.freezing import count_parameters, freeze, rest_frozen
from model.heads.building import build_head
from model.heads.contract import HeadModule
from model.lora import merge_lora
from orchestration.plain_engine import PlainEngine
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


def hidden(module: HeadModule) -> torch.Tensor:
    rows = batch()
    return module.encoder(input_ids=rows["input_ids"], attention_mask=rows["attention_mask"]).last_hidden_state


def test_a_frozen_encoder_has_no_dropout_even_in_training(encoder) -> None:
    frozen = build_head(encoder, Head(), ["a", "b"], mode="frozen")
    frozen.train()
    assert frozen.training and frozen.model.dropout.training and frozen.model.bert.pooler.training
    assert not frozen.model.bert.encoder.training and not frozen.model.bert.embeddings.dropout.training
    assert torch.equal(hidden(frozen), hidden(frozen))
    full = build_head(encoder, Head(), ["a", "b"], mode="full")
    full.train()
    assert not torch.equal(hidden(full), hidden(full))


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


def train(module, steps: int = 4) -> PlainEngine:
    engine = PlainEngine(module, weight_decay=0.1)
    for _ in train_steps(engine, ((step, [batch()]) for step in range(steps)), lambda step: 0.01):
        pass
    return engine


@pytest.mark.parametrize("mode", ["frozen", "top_k", "lora", "full"])
def test_what_is_frozen_is_bit_equal_and_not_in_the_optimizer(encoder, mode: str) -> None:
    """Weights and buffers; weight decay would move them, and AdamW would hold two more numbers for each."""
    objective = build_head(encoder, Head(), ["a", "b", "c"], mode=mode, top_k=1)
    before = {name: value.clone() for name, value in objective.model.state_dict().items()}
    engine = train(objective)
    trained = {name for name, p in objective.model.named_parameters() if p.requires_grad}
    moved = {name for name, value in objective.model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == trained
    prefixes = {"frozen": (), "top_k": ("bert.encoder.layer.1.",), "lora": ("bert.encoder.layer.",), "full": ("bert.",)}
    assert all(name.startswith((*prefixes[mode], "bert.pooler.", "classifier.")) for name in trained)
    held = {id(p) for group in engine.optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for p in objective.parameters() if p.requires_grad}
    assert sum(p.numel() for p in engine.optimizer.state) == objective.parameter_counts["trained"]
    buffers = {name: value for name, value in objective.named_buffers() if value is not None}
    fresh = build_head(encoder, Head(), ["a", "b", "c"], mode=mode, top_k=1)
    assert all(torch.equal(value, buffers[name]) for name, value in fresh.named_buffers())


def saved_bytes(objective: HeadModule) -> int:
    """Bytes that autograd keeps of one forward pass, weights not counted."""
    weights = {p.untyped_storage().data_ptr() for p in objective.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = objective(batch())[0]["classification"]
    assert loss.requires_grad
    return sum(kept.values())


def test_a_frozen_encoder_keeps_nothing_for_gradients(encoder) -> None:
    """6 rows of 10 tokens of width 16: one hidden state of all tokens is 3,840 bytes."""
    frozen, one, full = (
        saved_bytes(build_head(encoder, Head(), ["a", "b", "c"], mode=mode, top_k=1))
        for mode in ("frozen", "top_k", "full")
    )
    assert frozen < 6 * 10 * 16 * 4 + 6 * 200 * 4  # the hidden states that the pooler reads, and rows of its width
    assert frozen < one / 5 and one < 0.7 * full


def test_merged_lora_is_the_same_function_in_plain_weights(encoder) -> None:
    objective = build_head(encoder, Head(), ["a", "b", "c"], mode="lora", lora_rank=4, lora_alpha=8)
    plain = build_head(encoder, Head(), ["a", "b", "c"])
    rows = batch()
    torch.testing.assert_close(objective.eval().logits(rows), plain.eval().logits(rows))  # begins as no change
    train(objective)
    expected = objective.eval().logits(rows)
    assert (expected - plain.logits(rows)).abs().max() > 0.01
    matrices = sum(p.numel() for name, p in objective.named_parameters() if ".lora_" in name)
    assert matrices == 2 * 4 * (4 * (16 + 16) + 2 * (16 + 32))  # rank x (in + out) of six matrices in each layer
    merge_lora(objective.model)
    assert objective.model.state_dict().keys() == plain.model.state_dict().keys()
    torch.testing.assert_close(objective.logits(rows), expected, atol=1e-5, rtol=0)


def test_lora_leaves_the_callers_generator_alone_and_repeats(encoder) -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, two = (build_head(encoder, Head(), ["a", "b"], mode="lora", seed=3) for _ in range(2))
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
