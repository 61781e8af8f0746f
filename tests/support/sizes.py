"""Sizes for which each registered schedule exists, told once more, apart from the schedules' own refusals."""

from typing import NamedTuple

from hypothesis import strategies as st

from hybrid_des.pipeline import schedules

CONDITIONS = {
    "chimera": lambda p, m, v: p % 2 == 0,
    "dualpipe": lambda p, m, v: p % 2 == 0 and m % 2 == 0 and m >= 2 * p,
    "dualpipe-v": lambda p, m, v: m >= 2 * p,
    "hanayo": lambda p, m, v: v % 2 == 0,
}  # of pipeline, micro-batches, chunks per rank; every other schedule exists for all sizes


class Size(NamedTuple):
    """Pipeline ranks, micro-batches, and chunks per rank."""

    p: int
    m: int
    chunks: int


def grid(kind: str, p: int, m: int, chunks: int) -> list[Size]:
    """All sizes up to these that a scenario may ask for."""
    facts = schedules.find(kind).facts
    per_rank = range(1, chunks + 1) if facts["many_chunks"] else [facts["chunks"] or 1]
    return [Size(a, b, v) for a in range(1, p + 1) for b in range(1, m + 1) for v in per_rank]


def exists(kind: str, size: Size) -> bool:
    """Whether the schedule exists for a size."""
    return kind not in CONDITIONS or CONDITIONS[kind](*size)


def sizes(kind: str, p: int = 8, m: int = 32, chunks: int = 4) -> st.SearchStrategy[Size]:
    """Sizes up to these for which the schedule exists."""
    return st.sampled_from([size for size in grid(kind, p, m, chunks) if exists(kind, size)])


def chunks_of(kind: str) -> int:
    """Some number of chunks per rank for which the schedule exists: its own, else 2 where there may be many."""
    facts = schedules.find(kind).facts
    return facts["chunks"] or (2 if facts["many_chunks"] else 1)
