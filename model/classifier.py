"""A Hugging Face folder of a text classifier -> labels for texts.

In: a folder, as `best/` of a sweep or from elsewhere. Out: for each text its label and probability. Weights are read
from safetensors only: a pickle runs whatever code it holds. Code that comes with a folder is never run. Knows neither
Ray nor files of texts.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from model.opening import SAFE_LOADING, check_files, check_tokenizer, one_line, open_tokenizer

MICRO_BATCH_TOKENS = 8192  # rows x longest row: 64 rows of 128 tokens, and 20 MB of a BERT-base's activations a layer
# Families whose position ids begin behind the padding id, so that many positions are lost.
# Source: transformers, create_position_ids_from_input_ids in modeling_roberta.py.
POSITIONS_BEHIND_PADDING = ("roberta", "xlm-roberta", "camembert", "xlm-roberta-xl")


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

    from model.quiet import quiet_transformers

    with quiet_transformers():
        try:
            model, report = transformers.AutoModelForSequenceClassification.from_pretrained(
                str(folder), dtype=torch.float32, use_safetensors=True, output_loading_info=True, **SAFE_LOADING
            )
        except Exception as error:  # a folder can be broken in more ways than transformers has exceptions for
            raise ValueError(f"cannot be loaded: {one_line(error)}") from error
        lost = sorted([*report["missing_keys"], *(str(entry[0]) for entry in report["mismatched_keys"])])
        if lost:
            raise ValueError(f"weights are missing or misshapen: {', '.join(lost[:3])}; the folder is not whole")
        tokenizer = open_tokenizer(folder, model.config.vocab_size)
    return Loaded(model.eval(), tokenizer, _longest_row(model.config, tokenizer))


def check_folder(folder: Path) -> None:
    """What config.json and the file names tell, without importing anything. Raises ValueError."""
    config = check_files(folder)
    names = config.get("architectures") or []
    if not names or not all(str(name).endswith("ForSequenceClassification") for name in names):
        what = f"it holds {', '.join(map(str, names))}" if names else "its config.json names no architecture"
        hint = "give a classifier"
        if any(str(name).endswith(("ForMaskedLM", "ForPreTraining")) for name in names):
            hint = "an encoder has no labels yet: `cloze sweep` trains a classifier on it and keeps the winner in best/"
        raise ValueError(f"not a text classifier: {what}; {hint}")
    problem = config.get("problem_type")
    if problem not in (None, "single_label_classification") or len(config.get("id2label") or "12") < 2:
        raise ValueError(f"{problem or 'regression'} is not read; give a classifier that gives each text one label")
    check_tokenizer(folder)


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
