"""Permutations of 0 .. size - 1 that are computed, not stored: any place of 10^9 costs the same and no memory.

In: places, a size, a key. Out: the numbers that stand there, or back. Knows numpy only.
A Feistel network permutes the power of four above `size`; what falls outside is sent through it again until it falls
inside ("cycle walking"), which keeps it a permutation. Source: Black and Rogaway, CT-RSA 2002, "Ciphers with
arbitrary finite domains", methods 2 and 3.
"""

from collections.abc import Callable

import numpy as np

# Four give a pseudorandom permutation of many numbers (Luby and Rackoff 1988). Halves of 2 bits, of up to 16 numbers,
# need more: with 6 some permutations of 5 come 1.7 times as often as they should, with 12 none does measurably.
ROUNDS = 12


def permute(places: np.ndarray, size: int, key: tuple[int, ...]) -> np.ndarray:
    """The numbers (n,) int64 at `places` (n,) of the permutation that `key` names."""
    keys = _round_keys(key)
    return _walk(places, size, lambda values, bits: _rounds(values, bits, keys))


def places_of(numbers: np.ndarray, size: int, key: tuple[int, ...]) -> np.ndarray:
    """The places (n,) int64 at which `numbers` (n,) stand: the inverse of `permute`."""
    keys = _round_keys(key)
    return _walk(numbers, size, lambda values, bits: _rounds_back(values, bits, keys))


def _round_keys(key: tuple[int, ...]) -> list[np.uint64]:
    return list(np.random.SeedSequence(key).generate_state(ROUNDS, np.uint64))


def _walk(values: np.ndarray, size: int, network: Callable[[np.ndarray, int], np.ndarray]) -> np.ndarray:
    """Apply a permutation of 4^bits >= size until every value lies below `size`: at most a few times on average."""
    bits = max(1, -(-int(size - 1).bit_length() // 2))  # of each half
    walked = network(np.asarray(values, np.uint64), bits)
    outside = np.flatnonzero(walked >= size)
    while len(outside):
        walked[outside] = network(walked[outside], bits)
        outside = outside[walked[outside] >= size]
    return walked.astype(np.int64)


def _rounds(values: np.ndarray, bits: int, keys: list[np.uint64]) -> np.ndarray:
    left, right = _halves(values, bits)
    for key in keys:
        left, right = right, left ^ _mixed(right, key, bits)
    return left << np.uint64(bits) | right


def _rounds_back(values: np.ndarray, bits: int, keys: list[np.uint64]) -> np.ndarray:
    left, right = _halves(values, bits)
    for key in reversed(keys):
        left, right = right ^ _mixed(left, key, bits), left
    return left << np.uint64(bits) | right


def _halves(values: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    return values >> np.uint64(bits), values & np.uint64((1 << bits) - 1)


def _mixed(values: np.ndarray, key: np.uint64, bits: int) -> np.ndarray:
    """`bits` bits that depend on all of value and key: SplitMix64's finaliser (Steele et al., OOPSLA 2014)."""
    mixed = values + key
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed ^ (mixed >> np.uint64(31))) >> np.uint64(64 - bits)
