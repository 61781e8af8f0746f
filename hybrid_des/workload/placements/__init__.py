"""Placements of experts on ranks, one per file."""

from hybrid_des.workload.placements.registration import (
    Placement,
    Wanted,
    find,
    names,
    placed,
    placement,
)

__all__ = ["Placement", "Wanted", "find", "names", "placed", "placement"]
