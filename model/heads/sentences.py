"""What sentence-transformers reads beside an encoder's folder: the list of modules, pooling, projection, prompts.

In: an embedding head and its description. Out: files in the folder. Knows no sentence-transformers: the layout is that
of its version 2, which 6.2 still reads.
"""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import nn

from model.heads.contract import HeadModule
from model.heads.description import POOLING_KEYS, Description


def write_sentence_files(module: HeadModule, folder: Path, description: Description) -> None:
    """modules.json and what it lists; each dense layer of the projection is a module there."""
    width = module.encoder.config.hidden_size
    switches = {key: mode == module.head.pooling for mode, key in POOLING_KEYS.items()}
    written: list[tuple[str, str]] = [("", "Transformer"), ("1_Pooling", "Pooling")]
    _write(folder / "1_Pooling", {"word_embedding_dimension": width, **switches})
    for layer, activation in _dense(module.model.head):
        name = f"{len(written)}_Dense"
        settings = {"in_features": layer.in_features, "out_features": layer.out_features, "bias": True}
        _write(folder / name, {**settings, "activation_function": activation})
        weights = {"linear.weight": layer.weight, "linear.bias": layer.bias}
        save_file({key: value.detach().contiguous() for key, value in weights.items()},
                  str(folder / name / "model.safetensors"))  # fmt: skip
        written.append((name, "Dense"))
    written.append((f"{len(written)}_Normalize", "Normalize"))
    (folder / written[-1][0]).mkdir()
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(written)
    ]
    query, passage = module.head.query_prefix, module.head.passage_prefix
    files: dict[str, Any] = {
        "modules.json": modules,
        "sentence_bert_config.json": {"max_seq_length": description.length, "do_lower_case": False},
        "config_sentence_transformers.json": {
            # encode_document takes the prompt "document" and no other: it has an empty one of its own.
            "prompts": {"query": query, "passage": passage, "document": passage},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _dense(head: nn.Module) -> list[tuple[nn.Linear, str]]:
    """Matrices of the projection, each with the activation behind it."""
    layers: list[tuple[nn.Linear, str]] = []
    for one in head.modules():
        if isinstance(one, nn.Linear):
            layers.append((one, "torch.nn.modules.linear.Identity"))
        elif isinstance(one, nn.GELU):
            layers[-1] = (layers[-1][0], "torch.nn.modules.activation.GELU")
    return layers


def _write(folder: Path, config: dict[str, Any]) -> None:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
