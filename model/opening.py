"""A folder from somebody else -> what may be read of it. Nothing in it is run.

In: a Hugging Face folder. Out: its config and tokenizer, or a ValueError in one line: what is wrong, and what to do.
Weights are read from safetensors only, unless asked for otherwise: a pickle runs whatever code it holds. Code that
comes with a folder (auto_map in a config) is never loaded, and nothing is fetched that a config names. Knows neither
Ray nor heads.
"""

import json
import math
from pathlib import Path
from typing import Any

PICKLED = (".bin", ".pt", ".pth", ".ckpt")
VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json")
INDEX = "model.safetensors.index.json"
LARGEST_LABELS = 1_000_000  # transformers names every one of num_labels, however many a file says
LARGEST_LAYERS = 1000  # BERT-large has 24; transformers builds every one before it sees that no weights are there
SAFE_LOADING: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}


def check_files(folder: Path, pickled: bool = False) -> dict[str, Any]:
    """The fields of config.json, from the files alone, without importing anything; `pickled`: such weights will do.

    Raises ValueError where there is no folder, no readable config.json or no weights that may be opened, or where
    loading would go after something else: an adapter's base model, an implementation of attention from the hub, a file
    of weights that the config names (transformers then opens a pickle, though asked for safetensors).
    """
    if not folder.is_dir():
        raise ValueError("no such folder; give the folder of a model, such as runs/NAME/export or runs/NAME-sweep/best")
    config = read_json(folder, "config.json")
    if config is None:
        raise ValueError("not a Hugging Face folder: it holds no config.json; a sweep's winner is in best/")
    if (folder / "adapter_config.json").exists():
        raise ValueError("it holds an adapter (adapter_config.json); give the model that it was merged into")
    if "/" in str(config.get("attn_implementation", "")) + str(config.get("_attn_implementation", "")):
        raise ValueError("config.json names an implementation of attention from elsewhere; remove attn_implementation")
    if "transformers_weights" in config:
        raise ValueError("config.json names the file of its weights; remove transformers_weights")
    if isinstance(labels := config.get("num_labels"), int) and labels > LARGEST_LABELS:
        raise ValueError(f"config.json: num_labels is {labels}, and at most {LARGEST_LABELS} are read")
    for key in ("num_hidden_layers", "n_layers"):
        if isinstance(layers := config.get(key), int) and layers > LARGEST_LAYERS:
            raise ValueError(f"config.json: {key} is {layers}, and at most {LARGEST_LAYERS} are read")
    if "quantization_config" in config:
        raise ValueError("its weights are quantised; give the model in fp32 or bf16")
    if not _has_safetensors(folder):
        pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLED)
        if pickles and not pickled:
            raise ValueError(
                f"weights are pickled ({', '.join(pickles[:3])}), and a pickle can run any code when it is loaded; "
                "save the model again with save_pretrained, which writes safetensors, or, where you trust the folder, "
                "give encoder.pickled=true (of cloze predict, embed and fill --allow-pickle)"
            )
        if not pickles:
            raise ValueError("it holds no weights (no *.safetensors)")
    return config


def _has_safetensors(folder: Path) -> bool:
    """Whether the weights are there in the form that runs nothing: in one file, or in shards that an index lists."""
    if (folder / "model.safetensors").is_file():
        return True
    index = read_json(folder, INDEX)
    if index is None:
        return False
    shards = index.get("weight_map")
    names = list(shards.values()) if isinstance(shards, dict) else [None]
    if not all(isinstance(name, str) and name.endswith(".safetensors") and Path(name).name == name for name in names):
        raise ValueError(f"{INDEX} names other files than *.safetensors of this folder")
    return True


def check_weights(folder: Path) -> None:
    """Raise ValueError where a file of safetensors is cut short, or one that the index lists is not there.

    Reads headers only, so that a run asks before it starts processes.
    """
    names = ["model.safetensors"]
    if not (folder / names[0]).is_file():
        names = sorted(set((read_json(folder, INDEX) or {"weight_map": {}})["weight_map"].values()))
    for name in names:
        if not (folder / name).is_file():
            raise ValueError(f"{INDEX} names {name}, which is not there; copy it too")
        _check_whole(folder / name)


def _check_whole(file: Path) -> None:
    """Raise ValueError where a file of safetensors is cut short, as a broken download is: its header tells its size.

    Source: huggingface.co/docs/safetensors, "Format": 8 bytes with the header's size, the header (JSON), the tensors.
    """
    there = file.stat().st_size
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        try:
            if there < 8 + size:
                raise ValueError(f"its header takes {size} bytes, the file has {there}")
            header = json.loads(stream.read(size))
            ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
            whole = 8 + size + max(ends, default=0)
            if there != whole:
                raise ValueError(f"it has {there} of {whole} bytes")
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
            raise ValueError(f"{file.name} cannot be loaded: {one_line(error)}; copy it again") from None


def read_json(folder: Path, name: str, kind: type = dict) -> Any:
    """The object (or list, by `kind`) in a JSON file, None where there is no such file. Raises ValueError."""
    try:
        content = json.loads((folder / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{name} cannot be read: {error}") from None
    if not isinstance(content, kind):
        raise ValueError(f"{name} cannot be read: it holds no JSON {'object' if kind is dict else kind.__name__}")
    return content


def check_tokenizer(folder: Path) -> None:
    """Raise ValueError where no file tells a vocabulary: transformers then makes an empty tokenizer, all [UNK]."""
    if not any(path.name in VOCABULARIES or path.suffix == ".model" for path in folder.iterdir()):
        raise ValueError("it holds no tokenizer (no tokenizer.json); copy the files of the one it was trained with")


def open_tokenizer(folder: Path, vocab_size: int) -> Any:
    """The folder's tokenizer, for a model with an embedding of `vocab_size` rows.

    Raises ValueError where it is missing or broken, larger than the embedding, has no padding token, or tells a longest
    row (model_max_length) that is no number.
    """
    import transformers

    check_tokenizer(folder)
    try:
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(str(folder), **SAFE_LOADING)
    except Exception as error:  # a folder can be broken in more ways than transformers has exceptions for
        needs_code = "auto_map" in (read_json(folder, "tokenizer_config.json") or {})
        why = "it needs code of its own, which is never run" if needs_code else one_line(error)
        raise ValueError(f"its tokenizer cannot be loaded: {why}") from error
    if len(tokenizer) > vocab_size:
        raise ValueError(f"the tokenizer has {len(tokenizer)} tokens, the model {vocab_size}: not a pair")
    if tokenizer.pad_token_id is None:
        raise ValueError("the tokenizer has no padding token; give one that has")
    longest = tokenizer.model_max_length
    if not isinstance(longest, int | float) or not 1 <= longest < math.inf:
        raise ValueError(f"tokenizer_config.json: model_max_length is {longest!r}, not a number of tokens")
    tokenizer.model_max_length = int(longest)
    return tokenizer


def one_line(error: BaseException) -> str:
    """The message of an error without its line breaks, 300 characters at most."""
    return " ".join(str(error).split())[:300]
