"""A student for a teacher: loaded or drawn, then given every second layer of the teacher's.

In: objective and encoder sections, what the tokenizer is, a seed. Out: the objective, and a report of which weights
the student got from where. Knows torch and transformers only.
"""

import re
from pathlib import Path

import torch
from transformers import PretrainedConfig, PreTrainedModel

from model.config import Encoder, Objective
from model.encoder import (
    Report,
    Tokenizer,
    build_encoder,
    check_folder,
    class_of,
    encoder_config,
    load_weights,
)
from model.families import family_of, longest_row, setting
from model.objectives.distillation import DistilledLM, Teacher


def check_distillation(objective: Objective, encoder: Encoder) -> None:
    """Raise ValueError where the teacher is no folder of weights, or does not fit the student."""
    if encoder.init is None:
        student = encoder_config(encoder, {"vocab_size": 1, "pad_id": 0})
    else:
        student = check_folder(encoder.init, encoder.pickled)
    _check_pair(str(objective.teacher), _teacher_config(str(objective.teacher)), student, encoder)


def build_distillation(
    objective: Objective, encoder: Encoder, tokenizer: Tokenizer, seed: int
) -> tuple[DistilledLM, Report]:
    """Teacher, and the student: from encoder.init where it is given, else from the teacher's layers and `seed`.

    Raises ValueError as check_distillation does, and where vocabularies differ or the teacher's head is not there.
    """
    folder = str(objective.teacher)
    config = _teacher_config(folder)
    student, report = build_encoder(encoder, tokenizer, seed)
    _check_pair(folder, config, student.config, encoder)
    if config.vocab_size != student.config.vocab_size:
        raise ValueError(
            f"objective.teacher={folder}: its vocabulary has {config.vocab_size} tokens, the student's "
            f"{student.config.vocab_size}, and guesses are compared; give tokenizer.path={folder}"
        )
    teacher, found = load_weights(class_of(family_of(config), "ForMaskedLM"), folder, config)
    if found.new:
        raise ValueError(
            f"objective.teacher={folder}: no masked language model, weights are missing: {', '.join(found.new[:3])}; "
            f"give the folder of a model that guesses tokens"
        )
    if report is None:
        report = copy_layers(student, teacher)
    return DistilledLM(student, Teacher(teacher), objective), report


def copy_layers(student: PreTrainedModel, teacher: PreTrainedModel) -> Report:
    """Give the student what the teacher has under the same or the translated name: layer i of S gets layer i T // S of
    T, every second one where T = 2 S. What has another shape, and all where the families do not translate or attend
    with other heads, stays as drawn.

    Source: DistilBERT, arXiv:1910.01108 section 3 ("taking one layer out of two").
    """
    given, wanted = teacher.state_dict(), student.state_dict()
    origins = {name: origin_of(name, student, teacher) for name in wanted}
    copied = {name: at for name, at in origins.items() if at in given and given[at].shape == wanted[name].shape}
    with torch.no_grad():
        for name, origin in copied.items():
            wanted[name].copy_(given[origin])
    new = tuple(sorted(set(wanted) - set(copied)))
    return Report(len(copied), new, tuple(sorted(set(given) - set(copied.values()))))


def origin_of(name: str, student: PreTrainedModel, teacher: PreTrainedModel) -> str | None:
    """The teacher's name of what the student calls `name`; None where their families do not translate."""
    models = student, teacher
    families = [family_of(model.config) for model in models]
    layers_of = [model.base_model.get_submodule(one.layers) for model, one in zip(models, families, strict=True)]
    depths = [len(list(layers.children())) for layers in layers_of]
    if setting(student.config, "num_attention_heads") != setting(teacher.config, "num_attention_heads"):
        return None
    layers = f"{student.base_model_prefix}.{families[0].layers}."
    number = re.match(re.escape(layers) + r"(\d+)\.", name)
    if number:
        name = f"{layers}{{}}.{name[number.end() :]}"
    if families[0].model_type != families[1].model_type:
        table = families[0].names_in.get(families[1].model_type, {})
        here = next((module for module in table if name.startswith(f"{module}.")), None)
        if here is None:
            return None
        name = table[here] + name.removeprefix(here)
    return name.replace("{}", str(int(number[1]) * depths[1] // depths[0])) if number else name


def _teacher_config(folder: str) -> PretrainedConfig:
    if (Path(folder) / "config.json").is_file() and not any(Path(folder).glob("*.safetensors")):
        raise ValueError(
            f"objective.teacher={folder}: no safetensors weights in it, and pickled ones can run code; save the model "
            f"again with save_pretrained, which writes safetensors"
        )
    try:
        return check_folder(folder)
    except ValueError as error:
        raise ValueError(f"objective.teacher={error}") from None


def _check_pair(folder: str, teacher: PretrainedConfig, student: PretrainedConfig, encoder: Encoder) -> None:
    """Raise ValueError where the teacher is too narrow, too short or too shallow for the student."""
    width, wanted = (setting(config, "hidden_size") for config in (teacher, student))
    if width != wanted:
        raise ValueError(
            f"encoder.hidden_size={wanted}: the teacher in {folder} has {width}, and hidden states are compared; give "
            f"encoder.hidden_size={width}"
        )
    if longest_row(teacher) < longest_row(student):
        raise ValueError(
            f"encoder.max_position_embeddings={longest_row(student)}: the teacher in {folder} reads at most "
            f"{longest_row(teacher)} tokens; give at most that"
        )
    depth, wanted = (setting(config, "num_hidden_layers") for config in (teacher, student))
    if encoder.init is None and depth < wanted:
        raise ValueError(
            f"encoder.num_hidden_layers={wanted}: the teacher in {folder} has {depth}, and a student is no deeper; "
            f"give at most {depth}, half as many for DistilBERT's way"
        )
