"""A tiny encoder with its tokenizer as a Hugging Face folder, and a task that it can learn, for tests of heads."""

from pathlib import Path

import numpy as np

from data.alignment import encode_examples
from data.examples import Examples, TaskData
from tuning.finetune import Goal, Part

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
NUM_WORDS = 60
LABELS = ("first", "second", "third")
GOAL = Goal(LABELS, "accuracy")


def write_tokenizer(folder: Path) -> None:
    """Whole words w0 ... w59 behind the five special tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate([*SPECIALS, *(f"w{i}" for i in range(NUM_WORDS))])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]",
    ).save_pretrained(str(folder))  # fmt: skip


def write_encoder(folder: Path, seed: int = 0, width: int = 16, positions: int = 32) -> Path:
    """A masked language model with random weights, as pretraining exports one: no pooler."""
    import torch
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(seed)
    shape = BertConfig(
        vocab_size=len(SPECIALS) + NUM_WORDS, hidden_size=width, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=2 * width, max_position_embeddings=positions, initializer_range=0.1,
    )  # fmt: skip
    BertForMaskedLM(shape).save_pretrained(str(folder))
    write_tokenizer(folder)
    return folder


def make_examples(number: int, seed: int, classes: int = 3, longest: int = 14) -> Examples:
    """Words w20 ... w59, about half of them and at least one replaced by the class's: c owns w(5c) ... w(5c+4)."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, number)
    texts = []
    for label in labels:
        words = random.integers(20, NUM_WORDS, random.integers(2, longest))
        owned = random.random(len(words)) < 0.5
        owned[0] = True
        words[owned] = 5 * label + random.integers(0, 5, owned.sum())
        texts.append(" ".join(f"w{word}" for word in random.permutation(words)))
    return Examples("classification", texts, targets=[LABELS[label] for label in labels])


def make_task(train: int = 120, validation: int = 60) -> TaskData:
    """A task of three classes."""
    splits = make_examples(train, 1), make_examples(validation, 2), make_examples(validation, 3)
    return TaskData("classification", list(LABELS), None, *splits)


def read(examples: Examples, encoder: Path, length: int = 16) -> Part:
    """The examples as a trial on `encoder` reads them."""
    return Part(examples, encode_examples(examples, LABELS, encoder, length))
