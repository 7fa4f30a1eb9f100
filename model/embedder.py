"""A Hugging Face folder of any encoder -> vectors of texts whose cosine tells likeness.

In: a folder: one with our head.json, one of sentence-transformers (modules.json), or a plain encoder, whose tokens are
then averaged. Out: for each text a vector (D,) of length 1. Knows neither Ray nor files of texts.

Letters of shapes: B rows, T tokens, D width.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from model.folders import kind_of, longest_text, open_model, read_config, read_json

Pooling = Literal["cls", "mean", "max"]
Role = Literal["query", "passage"]
POOLINGS: tuple[Pooling, ...] = ("cls", "mean", "max")
# The names that poolings have in a folder of sentence-transformers before its version 5.
# Source: sentence_transformers/sentence_transformer/modules/pooling.py.
OLD_NAMES = {
    "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max", "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}  # fmt: skip
MODULES = ("Transformer", "Pooling", "Normalize")  # of sentence-transformers; vectors are normalised in any case


class Recipe(NamedTuple):
    """What a folder says of how its vectors are made."""

    pooling: Pooling
    length: int | None
    """Most tokens; None: what the model reads."""
    prefixes: dict[str, str]
    """query, passage: put before the text."""
    default: str
    """Prefix where no role is given."""
    note: str | None
    """What had to be assumed."""


@dataclass(frozen=True)
class Embedder:
    """An encoder in memory; goes through Ray's object store as it is."""

    model: Any
    tokenizer: Any
    length: int
    """Most tokens of a text, special tokens included."""
    pooling: Pooling
    prefix: str = ""
    """Put before each text."""
    note: str | None = field(default=None, compare=False)
    """What had to be assumed, for people."""

    @property
    def width(self) -> int:
        """D, numbers of a vector."""
        return int(self.model.config.hidden_size)

    def to(self, device: str) -> "Embedder":
        """Move the model, in place."""
        self.model.to(device)
        return self


class Tokenized(NamedTuple):
    """Texts as the model reads them."""

    rows: list[list[int]]
    cut: list[bool]
    """Whether a text was longer than what is read."""


def load_embedder(folder: Path, role: Role | None = None, pickled: bool = False) -> Embedder:
    """Load the encoder of a folder, and how its texts become vectors.

    `role`: texts are queries or passages, and get the prefix that the folder tells for those. Raises ValueError, one
    line: no encoder's folder, made in a way that is not known here, no prefix told.
    """
    config = read_config(folder, pickled)
    recipe = read_recipe(folder, role)
    import transformers

    model, tokenizer, missing = open_model(folder, transformers.AutoModel, pickled)
    if getattr(model.config, "is_encoder_decoder", False):
        raise ValueError(f"not an encoder alone: it holds {kind_of(config)}; give one of BERT's kind")
    if lost := [name for name in missing if not name.startswith("pooler.")]:
        raise ValueError(f"not a whole encoder: weights are missing: {', '.join(lost[:3])}")
    length = min(longest_text(model.config, tokenizer), recipe.length or longest_text(model.config, tokenizer))
    prefix = recipe.default if role is None else recipe.prefixes[role]
    return Embedder(model, tokenizer, length, recipe.pooling, prefix, recipe.note)


def read_recipe(folder: Path, role: Role | None = None) -> Recipe:
    """How a folder's vectors are made, from small files. Raises ValueError: not known here, no prefix for `role`."""
    recipe = _own(folder) or _of_modules(folder) or Recipe(
        "mean", None, {}, "", "the folder tells no pooling: the mean over all tokens"
    )  # fmt: skip
    if role is not None and role not in recipe.prefixes:
        raise ValueError(f"tells no prefix for a {role}; leave out --as")
    return recipe


def _own(folder: Path) -> Recipe | None:
    """Of a folder that we wrote; None where it is none with an embedding."""
    told = read_json(folder / "head.json")
    if told is None or told.get("kind") != "embedding":
        return None
    head = told.get("head") or {}
    prefixes = {role: str(head.get(f"{role}_prefix", "")) for role in ("query", "passage")}
    return Recipe(_known(head.get("pooling")), told.get("length"), prefixes, "", None)


def _of_modules(folder: Path) -> Recipe | None:
    """Of a folder of sentence-transformers; None where it is none."""
    if not (folder / "modules.json").is_file():
        return None
    try:
        parts = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        kinds = {str(part["type"]).rpartition(".")[2]: str(part["path"]) for part in parts}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"modules.json cannot be read: {' '.join(str(error).split())[:200]}") from None
    if unknown := [kind for kind in kinds if kind not in MODULES]:
        raise ValueError(f"its vectors go through {', '.join(unknown)}, not known here; use sentence-transformers")
    if kinds.get("Transformer"):
        raise ValueError(f"its encoder lies in {kinds['Transformer']}/, not beside modules.json; give a newer folder")
    place = Path("/" + kinds.get("Pooling", "")).resolve().relative_to("/")  # never outside of the folder
    pooling = read_json(folder / place / "config.json") or {}
    modes = pooling.get("pooling_mode") or [name for key, name in OLD_NAMES.items() if pooling.get(key)] or "mean"
    settings = read_json(folder / "sentence_bert_config.json") or {}
    if settings.get("do_lower_case"):
        raise ValueError("sentence_bert_config.json folds case beside the tokenizer: set it in the tokenizer")
    told = read_json(folder / "config_sentence_transformers.json") or {}
    prompts = {str(name): str(prompt or "") for name, prompt in (told.get("prompts") or {}).items()}
    if not pooling.get("include_prompt", True) and any(prompts.values()):
        raise ValueError("it leaves its prompts out of the mean, which is not done here; use sentence-transformers")
    named = {"query": ("query",), "passage": ("passage", "document")}
    prefixes = {role: prompts[name] for role, names in named.items() for name in reversed(names) if name in prompts}
    default = prompts.get(told.get("default_prompt_name") or "", "")
    return Recipe(_known(modes), settings.get("max_seq_length"), prefixes, default, None)


def _known(pooling: Any) -> Pooling:
    """The name of a pooling, alone or in a list of one."""
    name = pooling[0] if isinstance(pooling, list) and len(pooling) == 1 else pooling
    if name not in POOLINGS:
        raise ValueError(f"pooling {name!r} is not known here; known are {', '.join(POOLINGS)}")
    return name


def tokenize(embedder: Embedder, texts: Sequence[str]) -> Tokenized:
    """Tokens of the texts, cut at what the model reads."""
    encoded = embedder.tokenizer(
        [embedder.prefix + text for text in texts], truncation=True, max_length=embedder.length, padding=False
    )
    rows = [row or [embedder.tokenizer.pad_token_id] for row in encoded["input_ids"]]  # for the mean
    return Tokenized(rows, [bool(row.overflowing) for row in encoded.encodings])


def embed_rows(embedder: Embedder, rows: Sequence[Sequence[int]], device: str) -> np.ndarray:
    """Vectors (B, D) float32 of token rows that go through the model together. The model must be on `device`."""
    longest = max(map(len, rows))
    input_ids = torch.full((len(rows), longest), embedder.tokenizer.pad_token_id)
    attended = torch.zeros((len(rows), longest), dtype=torch.long)
    for i, row in enumerate(rows):
        input_ids[i, : len(row)] = torch.tensor(row)
        attended[i, : len(row)] = 1
    attended = attended.to(device)
    with torch.inference_mode():
        hidden = embedder.model(input_ids=input_ids.to(device), attention_mask=attended).last_hidden_state
        vectors = pool(hidden.float(), attended, embedder.pooling)
    return torch.nn.functional.normalize(vectors, dim=-1).cpu().numpy()


def pool(hidden: Tensor, attended: Tensor, pooling: Pooling) -> Tensor:
    """One vector of each row: (B, T, D) and (B, T) of 0 and 1 -> (B, D). Every row attends to a token."""
    if pooling == "cls":
        return hidden[:, 0]
    mask = attended[:, :, None]
    if pooling == "max":
        return hidden.masked_fill(mask == 0, -torch.inf).amax(1)
    return (hidden * mask).sum(1) / mask.sum(1)
