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


EVERY = [
    Head(), Head(pooling="mean"), Head(pooling="max", layers="mlp"), Head(layers="linear"), Head(kind="multi_label"),
    Head(kind="regression"), Head(kind="regression", pooling="mean"), Head(kind="tagging"),
    Head(kind="tagging", layers="mlp"), Head(kind="tagging", crf=True), Head(kind="answering"),
    Head(kind="answering", layers="mlp"), Head(kind="multiple_choice"), Head(kind="multiple_choice", pooling="mean"),
    Head(kind="embedding"), Head(kind="embedding", loss="softmax", pooling="mean"),
    Head(kind="embedding", loss="cosine", layers="mlp"),
]  # fmt: skip


def batch_of(head: Head) -> dict[str, torch.Tensor]:
    """Three units: 3 rows, or 6 where a unit has two."""
    group = 2 if head.kind in ("multiple_choice", "embedding") else 1
    rows = batch(3 * group)
    del rows["labels"]
    mask = rows["attention_mask"]
    number = torch.tensor([0.5, -1.0, 1.0])
    labels = {
        "classification": torch.tensor([0, 2, 1]),
        "multi_label": torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]),
        "regression": number,
        "tagging": torch.where(mask.bool(), torch.arange(10) % 3, -100),
        "answering": torch.tensor([[0, 0], [1, 1], [0, 1]]),
        "multiple_choice": torch.tensor([0, 1, 1]),
        "embedding": {"softmax": torch.tensor([0, 2, 1]), "cosine": number}.get(head.loss, torch.zeros(3).long()),
    }[head.kind]
    return {**rows, "labels": labels}


def labels_for(head: Head) -> list[str]:
    named = head.kind in ("classification", "multi_label", "tagging") or head.loss == "softmax"
    return ["a", "b", "c"] if named else []


@pytest.mark.parametrize("head", EVERY, ids=lambda head: f"{head.kind}-{head.pooling}-{head.layers}-{head.loss}")
def test_every_head_trains_predicts_and_reads_half_precision(encoder, head: Head) -> None:
    module = build_head(encoder, head, labels_for(head), num_choices=2)
    rows = batch_of(head)
    counts = module.count_targets(rows)
    assert counts.keys() == {head.kind} and counts[head.kind] > 0
    sums, metrics = module.train()(rows)
    (sums[head.kind] / counts[head.kind]).backward()
    without = [name for name, p in module.named_parameters() if p.grad is None]
    assert not without, without
    with torch.no_grad():
        sums, metrics = module.eval()(rows)
        assert 0 <= float(metrics.get("correct", 0)) <= counts[head.kind]
        outputs = module.outputs({name: value for name, value in rows.items() if name != "labels" or head.crf})
        half = module.to(torch.bfloat16)
        assert float(half(rows)[0][head.kind]) == pytest.approx(float(sums[head.kind]), rel=0.1, abs=0.1)
        for name, value in half.outputs(rows).items():
            assert value.shape == outputs[name].shape and value.isfinite().all()
            assert value.dtype == outputs[name].dtype == (torch.int64 if name == "tags" else torch.float32)


@pytest.mark.parametrize("head", [Head(kind="regression"), Head(kind="regression", pooling="mean", layers="mlp")])
def test_regression_begins_at_the_mean_of_its_numbers(encoder, head: Head) -> None:
    rows = batch_of(head)
    (at_0, at_7) = (build_head(encoder, head, (), target_mean=mean).eval().outputs(rows)["value"] for mean in (0, 7.25))
    torch.testing.assert_close(at_7 - at_0, torch.full_like(at_0, 7.25))


@pytest.mark.parametrize("kind", ["multi_label", "regression"])
def test_losses_of_several_labels_and_of_numbers_are_transformers_own(encoder, kind: str) -> None:
    head = Head(kind=kind)
    module, rows = build_head(encoder, head, labels_for(head)).eval(), batch_of(head)
    sums, _ = module(rows)
    reference = module.model(**rows)
    assert module.model.config.problem_type == ("regression" if kind == "regression" else "multi_label_classification")
    torch.testing.assert_close(sums[kind] / module.count_targets(rows)[kind], reference.loss)
    filler = rows["labels"].clone()
    filler[1] = torch.nan
    part = {name: value[[0, 2]] for name, value in rows.items()}
    torch.testing.assert_close(module({**rows, "labels": filler})[0][kind], module(part)[0][kind])
    assert module.count_targets({**rows, "labels": filler}) == module.count_targets(part)


@pytest.mark.parametrize("name", ["BertModel", "BertForPreTraining", "BertForMaskedLM", "BertForTokenClassification"])
def test_an_encoder_of_any_class_gives_the_same_start(encoder, tmp_path, name: str) -> None:
    """A token classifier's own last matrix has the new head's shape, and is not taken for it."""
    import transformers

    expected = build_head(encoder, Head(kind="tagging", crf=True), ["a", "b"], seed=3)
    native = build_head(encoder, Head(kind="tagging"), ["a", "b"], seed=3)
    getattr(transformers, name).from_pretrained(str(encoder)).save_pretrained(str(tmp_path))
    for head, reference in ((Head(kind="tagging", crf=True), expected), (Head(kind="tagging"), native)):
        module = build_head(tmp_path, head, ["a", "b"], seed=3)
        state = module.state_dict()
        assert state.keys() == reference.state_dict().keys()
        assert all(torch.equal(value, state[key]) for key, value in reference.state_dict().items())


def test_dropout_before_the_last_matrix(encoder) -> None:
    for settings, expected in (({}, 0.1), ({"dropout": 0.3}, 0.3), ({"dropout": 0.0}, 0.0)):
        for pooling in ("cls", "mean"):
            module = build_head(encoder, Head(pooling=pooling, **settings), ["a", "b"])
            dropout = module.model.dropout if pooling == "cls" else module.model.head[0]
            assert dropout.p == expected
            assert module.encoder.embeddings.dropout.p == 0.1


def test_labels_that_do_not_fit(encoder) -> None:
    for head, labels, message in (
        (Head(), ["a"], "classification needs 2 labels or more, not 1"),
        (Head(kind="tagging"), [], "tagging needs 1 labels"),
        (Head(kind="embedding", loss="softmax"), [], "embedding needs 2"),
        (Head(), ["a", "b", "a"], "labels stand twice: 'a'"),
        (Head(class_weights={"x": 2.0}), ["a", "b"], "no label 'x'"),
        (Head(class_weights="balanced"), ["a", "b"], "number of training targets"),
        (Head(kind="multiple_choice"), [], "num_choices"),
    ):
        with pytest.raises(ValueError, match=message):
            build_head(encoder, head, labels)
    weighted = build_head(encoder, Head(class_weights="balanced"), ["a", "b"], label_counts={"a": 1, "b": 3})
    assert weighted.class_weights is not None and weighted.class_weights.tolist() == pytest.approx([2, 2 / 3])
