"""Catalogue of GPUs and links; `gpus.yaml` holds the figures with their sources.

part("a100-80gb").nvlink.bandwidth      # Fraction, bytes per second
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from hybrid_des.errors import UsageError, unknown
from hybrid_des.units import Dimension, parse_quantity

DEFAULT = "a100-80gb"
DIMENSIONS: Mapping[str, Dimension] = {
    "memory": "size", "peak": "compute", "peak_fp8": "compute", "bandwidth": "bandwidth", "latency": "time",
}  # fmt: skip


@dataclass(frozen=True)
class LinkPart:
    """A link type: bytes per second per direction, end-to-end latency in seconds, in-network reduction or not."""

    name: str
    bandwidth: Fraction
    latency: Fraction
    in_switch: bool = False


@dataclass(frozen=True)
class GpuPart:
    """A GPU model (memory in bytes, dense half-precision FLOP/s), and links and adapters of its usual node of eight."""

    name: str
    memory: Fraction
    peak: Fraction
    bandwidth: Fraction
    multiprocessors: int
    efficiency: Mapping[str, Mapping[str, Any]]
    nvlink: LinkPart
    infiniband: LinkPart
    nics_per_node: int
    pcie: LinkPart
    peak_fp8: Fraction | None = None


@cache
def _parts() -> dict[str, GpuPart]:
    data: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("gpus.yaml").read_text(encoding="utf-8"))
    links = {name: LinkPart(name, **_read(link)) for name, link in data["links"].items()}
    return {
        name: GpuPart(name, **_read(gpu | {sort: links[gpu[sort]] for sort in ("nvlink", "infiniband", "pcie")}))
        for name, gpu in data["gpus"].items()
    }


def _read(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: parse_quantity(value, DIMENSIONS[key]) if key in DIMENSIONS else value for key, value in values.items()
    }


def names() -> list[str]:
    """All known GPUs, sorted."""
    return sorted(_parts())


def part(name: str) -> GpuPart:
    """Look up a GPU.

    Raises:
        UsageError: it is unknown; the message suggests similar names.
    """
    if name not in _parts():
        raise UsageError(unknown(name, _parts()))
    return _parts()[name]
