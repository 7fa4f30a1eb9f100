"""Tiny objectives of every family and batches for all of them, for tests of what is trained."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from model.config import Encoder, Objective
from model.families import FAMILIES
from model.objectives.catalogue import build_objective, check_objective

VOCABULARY = 120
TOKENIZER = {"vocab_size": VOCABULARY, "pad_id": 0, "unk_id": 1, "cls_id": 2, "sep_id": 3, "mask_id": 4}
NAMES = ("mlm", "mlm_nsp", "mlm_sop", "mlm_sbo", "rtd", "distillation", "clm")


def tiny(family: str = "bert", **changes: Any) -> Encoder:
    """Two layers without dropout."""
    shape = dict(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, embedding_size=None,
        max_position_embeddings=128, dropout=0.0,
    )  # fmt: skip
    return Encoder(family=family, **{**shape, **changes})  # pyright: ignore[reportArgumentType]


def write_teacher(folder: Path, family: str = "bert", seed: int = 9, **changes: Any) -> Path:
    """A masked language model of four layers, with weights large enough that its guesses differ from a new one's."""
    teacher: Any = build_objective(Objective(), tiny(family, num_hidden_layers=4, **changes), TOKENIZER, seed)[0]
    enlarged(teacher).model.save_pretrained(str(folder))
    return folder


def enlarged(module: Any) -> Any:
    """With matrices five times as large: at first attention is nearly even, and guesses nearly alike."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim > 1:
                parameter *= 5
    return module


def objective_of(name: str, teacher: Path | None = None, **changes: Any) -> Objective:
    """The config section; half-size generators, since two heads have no quarter."""
    return Objective(name=name, generator_size=0.5, teacher=str(teacher) if teacher else None, **changes)  # pyright: ignore[reportArgumentType]


def built(name: str, family: str = "bert", seed: int = 1, teacher: Path | None = None, **changes: Any) -> Any:
    """A tiny objective."""
    return build_objective(objective_of(name, teacher, **changes), tiny(family), TOKENIZER, seed)[0]


def possible(name: str, family: str) -> bool:
    """Whether the family can do what the objective asks."""
    try:
        check_objective(objective_of(name), tiny(family))
    except ValueError:
        return False
    return True


PAIRS = [(name, family) for name in NAMES if name != "distillation" for family in FAMILIES if possible(name, family)]


def batch(seed: int, rows: int = 6, tokens: int = 24, filler: bool = True, share: float = 0.3) -> dict[str, Tensor]:
    """Ragged rows [CLS] A [SEP] B [SEP], masked, with everything that an objective may want; the last is filler."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, VOCABULARY, (rows, tokens), generator=draw)
    lengths = torch.randint(8, tokens + 1, (rows, 1), generator=draw)
    places = torch.arange(tokens)
    mask = (places < lengths).long()
    middle = lengths // 2
    special = (places == 0) | (places == middle) | (places == lengths - 1)
    ids = torch.where(special, torch.where(places == 0, 2, 3), ids) * mask
    chosen = (torch.rand(rows, tokens, generator=draw) < share) & (mask == 1) & ~special
    segments = (places > middle).long() * mask
    pair_labels = torch.randint(0, 2, (rows,), generator=draw)
    if filler:
        ids[-1], mask[-1], chosen[-1], segments[-1], pair_labels[-1] = 0, 0, False, 0, -100
        mask[-1, 0] = 1
    return {
        "input_ids": ids.masked_fill(chosen, 4), "attention_mask": mask, "labels": torch.where(chosen, ids, -100),
        "token_type_ids": segments, "pair_labels": pair_labels, "draws": torch.rand(rows, tokens, generator=draw),
    }  # fmt: skip


def mean_loss(objective: Any, some: dict[str, Tensor]) -> Tensor:
    """The loss of a step that is this batch: each term's sum by its own count."""
    counts = objective.count_targets(some)
    return torch.stack([value / max(counts[term], 1) for term, value in objective(some)[0].items()]).sum()


def train(objective: Any, some: dict[str, Tensor], steps: int, rate: float) -> None:
    """Plain AdamW on one batch."""
    optimizer = torch.optim.AdamW(objective.parameters(), lr=rate, fused=True)
    for _ in range(steps):
        optimizer.zero_grad()
        mean_loss(objective, some).backward()
        optimizer.step()


def scores_of(objective: Any, batches: list[dict[str, Tensor]]) -> dict[str, float]:
    """The metrics over some batches, as an evaluation adds them up."""
    sums: dict[str, float] = {}
    counts: dict[str, float] = {}
    for some in batches:
        for name, value in objective(some)[1].items():
            sums[name] = sums.get(name, 0.0) + float(value)
        for name, value in objective.count_targets(some).items():
            counts[name] = counts.get(name, 0.0) + value
    return objective.scores(sums, counts)
