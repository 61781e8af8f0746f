"""What nodes are made of, and what a scenario takes from a measured folder.

That is its cluster, with links and shares of peaks, and the tables by name.

Links follow from shifts around the ring of a group: a latency and a bandwidth, the line with the least relative errors.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from hybrid_des.cluster import gpus
from hybrid_des.cluster.time_table import MICROSECOND
from hybrid_des.measured.calibration.fit import line_through
from hybrid_des.measured.calibration.nccl_tests import Measurement
from hybrid_des.measured.measure.collectives import TABLE
from hybrid_des.measured.measure.folder import Rows
from hybrid_des.measured.measure.job import Job

MACHINE = "machine.yaml"
DIGITS = 4  # significant ones of a figure
PROCESSORS = Path("/proc/cpuinfo")
MEGAHERTZ = re.compile(r"^cpu MHz\s*:\s*([\d.]+)", re.MULTILINE)
MODEL = re.compile(r"^model name\s*:\s*(.+)", re.MULTILINE)


class Facts(NamedTuple):
    """What a node is made of.

    Attributes:
        device: the name of a GPU, or of the processor.
        catalogue: its name in the catalogue of GPUs; None: it has none.
        memory: bytes that each rank has.
        multiprocessors: of a GPU; 1 for the processors of a rank.
        ranks: how many there are.
        per_node: ranks of a node.
        on_gpu: whether ranks compute on GPUs.
    """

    device: str
    catalogue: str | None
    memory: int
    multiprocessors: int
    ranks: int
    per_node: int
    on_gpu: bool = False

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return -(-self.ranks // self.per_node)


def facts_of(job: Job) -> Facts:
    """What the node of this rank is made of."""
    if job.on_gpu:
        import torch

        properties: Any = torch.cuda.get_device_properties(job.device)
        memory, processors = int(properties.total_memory), int(properties.multi_processor_count)
        name = str(properties.name)
        return Facts(name, gpus.named_in(name), memory, processors, job.ranks, job.per_node, on_gpu=True)
    described = MODEL.search(_processors())
    name = described[1].strip() if described else platform.processor() or platform.machine()
    return Facts(name, None, _memory() // job.per_node, 1, job.ranks, job.per_node)


def _memory() -> int:
    """Bytes of this host; 1 GiB where that is not told."""
    with suppress(ValueError, OSError, AttributeError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 2**30


def _processors() -> str:
    with suppress(OSError):
        return PROCESSORS.read_text(encoding="utf-8", errors="replace")
    return ""


def state_of(job: Job) -> dict[str, Any]:
    """The time, and clocks, power and load of every rank; None where nobody tells."""
    return {"time": datetime.now(UTC).isoformat(timespec="seconds"), "ranks": job.all_of(_own_state(job))}


def _own_state(job: Job) -> dict[str, Any]:
    if job.on_gpu:
        import torch

        return {
            "clock_mhz": _told(lambda: torch.cuda.clock_rate(job.device)),
            "power_w": _told(lambda: torch.cuda.power_draw(job.device) / 1000),
            "temperature_c": _told(lambda: torch.cuda.temperature(job.device)),
        }
    rates = [float(rate) for rate in MEGAHERTZ.findall(_processors())]
    load = _told(lambda: os.getloadavg()[0])
    return {"clock_mhz": sum(rates) / len(rates) if rates else None, "power_w": None, "load": load}


def _told(ask: Callable[[], float]) -> float | None:
    """What the driver tells; None if it does not, or its library is missing."""
    try:
        return float(ask())
    except (RuntimeError, ImportError, OSError, AttributeError):
        return None


def seconds(value: float) -> str:
    """A time with the digits that a measurement has."""
    return f"{value * 1e6:.{DIGITS}g} us" if value < 1e-3 else f"{value * 1e3:.{DIGITS}g} ms"


def per_second(value: float, unit: str) -> str:
    """A rate of bytes or FLOP with the digits that a measurement has."""
    return f"{value / 1e9:.{DIGITS}g} G{unit}/s"


def machine_of(facts: Facts, tables: Mapping[str, Rows], reached: Mapping[str, Any]) -> dict[str, Any]:
    """The sections of a scenario that describe the measured machine.

    Args:
        facts: what it is made of.
        tables: measured rows by file.
        reached: peaks of the GPU, and the section `efficiency`, as far as operators were measured.
    """
    peaks = dict(reached)
    efficiency = peaks.pop("efficiency", None)
    own = {"name": facts.device, "memory": facts.memory, "multiprocessors": facts.multiprocessors, **peaks}
    gpu: Any = facts.catalogue if facts.catalogue in gpus.names() else own
    cluster: dict[str, Any] = {"gpu": gpu, "nodes": facts.nodes, "gpus_per_node": facts.per_node}
    links = links_of(tables.get(TABLE, []))
    if links:
        cluster.update(links)
    elif facts.catalogue is None:
        cluster["nvlink"] = {"bandwidth": "inf", "latency": 0}
    sections: dict[str, Any] = {"cluster": cluster}
    if any(row["collective"] == "all-reduce" for row in tables.get(TABLE, [])):
        sections["gradients"] = {"algorithm": "measured", "table": TABLE}
    if efficiency:
        sections |= {"layer_collectives": "textbook", "efficiency": efficiency}  # those of NCCL have times of their own
    return sections


def links_of(rows: Rows) -> dict[str, dict[str, Any]]:
    """The links within nodes and between them, from the largest group of each that shifted messages."""
    links = {}
    for name, shifts in (("nvlink", shifts_of(rows, inside=True)), ("infiniband", shifts_of(rows, inside=False))):
        if len(shifts) > 1:
            latency, bandwidth = line_through(shifts)
            links[name] = {"bandwidth": per_second(bandwidth, "B"), "latency": seconds(latency)}
    return links


def shifts_of(rows: Iterable[Mapping[str, Any]], *, inside: bool) -> Sequence[Measurement]:
    """Times of messages around the ring of the largest group on one node, or on several."""
    chosen = [row for row in rows if row["collective"] == "send-receive" and (int(row["nodes"]) == 1) == inside]
    most = max((int(row["ranks"]) for row in chosen), default=0)
    return [
        Measurement(int(row["bytes"]), round(float(row["time_us"]) * MICROSECOND))
        for row in sorted(chosen, key=lambda row: int(row["bytes"]))
        if int(row["ranks"]) == most
    ]


def as_yaml(sections: Mapping[str, Any]) -> str:
    """A scenario file with these sections."""
    return yaml.safe_dump(dict(sections), sort_keys=False, allow_unicode=True, width=120)
