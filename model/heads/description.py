"""What a folder with a head says of itself beside its weights: head.json.

In: a module and how its task is read, or a folder. Out: the description, checked. What it holds is somebody else's data
until then. Knows nothing of weights.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from model.config import Head, Kind
from model.families import family_of, longest_row
from model.heads.native import SUFFIXES
from model.opening import one_line, read_json

FILE = "head.json"
LIMITS, PROMPTS = "sentence_bert_config.json", "config_sentence_transformers.json"  # of sentence-transformers
OURS, SENTENCES = "cloze", "sentence-transformers"
LARGEST_LENGTH = 1_000_000  # transformers' tokenizers say 1e30 where they know no limit


@dataclass(frozen=True)
class Description:
    """What one needs to use the head."""

    kind: str
    labels: tuple[str, ...]
    """In the order of the outputs; empty where they have no names."""
    length: int
    """Most tokens of a row."""
    head: Head
    scheme: str | None = None
    """tagging: how tags mark entities."""
    stride: int | None = None
    """Tokens that windows of a longer text share; None: it is cut."""
    num_choices: int | None = None
    """multiple_choice: how many a unit has."""
    columns: tuple[str, ...] = ()
    """Of the files it was trained on: the text's, then the second text's or the choices'; empty: not known."""
    loads_with: str = OURS
    """Class of transformers, or "cloze", or "sentence-transformers"."""

    def as_json(self) -> str:
        """The content of head.json."""
        head = self.head.model_dump(mode="json")
        return json.dumps({**self.__dict__, "head": head}, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def read_description(folder: Path) -> Description | None:
    """The folder's head.json, None where there is none. Raises ValueError where it is not what we write."""
    found = read_json(folder, FILE)
    if found is None:
        return None
    try:
        labels = found["labels"]
        description = Description(
            kind=_among(found, "kind", get_args(Kind)),
            labels=_names(labels),
            length=_number(found, "length", 1) or 0,
            head=Head.model_validate(found["head"]),
            scheme=_among(found, "scheme", (None, "bio", "iob1", "iobes", "io")),
            stride=_number(found, "stride", 0, optional=True),
            num_choices=_number(found, "num_choices", 1, optional=True),
            columns=_texts(found.get("columns", []), "columns"),
            loads_with=_among(found, "loads_with", (OURS, SENTENCES, *(f"AutoModel{s}" for s in SUFFIXES.values()))),
        )
    except (KeyError, TypeError, ValueError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else one_line(error)
        raise ValueError(f"{FILE} cannot be used: {what}") from None
    if description.head.kind != description.kind:
        raise ValueError(f"{FILE} cannot be used: kind {description.kind}, but its head's is {description.head.kind}")
    return description


def describe_folder(folder: Path, config: Mapping[str, Any], loaded: Any, longest: int) -> Description:
    """A plain folder of transformers, or of sentence-transformers, told by its files.

    `config`: the fields of config.json; `loaded`: the config object; `longest`: most tokens its tokenizer allows.
    Raises ValueError where it has no head that is known here.
    """
    length = min(longest_row(loaded), longest, LARGEST_LENGTH)
    told = config.get("architectures")
    names = [str(name) for name in told] if isinstance(told, list) else []
    if (folder / "modules.json").exists():
        return _describe_sentences(folder, length)
    for name in names:
        kinds = [kind for kind, suffix in SUFFIXES.items() if name.endswith(suffix)]
        if not kinds:
            continue
        kind, labels = kinds[0], ()
        if kind == "classification":
            kind = {"multi_label_classification": "multi_label", "regression": "regression"}.get(
                str(loaded.problem_type), "regression" if loaded.num_labels == 1 else "classification"
            )
        if kind in ("classification", "multi_label", "tagging"):
            labels = labels_of(config, loaded)
        # How these classes pool is told by their config: Head's fields say the same.
        setting = family_of(loaded).pooling_setting
        head = Head.model_validate({"kind": kind, "pooling": getattr(loaded, setting) if setting else "cls"})
        return Description(kind, labels, length, head, loads_with=f"AutoModel{SUFFIXES[kind]}")
    what = f"it holds {', '.join(names)}" if names else "its config.json names no architecture"
    hint = "give a model with a head"
    if any(name.endswith(("ForMaskedLM", "ForPreTraining", "Model")) for name in names):
        hint = "an encoder has no labels yet: `cloze sweep` trains a head on it and keeps the winner in best/"
    raise ValueError(f"no head that is known here: {what}; {hint}")


def labels_of(config: Mapping[str, Any], loaded: Any) -> tuple[str, ...]:
    """Label names in the order of the outputs. Raises ValueError where some are missing or stand twice."""
    if "id2label" not in config:
        return tuple(str(loaded.id2label[i]) for i in range(loaded.num_labels))  # LABEL_0, ...
    names = config["id2label"]
    if not isinstance(names, dict) or sorted(names) != sorted(str(i) for i in range(len(names))):
        raise ValueError("config.json: id2label does not number its labels from 0 to one less than their count")
    return _names([names[str(i)] for i in range(len(names))])


def _describe_sentences(folder: Path, length: int) -> Description:
    modules = read_json(folder, "modules.json", list)
    if not all(isinstance(one, dict) for one in modules):
        raise ValueError("modules.json cannot be read: it holds no list of modules")
    kinds = [str(one.get("type", "")).rpartition(".")[2] for one in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]) or modules[0].get("path"):
        raise ValueError(f"modules.json: {', '.join(kinds)}; only a transformer with a pooling is read")
    pooling = read_json(folder, "1_Pooling/config.json") or {}
    modes = [mode for mode, key in POOLING_KEYS.items() if pooling.get(key) or pooling.get("pooling_mode") == mode]
    others = [key for key, value in pooling.items() if key.startswith("pooling_mode_") and value is True]
    if len(modes) != 1 or len(others) > 1:
        raise ValueError(f"1_Pooling/config.json: pooling {', '.join(others)}; one of cls, mean and max is read")
    prompts, default = read_prompts(folder)
    most = _number(read_json(folder, LIMITS) or {}, "max_seq_length", 1, optional=True, file=f"{LIMITS}: ")
    query, passage = (
        next((prompts[name] for name in (*names, default) if name in prompts), "")
        for names in (("query",), ("passage", "document"))
    )
    head = Head(kind="embedding", pooling=modes[0], query_prefix=query, passage_prefix=passage)
    return Description("embedding", (), min(length, most or length), head, loads_with=SENTENCES)


def read_prompts(folder: Path) -> tuple[dict[str, str], str | None]:
    """What sentence-transformers puts before texts, by name, and the name of what stands before all of them.

    Raises ValueError where the file is not what it writes, or where it would do to texts or vectors what is not done
    here.
    """
    if (read_json(folder, LIMITS) or {}).get("do_lower_case"):
        raise ValueError(f"{LIMITS} folds case before the tokenizer; let the tokenizer do it")
    told = read_json(folder, PROMPTS) or {}
    prompts, default = told.get("prompts") or {}, told.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(one, str | None) for one in (default, *prompts.values())):
        raise ValueError(f"{PROMPTS} cannot be used: its prompts, or the name of the default one, are no texts")
    if any(prompts.values()) and (read_json(folder, "1_Pooling/config.json") or {}).get("include_prompt") is False:
        raise ValueError("it leaves its prompts out of the mean, which is not done here; use sentence-transformers")
    return {name: prompt or "" for name, prompt in prompts.items()}, default


POOLING_KEYS: dict[Any, str] = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
}
"""Our pooling -> its switch in sentence-transformers' 1_Pooling/config.json."""


def _texts(names: Any, what: str) -> tuple[str, ...]:
    if not isinstance(names, Sequence) or isinstance(names, str) or not all(isinstance(x, str) for x in names):
        raise ValueError(f"{what} are not a list of names")
    return tuple(names)


def _names(labels: Any) -> tuple[str, ...]:
    names = _texts(labels, "labels")
    if doubles := sorted(x for x, times in Counter(names).items() if times > 1):
        raise ValueError(f"labels stand twice: {', '.join(map(repr, doubles[:3]))}")
    return names


def _among(found: Mapping[str, Any], key: str, allowed: Sequence[Any]) -> Any:
    value = found.get(key) if None in allowed else found[key]
    if value not in allowed:
        raise ValueError(f"{key} is {value!r}, not one of {', '.join(map(str, allowed))}")
    return value


def _number(found: Mapping[str, Any], key: str, least: int, optional: bool = False, file: str = "") -> int | None:
    value = found.get(key) if optional else found[key]
    if value is None and optional:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= LARGEST_LENGTH:
        raise ValueError(f"{file}{key} is {value!r}, not a number from {least} to {LARGEST_LENGTH}")
    return value
