"""The one builder of scenarios: a small valid one, with sections merged over it."""

from collections.abc import Mapping
from typing import Any

from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.loading import scenario_from

MINIMAL = "schedule: {kind: 1f1b, microbatches: 4}\nworkload: {forward: 1 s, backward: 2 s}\n"
SPINE = """\
schedule: {kind: gpipe, microbatches: 1}
workload: {forward: 0, backward: 0}
cluster:
  gpus_per_node: 4
  topology: links
  links:
    - {between: [gpu0, left], bandwidth: 10 GB/s}
    - {between: [gpu1, left], bandwidth: 10 GB/s}
    - {between: [left, right], bandwidth: 40 GB/s, latency: 1 us}
    - {between: [gpu2, right], bandwidth: 10 GB/s}
    - {between: [gpu3, right], bandwidth: inf}
"""
FREE = {"bandwidth": "inf", "latency": 0}  # a link that takes no time


def values(kind: str = "1f1b", p: int = 1, m: int = 4, d: int = 1, **sections: Any) -> dict[str, Any]:
    """A scenario as a mapping: `p` ranks, `m` micro-batches and `d` replicas on one node that holds just them.

    Args:
        kind: the schedule.
        p: pipeline ranks.
        m: micro-batches.
        d: replicas.
        sections: merged over it; mappings key by key, anything else in its place.
    """
    minimal = {
        "cluster": {"gpus_per_node": p * d},
        "parallel": {"pipeline": p, "data": d},
        "schedule": {"kind": kind, "microbatches": m},
        "workload": {"forward": "1 ms", "backward": "2 ms"},
    }
    return merged(minimal, sections)


def plain(**sections: Any) -> dict[str, Any]:
    """The smallest scenario as a mapping, with sections put in its place."""
    return {key: values()[key] for key in ("schedule", "workload")} | sections


def scenario(*sizes: Any, **sections: Any) -> Scenario:
    """The same, validated."""
    return scenario_from(values(*sizes, **sections))


def instant(kind: str = "1f1b", p: int = 4, m: int = 8, d: int = 1, **sections: Any) -> Scenario:
    """F = 1 s, B = 2 s over links that take no time."""
    base = {"cluster": {"nvlink": FREE}, "workload": {"forward": "1 s", "backward": "2 s"}}
    return scenario(kind, p, m, d, **merged(base, sections))


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Two mappings as one: where both hold a mapping, merged again; else the second's."""
    result = dict(first)
    for key, value in second.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if both else value
    return result


def shared_nics(p: int = 4, m: int = 4, d: int = 2, **sections: Any) -> Scenario:
    """Two nodes of four GPUs and one NIC each, where messages and reductions meet."""
    base = {
        "cluster": {"nodes": 2, "gpus_per_node": 4, "infiniband": {"nics_per_node": 1}},
        "workload": {"activation": "8 MiB", "parameters": 1e6},
    }
    return scenario("1f1b", p, m, d, **merged(base, sections))
