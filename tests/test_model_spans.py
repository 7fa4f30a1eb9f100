"""The span-boundary objective: spans are found in the labels, and the loss is a loop's."""

import pytest
import torch
import transformers

from model.objectives.contract import IGNORED
from model.objectives.masked import encoder_inputs
from model.objectives.spans import PLACES, span_boundaries
from tests.objective_batches import batch, built, enlarged

pytestmark = pytest.mark.usefixtures("one_thread")


def looped_spans(labels: list[int]) -> list[tuple[int, int, int, int]]:
    """(token, left, right, place) of each target."""
    found, place = [], 0
    while place < len(labels):
        if labels[place] == IGNORED:
            place += 1
            continue
        end = place
        while end + 1 < len(labels) and labels[end + 1] != IGNORED:
            end += 1
        found += [(at, max(place - 1, 0), min(end + 1, len(labels) - 1), at - place) for at in range(place, end + 1)]
        place = end + 1
    return found


@pytest.mark.parametrize("share", [0.0, 0.2, 0.6, 1.0])
def test_spans_are_those_of_a_loop(share):
    draw = torch.Generator().manual_seed(1)
    labels = torch.where(torch.rand(20, 30, generator=draw) < share, 7, IGNORED)
    wanted = [(row, *one) for row, tokens in enumerate(labels.tolist()) for one in looped_spans(tokens)]
    got = span_boundaries(labels)
    at = (labels != IGNORED).nonzero()[:, 1]
    rows = list(zip(*(t.tolist() for t in (got.row, at, got.left, got.right, got.place)), strict=True))
    assert rows == wanted


def test_the_loss_equals_a_loop():
    """Equations of section 3.2, a target at a time in double precision; one span is longer than there are places."""
    objective = enlarged(built("mlm_sbo")).double()
    some = batch(1, rows=4, tokens=40)
    some["labels"][0, 1:30] = 9
    some["attention_mask"][0] = 1
    some["input_ids"][0].clamp_(min=3)
    model, decoder = objective.model, objective.boundary
    encoded = model.bert(**encoder_inputs(model, some)).last_hidden_state
    first, second, norms = decoder.layers[0], decoder.layers[3], (decoder.layers[2], decoder.layers[5])

    def gelu(x: torch.Tensor) -> torch.Tensor:
        return x * 0.5 * (1 + torch.erf(x / 2**0.5))

    loss, right, longest = 0.0, 0, 0
    for row, labels in enumerate(some["labels"].tolist()):
        for at, left, right_end, place in looped_spans(labels):
            longest = max(longest, place)
            vector = decoder.places.weight[min(place, PLACES - 1)]
            h0 = torch.cat([encoded[row, left], encoded[row, right_end], vector])
            h1 = norms[0](gelu(first.weight @ h0 + first.bias))
            y = norms[1](gelu(second.weight @ h1 + second.bias))
            logits = model.bert.embeddings.word_embeddings.weight @ y + decoder.output.bias
            loss += (logits.exp().sum().log() - logits[labels[at]]).item()
            right += int(logits.argmax() == labels[at])
    sums, metrics = objective(some)
    assert longest >= PLACES
    assert sums["sbo"].item() == pytest.approx(loss, rel=1e-6)
    assert metrics["boundary_correct"] == right
    assert sums["mlm"].item() == pytest.approx(mlm_of(objective, some), rel=1e-6)


def mlm_of(objective, some) -> float:
    logits = objective.model(**encoder_inputs(objective.model, some)).logits
    return torch.nn.functional.cross_entropy(logits.transpose(1, 2), some["labels"], reduction="sum").item()


@pytest.mark.parametrize("family", ["bert", "albert"])
def test_the_export_is_a_plain_masked_language_model(family, tmp_path):
    """The boundary decoder shares the output matrix and is left out; transformers loads the rest, with equal logits."""
    objective = built("mlm_sbo", family)
    assert objective.boundary.output.weight is objective.model.get_input_embeddings().weight
    export = objective.exports(objective.state_dict())[0]
    assert (export.folder, export.extra) == ("", {})
    export.model.save_pretrained(str(tmp_path), state_dict=export.state)
    loaded, found = transformers.AutoModelForMaskedLM.from_pretrained(str(tmp_path), output_loading_info=True)
    assert not found["missing_keys"] and not found["unexpected_keys"]
    inputs = encoder_inputs(objective.model, batch(3))
    assert torch.allclose(loaded(**inputs).logits, objective.model(**inputs).logits, atol=1e-6)
