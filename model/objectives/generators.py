"""The two models of replaced-token detection: built from the config tree, or loaded from an exported folder.

In: objective and encoder sections, what the tokenizer is, a seed. Out: the objective, and a report of which weights a
folder brought. A folder that we wrote holds the generator in generator/ and may hold the discriminator's head in
extra.safetensors. Knows torch and transformers only.
"""

import copy
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from model.config import Encoder, Objective
from model.encoder import (
    Report,
    Tokenizer,
    build_encoder,
    check_folder,
    class_of,
    draw_weights,
    encoder_config,
    load_weights,
)
from model.families import FAMILIES, Family, embedding_width, longest_row, setting
from model.objectives.replaced import HEAD, DetectionHead, ReplacedTokens
from model.opening import one_line

GENERATOR = "generator"


def check_replaced(objective: Objective, encoder: Encoder) -> None:
    """Raise ValueError where the family has no such training, or the generator's size is none that it can have."""
    family = discriminating(encoder)
    generator_config(objective, family, _config(encoder, {"vocab_size": 1, "pad_id": 0}))


def build_replaced(
    objective: Objective, encoder: Encoder, tokenizer: Tokenizer, seed: int
) -> tuple[ReplacedTokens, Report | None]:
    """Discriminator and generator, each from the folder where it is there, else drawn from `seed`.

    A new generator begins with the discriminator's embeddings, so that a disentangled difference begins with 0.
    Source: arXiv:2111.09543 section 3.3.
    """
    family = discriminating(encoder)
    head_class = "PreTraining" if family.discriminator == "ForPreTraining" else None
    discriminator, report = build_encoder(encoder, tokenizer, seed, head_class)
    generator, generator_report = _build_generator(objective, encoder, family, discriminator, seed)
    head, head_report = None, Report(0, (), ())
    if family.discriminator_head is None:
        config = discriminator.config
        head = DetectionHead(setting(config, "hidden_size"), config.layer_norm_eps)
        head_report = _fill_head(head, config, encoder, seed)
    sharing = objective.embedding_sharing or family.embedding_sharing
    module = ReplacedTokens(family, discriminator, generator, head, sharing, objective.rtd_weight)
    if report is None:
        return module, None
    unused = tuple(name for name in report.unused if not name.startswith(f"{HEAD}."))
    loaded = report.loaded + generator_report.loaded + head_report.loaded
    new = (*report.new, *head_report.new, *generator_report.new)
    return module, Report(loaded, new, (*unused, *generator_report.unused))


def discriminating(encoder: Encoder) -> Family:
    """The encoder's family as one that has a discriminator. Raises ValueError where it has none."""
    given = FAMILIES[encoder.family]
    if encoder.init is None:
        candidates = [given]
    else:
        kind = check_folder(encoder.init, encoder.pickled).model_type
        candidates = [given, *FAMILIES.values()]  # two families may have one model_type: the named one goes first
        candidates = [family for family in candidates if family.model_type == kind]
    found = next((family for family in candidates if family.discriminates), None)
    if found is None:
        families = " or ".join(name for name, family in FAMILIES.items() if family.discriminates)
        raise ValueError(
            f"objective.name=rtd: {candidates[0].prefix} encoders have no replaced-token detection; give "
            f"encoder.family={families}, or objective.name=mlm"
        )
    return found


def generator_config(objective: Objective, family: Family, config: PretrainedConfig) -> PretrainedConfig:
    """The discriminator's config, made smaller. Raises ValueError where the heads do not divide the width."""
    small = copy.deepcopy(config)
    for field in family.generator_scales:
        value = max(1, round(setting(config, field) * objective.generator_size))
        for name in family.names[field]:
            setattr(small, name, value)
    width, heads = setting(small, "hidden_size"), setting(small, "num_attention_heads")
    if width % heads:
        raise ValueError(
            f"objective.generator_size={objective.generator_size}: a generator of width {width} cannot have {heads} "
            f"attention heads; give a size that divides encoder.hidden_size {setting(config, 'hidden_size')} and "
            f"encoder.num_attention_heads {setting(config, 'num_attention_heads')} alike, such as 0.25 or 0.5"
        )
    return small


def _config(encoder: Encoder, tokenizer: Tokenizer) -> PretrainedConfig:
    return encoder_config(encoder, tokenizer) if encoder.init is None else check_folder(encoder.init, encoder.pickled)


def _build_generator(
    objective: Objective, encoder: Encoder, family: Family, discriminator: PreTrainedModel, seed: int
) -> tuple[Any, Report]:
    """The masked language model beside the discriminator, and what is new in it by the names of the objective."""
    model_class = class_of(family, "ForMaskedLM")
    folder = Path(encoder.init or "", GENERATOR)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + 1)  # with the discriminator's seed equal layers would begin with equal weights
        if encoder.init is not None and folder.is_dir():
            config = check_folder(folder, encoder.pickled)
            _check_pair(folder, config, discriminator.config)
            generator, report = load_weights(model_class, folder, config, encoder.pickled)
            new, unused = (tuple(f"{GENERATOR}.{name}" for name in names) for names in report[1:])
            return generator, Report(report.loaded, new, unused)
        generator = model_class(generator_config(objective, family, discriminator.config)).float()
    with torch.no_grad():
        generator.get_input_embeddings().weight.copy_(discriminator.get_input_embeddings().weight)
    return generator, Report(0, tuple(f"{GENERATOR}.{name}" for name in generator.state_dict()), ())


def _check_pair(folder: Path, generator: PretrainedConfig, discriminator: PretrainedConfig) -> None:
    """Raise ValueError where the generator of a folder is not the discriminator's."""
    told = [
        (one.model_type, one.vocab_size, embedding_width(one), longest_row(one)) for one in (generator, discriminator)
    ]
    if told[0] != told[1]:
        there, wanted = (
            "a {} model with {} tokens, embeddings of width {} and {} positions".format(*one) for one in told
        )
        raise ValueError(f"{folder}: {there}, but the encoder is {wanted}; remove the folder to begin with a new one")


def _fill_head(head: DetectionHead, config: PretrainedConfig, encoder: Encoder, seed: int) -> Report:
    """The head's weights from the folder's extra.safetensors or the published names, or else, and where their shape is
    another, drawn from `seed`. Raises ValueError where a file cannot be read."""
    draw_weights(head, config, seed)
    shapes = {f"{HEAD}.{name}": tensor.shape for name, tensor in head.state_dict().items()}
    names, found = tuple(shapes), dict[str, Tensor]()
    for file in sorted(Path(encoder.init).glob("*.safetensors")) if encoder.init else ():
        try:
            with safe_open(file, framework="pt") as stored:
                found |= {name: stored.get_tensor(name).float() for name in stored.keys() if name in shapes}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise ValueError(f"{file}: cannot be loaded: {one_line(error)}") from error
    if {name: tensor.shape for name, tensor in found.items()} != shapes:
        return Report(0, names, ())
    head.load_state_dict({name.removeprefix(f"{HEAD}."): tensor for name, tensor in found.items()})
    return Report(len(names), (), ())
