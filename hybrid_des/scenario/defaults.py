"""Defaults that depend on another value: links on the GPU, chunks and options on the schedule, a name on the file.

What is wrong here is left as it is; validation says so afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from hybrid_des import catalogue, schedules

_MULTIPLE = re.compile(r"\s*(\d+\.?\d*|\.\d+|)\s*p\s*")


def fill(values: Mapping[str, Any]) -> dict[str, Any]:
    """Give a copy in which such defaults stand as if they had been written."""
    filled = {key: dict(value) if isinstance(value, Mapping) else value for key, value in values.items()}
    for name, complete in (("cluster", _fill_cluster), ("schedule", _fill_schedule)):
        section = filled.setdefault(name, {})
        if isinstance(section, dict):
            complete(section, filled)
    filled.setdefault("workload", {})
    return filled


def _fill_cluster(cluster: dict[str, Any], scenario: Mapping[str, Any]) -> None:
    gpu = cluster.setdefault("gpu", catalogue.DEFAULT)
    known = isinstance(gpu, str) and gpu in catalogue.names()
    part = catalogue.part(gpu if known else catalogue.DEFAULT)  # a GPU of the user's own has the default one's links
    network = {"nics_per_node": part.nics_per_node}
    for name, link, more in (("nvlink", part.nvlink, {}), ("infiniband", part.infiniband, network)):
        given = cluster.get(name, {})
        if isinstance(given, Mapping):
            cluster[name] = {"bandwidth": link.bandwidth, "latency": link.latency, **more, **given}


def _fill_schedule(schedule: dict[str, Any], scenario: Mapping[str, Any]) -> None:
    _fill_kind(schedule)
    for key in ("microbatches", "max_activations"):
        multiple = _MULTIPLE.fullmatch(schedule[key]) if isinstance(schedule.get(key), str) else None
        if multiple:
            schedule[key] = Fraction(multiple.group(1) or 1) * _ranks(scenario)


def _fill_kind(schedule: dict[str, Any]) -> None:
    kind = schedule.get("kind")
    if not isinstance(kind, str) or kind not in schedules.names():
        return
    facts = schedules.find(kind).facts
    schedule.setdefault("chunks", facts["chunks"] or 1)
    if "backward_order" in facts["options"]:
        schedule.setdefault("backward_order", facts["backward_order"])
    if "max_activations" in facts["options"]:
        schedule.setdefault("max_activations", "2p")


def _ranks(scenario: Mapping[str, Any]) -> int:
    parallel = scenario.get("parallel", {})
    pipeline = parallel.get("pipeline", 1) if isinstance(parallel, Mapping) else 1
    return int(pipeline) if isinstance(pipeline, int | Fraction) else 1
