"""Classification heads: an encoder folder and labels -> transformers' own classifier, wrapped as an objective.

In: a Hugging Face folder of an encoder. Out: `Classification`, whose `model` saves and loads anywhere with
AutoModelForSequenceClassification. A pooler is part of the head and trains in every mode; cached features are the
hidden states before it. Knows neither Ray nor where tasks come from.

Letters of shapes: B rows, T tokens, D width, C classes.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.freezing import freeze, rest_frozen

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Family:
    """What differs between families of classifiers in transformers."""

    classifier: str
    """Class in transformers."""
    head: tuple[str, ...]
    """Submodules that are the head."""
    encode: Callable[[Any, Batch], Tensor]
    """(model, batch) -> hidden states of the first token, (B, D)."""
    decide: Callable[[Any, Tensor], Tensor]
    """(model, those hidden states) -> logits (B, C)."""


def _encode_bert(model: Any, batch: Batch) -> Tensor:
    hidden = model.bert(batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
    return hidden[:, 0]


def _decide_bert(model: Any, features: Tensor) -> Tensor:
    pooled = model.bert.pooler(features[:, None])  # dense + tanh on position 0 of (B, 1, D)
    return model.classifier(model.dropout(pooled))


FAMILIES = {
    # Source: BERT, arXiv:1810.04805 section 4.1, and transformers' BertForSequenceClassification.
    "bert": Family("BertForSequenceClassification", ("bert.pooler", "classifier"), _encode_bert, _decide_bert),
}


class Classification(nn.Module):
    """The objective of a text classifier.

    A batch has input_ids (B, T) and attention_mask (B, T), or features (B, D) in their place, and labels (B,) int64
    with -100 for filler rows.
    """

    def __init__(self, model: Any, mode: str) -> None:
        super().__init__()
        self.model = model
        self.family = FAMILIES[model.config.model_type]
        self.parameter_counts = freeze(model, self.family.head, mode)
        self.train(model.training)

    def train(self, mode: bool = True) -> "Classification":
        """Switch dropout on or off; what is frozen stays off."""
        super().train(mode)
        rest_frozen(self.model)
        return self

    def count_targets(self, batch: Batch) -> dict[str, int]:
        """Rows that are not filler."""
        return {"classification": int((batch["labels"] != -100).sum())}

    def forward(self, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Sum of the cross-entropy over rows, and the number of rows whose label is the most likely one."""
        logits = self.logits(batch).float()
        labels = batch["labels"]
        loss = functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum")
        correct = ((logits.argmax(-1) == labels) & (labels != -100)).sum()
        return {"classification": loss}, {"correct": correct}

    def logits(self, batch: Batch) -> Tensor:
        """(B, C), from tokens or from cached features."""
        features = batch["features"] if "features" in batch else self.features(batch)
        return self.family.decide(self.model, features)

    def features(self, batch: Batch) -> Tensor:
        """Hidden states of the first token before the pooler, (B, D)."""
        return self.family.encode(self.model, batch)


def build_classifier(folder: Path | str, labels: Sequence[str], seed: int) -> Any:
    """The encoder of `folder` under a new head for `labels`, in fp32 on the CPU.

    What the folder does not hold of the head (a masked language model has no pooler) is drawn from `seed`; the
    classifier always is. Hence pretrained and random encoders, frozen and full, start from equal heads.
    Raises ValueError where the folder is no encoder of a known family or lacks encoder weights.
    """
    import transformers

    with quiet_transformers():
        config = transformers.AutoConfig.from_pretrained(str(folder))
        family = _family(config.model_type, folder)
        config.num_labels = len(labels)
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: i for i, label in enumerate(labels)}
        config.problem_type = "single_label_classification"  # two labels too: cross-entropy over both
        model, report = getattr(transformers, family.classifier).from_pretrained(
            str(folder), config=config, dtype=torch.float32, ignore_mismatched_sizes=True, output_loading_info=True
        )
    mismatched = {str(entry[0]) for entry in report["mismatched_keys"]}
    missing = set(report["missing_keys"]) | mismatched
    of_head = tuple(f"{name}." for name in family.head)
    if lost := sorted(key for key in missing if not key.startswith(of_head)):
        raise ValueError(f"{folder}: not a whole encoder: weights missing or misshapen: {', '.join(lost[:3])}")
    generator = torch.Generator().manual_seed(seed)
    for name in family.head:
        if name == family.head[-1] or any(key.startswith(f"{name}.") for key in missing):
            _draw(model.get_submodule(name), generator, config.initializer_range)
    return model


def write_random_encoder(like: Path | str, seed: int, folder: Path) -> None:
    """Write a Hugging Face folder with the shape of the encoder in `like` and weights drawn from `seed`.

    The control of a sweep: it then goes the very same way as a pretrained encoder. Holds no tokenizer.
    """
    import transformers

    with quiet_transformers(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = transformers.AutoConfig.from_pretrained(str(like))
        _family(config.model_type, like)
        transformers.AutoModelForMaskedLM.from_config(config, dtype=torch.float32).save_pretrained(str(folder))


def _family(model_type: str, folder: Path | str) -> Family:
    if model_type not in FAMILIES:
        raise ValueError(f"{folder}: encoders of type {model_type!r} have no head here; known: {', '.join(FAMILIES)}")
    return FAMILIES[model_type]


def _draw(module: nn.Module, generator: torch.Generator, deviation: float) -> None:
    """Normal matrices, zero biases. Source: BERT's public code, initializer_range 0.02."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, deviation, generator=generator)
            else:
                parameter.zero_()


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers' progress bars and its warnings about new weights from the user: they are meant to be new."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
