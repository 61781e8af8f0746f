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
from hybrid_des.units import parse_quantity

DEFAULT = "a100-80gb"


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
    peak_fp8: Fraction | None
    bandwidth: Fraction
    multiprocessors: int
    efficiency: Mapping[str, Mapping[str, Any]]
    nvlink: LinkPart
    infiniband: LinkPart
    nics_per_node: int
    pcie: LinkPart


@cache
def _parts() -> dict[str, GpuPart]:
    data: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("gpus.yaml").read_text(encoding="utf-8"))
    links = {
        name: LinkPart(
            name,
            parse_quantity(link["bandwidth"], "bandwidth"),
            parse_quantity(link["latency"], "time"),
            link.get("in_switch", False),
        )
        for name, link in data["links"].items()
    }
    return {
        name: GpuPart(
            name,
            parse_quantity(gpu["memory"], "size"),
            parse_quantity(gpu["peak"], "compute"),
            parse_quantity(gpu["peak_fp8"], "compute") if "peak_fp8" in gpu else None,
            parse_quantity(gpu["bandwidth"], "bandwidth"),
            gpu["multiprocessors"],
            gpu["efficiency"],
            links[gpu["nvlink"]],
            links[gpu["infiniband"]],
            gpu["nics_per_node"],
            links[gpu["pcie"]],
        )
        for name, gpu in data["gpus"].items()
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
