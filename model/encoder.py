"""Encoders: built from the config tree, or loaded from a Hugging Face folder.

In: the encoder section and the tokenizer's numbers. Out: a transformers model with a masked-LM head.
Knows torch and transformers; neither Ray nor where folders come from. Encoders fit on every rank, so a model is built
whole and sharded afterwards by the engine.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForMaskedLM, PretrainedConfig, PreTrainedModel

from model.config import Encoder

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Family:
    """How one family's config class names what the encoder section holds, and where its parts are."""

    model_type: str
    names: dict[str, tuple[str, ...]]
    """Encoder field -> names in the family's config class."""
    segments: bool
    """Whether it tells two segments of a row apart (token_type_ids)."""
    packs: bool
    """Whether several documents may share a row, with attention and positions of their own: its attention takes a
    mask (B, 1, T, T) and its positions can be given."""


FAMILIES = {
    "bert": Family(
        model_type="bert",
        segments=True,
        packs=True,
        names={
            "hidden_size": ("hidden_size",),
            "num_hidden_layers": ("num_hidden_layers",),
            "num_attention_heads": ("num_attention_heads",),
            "intermediate_size": ("intermediate_size",),
            "max_position_embeddings": ("max_position_embeddings",),
            "dropout": ("hidden_dropout_prob", "attention_probs_dropout_prob"),
        },
    ),
}


def encoder_config(encoder: Encoder, vocab_size: int, pad_id: int) -> PretrainedConfig:
    """The family's own config object. Raises ValueError for a field that the family's class does not own."""
    family = FAMILIES[encoder.family]
    values: dict[str, Any] = {"vocab_size": vocab_size, "pad_token_id": pad_id}
    for field, names in family.names.items():
        values.update(dict.fromkeys(names, getattr(encoder, field)))
    config = AutoConfig.for_model(family.model_type, **values)
    known = config.to_dict()
    foreign = [name for name in values if name not in known]
    if foreign:
        raise ValueError(f"encoder.family={encoder.family} has no setting {', '.join(foreign)}")
    return config


def build_encoder(encoder: Encoder, vocab_size: int, pad_id: int, seed: int) -> PreTrainedModel:
    """A masked-LM model in fp32: weights drawn from `seed`, or those of the folder `encoder.init`.

    Raises ValueError where the folder's vocabulary is not the tokenizer's.
    """
    if encoder.init is not None:
        model = AutoModelForMaskedLM.from_pretrained(encoder.init, local_files_only=True, dtype=torch.float32)
        if model.config.vocab_size != vocab_size:
            raise ValueError(
                f"encoder.init={encoder.init}: its vocabulary has {model.config.vocab_size} tokens, the tokenizer "
                f"{vocab_size}; give tokenizer.path={encoder.init}"
            )
        return model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForMaskedLM.from_config(encoder_config(encoder, vocab_size, pad_id), dtype=torch.float32)


def check_folder(folder: str | Path) -> PretrainedConfig:
    """The config of a Hugging Face folder. Raises ValueError, before any weight is read, where the folder is none or
    of another family.
    """
    path = Path(folder)
    if not (path / "config.json").is_file():
        raise ValueError(f"{folder}: no Hugging Face model folder (no config.json in it)")
    if not any(path.glob("*.safetensors")):
        raise ValueError(f"{folder}: no safetensors weights in it; pickled weights are not opened")
    config = AutoConfig.from_pretrained(path, local_files_only=True)
    if config.model_type not in FAMILIES:
        raise ValueError(f"{folder}: a {config.model_type} model; known families are {', '.join(FAMILIES)}")
    return config


def num_parameters(encoder: Encoder, vocab_size: int) -> int:
    """Parameters of the masked-LM model, counted on the meta device: no memory, no time."""
    config = check_folder(encoder.init) if encoder.init else encoder_config(encoder, vocab_size, pad_id=0)
    with torch.device("meta"):
        model = AutoModelForMaskedLM.from_config(config)
    return sum(p.numel() for p in model.parameters())
