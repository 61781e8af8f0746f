"""Jitter: random factors of durations, each distribution a function that registers itself.

    @distribution("lognormal", summary="…", options=Lognormal)
    def lognormal(options: Lognormal) -> Sample: ...

A factor multiplies a duration. Its mean is 1, unless the summary of the distribution says otherwise.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hybrid_des.options import Options
from hybrid_des.registry import Registry

Sample = Callable[[np.random.Generator, int], NDArray[np.float64]]  # (generator, number of factors) → factors

_REGISTRY: Registry[Callable[..., Sample]] = Registry("distribution", "hybrid_des.jitter")

names = _REGISTRY.names
find = _REGISTRY.__getitem__


def distribution(
    name: str, *, summary: str, options: type[Options]
) -> Callable[[Callable[..., Sample]], Callable[..., Sample]]:
    """Register a distribution of factors under its name in a scenario's `jitter.distribution`."""
    return _REGISTRY(name, options, summary=summary)
