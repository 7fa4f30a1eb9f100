"""Pairs of segments: the losses are transformers' own and a loop's, and class 0 means the same there as here."""

from typing import Any

import pytest
import torch
import transformers

from model.objectives.contract import IGNORED
from model.objectives.masked import encoder_inputs
from tests.objective_batches import TOKENIZER, batch, built, enlarged, mean_loss, scores_of, tiny, train

pytestmark = pytest.mark.usefixtures("one_thread")

CASES = [("mlm_nsp", "bert"), ("mlm_sop", "albert"), ("mlm_sop", "bert"), ("mlm_nsp", "albert")]
# Characters are tokens. Of the three sentences the second follows the first, the third comes from elsewhere.
SENTENCES = ("今天天气很好。", "我们决定去公园散步。", "量子力学中的波函数描述系统状态。")
FILL_IN = "我今天去买了苹果"


def looped(objective: Any, some: dict[str, torch.Tensor]) -> tuple[float, float, int, int]:
    """(masked loss, pair loss, tokens right, pairs right), a row, a token and a class at a time."""
    masked, pairs, right, pairs_right = 0.0, 0.0, 0, 0
    for row in range(len(some["input_ids"])):
        one = {name: value[row : row + 1] for name, value in some.items()}
        dense = objective.model(**encoder_inputs(objective.model, one))
        tokens, pair = list(dense.values())[:2]
        for place, label in enumerate(one["labels"][0].tolist()):
            if label != IGNORED:
                logits = tokens[0, place]
                masked += (logits.exp().sum().log() - logits[label]).item()
                right += int(logits.argmax() == label)
        if one["pair_labels"].item() != IGNORED:
            label = 0 if one["pair_labels"].item() == 1 else 1
            pairs += (pair[0].exp().sum().log() - pair[0, label]).item()
            pairs_right += int(pair[0].argmax() == label)
    return masked, pairs, right, pairs_right


@pytest.mark.parametrize("name, family", CASES)
def test_losses_and_metrics_equal_a_loop(name, family):
    objective = enlarged(built(name, family)).double()
    some = batch(1)
    sums, metrics = objective(some)
    masked, pairs, right, pairs_right = looped(objective, some)
    assert [value.item() for value in sums.values()] == pytest.approx([masked, pairs], rel=1e-6)
    assert (metrics["correct"], metrics["pairs_correct"]) == (right, pairs_right)
    assert objective.count_targets(some) == {"mlm": (some["labels"] != IGNORED).sum(), name.removeprefix("mlm_"): 5}


@pytest.mark.parametrize("name, family", CASES)
def test_losses_equal_those_of_transformers(name, family):
    """Of the very class that is exported, whose label 0 is "follows" or "in order"."""
    objective = built(name, family)
    some = batch(2)
    theirs = {"bert": "next_sentence_label", "albert": "sentence_order_label"}[family]
    label = torch.where(some["pair_labels"] == IGNORED, IGNORED, 1 - some["pair_labels"])
    dense = objective.model(**encoder_inputs(objective.model, some), labels=some["labels"], **{theirs: label})
    assert mean_loss(objective, some).item() == pytest.approx(dense.loss.item(), abs=1e-5)


def characters(sentences: tuple[str, ...]) -> dict[str, int]:
    return {character: 5 + number for number, character in enumerate(sorted(set("".join(sentences))))}


def pair_rows(masked: bool) -> tuple[dict[str, torch.Tensor], dict[str, int]]:
    """[CLS] A [SEP] B [SEP] with B from the same text, from another, and the fill-in sentence with one mask."""
    ids = characters((*SENTENCES, FILL_IN))
    rows = [(SENTENCES[0], SENTENCES[1], 1), (SENTENCES[0], SENTENCES[2], 0), (FILL_IN[:5], FILL_IN[5:], IGNORED)]
    some = {name: torch.zeros(3, 32).long() for name in ("input_ids", "attention_mask", "token_type_ids")}
    some["labels"] = torch.full((3, 32), IGNORED)
    some["pair_labels"] = torch.tensor([label for _, _, label in rows])
    for row, (first, second, _) in enumerate(rows):
        tokens = [2, *(ids[c] for c in first), 3, *(ids[c] for c in second), 3]
        some["input_ids"][row, : len(tokens)] = torch.tensor(tokens)
        some["attention_mask"][row, : len(tokens)] = 1
        some["token_type_ids"][row, len(first) + 2 : len(tokens)] = 1
    some["labels"][2, 1 + FILL_IN.index("买")] = ids["买"]
    if masked:
        some["input_ids"][2, 1 + FILL_IN.index("买")] = 4
    return some, ids


@pytest.mark.parametrize("name, family", CASES[:2])
def test_chinese_sentences_are_learnt_and_told_by_plain_transformers(name, family, tmp_path):
    """The character behind the mask, and which sentence follows: from the exported folder, class 0 is the follower."""
    objective = built(name, family)
    some, ids = pair_rows(masked=True)
    train(objective, some, steps=60, rate=3e-3)
    assert scores_of(objective, [some]) == {"accuracy": 1.0, "pair_accuracy": 1.0}
    export = objective.exports(objective.state_dict())[0]
    export.model.save_pretrained(str(tmp_path), state_dict=export.state)
    plain_class = {"bert": transformers.BertForPreTraining, "albert": transformers.AlbertForPreTraining}[family]
    plain = plain_class.from_pretrained(str(tmp_path))
    tokens, pairs = list(plain(**{k: v for k, v in some.items() if k not in ("labels", "pair_labels")}).values())[:2]
    assert pairs[:2].argmax(-1).tolist() == [0, 1]
    assert tokens[2, 1 + FILL_IN.index("买")].argmax() == ids["买"]


def test_new_heads_come_from_the_seed(tmp_path):
    """Continued from a plain masked language model: pooler and classifier are new, and said so."""
    from model.config import Objective
    from model.objectives.catalogue import build_objective

    built("mlm").model.save_pretrained(str(tmp_path))
    one, two, other = (
        build_objective(Objective(name="mlm_nsp"), tiny(init=str(tmp_path)), TOKENIZER, seed) for seed in (1, 1, 2)
    )
    assert one[1] is not None
    assert {name.split(".")[1] for name in one[1].new} == {"pooler", "seq_relationship"}
    state, again, third = (module.state_dict() for module, _ in (one, two, other))
    for name, tensor in state.items():
        assert torch.equal(tensor, again[name]), name
        new = name.removeprefix("model.") in one[1].new
        assert torch.equal(tensor, third[name]) == (not new or name.endswith("bias")), name
