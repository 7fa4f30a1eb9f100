"""Replaced-token detection: what is drawn, what is told apart, and whose gradient goes where."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch.nn import functional

from model.config import Objective
from model.export import export_objective
from model.objectives.catalogue import build_objective
from model.objectives.contract import IGNORED
from model.objectives.masked import encoder_inputs
from model.objectives.replaced import sample
from tests.objective_batches import TOKENIZER, batch, built, enlarged, mean_loss, objective_of, scores_of, tiny
from tests.tiny_encoder import write_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")

CASES = [("electra", "shared"), ("electra", "disentangled"), ("deberta-v3", "disentangled"), ("deberta-v3", "shared")]


def rtd(family: str, sharing: str, **changes: Any) -> Any:
    return enlarged(built("rtd", family, embedding_sharing=sharing, **changes))


def test_a_sample_is_the_first_token_whose_cumulative_probability_exceeds_the_draw():
    draw = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(200, 50, generator=draw)
    draws = torch.rand(200, generator=draw)
    wanted = []
    for row, number in zip(logits.double().softmax(-1).tolist(), draws.tolist(), strict=True):
        reached, token = 0.0, -1
        while reached <= number:
            token += 1
            reached += row[token]
        wanted.append(token)
    assert sample(logits, draws).tolist() == wanted
    assert sample(logits[:0], draws[:0]).tolist() == []


def test_the_ends_of_the_draws_give_tokens_that_can_be():
    """0 and the largest number below 1 in single precision, where the first and last tokens have no probability."""
    logits = torch.full((2, 30), -torch.inf)
    logits[:, 4:9] = torch.randn(5, generator=torch.Generator().manual_seed(0))
    assert sample(logits, torch.tensor([0.0, 1 - 2**-24])).tolist() == [4, 8]


def test_samples_follow_the_distribution():
    logits = torch.tensor([0.1, 0.2, 0.3, 0.4]).log().expand(40_000, 4)
    counts = sample(logits, torch.rand(40_000, generator=torch.Generator().manual_seed(1))).bincount(minlength=4)
    assert (counts / 40_000).tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4], abs=0.01)


def test_a_sample_depends_on_its_own_draw_alone():
    """Not on the other rows of the batch, nor on torch's generator: the same on any number of workers."""
    objective = rtd("electra", "shared").eval()
    some = batch(3)
    seen = []
    objective.discriminator.electra.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["input_ids"]), with_kwargs=True
    )
    objective(some)
    torch.rand(7)
    for row in range(6):
        objective({name: value[row : row + 1] for name, value in some.items()})
    assert torch.equal(seen[0], torch.cat(seen[1:]))
    target = some["labels"] != IGNORED
    assert torch.equal(seen[0][~target], some["input_ids"][~target])
    assert (seen[0][target] != some["labels"][target]).any()


@pytest.mark.parametrize("family, sharing", CASES)
def test_losses_and_metrics_equal_a_loop(family, sharing):
    """A row at a time, in double precision, from whole models that transformers builds of the exported weights."""
    objective = rtd(family, sharing).double()
    plain, generator = (plain_model(export) for export in objective.exports(objective.state_dict()))
    head = objective.head
    some = batch(1)
    told = dict.fromkeys(("correct", "told", "replaced", "flagged", "found", "tokens"), 0)
    mlm, doubt = 0.0, 0.0
    for row in range(len(some["input_ids"])):
        one = {name: value[row : row + 1] for name, value in some.items()}
        logits = generator(**encoder_inputs(generator, one)).logits[0]
        read = one["input_ids"].clone()
        for place, label in enumerate(one["labels"][0].tolist()):
            if label != IGNORED:
                mlm += (logits[place].exp().sum().log() - logits[place, label]).item()
                told["correct"] += int(logits[place].argmax() == label)
                reached = logits[place].softmax(-1).cumsum(-1)
                read[0, place] = int((reached <= one["draws"][0, place].item()).sum())
        output = plain(**encoder_inputs(plain, {**one, "input_ids": read}))
        judged = output.logits if family == "electra" else head(output.last_hidden_state)
        for place, token in enumerate(one["input_ids"][0].tolist()):
            if token == 0:
                continue  # padding and filler
            label = one["labels"][0, place].item()
            is_replaced = label != IGNORED and read[0, place].item() != label
            probability = judged[0, place].sigmoid()
            doubt -= (probability if is_replaced else 1 - probability).log().item()
            flagged = bool(judged[0, place] > 0)
            for name, value in (("told", flagged == is_replaced), ("replaced", is_replaced), ("flagged", flagged),
                                ("found", flagged and is_replaced), ("tokens", True)):  # fmt: skip
                told[name] += int(value)
    sums, metrics = objective(some)
    assert sums["mlm"].item() == pytest.approx(mlm, rel=1e-6)
    assert sums["rtd"].item() == pytest.approx(50 * doubt, rel=1e-6)
    assert {name: int(value) for name, value in metrics.items()} == told
    scores = scores_of(objective, [some])
    assert scores["accuracy"] == told["told"] / told["tokens"]
    assert scores["precision"] == told["found"] / told["flagged"]
    assert scores["recall"] == told["found"] / told["replaced"]
    assert 0 < told["found"] < told["replaced"]


def plain_model(export: Any) -> Any:
    """A new model of the exported class with the exported weights."""
    model = type(export.model)(export.model.config).double()
    missing = model.load_state_dict(export.state, strict=False)
    assert not missing.missing_keys and not missing.unexpected_keys
    return model


def test_the_loss_is_that_of_transformers():
    """ElectraForPreTraining's own loss on what the generator put in, averaged over the same tokens."""
    objective = rtd("electra", "shared")
    some = batch(2, filler=False)
    seen = []
    watch = objective.discriminator.electra.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["input_ids"]), with_kwargs=True
    )
    sums, _ = objective(some)
    watch.remove()
    replaced = (some["labels"] != IGNORED) & (seen[0] != some["labels"])
    inputs = {name: some[name] for name in ("attention_mask", "token_type_ids")}
    loss = objective.discriminator(input_ids=seen[0], labels=replaced.long(), **inputs).loss
    tokens = objective.count_targets(some)["rtd"]
    assert (sums["rtd"] / tokens / 50).item() == pytest.approx(loss.item(), abs=1e-5)


@pytest.mark.parametrize("family, sharing", CASES)
def test_the_discriminators_loss_leaves_the_generator_alone(family, sharing):
    """Its layers get no gradient; the table of tokens that both read gets one where it is shared and none where it is
    disentangled, and then the difference gets it. The generator's loss gives the discriminator's layers none."""
    objective = rtd(family, sharing)
    common = {id(parameter) for parameter in objective.discriminator.parameters()}
    own = {n: p for n, p in objective.generator.named_parameters() if id(p) not in common}
    table = objective.generator.get_input_embeddings().weight
    sums, _ = objective(batch(4))
    sums["rtd"].backward(retain_graph=True)
    if sharing == "shared":
        assert objective.discriminator.get_input_embeddings().weight is table
        assert table.grad is not None and table.grad.abs().max() > 0
        assert all(parameter.grad is None for parameter in own.values())
        names = [name for name, module in objective.generator.base_model.embeddings.named_children()
                 if isinstance(module, torch.nn.Embedding)]  # fmt: skip
        assert len(names) == (3 if family == "electra" else 1)  # tokens, positions, segments
    else:
        assert "".join(own).count("word_embeddings") == 1
        assert all(parameter.grad is None for parameter in own.values()) and table.grad is None
        difference = objective.discriminator.get_input_embeddings().weight
        assert difference.grad is not None and difference.grad.abs().max() > 0
    objective.zero_grad()
    sums["mlm"].backward()
    assert all(parameter.grad is not None for parameter in own.values())
    for name, parameter in objective.discriminator.named_parameters():
        if sharing == "disentangled" or id(parameter) not in {id(p) for p in objective.generator.parameters()}:
            assert parameter.grad is None or not parameter.grad.any(), name


def test_the_generator_is_smaller_as_the_family_has_it():
    wide = build_objective(Objective(name="rtd"), tiny("electra", num_attention_heads=4), TOKENIZER, 1)[0]
    shape = wide.generator.config  # pyright: ignore[reportAttributeAccessIssue]
    assert (shape.hidden_size, shape.num_attention_heads, shape.intermediate_size) == (8, 1, 16)
    assert (shape.embedding_size, shape.num_hidden_layers) == (32, 2)
    deep = build_objective(objective_of("rtd"), tiny("deberta-v3", num_hidden_layers=6), TOKENIZER, 1)[0]
    shape = deep.generator.config  # pyright: ignore[reportAttributeAccessIssue]
    assert (shape.hidden_size, shape.num_hidden_layers) == (32, 3)


def test_a_disentangled_difference_begins_with_zero():
    objective = built("rtd", "deberta-v3")
    assert not objective.discriminator.get_input_embeddings().weight.any()
    layers = [model.base_model.encoder.layer[0].output.dense.weight for model in objective.children()
              if hasattr(model, "base_model")]  # fmt: skip
    assert not torch.equal(*layers)


@pytest.mark.parametrize("family, sharing", CASES)
def test_exports_load_in_plain_transformers_and_training_goes_on_from_them(family, sharing, tmp_path):
    """Discriminator and generator with equal outputs; the loss continued from the folder is the loss before."""
    objective = rtd(family, sharing)
    write_tokenizer(tmp_path / "tokenizer")
    export_objective(objective, objective.state_dict(), tmp_path / "tokenizer", tmp_path / "out", {"title": "rtd"})
    some = batch(5)
    plain_class: Any = transformers.ElectraForPreTraining if family == "electra" else transformers.AutoModel
    plain = plain_class.from_pretrained(str(tmp_path / "out"))
    generator = transformers.AutoModelForMaskedLM.from_pretrained(str(tmp_path / "out" / "generator"))
    output = plain(**encoder_inputs(plain, some))
    logits = output.logits if family == "electra" else own_head(tmp_path / "out", output.last_hidden_state)
    real = some["attention_mask"] == 1
    assert torch.allclose(logits[real], objective.judge(some)[real], atol=1e-5)
    inputs = encoder_inputs(generator, some)
    assert torch.allclose(generator(**inputs).logits, objective.generator(**inputs).logits, atol=1e-6)

    section = objective_of("rtd", embedding_sharing=sharing)
    again, report = build_objective(section, tiny(family, init=str(tmp_path / "out")), TOKENIZER, 77)
    assert report is not None and (report.new, report.unused) == ((), ())
    assert mean_loss(again, some).item() == pytest.approx(mean_loss(objective, some).item(), rel=1e-6)

    (tmp_path / "out" / "generator").rename(tmp_path / "elsewhere")
    (tmp_path / "out" / "extra.safetensors").unlink(missing_ok=True)
    alone, report = build_objective(section, tiny(family, init=str(tmp_path / "out")), TOKENIZER, 77)
    assert report is not None
    heads = {"generator"} if family == "electra" else {"generator", "mask_predictions"}
    assert {name.split(".")[0] for name in report.new} == heads and "new (drawn from seed)" in report.lines()[1]
    inner: Any = alone
    wanted = objective.exports(objective.state_dict())[0].state
    for name, tensor in inner.exports(inner.state_dict())[0].state.items():
        assert torch.allclose(tensor, wanted[name], atol=1e-6), name


def own_head(folder: Path, encoded: torch.Tensor) -> torch.Tensor:
    """The published head's formula on extra.safetensors."""
    weights = {name.removeprefix("mask_predictions."): t for name, t in load_file(folder / "extra.safetensors").items()}
    config = json.loads((folder / "config.json").read_text())
    states = functional.layer_norm(
        encoded + encoded[:, :1], encoded.shape[-1:], weights["LayerNorm.weight"], weights["LayerNorm.bias"],
        config["layer_norm_eps"],
    )  # fmt: skip
    states = functional.gelu(states @ weights["dense.weight"].T + weights["dense.bias"])
    return (states @ weights["classifer.weight"].T + weights["classifer.bias"]).squeeze(-1)


def test_a_foreign_generator_is_refused(tmp_path):
    built("mlm", "electra").model.save_pretrained(str(tmp_path))
    build_objective(Objective(), tiny("electra", hidden_size=16), TOKENIZER, 1)[0].model.save_pretrained(  # pyright: ignore
        str(tmp_path / "generator")
    )
    with pytest.raises(ValueError, match="embeddings of width 16 .*, but the encoder is .* width 32"):
        build_objective(objective_of("rtd"), tiny(init=str(tmp_path)), TOKENIZER, 1)


def test_a_head_that_is_none_of_this_encoder(tmp_path):
    """A file that is no safetensors is named; a head of another width is not taken, and said to be new."""
    from safetensors.torch import save_file

    whole = built("rtd", "deberta-v3")
    export = whole.exports(whole.state_dict())[0]
    export.model.save_pretrained(str(tmp_path), state_dict=export.state)
    extra = tmp_path / "extra.safetensors"
    extra.write_bytes(b"\x80\x04.")
    section = tiny("deberta-v3", init=str(tmp_path))
    with pytest.raises(ValueError, match="extra.safetensors: cannot be loaded") as caught:
        build_objective(objective_of("rtd"), section, TOKENIZER, 1)
    assert "\n" not in str(caught.value)
    assert export.extra is not None
    save_file({name: torch.zeros(3, 3) for name in export.extra}, str(extra))
    report = build_objective(objective_of("rtd"), section, TOKENIZER, 1)[1]
    assert report is not None and set(export.extra) <= set(report.new)
