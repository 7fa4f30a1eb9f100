"""Embedding losses written down once more with loops; vectors; duplicates that are no wrong answers."""

import math

import pytest
import torch
from tiny_encoder import write_encoder
from torch import Tensor

from model.config import Head
from model.heads.building import build_head
from model.heads.contract import HeadModule

PAIRS, TOKENS = 4, 8


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return write_encoder(tmp_path_factory.mktemp("encoder"))


def make_batch(labels: Tensor) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    mask = (torch.arange(TOKENS) < torch.randint(3, TOKENS + 1, (2 * PAIRS, 1), generator=generator)).long()
    ids = torch.randint(5, 60, (2 * PAIRS, TOKENS), generator=generator) * mask
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def pooled(module: HeadModule, batch: dict[str, Tensor], row: int, pooling: str) -> Tensor:
    """The vector (D,) of one row, from its own tokens alone."""
    length = int(batch["attention_mask"][row].sum())
    hidden = module.encoder(input_ids=batch["input_ids"][row : row + 1, :length]).last_hidden_state[0]
    return {"cls": hidden[0], "mean": hidden.mean(0), "max": hidden.max(0).values}[pooling]


def cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b / (a.norm() * b.norm()))


@torch.no_grad()
@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_a_query_finds_its_passage_among_all_of_the_batch(encoder, pooling: str) -> None:
    head = Head(kind="embedding", pooling=pooling, temperature=0.1)
    module = build_head(encoder, head, []).eval()
    batch = make_batch(torch.zeros(PAIRS, dtype=torch.long))
    vectors = [pooled(module, batch, row, pooling) for row in range(2 * PAIRS)]
    expected, correct = 0.0, 0
    for i in range(PAIRS):
        scores = [cosine(vectors[2 * i], vectors[2 * j + 1]) / 0.1 for j in range(PAIRS)]
        expected += math.log(sum(math.exp(s) for s in scores)) - scores[i]
        correct += scores[i] == max(scores)
    sums, metrics = module(batch)
    assert sums["embedding"].item() == pytest.approx(expected, abs=1e-4)
    assert metrics["correct"] == correct and module.count_targets(batch) == {"embedding": PAIRS}
    outputs = module.outputs(batch)["vectors"]
    for row, vector in enumerate(vectors):
        torch.testing.assert_close(outputs[row], vector / vector.norm(), atol=1e-5, rtol=0)
    single = {name: batch[name][:3] for name in ("input_ids", "attention_mask")}
    torch.testing.assert_close(module.outputs(single)["vectors"], outputs[:3], atol=1e-5, rtol=0)


@torch.no_grad()
def test_the_same_passage_and_filler_are_no_wrong_answers(encoder) -> None:
    module = build_head(encoder, Head(kind="embedding", pooling="mean"), []).eval()
    labels = torch.tensor([0, 0, 0, -100])
    batch = make_batch(labels)
    for name in ("input_ids", "attention_mask"):
        batch[name][5] = batch[name][1]  # the passage of pair 2 is that of pair 0
    vectors = [pooled(module, batch, row, "mean") for row in range(2 * PAIRS)]
    expected = 0.0
    for i, others in ((0, (0, 1)), (1, (0, 1, 2)), (2, (1, 2))):
        scores = {j: cosine(vectors[2 * i], vectors[2 * j + 1]) / 0.05 for j in others}
        expected += math.log(sum(math.exp(s) for s in scores.values())) - scores[i]
    told = {**batch, "passage_ids": torch.tensor([7, 8, 7, 9])}
    for rows in (batch, told):
        assert module(rows)[0]["embedding"].item() == pytest.approx(expected, abs=1e-4)
        assert module.count_targets(rows) == {"embedding": 3}
    nothing = {**batch, "labels": torch.full((PAIRS,), -100)}
    assert module(nothing)[0]["embedding"] == 0


@torch.no_grad()
def test_cosine_regression(encoder) -> None:
    module = build_head(encoder, Head(kind="embedding", loss="cosine", pooling="mean"), []).eval()
    batch = make_batch(torch.tensor([0.5, -1.0, torch.nan, 1.0]))
    vectors = [pooled(module, batch, row, "mean") for row in range(2 * PAIRS)]
    errors = [
        (cosine(vectors[2 * i], vectors[2 * i + 1]) - wanted) ** 2 for i, wanted in ((0, 0.5), (1, -1.0), (3, 1.0))
    ]
    assert module(batch)[0]["embedding"].item() == pytest.approx(sum(errors), abs=1e-5)
    assert module.count_targets(batch) == {"embedding": 3}


@torch.no_grad()
def test_softmax_over_both_vectors_and_their_difference(encoder) -> None:
    module = build_head(encoder, Head(kind="embedding", loss="softmax", pooling="mean"), ["no", "yes", "maybe"]).eval()
    labels = [2, 0, -100, 1]
    batch = make_batch(torch.tensor(labels))
    matrix, bias = module.model.pair_classifier.weight, module.model.pair_classifier.bias
    expected = 0.0
    for i, label in enumerate(labels):
        u, v = (pooled(module, batch, 2 * i + side, "mean") for side in (0, 1))
        logits = matrix @ torch.cat([u, v, (u - v).abs()]) + bias
        expected -= 0.0 if label < 0 else float(logits.log_softmax(0)[label])
    assert module(batch)[0]["embedding"].item() == pytest.approx(expected, abs=1e-5)
    outputs = module.outputs(batch | {"passage_ids": torch.arange(PAIRS)})
    right = int((outputs["logits"].argmax(-1) == batch["labels"]).sum())
    assert outputs["logits"].shape == (PAIRS, 3) and module(batch)[1]["correct"] == right
    assert set(module.outputs(batch)) == {"vectors"}, "single texts have no label"


def test_a_frozen_encoder_without_a_projection_has_nothing_to_train(encoder) -> None:
    with pytest.raises(ValueError, match="nothing to train"):
        build_head(encoder, Head(kind="embedding"), [], mode="frozen")
    module = build_head(encoder, Head(kind="embedding", layers="linear"), [], mode="frozen")
    assert module.parameter_counts["trained"] == 16 * 16 + 16
