"""What every objective keeps, in every family: MLM's loss is transformers' own, filler counts nothing, all learn."""

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from model.families import FAMILIES
from model.objectives.contract import IGNORED
from model.objectives.masked import encoder_inputs
from tests.objective_batches import NAMES, PAIRS, batch, built, enlarged, mean_loss, scores_of, train, write_teacher

pytestmark = pytest.mark.usefixtures("one_thread")

PACKED = [pair for pair in PAIRS if FAMILIES[pair[1]].packs and pair[0] in ("mlm", "mlm_sbo", "clm", "rtd")]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory) -> Any:
    return write_teacher(tmp_path_factory.mktemp("teacher"))


@pytest.mark.parametrize("family", FAMILIES)
def test_masked_loss_and_gradient_equal_the_dense_ones(family):
    objective = built("mlm", family)
    model = objective.model
    some = batch(2)
    sums, metrics = objective(some)
    targets = objective.count_targets(some)["mlm"]
    dense = model(**encoder_inputs(model, some), labels=some["labels"])
    assert (sums["mlm"] / targets).item() == pytest.approx(dense.loss.item(), abs=1e-5)
    wanted = some["labels"][some["labels"] != IGNORED]
    assert metrics["correct"] == (dense.logits.argmax(-1)[some["labels"] != IGNORED] == wanted).sum()
    assert metrics["tokens"] == some["attention_mask"].sum() - 1  # filler
    ours = torch.autograd.grad(sums["mlm"] / targets, list(model.parameters()), allow_unused=True)
    theirs = torch.autograd.grad(dense.loss, list(model.parameters()), allow_unused=True)
    for (name, _), one, other in zip(model.named_parameters(), ours, theirs, strict=True):
        assert (one is None) == (other is None), name
        assert one is None or torch.allclose(one, other, atol=1e-5), name


@pytest.mark.parametrize("family", FAMILIES)
def test_the_vocabulary_is_projected_at_targets_only(family):
    """Counted at the output projection itself: as many rows as targets."""
    objective = built("mlm", family)
    seen = []
    projection = objective.model.get_output_embeddings()
    projection.register_forward_hook(lambda module, inputs, output: seen.append(tuple(output.shape)))
    some = batch(1)
    objective(some)
    assert seen == [(int((some["labels"] != IGNORED).sum()), 120)]


@pytest.mark.parametrize("name, family", [*PAIRS, ("distillation", "distilbert")])
def test_filler_is_a_loss_of_zero_with_a_gradient(name, family, teacher):
    """Modules are called all the same, so that no rank waits for another: all parameters have a gradient, 0."""
    objective = built(name, family, teacher=teacher if name == "distillation" else None)
    some = {key: value[-1:].repeat(3, *[1] * (value.ndim - 1)) for key, value in batch(1).items()}
    sums, metrics = objective(some)
    counts = objective.count_targets(some)
    assert set(sums) == set(counts) and not any(counts.values())
    assert all(value.item() == 0.0 for value in sums.values())
    assert all(value.item() == 0 for value in metrics.values())
    assert objective.scores({key: 0.0 for key in metrics}, counts) == {}
    torch.stack(list(sums.values())).sum().backward()
    assert all(p.grad is not None and not p.grad.any() for p in objective.parameters() if p.requires_grad)


@pytest.mark.parametrize("name, family", PACKED)
def test_packed_documents_are_as_if_each_had_a_row_of_its_own(name, family):
    """Loss and gradient of two documents in one row equal those of two rows: nothing leaks, positions begin anew.

    ModernBERT's local layers reach two tokens to either side here: their window is kept in packed rows too.
    """
    objective = enlarged(built(name, family))
    for model in (module for module in objective.children() if hasattr(module, "config")):
        if hasattr(model.config, "local_attention"):
            model.config.local_attention = 4
    apart = {key: value[:, :12] for key, value in batch(3, rows=2, filler=False).items() if key != "pair_labels"}
    apart["attention_mask"] = torch.ones(2, 12).long()
    apart["input_ids"] = apart["input_ids"].clamp(min=3)
    apart["labels"][:, 4] = 50
    apart["labels"][:, 11] = IGNORED  # where a document ends with [SEP]
    del apart["token_type_ids"]
    padding, places = torch.zeros(1, 3).long(), torch.arange(12)[None]
    packed = {
        "input_ids": torch.cat([*apart["input_ids"][:, None], padding], 1),
        "labels": torch.cat([*apart["labels"][:, None], padding + IGNORED], 1),
        "attention_mask": torch.cat([torch.ones(1, 24).long(), padding], 1),
        "draws": torch.cat([*apart["draws"][:, None], padding.float()], 1),
        "document_ids": torch.cat([places * 0, places * 0 + 1, padding - 1], 1),
        "position_ids": torch.cat([places, places, torch.arange(3)[None]], 1),
    }
    assert objective.count_targets(packed) == objective.count_targets(apart)
    gradients = []
    for some in (apart, packed):
        loss = mean_loss(objective, some)
        gradients.append((loss, torch.autograd.grad(loss, list(objective.parameters()), allow_unused=True)))
    assert gradients[1][0].item() == pytest.approx(gradients[0][0].item(), rel=1e-6)
    for one, other in zip(gradients[0][1], gradients[1][1], strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.allclose(one, other, atol=1e-4, rtol=1e-4)
    leaking = {key: value for key, value in packed.items() if key != "document_ids"}
    assert abs(mean_loss(objective, leaking).item() - gradients[0][0].item()) > 1e-4


def test_the_window_of_local_layers_holds_in_packed_rows():
    """One document that is told as packed: equal to the row itself, and other than with a window that spans it all."""
    objective = enlarged(built("mlm", "modernbert"))
    some = {key: value for key, value in batch(4, rows=1, tokens=64, filler=False).items()}
    some["attention_mask"] = torch.ones(1, 64).long()
    some["input_ids"] = some["input_ids"].clamp(min=3)
    packed = {
        **some, "document_ids": torch.zeros(1, 64).long(), "position_ids": torch.arange(64)[None],
    }  # fmt: skip
    losses = []
    for window in (128, 8):
        objective.model.config.local_attention = window
        losses.append(mean_loss(objective, some).item())
        assert mean_loss(objective, packed).item() == pytest.approx(losses[-1], rel=1e-6)
    assert abs(losses[0] - losses[1]) > 1e-3


@pytest.mark.parametrize("family", [name for name, family in FAMILIES.items() if family.segments])
def test_segments_reach_the_encoder(family):
    objective = built("mlm", family)
    some = batch(1)
    without = {key: value for key, value in some.items() if key != "token_type_ids"}
    assert abs(mean_loss(objective, some).item() - mean_loss(objective, without).item()) > 1e-4


@pytest.mark.parametrize("name, family", [*PAIRS, ("distillation", "distilbert"), ("distillation", "bert")])
def test_thirty_steps_on_one_batch_lower_the_loss(name, family, teacher):
    """Each objective learns in each family: the batch's loss falls by a third, and its metrics rise."""
    objective = built(name, family, teacher=teacher if name == "distillation" else None)
    some = batch(5, rows=5, tokens=16)
    before, first = mean_loss(objective, some).item(), scores_of(objective, [some])
    train(objective, some, steps=30, rate=5e-3)
    assert mean_loss(objective, some).item() < before * (0.9 if name == "rtd" else 2 / 3)
    scores = scores_of(objective, [some])
    assert set(scores) >= {"accuracy"} and all(0 <= value <= 1 for value in scores.values())
    assert scores["masked_accuracy" if name == "rtd" else "accuracy"] > first.get("masked_accuracy", 0) + 0.2


@pytest.mark.parametrize("name, family", [*PAIRS, ("distillation", "distilbert")])
def test_half_precision_gives_nearly_the_same_loss(name, family, teacher):
    """Weights in bf16, as the engine has them: losses are summed in fp32, and gradients are finite."""
    objective = built(name, family, teacher=teacher if name == "distillation" else None)
    some = batch(7)
    whole = mean_loss(objective, some).item()
    half = mean_loss(objective.bfloat16(), some)
    half.backward()
    assert half.dtype == torch.float32 and half.item() == pytest.approx(whole, rel=0.03)
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in objective.parameters())


@pytest.mark.parametrize("name, family", [*PAIRS, ("distillation", "distilbert")])
def test_a_step_multiplies_what_torch_counts(name, family, teacher):
    """Without padding; deberta's relative positions, projected once for all rows of a batch, are left out."""
    objective = built(name, family, teacher=teacher if name == "distillation" else None)
    for model in (module for module in objective.children() if hasattr(module, "config")):
        model.set_attn_implementation("eager")  # torch counts the parts of attention, not the fused operation of CPUs
    if name == "distillation":
        objective.teacher.model.set_attn_implementation("eager")
    some = batch(6, rows=4, filler=False)
    some["attention_mask"] = torch.ones_like(some["attention_mask"])
    some["input_ids"] = some["input_ids"].clamp(min=3)
    sums, counts = None, objective.count_targets(some)
    with FlopCounterMode(display=False) as counted:
        sums = objective(some)[0]
        torch.stack(list(sums.values())).sum().backward()
    ours, theirs = objective.flops(4 * 24, counts, 24), counted.get_total_flops()
    positions = 0
    for model in (module for module in objective.children() if hasattr(module, "config")):
        config = model.config
        if config.model_type == "deberta-v2":
            positions += 3 * 2 * config.num_hidden_layers * 2 * 2 * config.position_buckets * config.hidden_size**2
    assert ours + positions == pytest.approx(theirs, rel=0 if family != "deberta-v2" else 0.05)


@pytest.mark.parametrize("name, family", [*PAIRS, ("distillation", "distilbert")])
def test_scores_weigh_targets_not_batches(name, family, teacher):
    """Over batches of different size: right answers of all by targets of all."""
    objective = enlarged(built(name, family, teacher=teacher if name == "distillation" else None))
    batches = [batch(8, rows=8, share=0.6), batch(9, rows=2, filler=False), batch(10, rows=5, share=0.1)]
    term, right = {"rtd": ("rtd", "told"), "clm": ("clm", "correct")}.get(name, ("mlm", "correct"))
    targets = sum(objective.count_targets(some)[term] for some in batches)
    answers = sum(int(objective(some)[1][right]) for some in batches)
    assert scores_of(objective, batches)["accuracy"] == answers / targets


def test_all_names_of_the_config_are_tested():
    assert {name for name, _ in PAIRS} | {"distillation"} == set(NAMES)
