"""A trained head -> a folder that anybody can load, or that says what is needed to.

In: a module, its tokenizer's folder, what its card says. Out: the folder, complete or absent: transformers' own class
where there is one; for an embedding what sentence-transformers reads; else the encoder with our head beside it
(head.safetensors). In each of them head.json. Knows nothing of runs.
"""

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from model.card import model_card
from model.export import replacing, write_model
from model.heads.contract import HeadModule
from model.heads.description import FILE, OURS, SENTENCES, Description
from model.heads.loading import WEIGHTS, load_head, own_parts
from model.heads.native import SUFFIXES
from model.heads.own import OwnModel
from model.heads.sentences import write_sentence_files
from model.lora import merge_lora


def export_head(
    module: HeadModule, tokenizer_folder: Path | str, folder: Path | str, card: Mapping[str, Any], about: Description
) -> None:
    """Write the head to `folder`, replacing what is there once all is written and checked. LoRA's matrices are merged.

    `card`: title and facts of the model card. `about`: its loads_with is told here. The module stays as it is.
    Raises RuntimeError where the folder does not load back bit by bit (the old folder then stays).
    """
    merged = copy.copy(module)
    merged._modules = {**module._modules, "model": copy.deepcopy(module.model).cpu()}
    merge_lora(merged.model)
    is_own = isinstance(merged.model, OwnModel)
    loads_with = f"AutoModel{SUFFIXES.get(module.head.kind)}"
    if is_own:
        loads_with = SENTENCES if module.head.kind == "embedding" else OURS
    about = replace(about, loads_with=loads_with)
    with replacing(Path(folder)) as part:
        write_model(merged.encoder if is_own else merged.model, tokenizer_folder, part)
        if is_own and (parts := own_parts(merged.model)):
            save_file({name: tensor.detach().contiguous() for name, tensor in parts.items()}, str(part / WEIGHTS))
        if loads_with == SENTENCES:
            write_sentence_files(merged, part, about)
        (part / FILE).write_text(about.as_json(), encoding="utf-8")
        facts = {**card, "labels": ", ".join(about.labels)} if about.labels else card
        (part / "README.md").write_text(model_card(Path(folder).name, facts, loads_with, about.kind), encoding="utf-8")
        _check(merged, part, about)


def _check(module: HeadModule, part: Path, about: Description) -> None:
    """Load the folder back and compare every weight. Raises RuntimeError."""
    loaded, said = load_head(part)
    if said != about:
        raise RuntimeError(f"export: {FILE} in {part} says {said}, not {about}")
    state = loaded.model.state_dict()
    for name, tensor in module.model.state_dict().items():
        if name not in state or not torch.equal(state[name], tensor.float()):
            raise RuntimeError(f"export: {name} in {part} differs from the trained model's")
