"""Distillation: the three losses are a loop's, the teacher is nobody's part, the student begins with its layers."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from model.config import Encoder, Objective
from model.families import FAMILIES
from model.objectives.catalogue import build_objective
from model.objectives.contract import IGNORED
from model.objectives.masked import encoder_inputs
from orchestration.plain_engine import PlainEngine
from tests.objective_batches import TOKENIZER, batch, enlarged, objective_of, tiny, write_teacher

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory) -> Path:
    return write_teacher(tmp_path_factory.mktemp("teacher"))


def distilled(teacher: Path, family: str = "distilbert", changes: dict[str, Any] | None = None, **shape: Any) -> Any:
    section = objective_of("distillation", teacher, **(changes or {}))
    return build_objective(section, tiny(family, **shape), TOKENIZER, 1)


@pytest.mark.parametrize("soft_targets", ["masked", "all"])
def test_losses_and_metrics_equal_a_loop(teacher, soft_targets):
    """A token at a time in double precision, from dense outputs of student and teacher."""
    settings = {"soft_targets": soft_targets, "temperature": 3.0, "soft_weight": 0.7, "cosine_weight": 1.3}
    objective = enlarged(distilled(teacher, changes=settings)[0]).double()
    some = batch(1)
    objective(some)  # brings the teacher to double precision
    student, tutor = objective.model, objective.teacher.model
    soft, mlm, cosine = 0.0, 0.0, 0.0
    told = {"correct": 0, "agree": 0, "tokens": 0}
    counts = {"soft": 0, "mlm": 0, "cosine": 0}
    for row in range(len(some["input_ids"])):
        one = {name: value[row : row + 1] for name, value in some.items()}
        ours = student(**encoder_inputs(student, one), output_hidden_states=True)
        theirs = tutor(**encoder_inputs(tutor, one), output_hidden_states=True)
        for place, token in enumerate(one["input_ids"][0].tolist()):
            if token == 0:
                continue
            told["tokens"] += 1
            a, b = ours.hidden_states[-1][0, place], theirs.hidden_states[-1][0, place]
            cosine += 1 - (sum(a * b) / (sum(a * a) * sum(b * b)).sqrt()).item()
            label = one["labels"][0, place].item()
            said, wanted = ours.logits[0, place], theirs.logits[0, place]
            if label != IGNORED:
                mlm += (said.exp().sum().log() - said[label]).item()
                told["correct"] += int(said.argmax() == label)
                counts["mlm"] += 1
            if label != IGNORED or soft_targets == "all":
                p, q = (wanted / 3).softmax(-1).tolist(), (said / 3).softmax(-1).tolist()
                soft += sum(x * math.log(x / y) for x, y in zip(p, q, strict=True))
                told["agree"] += int(said.argmax() == wanted.argmax())
                counts["soft"] += 1
    counts["cosine"] = told["tokens"]
    sums, metrics = objective(some)
    assert sums["soft"].item() == pytest.approx(0.7 * 9 * soft, rel=1e-6)
    assert sums["mlm"].item() == pytest.approx(2 * mlm, rel=1e-6)
    assert sums["cosine"].item() == pytest.approx(1.3 * cosine, rel=1e-6)
    assert {name: int(value) for name, value in metrics.items()} == told
    assert objective.count_targets(some) == counts


def test_the_teacher_is_no_part_of_the_module(teacher):
    """Neither parameter, submodule nor state; nothing of it is trained, moved by the engine, or saved."""
    objective = distilled(teacher)[0]
    tutor = objective.teacher.model
    inside = {id(parameter) for parameter in tutor.parameters()}
    before = {name: tensor.clone() for name, tensor in tutor.state_dict().items()}
    assert not inside & {id(parameter) for parameter in objective.parameters()}
    assert not any(module is tutor for module in objective.modules())
    assert all(name.startswith("model.") for name in objective.state_dict())
    objective.double().train()
    assert not tutor.training and next(tutor.parameters()).dtype == torch.float32
    objective.float()
    engine = PlainEngine(objective)
    optimized = {id(parameter) for group in engine.optimizer.param_groups for parameter in group["params"]}
    assert not inside & optimized
    torch.stack(list(objective(batch(1))[0].values())).sum().backward()
    engine.step(1e-2)
    assert all(parameter.grad is None for parameter in tutor.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in tutor.state_dict().items())
    assert [one.folder for one in objective.exports(objective.state_dict())] == [""]


def test_the_student_begins_with_every_second_layer(teacher):
    """BERT's weights under DistilBERT's names: layers 0 and 2 of four, embeddings and head."""
    objective, report = distilled(teacher)
    tutor, student = objective.teacher.model, objective.model
    assert report is not None and report.new == ()
    for number, layer in enumerate(student.distilbert.transformer.layer):
        origin = tutor.bert.encoder.layer[2 * number]
        assert torch.equal(layer.attention.q_lin.weight, origin.attention.self.query.weight)
        assert torch.equal(layer.attention.out_lin.bias, origin.attention.output.dense.bias)
        assert torch.equal(layer.ffn.lin2.weight, origin.output.dense.weight)
        assert torch.equal(layer.output_layer_norm.weight, origin.output.LayerNorm.weight)
    unused = {name.split(".layer.")[1][0] for name in report.unused if ".layer." in name}
    assert unused == {"1", "3"}


def test_a_student_of_all_layers_guesses_as_its_teacher(tmp_path):
    """The table of names is whole: as deep as its teacher, whose segments are zero, a DistilBERT is a BERT."""
    write_teacher(tmp_path)
    from safetensors.torch import load_file, save_file

    weights = load_file(tmp_path / "model.safetensors")
    weights["bert.embeddings.token_type_embeddings.weight"].zero_()
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    objective = distilled(tmp_path, num_hidden_layers=4)[0].eval()
    sums, metrics = objective(batch(2))
    counts = objective.count_targets(batch(2))
    assert metrics["agree"] == counts["soft"]
    assert sums["soft"].item() / counts["soft"] < 1e-5 and sums["cosine"].item() / counts["cosine"] < 1e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_can_be_its_own_student(family, tmp_path):
    """Layer i of two is layer 2i of four (ALBERT's one group of weights is all layers')."""
    write_teacher(tmp_path, family)
    objective, report = distilled(tmp_path, family)
    assert report is not None and report.new == ()
    student = objective.model.base_model.get_submodule(FAMILIES[family].layers)
    tutor = objective.teacher.model.base_model.get_submodule(FAMILIES[family].layers)
    for number in range(len(student)):
        for one, other in zip(student[number].parameters(), tutor[2 * number].parameters(), strict=True):
            assert torch.equal(one, other)


def test_families_that_do_not_translate_begin_from_the_seed_and_say_so(teacher):
    objective, report = distilled(teacher, "roberta")
    assert report is not None and report.loaded == 0
    assert set(report.new) == set(objective.model.state_dict())


def test_a_student_can_continue_from_a_folder(teacher, tmp_path):
    """Then nothing of the teacher is copied."""
    objective = distilled(teacher)[0]
    enlarged(objective).model.save_pretrained(str(tmp_path))
    again, report = distilled(teacher, init=str(tmp_path))
    assert report is not None and report.new == ()
    for name, tensor in again.model.state_dict().items():
        assert torch.equal(tensor, objective.model.state_dict()[name]), name


@pytest.mark.parametrize(
    ("student", "message"),
    [
        (tiny("distilbert", hidden_size=16), r"encoder\.hidden_size=16: the teacher in .* has 32.*=32"),
        (tiny("distilbert", num_hidden_layers=6), r"encoder\.num_hidden_layers=6: the teacher in .* has 4"),
        (tiny("distilbert", max_position_embeddings=512), r"max_position_embeddings=512: .* reads at most 128"),
    ],
)
def test_a_teacher_that_does_not_fit_is_refused_in_one_line(teacher, student: Encoder, message):
    from model.objectives.catalogue import check_objective

    with pytest.raises(ValueError, match=message) as raised:
        check_objective(objective_of("distillation", teacher), student)
    assert "\n" not in str(raised.value)


def test_another_vocabulary_is_refused(teacher):
    with pytest.raises(ValueError, match="its vocabulary has 120 tokens, the student's 121.*tokenizer.path="):
        build_objective(objective_of("distillation", teacher), tiny("distilbert"), {"vocab_size": 121, "pad_id": 0}, 1)


def test_a_teacher_without_weights_or_head_is_refused(tmp_path):
    from model.objectives.catalogue import check_objective

    def refused(message: str) -> None:
        with pytest.raises(ValueError, match=message):
            build_objective(objective_of("distillation", tmp_path), tiny(), TOKENIZER, 1)

    refused("objective.teacher=.*config.json")
    bert: Any = build_objective(Objective(), tiny(), TOKENIZER, 1)[0]
    bert.model.config.save_pretrained(str(tmp_path))
    torch.save(bert.model.state_dict(), tmp_path / "pytorch_model.bin")
    refused("objective.teacher=.*: no safetensors weights in it.*save_pretrained")
    bert.model.bert.save_pretrained(str(tmp_path))
    check_objective(objective_of("distillation", tmp_path), tiny())
    refused("objective.teacher=.*: no masked language model, weights are missing: cls.predictions")
