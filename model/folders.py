"""A Hugging Face folder from anywhere -> its config, model and tokenizer, without running anything that is in it.

In: a folder. Out: what its files say, or in one line why it is no model that can be opened. Weights are read from
safetensors; a pickle runs whatever code it holds, so it is opened where that is asked for only. Code that comes with a
folder (auto_map) is never run. Knows neither what heads are nor Ray.
"""

import json
from pathlib import Path
from typing import Any

from model.families import longest_row

VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json")
PICKLES = (".bin", ".pt", ".pth", ".ckpt")


def read_config(folder: Path, pickled: bool = False) -> dict[str, Any]:
    """The folder's config.json, after a look at its file names; imports nothing, costs a moment.

    `pickled`: weights may be pickled. Raises ValueError, what is wrong and what to do: no folder, no model's, without
    weights that may be opened, without a tokenizer.
    """
    if not folder.is_dir():
        raise ValueError("no such folder; give the folder of a model, such as runs/NAME/export")
    config = read_json(folder / "config.json")
    if config is None:
        raise ValueError("no Hugging Face folder: it holds no config.json; a run's is in export/, a sweep's in best/")
    # Without a vocabulary transformers makes an empty tokenizer, for which every word is [UNK].
    if not any(path.name in VOCABULARIES or path.suffix == ".model" for path in folder.iterdir()):
        raise ValueError("it holds no tokenizer (no tokenizer.json); copy the files of the one it was trained with")
    if not any(folder.glob("*.safetensors")):
        pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
        if not pickles:
            raise ValueError("it holds no weights (no *.safetensors)")
        if not pickled:
            raise ValueError(
                f"weights are pickled ({', '.join(pickles[:3])}), and a pickle can run any code when it is loaded; "
                f"save the model again with save_pretrained, which writes safetensors, or, if you trust the folder, "
                f"allow it: --allow-pickle"
            )
    return config


def read_json(file: Path) -> dict[str, Any] | None:
    """A JSON file's object; None where there is no file. Raises ValueError where it cannot be read."""
    try:
        read = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ValueError(f"{file.name} cannot be read: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(read, dict):
        raise ValueError(f"{file.name} cannot be read: it holds no object")
    return read


def open_model(folder: Path, auto_class: Any, pickled: bool = False) -> tuple[Any, Any, list[str]]:
    """(model in fp32 and eval mode on the CPU, tokenizer, names of the weights that the folder lacks).

    `auto_class`: one of transformers' AutoModel classes. Raises ValueError, in one line, where either cannot be loaded,
    they do not fit each other, or the tokenizer has no padding token.
    """
    import torch
    import transformers

    from model.heads import quiet_transformers

    place: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    safe = None if pickled else True
    with quiet_transformers():
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), **place)
            model, report = auto_class.from_pretrained(
                str(folder), dtype=torch.float32, use_safetensors=safe, output_loading_info=True, **place
            )
        except Exception as error:  # a folder can be broken in more ways than transformers has exceptions for
            raise ValueError(f"cannot be loaded: {' '.join(str(error).split())[:300]}") from error
    misshapen = [str(entry[0]) for entry in report["mismatched_keys"]]
    if misshapen:
        raise ValueError(f"weights are misshapen: {', '.join(sorted(misshapen)[:3])}; the folder is not whole")
    if len(tokenizer) > model.config.vocab_size:
        raise ValueError(f"the tokenizer has {len(tokenizer)} tokens, the model {model.config.vocab_size}: not a pair")
    if tokenizer.pad_token_id is None:
        raise ValueError("the tokenizer has no padding token; give one that has")
    if not tokenizer.is_fast:
        raise ValueError("the tokenizer is a slow one, without tokenizer.json; save it as a fast tokenizer")
    return model.eval(), tokenizer, sorted(report["missing_keys"])


def longest_text(config: Any, tokenizer: Any) -> int:
    """Most tokens that both the positions and the tokenizer allow, special tokens included.

    Raises ValueError for a model without positions. A family that is not in our table may, as RoBERTa does, begin its
    positions behind the padding id: so many are not used.
    """
    positions = getattr(config, "max_position_embeddings", None)
    if not positions:
        raise ValueError("its config names no max_position_embeddings: not an encoder; give one of BERT's kind")
    try:
        positions = longest_row(config)
    except ValueError:
        positions -= (getattr(config, "pad_token_id", None) or 0) + 1
    return int(min(positions, tokenizer.model_max_length))


def kind_of(config: dict[str, Any]) -> str:
    """What a folder's config.json says it holds: classes' names, for people."""
    names = config.get("architectures")
    return " ".join(", ".join(map(str, names)).split())[:100] if isinstance(names, list) and names else "no named class"
