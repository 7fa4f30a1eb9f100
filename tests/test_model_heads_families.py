"""Heads on every family: transformers' own class, its own loss, cached features, how far each mode reaches."""

from pathlib import Path

import pytest
import torch
from tiny_encoder import NUM_WORDS, SPECIALS, write_tokenizer

from model.config import Encoder, Head
from model.counting import RowCounter
from model.encoder import build_encoder
from model.families import FAMILIES, family_of
from model.freezing import last_layers, learning_rate_scales
from model.heads.building import build_head, head_names
from model.heads.contract import HeadModule
from model.heads.states import open_encoder, pooled_states

TOKENIZER = {"vocab_size": len(SPECIALS) + NUM_WORDS, "pad_id": 0, "cls_id": 2, "sep_id": 3, "mask_id": 4}
LABELS = ["a", "b", "c"]
KINDS = ("classification", "tagging", "answering", "multiple_choice")
UNITS, TOKENS, CHOICES = 4, 9, 2


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """A tiny pretrained folder of each family, as pretraining exports one."""
    made = {}
    for family in FAMILIES:
        made[family] = tmp_path_factory.mktemp(family)
        encoder = Encoder(
            family=family, hidden_size=16, num_hidden_layers=3, intermediate_size=24, max_position_embeddings=32
        )
        build_encoder(encoder, TOKENIZER, 1)[0].save_pretrained(str(made[family]))
        write_tokenizer(made[family])
    return made


def make_batch(kind: str, loss: str = "in_batch") -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    rows = UNITS * CHOICES if kind in ("multiple_choice", "embedding") else UNITS
    lengths = torch.randint(3, TOKENS + 1, (rows, 1), generator=generator)
    lengths[0] = TOKENS
    mask = (torch.arange(TOKENS) < lengths).long()
    batch = {"input_ids": torch.randint(5, 60, (rows, TOKENS), generator=generator) * mask, "attention_mask": mask}
    batch["token_type_ids"] = (torch.arange(TOKENS) > 1).long() * mask
    numbers = torch.tensor([0.5, -1.0, 1.0, 0.0])
    if kind == "embedding":
        batch["passage_ids"] = torch.tensor([0, 1, 0, 2])
    labels = {
        "classification": torch.tensor([0, 2, 1, 1]),
        "multi_label": torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 0.0]]),
        "regression": numbers,
        "embedding": numbers if loss == "cosine" else torch.tensor([0, 2, 1, 1]),
        "tagging": torch.where(mask.bool(), torch.arange(TOKENS) % 3, -100),
        "answering": torch.tensor([[0, 0], [1, 2], [2, 2], [0, 1]]),
        "multiple_choice": torch.tensor([0, 1, 1, 0]),
    }
    return {**batch, "labels": labels[kind]}


def reference_loss(module: HeadModule, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The loss that transformers' class computes itself: a mean over its targets. Of answers each unit is read without
    its padding, which transformers gives a share of the probability."""
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    if not family_of(module.model.config).segments:
        del inputs["token_type_ids"]
    if module.head.kind == "multiple_choice":
        inputs = {name: value.view(UNITS, CHOICES, TOKENS) for name, value in inputs.items()}
    if module.head.kind == "answering":
        losses = []
        for unit, length in enumerate(batch["attention_mask"].sum(1)):
            rows = {name: value[unit : unit + 1, :length] for name, value in inputs.items()}
            start, end = batch["labels"][unit : unit + 1].unbind(1)
            losses.append(module.model(**rows, start_positions=start, end_positions=end).loss)
        return torch.stack(losses).mean()
    return module.model(**inputs, labels=batch["labels"]).loss


@pytest.mark.parametrize("family", FAMILIES)
def test_each_kind_is_transformers_own_class_with_its_own_loss(folders, family: str) -> None:
    for kind in KINDS:
        module = build_head(folders[family], Head(kind=kind), LABELS, seed=3, num_choices=CHOICES).eval()
        assert type(module.model).__name__.startswith(f"{FAMILIES[family].prefix}For")
        batch = make_batch(kind)
        with torch.no_grad():
            sums, _ = module(batch)
            expected = reference_loss(module, batch)
        counts = module.count_targets(batch)
        assert sums.keys() == counts.keys() == {kind}
        torch.testing.assert_close(sums[kind] / counts[kind], expected, atol=1e-6, rtol=1e-5)


NATIVE = [Head(kind=kind) for kind in ("classification", "regression", "tagging", "answering", "multiple_choice")]
OURS = [
    Head(pooling="max"), Head(kind="multi_label", pooling="mean", layers="mlp"), Head(kind="tagging", crf=True),
    Head(kind="tagging", layers="mlp"), Head(kind="answering", layers="mlp"),
    Head(kind="multiple_choice", pooling="mean"), Head(kind="embedding", pooling="mean", layers="linear"),
    Head(kind="embedding", loss="softmax"), Head(kind="embedding", loss="cosine", layers="mlp"),
]  # fmt: skip


def on_features(folder: Path, head: Head, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The batch with what the frozen encoder makes of it in the tokens' place."""
    pooling, mask = head.reads_features, batch["attention_mask"]
    assert pooling is not None
    states = pooled_states(open_encoder(folder), batch, (pooling,))[pooling]
    kept = {name: batch[name] for name in ("labels", "passage_ids") if name in batch}
    if pooling != "tokens":
        return {"features": states, **kept}
    features = torch.zeros(*mask.shape, states.shape[-1])
    features[mask.bool()] = states
    return {"features": features, "attention_mask": mask, **kept}


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_every_head_says_the_same_of_cached_features_and_of_the_frozen_encoder_in_the_loop(folders, family) -> None:
    extra = [Head(pooling="mean")] if FAMILIES[family].pooling_setting else []
    for head in [*NATIVE, *extra, *(OURS if family == "bert" else [])]:
        named = head.kind in ("classification", "multi_label", "tagging") or head.loss == "softmax"
        settings = {"mode": "frozen", "seed": 7, "num_choices": CHOICES}
        whole = build_head(folders[family], head, LABELS if named else [], **settings)
        bare = build_head(folders[family], head, LABELS if named else [], **settings, cached=True)
        is_ours = type(bare.model).__name__ == "OwnModel"
        assert is_ours == (head in OURS)
        weights = {name: p for name, p in whole.model.named_parameters() if p.requires_grad}
        assert weights.keys() == dict(bare.model.named_parameters()).keys()
        assert all(torch.equal(weights[name], p) for name, p in bare.model.named_parameters())
        assert bare.parameter_counts == whole.parameter_counts
        assert learning_rate_scales(bare, 0.5) == learning_rate_scales(whole, 0.5)
        batch, counters = make_batch(head.kind, head.loss), [RowCounter(whole), RowCounter(bare)]
        cached = on_features(folders[family], head, batch)
        for mode in (True, False):  # in training the head drops the same of both
            results = []
            for module, rows in ((whole, batch), (bare, cached)):
                torch.manual_seed(3)
                results.append({**module.train(mode)(rows)[0], **({} if mode else module.outputs(rows))})
            attended = batch["attention_mask"].bool()
            for name, value in results[0].items():
                kept = attended if name in ("starts", "ends") else ...
                torch.testing.assert_close(results[1][name][kept], value[kept], atol=1e-4, rtol=1e-5)
        rows = len(batch["input_ids"])
        assert [counter.rows for counter in counters] == [3 * rows, 0]


def test_only_a_frozen_head_does_without_its_encoder(folders) -> None:
    with pytest.raises(ValueError, match="not of mode full"):
        build_head(folders["bert"], Head(), LABELS, cached=True)
    for head in (Head(), Head(pooling="mean")):
        module = build_head(folders["bert"], head, LABELS, mode="frozen", cached=True)
        module.logits({"features": torch.ones(UNITS, 16)})
        with pytest.raises(ValueError, match="reads features"):
            module.logits(make_batch("classification"))
    assert Head(kind="embedding").reads_features is Head(kind="embedding", loss="cosine").reads_features is None
    with pytest.raises(ValueError, match="nothing to train"):
        build_head(folders["bert"], Head(kind="embedding"), [], mode="frozen")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_mode_trains_what_it_says_and_every_head_starts_alike(folders, family: str) -> None:
    batch = make_batch("classification")
    heads: dict[str, dict[str, torch.Tensor]] = {}
    for mode in ("frozen", "top_k", "lora", "full"):
        top_k = 3 if family == "albert" else 1  # whose layers share their weights
        module = build_head(folders[family], Head(), LABELS, mode=mode, top_k=top_k, seed=5)
        module.forward(batch)[0]["classification"].backward()
        names = {name for name, p in module.model.named_parameters() if p.requires_grad}
        reached = {name for name, p in module.model.named_parameters() if p.grad is not None}
        assert reached <= names
        parts = tuple(f"{name}." for name in head_names(module.model))
        of_head = {name for name in names if name.startswith(parts)}
        heads[mode] = {name: module.model.get_parameter(name).detach() for name in of_head}
        inside = {name.removeprefix(f"{module.model.base_model_prefix}.") for name in names - of_head}
        layers = FAMILIES[family].layers
        if mode == "frozen":
            assert not inside
        elif mode == "top_k":
            last = f"{layers}.0." if family == "albert" else f"{layers}.2."
            norm = f"{FAMILIES[family].final_norm}."
            assert inside and all(name.startswith((last, norm)) for name in inside)
        elif mode == "lora":
            assert inside and all(name.startswith(f"{layers}.") and ".lora_" in name for name in inside)
        else:
            assert names == {name for name, _ in module.model.named_parameters()}
    for mode in ("top_k", "lora", "full"):
        assert heads[mode].keys() == heads["frozen"].keys()
        assert all(torch.equal(heads[mode][name], value) for name, value in heads["frozen"].items())


@pytest.mark.parametrize("family", FAMILIES)
def test_layerwise_decay_follows_the_formula(folders, family: str) -> None:
    module = build_head(folders[family], Head(), LABELS)
    scales = learning_rate_scales(module, 0.5)
    assert scales.keys() == {name for name, _ in module.named_parameters()}
    layers = FAMILIES[family].layers
    inside = f"model.{module.model.base_model_prefix}."
    depth = {} if family == "albert" else {0: 0.125, 1: 0.25, 2: 0.5}
    lowest = 0.25 if family == "albert" else 0.0625  # its three layers are one
    for name, scale in scales.items():
        number = name.removeprefix(f"{inside}{layers}.").partition(".")[0]
        if name.startswith(f"{inside}{layers}."):
            assert scale == depth.get(int(number), 0.5), name
        elif name.startswith(f"{inside}embeddings"):
            assert scale == lowest, name
        elif not name.startswith(inside) or ".pooler." in name:
            assert scale == 1, name
    assert set(learning_rate_scales(module, 1.0).values()) == {1.0}


def test_layerwise_decay_of_a_head_of_ours_and_of_what_lora_adds(folders) -> None:
    module = build_head(folders["electra"], Head(pooling="mean"), LABELS, mode="lora")
    scales = learning_rate_scales(module, 0.5)
    assert scales.keys() == {name for name, p in module.named_parameters() if p.requires_grad}
    for name, scale in scales.items():
        layer = name.removeprefix("model.encoder.encoder.layer.").partition(".")[0]
        assert scale == (1 if name.startswith("model.head.") else 0.5 ** (3 - int(layer))), name


def test_more_layers_than_there_are_and_layers_that_are_one(folders) -> None:
    with pytest.raises(ValueError, match="top_k=4: the encoder has 3 layers"):
        build_head(folders["bert"], Head(), LABELS, mode="top_k", top_k=4)
    with pytest.raises(ValueError, match="top_k=2: each 3 of the 3 layers of this albert share their weights"):
        build_head(folders["albert"], Head(), LABELS, mode="top_k", top_k=2)
    encoder = build_head(folders["modernbert"], Head(), LABELS).encoder
    assert last_layers(encoder, 2) == ["layers.1", "layers.2", "final_norm"]
