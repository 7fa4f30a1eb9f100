"""Heads on tokens: which tokens count, tags of words under a CRF, both ends of an answer."""

import pytest
import torch
from tiny_encoder import write_encoder
from torch import Tensor
from torch.nn import functional

from model.config import Head
from model.heads.building import build_head
from model.heads.tokens import first_tokens

TAGS = ["O", "B-X", "I-X"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return write_encoder(tmp_path_factory.mktemp("encoder"))


def make_batch() -> dict[str, Tensor]:
    """Two rows: [CLS] w w' v u u' [SEP] and [CLS] w v [SEP] with padding; words of one or two tokens."""
    ids = torch.tensor([[2, 10, 11, 12, 13, 14, 3], [2, 20, 21, 3, 0, 0, 0]])
    words = torch.tensor([[-1, 0, 0, 1, 2, 2, -1], [-1, 0, 1, -1, -1, -1, -1]])
    labels = torch.tensor([[-100, 1, -100, 2, 0, -100, -100], [-100, 0, 1, -100, -100, -100, -100]])
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "word_ids": words, "labels": labels}


def test_first_tokens_are_told_by_words_or_labels() -> None:
    batch = make_batch()
    expected = batch["labels"] != -100
    assert torch.equal(first_tokens(batch), expected)
    assert torch.equal(first_tokens({"labels": batch["labels"]}), expected)
    with pytest.raises(ValueError, match="word_ids"):
        first_tokens({"attention_mask": batch["attention_mask"]})


@pytest.mark.parametrize("settings", [{}, {"layers": "mlp"}, {"label_smoothing": 0.1}])
def test_single_tags_are_cross_entropy_at_the_first_tokens(encoder, settings) -> None:
    weights = {"O": 0.5}
    head = Head(kind="tagging", class_weights=weights, **settings)
    module, batch = build_head(encoder, head, TAGS).eval(), make_batch()
    logits = module.logits(batch)
    assert logits.shape == (2, 7, 3)
    known = batch["labels"] != -100
    expected = functional.cross_entropy(
        logits[known], batch["labels"][known], torch.tensor([0.5, 1, 1]), reduction="sum",
        label_smoothing=head.label_smoothing,
    )  # fmt: skip
    sums, metrics = module(batch)
    torch.testing.assert_close(sums["tagging"], expected)
    assert module.count_targets(batch) == {"tagging": 5}
    assert metrics["correct"] == (logits.argmax(-1) == batch["labels"])[known].sum()
    outputs = module.outputs(batch)
    padding = batch["attention_mask"] == 0
    assert torch.equal(outputs["tags"][~padding], logits.argmax(-1)[~padding])
    torch.testing.assert_close(outputs["scores"][~padding], logits.softmax(-1).amax(-1)[~padding])
    assert not outputs["tags"][padding].any() and not outputs["scores"][padding].any()


def test_a_crf_sees_words_alone_and_the_same_ones_with_and_without_labels(encoder) -> None:
    module, batch = build_head(encoder, Head(kind="tagging", crf=True), TAGS).eval(), make_batch()
    with torch.no_grad():
        module.model.crf.transitions.copy_(torch.randn(3, 3, generator=torch.Generator().manual_seed(1)))
        emissions = module.logits(batch)
        known = batch["labels"] != -100
        expected = 0.0
        for row in range(2):  # the chain of the words, with nothing left to mask
            words = emissions[row][known[row]][None]
            tags = batch["labels"][row][known[row]][None]
            expected -= float(module.model.crf.log_likelihood(words, tags, torch.ones_like(tags).bool()))
        sums, _ = module(batch)
        assert sums["tagging"].item() == pytest.approx(expected, abs=1e-4)
        unlabelled = {name: value for name, value in batch.items() if name != "labels"}
        for name, value in module.outputs(batch).items():
            assert torch.equal(module.outputs(unlabelled)[name], value)
            assert not value[~known].any()
    with pytest.raises(ValueError, match="class_weights"):
        Head(kind="tagging", crf=True, class_weights="balanced")


def test_a_crf_learns_that_a_tag_follows_another(encoder) -> None:
    """Tags alternate whatever the words are, which single tokens cannot tell."""
    module = build_head(encoder, Head(kind="tagging", crf=True), ["a", "b"], mode="frozen")
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=0.1)
    generator = torch.Generator().manual_seed(1)
    for _ in range(40):
        ids = torch.randint(5, 60, (16, 10), generator=generator)
        labels = (torch.arange(10) + torch.randint(0, 2, (16, 1), generator=generator)) % 2
        batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
        loss = module(batch)[0]["tagging"] / 160
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    tags = module.eval().outputs(batch)["tags"]
    assert (tags[:, 1:] != tags[:, :-1]).all()
    assert loss < 0.2  # ln 2 = 0.69 without a chain; one bit for each row, 0.069, is the least


def test_both_ends_of_an_answer_count_half_and_filler_nothing(encoder) -> None:
    module = build_head(encoder, Head(kind="answering"), []).eval()
    batch = {**make_batch(), "labels": torch.tensor([[1, 3], [-100, -100]])}
    outputs = module.outputs(batch)
    starts, ends = outputs["starts"].log_softmax(-1), outputs["ends"].log_softmax(-1)
    sums, metrics = module(batch)
    torch.testing.assert_close(sums["answering"], -(starts[0, 1] + ends[0, 3]) / 2)
    assert module.count_targets(batch) == {"answering": 1}
    is_right = starts[0].argmax() == 1 and ends[0].argmax() == 3
    assert metrics["correct"] == int(is_right)
