"""Something wrong with a scenario: where, what, and what the verdict rests on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hybrid_des.scenario.strict_yaml import KeyPath


class Problem(NamedTuple):
    """Something wrong at a path; `needs` are the other paths that the verdict rests on."""

    path: KeyPath
    message: str
    needs: tuple[KeyPath, ...] = ()


class Problems(ValueError):
    """Several things are wrong at or below one place."""

    def __init__(self, items: Sequence[Problem]) -> None:
        super().__init__("; ".join(item.message for item in items))
        self.items = tuple(items)
