"""Encoders: built from the config tree, or loaded from a Hugging Face folder.

In: the encoder section and what a tokenizer is (`describe_tokenizer` in data/tokenizer.py). Out: a transformers model
with a pretraining head, and a report of which weights a folder brought. Knows neither Ray nor where folders come from.
Encoders fit on every rank, so a model is built whole and sharded afterwards by the engine.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import transformers
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

from model.config import Encoder
from model.families import FAMILIES, Family, family_of, family_of_type
from model.opening import SAFE_LOADING, check_files, one_line
from model.quiet import quiet_transformers

Tokenizer = Mapping[str, Any]
"""vocab_size, pad_id, and where they are there cls_id, sep_id, mask_id."""
LEAST_EMBEDDING = 128  # width of ALBERT's and small ELECTRA's embeddings; source: arXiv:1909.11942 table 3


class Report(NamedTuple):
    """Which weights a folder brought, by their names in the model."""

    loaded: int
    new: tuple[str, ...]
    """Not in the folder, so drawn from the seed."""
    unused: tuple[str, ...]
    """In the folder, but not in the model."""

    def lines(self) -> list[str]:
        """For people: modules rather than single tensors, at most three of each."""
        told = [f"{self.loaded} weights loaded"]
        for names, what in ((self.new, "new (drawn from seed)"), (self.unused, "of the folder unused")):
            modules = sorted({name.rpartition(".")[0] or name for name in names})
            named = ", ".join(modules[:3]) + (", ..." if len(modules) > 3 else "")
            told += [f"{len(names)} {what}: {named}"] if names else []
        return told


def encoder_config(encoder: Encoder, tokenizer: Tokenizer) -> PretrainedConfig:
    """The family's own config object, as `encoder` and the tokenizer want it (encoder.init is not read).

    Raises ValueError for a setting that the family does not have.
    """
    family = FAMILIES[encoder.family]
    if encoder.embedding_size is not None and "embedding_size" not in family.names:
        owners = ", ".join(name for name, one in FAMILIES.items() if "embedding_size" in one.names)
        raise ValueError(
            f"encoder.embedding_size={encoder.embedding_size}: {encoder.family} has none (its embeddings are as wide "
            f"as the encoder); leave it out, or give encoder.family={owners.replace(', ', ' or ')}"
        )
    values: dict[str, Any] = {
        **family.fixed,
        **{name: tokenizer.get(key) for name, key in family.ids.items()},
        "vocab_size": tokenizer["vocab_size"],
        "pad_token_id": tokenizer["pad_id"],
    }
    given = encoder.model_dump()
    given["embedding_size"] = encoder.embedding_size or min(LEAST_EMBEDDING, encoder.hidden_size)
    given["max_position_embeddings"] += family.unused_positions(tokenizer["pad_id"])
    for field, names in family.names.items():
        values.update(dict.fromkeys(names, given[field]))
    return AutoConfig.for_model(family.model_type, **values)


def build_encoder(
    encoder: Encoder, tokenizer: Tokenizer, seed: int, head: Literal["MaskedLM", "PreTraining"] | None = "MaskedLM"
) -> tuple[PreTrainedModel, Report | None]:
    """A model in fp32 on the CPU: weights drawn from `seed`, or those of the folder `encoder.init` and a report.

    `head`: which of the family's classes; None: the encoder alone. Raises ValueError where the family has no such
    class, or the folder is not whole or has fewer tokens than the tokenizer.
    """
    folder = encoder.init
    config = encoder_config(encoder, tokenizer) if folder is None else check_folder(folder, encoder.pickled)
    model_class = class_of(family_of(config), f"For{head}" if head else "Model")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if folder is None:
            return model_class(config).float(), None
        if config.vocab_size < tokenizer["vocab_size"]:
            raise ValueError(
                f"encoder.init={folder}: its vocabulary has {config.vocab_size} tokens, the tokenizer "
                f"{tokenizer['vocab_size']}; give tokenizer.path={folder}"
            )
        return load_weights(model_class, folder, config, encoder.pickled)


def load_weights(
    model_class: Any, folder: str | Path, config: PretrainedConfig, pickled: bool = False
) -> tuple[PreTrainedModel, Report]:
    """A model of `model_class` with the weights of a folder; what is not there is drawn from torch's generator.

    Raises ValueError where weights cannot be read, or those of the encoder itself are missing or misshapen.
    """
    try:
        model, found = model_class.from_pretrained(
            str(folder), config=config, local_files_only=True, dtype=torch.float32, output_loading_info=True,
            use_safetensors=None if pickled else True, ignore_mismatched_sizes=True,
        )  # fmt: skip
    except Exception as error:  # weights can be broken in more ways than transformers has exceptions for
        raise ValueError(f"{folder}: cannot be loaded: {one_line(error)}") from error
    misshapen = {str(entry[0]) for entry in found["mismatched_keys"]}
    new = sorted({*found["missing_keys"], *misshapen})
    inside = "" if model.base_model is model else f"{model.base_model_prefix}."
    pooler = f"{inside}pooler."
    if lost := [name for name in new if name.startswith(inside) and not name.startswith(pooler)]:
        raise ValueError(f"{folder}: not a whole encoder: weights missing or misshapen: {', '.join(lost[:3])}")
    names = set(model.state_dict())
    return model, Report(len(names) - len(new), tuple(new), tuple(sorted(found["unexpected_keys"])))


def draw_weights(module: torch.nn.Module, config: PretrainedConfig, seed: int) -> None:
    """Fill a new head in place: normal matrices, zero biases, LayerNorms of one, as all families' own heads begin.

    Source: BERT's public code, initializer_range 0.02.
    """
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, config.initializer_range, generator=draw)
            else:
                parameter.fill_(1.0 if name.endswith("weight") else 0.0)


def class_of(family: Family, suffix: str) -> Any:
    """A class of the family in transformers, such as suffix "ForMaskedLM". Raises ValueError where it has none."""
    name = f"{family.prefix}{suffix}"
    if not hasattr(transformers, name):
        owners = [key for key, one in FAMILIES.items() if hasattr(transformers, f"{one.prefix}{suffix}")]
        raise ValueError(f"transformers has no {name}; families that have one are {', '.join(owners)}")
    return getattr(transformers, name)


def check_folder(folder: str | Path, pickled: bool = False) -> PretrainedConfig:
    """The config of a Hugging Face folder. Raises ValueError, before any weight is read, where the folder is none, is
    of another family, or holds no weights that may be opened (model/opening.py).
    """
    try:
        # Before transformers asks whether the code in the folder of an unknown family is trusted.
        family_of_type(str(check_files(Path(folder), pickled).get("model_type")))
        # return_dict: outputs are taken by name here, whatever the folder's own users want.
        config = AutoConfig.from_pretrained(str(folder), return_dict=True, **SAFE_LOADING)
    except Exception as error:  # a config can be broken in more ways than transformers has exceptions for
        raise ValueError(f"{folder}: {one_line(error)}") from error
    return config


def write_random_encoder(like: Path | str, seed: int, folder: Path) -> None:
    """Write a Hugging Face folder with the shape of the encoder in `like` and weights drawn from `seed`.

    The control of a sweep: it then goes the very same way as a pretrained encoder. Holds no tokenizer.
    """
    with quiet_transformers(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = check_folder(like, pickled=True)  # its weights are not opened
        class_of(family_of(config), "ForMaskedLM")(config).float().save_pretrained(str(folder))


def num_parameters(encoder: Encoder, vocab_size: int) -> int:
    """Parameters of the masked-LM model, counted on the meta device: no memory, no time."""
    if encoder.init:
        config = check_folder(encoder.init, encoder.pickled)
    else:
        config = encoder_config(encoder, {"vocab_size": vocab_size, "pad_id": 0})
    with torch.device("meta"):
        model = class_of(family_of(config), "ForMaskedLM")(config)
    return sum(p.numel() for p in model.parameters())
