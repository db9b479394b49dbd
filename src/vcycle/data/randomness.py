"""Randomness that is indexed, not streamed: every draw comes from (run seed, purpose, position).

A run's seed, a purpose and positions go in; seeds or a generator come out. The same position gives
the same draw on any worker, rank or machine, before or after a resume.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray


def indexed_seeds(seed: int, purpose: str, positions: NDArray[np.int64]) -> NDArray[np.uint64]:
    """(n,) 64-bit seeds, one for each position; different positions never share one.

    This is the splitmix64 generator at ``positions`` of the stream that (seed, purpose) names:
    a bijection of 64-bit words, so it costs nothing to start anywhere and cannot collide.
    """
    digest = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest()
    key = np.uint64(int.from_bytes(digest, "little"))
    words = positions.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + key
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    seeds: NDArray[np.uint64] = words ^ (words >> np.uint64(31))
    return seeds


def indexed_generator(seed: int, purpose: str, position: int) -> np.random.Generator:
    """A generator of its own for one position."""
    return np.random.default_rng(int(indexed_seeds(seed, purpose, np.array([position]))[0]))
