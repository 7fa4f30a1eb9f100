"""The classification head: equal starts, transformers' own loss, cached features, folders that are no encoder."""

import json
import shutil

import pytest
import torch
from tiny_encoder import write_encoder
from torch.nn import functional

from model.config import Head
from model.encoder import write_random_encoder
from model.heads.building import build_head


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return write_encoder(tmp_path_factory.mktemp("encoder"))


def batch(rows: int = 6, classes: int = 3) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 60, (rows, 10), generator=generator)
    mask = (torch.arange(10) < torch.randint(2, 11, (rows, 1), generator=generator)).long()
    return {"input_ids": ids * mask, "attention_mask": mask, "labels": torch.arange(rows) % classes}


def test_pretrained_and_random_start_from_equal_heads(encoder, tmp_path) -> None:
    write_random_encoder(encoder, 7, tmp_path / "random")
    pretrained = build_head(encoder, Head(), ["a", "b"], seed=3).model
    control = build_head(tmp_path / "random", Head(), ["a", "b"], seed=3).model
    for name, parameter in pretrained.named_parameters():
        is_equal = torch.equal(parameter, control.get_parameter(name))
        if name.startswith(("bert.pooler", "classifier")):
            assert is_equal, name
    words = "bert.embeddings.word_embeddings.weight"
    assert not torch.equal(pretrained.get_parameter(words), control.get_parameter(words))
    other = build_head(encoder, Head(), ["a", "b"], seed=4).model
    assert not torch.equal(pretrained.classifier.weight, other.classifier.weight)
    assert torch.equal(pretrained.get_parameter(words), other.get_parameter(words))


def test_random_encoders_are_a_function_of_the_seed_and_leave_the_callers_generator(encoder, tmp_path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        write_random_encoder(encoder, seed, tmp_path / name)
    assert torch.equal(torch.rand(1), expected)
    a, b, c = ((tmp_path / name / "model.safetensors").read_bytes() for name in "abc")
    assert a == b != c


@pytest.mark.parametrize("classes", [2, 3])
def test_loss_is_transformers_own_times_the_rows(encoder, classes: int) -> None:
    objective = build_head(encoder, Head(), [f"label {i}" for i in range(classes)]).eval()
    model = objective.model
    rows = batch(classes=classes)
    sums, metrics = objective(rows)
    reference = model(**rows)
    torch.testing.assert_close(sums["classification"], reference.loss * 6)
    torch.testing.assert_close(objective.logits(rows), reference.logits)
    assert reference.logits.shape == (6, classes)
    assert metrics["correct"] == (reference.logits.argmax(-1) == rows["labels"]).sum()
    assert model.config.id2label[1] == "label 1" and model.config.label2id["label 1"] == 1


def test_filler_rows_count_nothing(encoder) -> None:
    objective = build_head(encoder, Head(), ["a", "b", "c"], mode="full").eval()
    whole = batch()
    part = {**whole, "labels": torch.tensor([0, 1, -100, -100, 1, -100])}
    rows = {key: value[part["labels"] != -100] for key, value in part.items()}
    assert objective.count_targets(part) == {"classification": 3}
    torch.testing.assert_close(objective(part)[0]["classification"], objective(rows)[0]["classification"])
    assert objective(part)[1]["correct"] == objective(rows)[1]["correct"]
    nothing = {**whole, "labels": torch.full((6,), -100)}
    assert objective.count_targets(nothing) == {"classification": 0}
    assert objective(nothing)[0]["classification"] == 0


def test_features_stand_for_tokens(encoder) -> None:
    objective = build_head(encoder, Head(), ["a", "b", "c"], mode="frozen").eval()
    rows = batch()
    features = objective.features(rows)
    assert features.shape == (6, 16)
    cached = {"features": features, "labels": rows["labels"]}
    torch.testing.assert_close(objective.logits(cached), objective.logits(rows), atol=1e-5, rtol=0)
    torch.testing.assert_close(
        objective(cached)[0]["classification"],
        functional.cross_entropy(objective.logits(rows), rows["labels"], reduction="sum"),
    )


def test_padding_does_not_matter(encoder) -> None:
    objective = build_head(encoder, Head(), ["a", "b", "c"], mode="full").eval()
    rows = batch()
    wider = {key: functional.pad(value, (0, 4)) if value.ndim == 2 else value for key, value in rows.items()}
    torch.testing.assert_close(objective.logits(wider), objective.logits(rows), atol=1e-5, rtol=0)


def test_a_pooler_that_the_folder_holds_is_kept_and_its_classifier_is_not(encoder, tmp_path) -> None:
    first = build_head(encoder, Head(), ["a", "b", "c"], seed=1).model
    first.save_pretrained(str(tmp_path))
    second = build_head(tmp_path, Head(), ["x", "y"], seed=2).model
    assert torch.equal(first.bert.pooler.dense.weight, second.bert.pooler.dense.weight)
    assert second.classifier.weight.shape == (2, 16)
    same_size = build_head(tmp_path, Head(), ["x", "y", "z"], seed=2).model
    assert not torch.equal(first.classifier.weight, same_size.classifier.weight)


def test_folders_that_are_no_encoder(encoder, tmp_path) -> None:
    from safetensors.torch import load_file, save_file

    broken = tmp_path / "broken"
    shutil.copytree(encoder, broken)
    weights = load_file(str(broken / "model.safetensors"))
    lost = "bert.encoder.layer.1.output.dense.weight"
    save_file({k: v for k, v in weights.items() if k != lost}, str(broken / "model.safetensors"), {"format": "pt"})
    with pytest.raises(ValueError, match=lost):
        build_head(broken, Head(), ["a", "b"], seed=0)
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    shutil.copy(encoder / "model.safetensors", other)
    with pytest.raises(ValueError, match="gpt2.*bert"):
        build_head(other, Head(), ["a", "b"], seed=0)


def test_new_weights_are_nothing_to_warn_about(encoder, capfd) -> None:
    build_head(encoder, Head(), ["a", "b"], seed=0)
    captured = capfd.readouterr()
    assert captured.out == "" and captured.err == ""
