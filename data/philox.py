"""Random numbers that are a pure function of (seed, visit, row, purpose, place): Philox4x32-10, vectorised.

In: counters and keys. Out: 32-bit numbers, the same on every machine and in any order of asking. Knows numpy only, and
nothing of what the numbers are for.

Source: Salmon et al., SC 2011, "Parallel random numbers: as easy as 1, 2, 3"; constants and test vectors from
Random123's philox.h and kat_vectors.
"""

import sys
from typing import Any

import numpy as np

_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_UPPER = int(sys.byteorder == "little")  # which 32 bits of a 64-bit number, seen as two, are its upper ones
_PIECE = 16_384  # blocks made at once: arrays of 128 kB stay in a core's cache; 2^18 took a fifth longer


def philox(counter: np.ndarray, key: tuple[Any, Any]) -> np.ndarray:
    """Philox4x32-10: counter (..., 4) uint32 and two 32-bit keys, numbers or arrays (...) -> (..., 4) uint32."""
    return _rounds([counter[..., i] for i in range(4)], list(key))


def draws(
    seed: int, visits: np.ndarray | int, row_ids: np.ndarray, count: int, purpose: int, first: int = 0
) -> np.ndarray:
    """Numbers `first` .. `first + count - 1` of each row (B,) at its visit, a number or (B,) -> (B, count) uint32.

    `purpose` (0 .. 2^31) keeps uses apart; `first` is a multiple of 4. More of them never change those before.
    """
    blocks = np.arange(first // 4, first // 4 + -(-count // 4))
    visits = np.broadcast_to(visits, row_ids.shape)
    drawn = np.empty((len(row_ids), len(blocks), 4), np.uint32)
    rows = max(1, _PIECE // max(1, len(blocks)))
    for start in range(0, len(row_ids), rows):
        piece = slice(start, start + rows)
        ids = row_ids[piece, None]
        drawn[piece] = _rounds([ids & 0xFFFFFFFF, ids >> 32, blocks, purpose], [seed, visits[piece, None]])
    return drawn.reshape(len(row_ids), 4 * len(blocks))[:, :count]


def draws_at(
    seed: int, visits: np.ndarray | int, row_ids: np.ndarray, places: np.ndarray, purpose: int
) -> np.ndarray:
    """Number `places[i]` of row `row_ids[i]`, both (N,) -> (N,) uint32: what `draws` has there, without the rest."""
    visits = np.broadcast_to(visits, row_ids.shape)
    drawn = np.empty(len(row_ids), np.uint32)
    for start in range(0, len(row_ids), _PIECE):
        piece = slice(start, start + _PIECE)
        ids, here = row_ids[piece], places[piece]
        four = _rounds([ids & 0xFFFFFFFF, ids >> 32, here // 4, purpose], [seed, visits[piece]])
        drawn[piece] = np.take_along_axis(four, (here % 4)[:, None], axis=1)[:, 0]
    return drawn


def _rounds(counter: list[Any], key: list[Any]) -> np.ndarray:
    """The ten rounds; whatever broadcasts is broadcast as late as it can be, so that the first rounds are cheap."""
    c0, c1, c2, c3 = (np.asarray(part).astype(np.uint32) for part in counter)
    for turn in range(10):
        k0, k1 = (
            ((np.asarray(part) + turn * step) & 0xFFFFFFFF).astype(np.uint32)
            for part, step in zip(key, _KEY_STEPS, strict=True)
        )
        high0, low0 = _product(c0, _MULTIPLIERS[0])
        high1, low1 = _product(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
    return np.stack(np.broadcast_arrays(c0, c1, c2, c3), axis=-1)


def _product(values: np.ndarray, multiplier: np.uint64) -> tuple[np.ndarray, np.ndarray]:
    """Upper and lower 32 bits of 64-bit products."""
    halves = np.multiply(values, multiplier, dtype=np.uint64)[..., None].view(np.uint32)
    return halves[..., _UPPER], halves[..., 1 - _UPPER]
