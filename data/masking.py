"""Masked positions of rows, as a pure function of (seed, epoch, row id).

In: token rows. Out: what the model sees and what it has to guess. Knows numpy only.
Random numbers come from a counter-based generator, so that a row's masks depend neither on the worker that makes
them nor on the rows before it: Philox4x32-10 (Salmon et al., SC 2011, "Parallel random numbers: as easy as 1, 2, 3"),
vectorised over rows and positions.

Shapes: B rows, T tokens.
"""

from dataclasses import dataclass

import numpy as np

from data.config import Masking

IGNORED = -100  # label of a position that is no target; torch's cross-entropy leaves it out by default


@dataclass(frozen=True)
class Vocabulary:
    """What masking must know of a tokenizer."""

    size: int
    mask_id: int
    special_ids: tuple[int, ...]
    """Ids that are never masked and never the random token, [PAD] among them."""


def philox(counter: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """Philox4x32-10: counter (..., 4) uint32 and two 32-bit keys -> (..., 4) uint32.

    Source: Salmon et al., SC 2011; constants and test vectors from Random123's philox.h and kat_vectors.
    """
    low_word, bits = np.uint64(0xFFFFFFFF), np.uint64(32)
    c0, c1, c2, c3 = (counter[..., i].astype(np.uint64) for i in range(4))
    k0, k1 = np.uint64(key[0]), np.uint64(key[1])
    for _ in range(10):
        product0, product1 = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (
            (product1 >> bits) ^ c1 ^ k0,
            product1 & low_word,
            (product0 >> bits) ^ c3 ^ k1,
            product0 & low_word,
        )
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & low_word, (k1 + np.uint64(0xBB67AE85)) & low_word
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def draws(seed: int, epoch: int, row_ids: np.ndarray, count: int, purpose: int) -> np.ndarray:
    """`count` random numbers for each row id (B,) -> (B, count) uint32; `purpose` (0..2^31) keeps uses apart."""
    blocks = -(-count // 4)
    counter = np.empty((len(row_ids), blocks, 4), dtype=np.uint32)
    counter[..., 0] = (row_ids & 0xFFFFFFFF)[:, None]
    counter[..., 1] = (row_ids >> 32)[:, None]
    counter[..., 2] = np.arange(blocks)
    counter[..., 3] = purpose
    return philox(counter, (seed, epoch)).reshape(len(row_ids), blocks * 4)[:, :count]


def mask_rows(
    input_ids: np.ndarray, row_ids: np.ndarray, epoch: int, seed: int, masking: Masking, vocabulary: Vocabulary
) -> tuple[np.ndarray, np.ndarray]:
    """Choose targets in `input_ids` (B, T) int32, replace them, and return (inputs, labels), both (B, T) int32.

    Of each row's n maskable tokens max(1, round(n x mlm_probability)) become targets: their number does not vary by
    chance, and a row with any maskable token has a target. Labels are IGNORED elsewhere.
    Source: BERT, arXiv:1810.04805 section 3.1 and appendix A.1 (80/10/10).
    """
    epoch = epoch if masking.dynamic else 0
    special = np.zeros(vocabulary.size, dtype=bool)
    special[list(vocabulary.special_ids)] = True
    ordinary = np.flatnonzero(~special).astype(np.int32)
    maskable = ~special[input_ids]
    maskable_per_row = maskable.sum(axis=1)
    targets_per_row = np.maximum(1, np.rint(maskable_per_row * masking.mlm_probability)).astype(np.int64)
    targets_per_row = np.minimum(targets_per_row, maskable_per_row)

    tokens = input_ids.shape[1]
    lot = draws(seed, epoch, row_ids, tokens, purpose=0).astype(np.int64)
    lot[~maskable] = 1 << 32  # drawn last
    rank = np.empty_like(lot)
    np.put_along_axis(rank, np.argsort(lot, axis=1, kind="stable"), np.arange(tokens)[None, :], axis=1)
    target = rank < targets_per_row[:, None]

    treatment = draws(seed, epoch, row_ids, tokens, purpose=1) / 2.0**32
    substitute = ordinary[(draws(seed, epoch, row_ids, tokens, purpose=2).astype(np.uint64) * len(ordinary)) >> 32]
    inputs = input_ids.copy()
    masked = target & (treatment < masking.mask_share)
    random = target & ~masked & (treatment < masking.mask_share + masking.random_share)
    inputs[masked] = vocabulary.mask_id
    inputs[random] = substitute[random]
    return inputs, np.where(target, input_ids, IGNORED).astype(np.int32)
