"""What the contract promises and this version does not do yet: refused clearly, never ignored.

Each refusal is one line; the work that brings a feature deletes its line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# path: the values that can be carried out today
ONLY: Mapping[tuple[str, ...], tuple[Any, ...]] = {
    ("parallel", "tensor"): (1,),
}

# names of the contract by room; one that its room has registered is available whether or not it stands here
PLANNED: Mapping[str, tuple[str, ...]] = {
    "pipeline.schedules": (
        *("eager-1f1b", "interleaved-1f1b", "looped-bfs", "hanayo", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min"),
        *("dualpipe", "dualpipe-v", "chimera", "zb-auto"),
    ),
    "collectives.codecs": ("fp64", "fp32", "fp16", "bf16", "int8"),
}


def refusal(allowed: tuple[Any, ...]) -> str:
    """Say what is possible instead."""
    word = next((value for value in allowed if value not in (None, "none")), None)
    if word is None:
        return "not available in this version"
    text = str(word).lower() if isinstance(word, bool) else str(word)
    return f"not available in this version, which does only {text}"
