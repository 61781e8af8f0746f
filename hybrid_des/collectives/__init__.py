"""Collectives, a family of algorithms per file: each a generator of one rank's sends and receives."""

from hybrid_des.collectives.registration import (
    AUTO,
    TWO_PHASES,
    CallSize,
    Collective,
    Does,
    Given,
    Site,
    algorithms,
    all_reduce_names,
    all_reduces,
    asymmetry,
    bus_factor,
    collective,
    configured,
    find,
    most_messages,
    most_pairs,
    names,
    phases_of,
    process_group,
)

__all__ = [
    "AUTO", "TWO_PHASES", "CallSize", "Collective", "Does", "Given", "Site", "algorithms", "all_reduce_names",
    "all_reduces", "asymmetry", "bus_factor", "collective", "configured", "find", "most_messages",
    "most_pairs", "names", "phases_of", "process_group",
]  # fmt: skip
