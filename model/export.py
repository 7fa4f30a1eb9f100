"""A trained model -> a Hugging Face folder that anybody can load: weights, config, tokenizer, model card.

In: a transformers model, or its gathered weights where they are sharded. Out: the folder, complete or absent.
Knows nothing of Cloze's runs: what the card says comes from outside.
"""

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from model.card import model_card
from model.families import family_of
from model.objectives.contract import PretrainingObjective
from model.quiet import quiet_transformers

# What of a tokenizer's folder is a tokenizer: it may be a whole model's folder.
TOKENIZER_FILES = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt",
    "vocab.json", "merges.txt",
}  # fmt: skip


def export_folder(
    model: Any,
    tokenizer_folder: Path | str,
    folder: Path | str,
    card: Mapping[str, Any],
    state_dict: Mapping[str, Tensor] | None = None,
    extra: Mapping[str, Tensor] | None = None,
) -> None:
    """Write `model` and a copy of its tokenizer to `folder`, replacing what is there once all is written and checked.

    `state_dict`: whole tensors by the model's own names, for a model whose parameters are sharded; None: its own.
    `card`: title and facts of the model card, such as {"title": ..., "masked loss": 5.1}.
    `extra`: weights that transformers has no place for, written to extra.safetensors.
    Raises RuntimeError where the folder does not load back bit by bit (the old folder then stays).
    """
    folder = Path(folder)
    name = type(model).__name__
    auto_class = next((f"AutoModelFor{s}" for s in ("MaskedLM", "PreTraining") if name.endswith(s)), "AutoModel")
    with replacing(folder) as part:
        write_model(model, tokenizer_folder, part, state_dict)
        if extra:
            save_file({name: tensor.contiguous() for name, tensor in extra.items()}, str(part / "extra.safetensors"))
            card = {**card, "extra.safetensors": f"{', '.join(extra)}: no class of transformers has a place for it"}
        purpose = "masked_lm" if auto_class == "AutoModelForMaskedLM" else "encoder"
        (part / "README.md").write_text(model_card(folder.name, card, auto_class, purpose), encoding="utf-8")


@contextlib.contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A new folder to write into; it takes the place of `folder` once all went well, else nothing changes there."""
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    yield part
    old = folder.with_name(folder.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    part.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def write_model(
    model: Any, tokenizer_folder: Path | str, part: Path, state_dict: Mapping[str, Tensor] | None = None
) -> None:
    """Write a model of transformers and a copy of its tokenizer into a folder. Raises RuntimeError where the model does
    not load back bit by bit."""
    state = dict(model.state_dict() if state_dict is None else state_dict)
    with quiet_transformers():
        whole = model if state_dict is None else _rebuild(model, state)
        whole.save_pretrained(str(part))
        for file in sorted(Path(tokenizer_folder).iterdir()):
            if file.name in TOKENIZER_FILES or file.suffix == ".model":
                shutil.copyfile(file, part / file.name)
        _name_inputs(part, family_of(model.config).segments)
        _check(type(model), part, state)


def _name_inputs(part: Path, segments: bool) -> None:
    """Have the tokenizer return what the model's forward takes: a DistilBERT given token_type_ids raises, a BERT that
    is not given them reads a pair as one segment. Source: transformers, model_input_names of its tokenizers."""
    path = part / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    settings["model_input_names"] = ["input_ids", *["token_type_ids"] * segments, "attention_mask"]
    path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def export_objective(
    objective: PretrainingObjective,
    state: Mapping[str, Tensor],
    tokenizer_folder: Path | str,
    folder: Path | str,
    card: Mapping[str, Any],
) -> None:
    """Write all that a trained objective exports: the encoder to `folder`, what stands beside it inside of it.

    `state`: whole tensors by the objective's own names.
    """
    folder = Path(folder)
    for export in sorted(objective.exports(state), key=lambda one: one.folder):
        inner = {} if not export.folder else {"title": f"{card.get('title', folder.name)} ({export.folder})"}
        export_folder(
            export.model, tokenizer_folder, folder / export.folder, {**card, **inner}, export.state, export.extra
        )


def _rebuild(model: Any, state: Mapping[str, Tensor]) -> Any:
    """A whole, tied model on the CPU with the given weights. Raises RuntimeError on a missing or unknown name."""
    whole = type(model)(model.config)
    incompatible = whole.load_state_dict(state, strict=False)
    whole.tie_weights()
    tied = set(getattr(whole, "all_tied_weights_keys", None) or ())
    missing = [key for key in incompatible.missing_keys if key not in tied]
    if missing or incompatible.unexpected_keys:
        raise RuntimeError(f"export: weights missing {missing[:3]}, unknown {incompatible.unexpected_keys[:3]}")
    return whole


def _check(model_class: Any, folder: Path, state: Mapping[str, Tensor]) -> None:
    """Load the folder back and compare every tensor. Raises RuntimeError."""
    loaded = model_class.from_pretrained(str(folder), dtype=torch.float32).state_dict()
    for name, tensor in state.items():
        if name not in loaded or not torch.equal(loaded[name], tensor.detach().float().cpu().to(loaded[name].dtype)):
            raise RuntimeError(f"export: {name} in {folder} differs from the trained model's")
