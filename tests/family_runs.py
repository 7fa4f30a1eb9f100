"""Runs of every family with every objective in one process, for the tests and the benchmark of families."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from data.batches import PAIRS, Part, micro_batches
from data.config import Masking
from data.masking import Vocabulary, mask_rows, token_draws
from data.store import Store
from orchestration.segments import order_of

Batches = list[dict[str, torch.Tensor]]
GENERATED = {"mask_share": 1.0, "random_share": 0.0}


class Run(NamedTuple):
    """What differs between them."""

    family: str
    tokenizer: str
    packing: str
    objective: dict[str, Any]
    masking: dict[str, Any] = {}


RUNS = {
    "bert-mlm": Run("bert", "wordpiece", "full_sentences", {"name": "mlm"}),
    "bert-nsp": Run("bert", "wordpiece", "next_sentence", {"name": "mlm_nsp"}),
    "bert-clm": Run("bert", "wordpiece", "full_sentences", {"name": "clm"}),
    "spanbert-sbo": Run("bert", "wordpiece", "full_sentences", {"name": "mlm_sbo"}, {"strategy": "span"}),
    "roberta-mlm": Run("roberta", "bpe", "packed", {"name": "mlm"}),
    "albert-sop": Run("albert", "unigram", "sentence_order", {"name": "mlm_sop"}, {"strategy": "ngram"}),
    "electra-rtd": Run("electra", "wordpiece", "full_sentences", {"name": "rtd", "generator_size": 0.5}, GENERATED),
    "deberta-v2-mlm": Run("deberta-v2", "wordpiece", "full_sentences", {"name": "mlm"}),
    "deberta-v3-rtd": Run(
        "deberta-v3", "wordpiece", "full_sentences", {"name": "rtd", "generator_size": 0.5}, GENERATED
    ),
    "modernbert-mlm": Run("modernbert", "bpe", "packed", {"name": "mlm"}, {"mlm_probability": 0.3}),
    "distilbert-distillation": Run("distilbert", "wordpiece", "full_sentences", {"name": "distillation"}),
}


def read(store: Store, part: str, row_ids: np.ndarray, visit: int, masking: Masking, draws: bool) -> Batches:
    """Rows as one micro-batch, masked as at their visit. `part`: train or held_out; `draws`: for samples."""
    shards, tokenizer, packing = getattr(store, part), store.manifest["tokenizer"], store.manifest["rows"]["packing"]
    rows, visits = shards.read(row_ids), np.full(len(row_ids), visit)
    vocabulary = Vocabulary(tokenizer["vocab_size"], tokenizer["mask_id"], tuple(tokenizer["special_ids"]))
    share = np.full(len(row_ids), masking.mlm_probability)
    inputs, labels = mask_rows(rows.input_ids, rows.word_starts, row_ids, visits, share, 0, masking, vocabulary)
    whole = Part(False, 0, 1, 0, 0, np.zeros(len(row_ids), np.int64), row_ids, rows.lengths, inputs, labels)
    if packing in (*PAIRS, "packed"):
        whole = replace(whole, segments=rows.segments, pair_labels=rows.labels if packing in PAIRS else None)
    if draws:
        whole = replace(whole, draws=token_draws(row_ids, visits, inputs.shape[1], 0))
    batches = micro_batches(whole, np.arange(len(row_ids)), len(row_ids), 1, tokenizer["pad_id"])
    return [{name: torch.from_numpy(array) for name, array in batch.items()} for batch in batches]


def training(store: Store, steps: int, batch: int, masking: Masking, draws: bool) -> Iterator[tuple[int, Batches]]:
    """Steps in the order of a run with seed 0."""
    order, step, window = order_of(store, (1.0,), 0, batch), 0, 0
    while step < steps:
        here = order.window(window)
        for row_ids in here.rows[: steps - step]:
            yield step, read(store, "train", row_ids, here.epoch, masking, draws)
            step += 1
        window += 1
