"""A trained model -> a Hugging Face folder that anybody can load: weights, config, tokenizer, model card.

In: a transformers model, or its gathered weights where they are sharded. Out: the folder, complete or absent.
Knows nothing of Cloze's runs: what the card says comes from outside.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from model.heads import quiet_transformers
from model.objectives.contract import PretrainingObjective

# What the tokenizer's folder may hold besides a tokenizer (it may be a whole model's folder).
NOT_TOKENIZER = {"config.json", "README.md", "generation_config.json", "model.safetensors.index.json"}
TASKS = {"MaskedLM": ("fill-mask", "AutoModelForMaskedLM"),
         "SequenceClassification": ("text-classification", "AutoModelForSequenceClassification")}  # fmt: skip


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
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    state = dict(model.state_dict() if state_dict is None else state_dict)
    with quiet_transformers():
        whole = model if state_dict is None else _rebuild(model, state)
        whole.save_pretrained(str(part))
        if extra:
            save_file({name: tensor.contiguous() for name, tensor in extra.items()}, str(part / "extra.safetensors"))
        for file in sorted(Path(tokenizer_folder).iterdir()):
            if file.is_file() and file.suffix not in (".safetensors", ".bin") and file.name not in NOT_TOKENIZER:
                shutil.copyfile(file, part / file.name)
        (part / "README.md").write_text(model_card(type(model).__name__, folder.name, card), encoding="utf-8")
        _check(type(model), part, state)
    old = folder.with_name(folder.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    part.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


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


def model_card(class_name: str, name: str, card: Mapping[str, Any]) -> str:
    """The README.md of a model's folder, with the front matter that the Hugging Face hub reads."""
    pipeline, auto_class = next((v for k, v in TASKS.items() if k in class_name), ("feature-extraction", "AutoModel"))
    facts = "\n".join(f"| {key} | {_shown(value)} |" for key, value in card.items() if key != "title")
    return (
        f"---\nlibrary_name: transformers\npipeline_tag: {pipeline}\n---\n\n"
        f"# {card.get('title', name)}\n\nTrained with Cloze.\n\n| | |\n|---|---|\n{facts}\n\n"
        f"```python\nfrom transformers import {auto_class}, AutoTokenizer\n\n"
        f'tokenizer = AutoTokenizer.from_pretrained("{name}")\nmodel = {auto_class}.from_pretrained("{name}")\n```\n'
    )


def _shown(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")
