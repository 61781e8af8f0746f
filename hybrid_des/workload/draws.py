"""Streams of random numbers: one per seed and key, so that adding a stream changes no other."""

from __future__ import annotations

from zlib import crc32

import numpy as np

from hybrid_des.workload.distributions import Sample

BLOCK = 64  # numbers drawn at a time


def stream(seed: int, *key: str | int) -> np.random.Generator:
    """The stream of a key, such as ("jitter", 3): independent of all others, the same in every process.

    NumPy derives it from the seed and the key by `SeedSequence`; words enter as their CRC-32.
    """
    words = tuple(crc32(part.encode()) if isinstance(part, str) else part for part in key)
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=words)))


class Draws(list[float]):
    """The factors of one stream by index, drawn in blocks as needed."""

    def __init__(self, generator: np.random.Generator, sample: Sample) -> None:
        super().__init__()
        self._generator = generator
        self._sample = sample

    def at(self, number: int) -> float:
        """The factor at an index, from 0."""
        while number >= len(self):
            self += self._sample(self._generator, BLOCK).tolist()
        return self[number]
