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
LINKS = ("nvlink", "infiniband", "pcie", "host")
DIMENSIONS: Mapping[str, Dimension] = {
    "memory": "size", "host_memory": "size", "peak": "compute", "peak_fp8": "compute", "peak_fp4": "compute",
    "bandwidth": "bandwidth", "latency": "time",
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
    """A GPU model (memory in bytes, dense half-precision FLOP/s), and links and adapters of its usual node.

    Attributes:
        peak_fp8, peak_fp4: dense FLOP/s in 8 and in 4 bits; None: no such products.
        gpus_per_node: in an NVLink domain, which is a node here.
        topology: how the GPUs of a node are wired.
        host: the link to host memory; by default that of PCIe.
        host_memory: bytes of host memory per GPU, where it is part of the module.
    """

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
    peak_fp4: Fraction | None = None
    gpus_per_node: int = 8
    topology: str = "nodes"
    host: LinkPart | None = None
    host_memory: Fraction | None = None


@cache
def _parts() -> dict[str, GpuPart]:
    data: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("gpus.yaml").read_text(encoding="utf-8"))
    links = {name: LinkPart(name, **_read(link)) for name, link in data["links"].items()}
    return {
        name: GpuPart(name, **_read(gpu | {sort: links[gpu[sort]] for sort in LINKS if sort in gpu}))
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
