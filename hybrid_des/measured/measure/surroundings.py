"""The node during a measurement: what it is made of, and how fast its clocks ran before and after."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hybrid_des.cluster import gpus
from hybrid_des.measured.measure.job import Job
from hybrid_des.measured.measure.machine import Facts

PROCESSORS = Path("/proc/cpuinfo")
MEGAHERTZ = re.compile(r"^cpu MHz\s*:\s*([\d.]+)", re.MULTILINE)
MODEL = re.compile(r"^model name\s*:\s*(.+)", re.MULTILINE)


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
