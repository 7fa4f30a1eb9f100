"""A Hugging Face folder of a text classifier -> labels for texts.

In: a folder, as `best/` of a sweep or from elsewhere. Out: for each text its label and probability. Weights are read
from safetensors only: a pickle runs whatever code it holds. Code that comes with a folder is never run. Knows neither
Ray nor files of texts.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

MICRO_BATCH_TOKENS = 8192  # rows x longest row: 64 rows of 128 tokens, and 20 MB of a BERT-base's activations a layer
# Families whose position ids begin behind the padding id, so that many positions are lost.
# Source: transformers, create_position_ids_from_input_ids in modeling_roberta.py.
POSITIONS_BEHIND_PADDING = ("roberta", "xlm-roberta", "camembert", "xlm-roberta-xl")
VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json")


class Label(NamedTuple):
    """What the classifier says of one text."""

    label: str
    score: float
    """Probability of the label, rounded to 6 digits: beyond, it depends on how rows were batched."""
    cut: bool
    """The text was longer than the classifier reads; the label is that of its beginning."""


class Loaded(NamedTuple):
    """A classifier in memory; goes through Ray's object store as it is."""

    model: Any
    tokenizer: Any
    length: int
    """Most tokens of a row."""


def load_classifier(folder: Path) -> Loaded:
    """Load the classifier and check that it is whole. Raises ValueError: what is wrong, and what to do."""
    check_folder(folder)
    import torch
    import transformers

    from model.heads import quiet_transformers

    place: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    with quiet_transformers():
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), **place)
            model, report = transformers.AutoModelForSequenceClassification.from_pretrained(
                str(folder), dtype=torch.float32, use_safetensors=True, output_loading_info=True, **place
            )
        except Exception as error:  # a folder can be broken in more ways than transformers has exceptions for
            raise ValueError(f"cannot be loaded: {' '.join(str(error).split())[:300]}") from error
    lost = sorted([*report["missing_keys"], *(str(entry[0]) for entry in report["mismatched_keys"])])
    if lost:
        raise ValueError(f"weights are missing or misshapen: {', '.join(lost[:3])}; the folder is not whole")
    if len(tokenizer) > model.config.vocab_size:
        raise ValueError(f"the tokenizer has {len(tokenizer)} tokens, the model {model.config.vocab_size}: not a pair")
    if tokenizer.pad_token_id is None:
        raise ValueError("the tokenizer has no padding token; give one that has")
    return Loaded(model.eval(), tokenizer, _longest_row(model.config, tokenizer))


def check_folder(folder: Path) -> None:
    """What config.json and the file names tell, without importing anything. Raises ValueError."""
    if not folder.is_dir():
        raise ValueError("no such folder; give the folder of a classifier, such as runs/NAME-sweep/best")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError("not a Hugging Face folder: it holds no config.json; a sweep's winner is in best/") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"config.json cannot be read: {error}") from None
    names = config.get("architectures") or [] if isinstance(config, dict) else []
    if not names or not all(str(name).endswith("ForSequenceClassification") for name in names):
        what = f"it holds {', '.join(map(str, names))}" if names else "its config.json names no architecture"
        hint = "give a classifier"
        if any(str(name).endswith(("ForMaskedLM", "ForPreTraining")) for name in names):
            hint = "an encoder has no labels yet: `cloze sweep` trains a classifier on it and keeps the winner in best/"
        raise ValueError(f"not a text classifier: {what}; {hint}")
    problem = config.get("problem_type")
    if problem not in (None, "single_label_classification") or len(config.get("id2label") or "12") < 2:
        raise ValueError(f"{problem or 'regression'} is not read; give a classifier that gives each text one label")
    # Without a vocabulary transformers makes an empty tokenizer, for which every word is [UNK].
    if not any(path.name in VOCABULARIES or path.suffix == ".model" for path in folder.iterdir()):
        raise ValueError("it holds no tokenizer (no tokenizer.json); copy the files of the one it was trained with")
    if not list(folder.glob("*.safetensors")):
        pickles = [path.name for path in folder.iterdir() if path.suffix in (".bin", ".pt", ".pth", ".ckpt")]
        if pickles:
            raise ValueError(
                f"weights are pickled ({', '.join(sorted(pickles)[:3])}), and a pickle can run any code when it is "
                "loaded; save the model again with save_pretrained, which writes safetensors"
            )
        raise ValueError("it holds no weights (no *.safetensors)")


def _longest_row(config: Any, tokenizer: Any) -> int:
    """Most tokens that both the positions and the tokenizer allow."""
    positions = getattr(config, "max_position_embeddings", None) or tokenizer.model_max_length
    if config.model_type in POSITIONS_BEHIND_PADDING:
        positions -= config.pad_token_id + 1
    return int(min(positions, tokenizer.model_max_length))


def label_texts(loaded: Loaded, texts: Sequence[str], device: str) -> list[Label]:
    """Labels of the texts, in their order. `loaded.model` must be on `device`.

    Rows of like length share a micro-batch, so that little is padded; which rows do depends on `texts` alone.
    """
    import torch

    model, tokenizer, length = loaded
    if not texts:
        return []
    encoded = tokenizer(list(texts), truncation=True, max_length=length, return_overflowing_tokens=False)
    lengths = [len(row) for row in encoded["input_ids"]]
    cut = [bool(row.overflowing) for row in encoded.encodings] if encoded.is_fast else [n >= length for n in lengths]
    order = sorted(range(len(texts)), key=lambda row: (-lengths[row], row))
    labels: list[Label | None] = [None] * len(texts)
    begin = 0
    while begin < len(order):
        rows = order[begin : begin + max(1, MICRO_BATCH_TOKENS // lengths[order[begin]])]
        begin += len(rows)
        chosen = {key: [values[row] for row in rows] for key, values in encoded.items()}
        batch = tokenizer.pad(chosen, return_tensors="pt")
        with torch.inference_mode():
            logits = model(**batch.to(device)).logits.float()
        scores, winners = logits.softmax(-1).max(-1)
        for row, score, winner in zip(rows, scores.tolist(), winners.tolist(), strict=True):
            labels[row] = Label(str(model.config.id2label[winner]), round(score, 6), cut[row])
    return [label for label in labels if label is not None]
