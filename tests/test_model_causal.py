"""Causal language modelling: no token hears of a later one, and the loss is a loop's."""

import pytest
import torch

from model.families import FAMILIES
from model.objectives.masked import encoder_inputs
from tests.objective_batches import batch, built, enlarged

pytestmark = pytest.mark.usefixtures("one_thread")

CAUSAL = [name for name, family in FAMILIES.items() if family.packs]


def original(some: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.where(some["labels"] == -100, some["input_ids"], some["labels"])


@pytest.mark.parametrize("family", CAUSAL)
def test_the_loss_equals_a_loop_over_prefixes(family):
    """Each next token from its own prefix, read alone: what is behind a token cannot have helped."""
    objective = enlarged(built("clm", family)).double()
    some = batch(1, rows=3)
    loss, right, number = 0.0, 0, 0
    for row, ids in enumerate(original(some)):
        length = int((ids != 0).sum())
        for end in range(1, length):
            prefix = {name: value[row : row + 1, :end] for name, value in some.items() if value.ndim > 1}
            prefix["input_ids"] = ids[None, :end]
            inputs = encoder_inputs(objective.model, prefix, causal=True)
            logits = objective.model(**inputs).logits[0, -1]
            loss += (logits.exp().sum().log() - logits[ids[end]]).item()
            right += int(logits.argmax() == ids[end])
            number += 1
    sums, metrics = objective(some)
    assert sums["clm"].item() == pytest.approx(loss, rel=1e-6)
    assert (int(metrics["correct"]), objective.count_targets(some)) == (right, {"clm": number})


@pytest.mark.parametrize("family", CAUSAL)
def test_a_later_token_changes_nothing_before_it(family):
    """And it would without the causal mask."""
    model = enlarged(built("clm", family)).model.eval()
    some = batch(2, rows=1, filler=False)
    some["attention_mask"] = torch.ones(1, 24).long()
    some["input_ids"] = original(some).clamp(min=3)
    other = {**some, "input_ids": some["input_ids"].clone()}
    other["input_ids"][0, 15] += 1
    for causal in (True, False):
        one, two = (model.base_model(**encoder_inputs(model, it, causal=causal)).last_hidden_state
                    for it in (some, other))  # fmt: skip
        assert torch.allclose(one[0, :15], two[0, :15], atol=1e-6) == causal
        assert not torch.allclose(one[0, 15:], two[0, 15:], atol=1e-3)


def test_masks_of_the_batch_are_undone():
    """Masked or not, it reads the text itself."""
    objective = built("clm")
    some = batch(3)
    plain = {**some, "input_ids": original(some), "labels": torch.full_like(some["labels"], -100)}
    assert objective(some)[0]["clm"].item() == objective(plain)[0]["clm"].item()
    assert objective.count_targets(some) == objective.count_targets(plain)
