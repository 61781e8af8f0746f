"""Catalogue of GPUs and links, and what was recorded on one GPU, on another; `gpus.yaml` holds figures and sources.

part("a100-80gb").nvlink.bandwidth      # Fraction, bytes per second

Recorded durations are scaled by what bounds a kernel, which its name tells. Products take their time times
(peak · efficiency.gemm) of the recorded GPU over that of the other, attention the same with efficiency.attention, and
kernels bound by memory with bandwidth · efficiency.memory (the two roofs of Williams, Waterman and Patterson, CACM
52(4), 2009). Names are those of cuBLAS, CUTLASS, cuDNN, rocBLAS, FlashAttention, PyTorch, and Triton's as torch.compile
writes them. What no name tells keeps its time, as do gaps.

What a figure rests on is said by the comment beside it in `gpus.yaml`.

    figures("h100")      [Figure("memory", "80 GB", "NVIDIA H100 SXM datasheet"), …]

A comment that begins with "the same" names what the one before it did; a figure of a link that has no comment rests on
the source of the link.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from hybrid_des.errors import UsageError, unknown
from hybrid_des.files import read_catalogue
from hybrid_des.units import Dimension, parse_quantity

DEFAULT = "a100-80gb"
NODE = 8  # GPUs per node, as in nearly all clusters
LINKS = {"nvlink": "bandwidth", "infiniband": "bandwidth", "pcie": "bandwidth", "host": "bandwidth"}
DIMENSIONS: Mapping[str, Dimension] = {
    "memory": "size", "peak": "compute", "peak_fp8": "compute", "peak_fp4": "compute",
    "peak_tf32": "compute", "peak_fp32": "compute",
    "bandwidth": "bandwidth", "latency": "time", "power": "power",
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
        peak_tf32, peak_fp32: dense FLOP/s in 32 bits; None: no such products, or no data sheet was read.
        gpus_per_node: in an NVLink domain, which is a node here.
        topology: how the GPUs of a node are wired.
        host: the link to host memory; by default that of PCIe.
        power: the most that the GPU draws, in watts; None: no data sheet was read.
        attention_half: keys over which flash attention reaches half of its rate.
        attention_head: size of heads that cost as much beside their products.
        attention_kernels: by kernel of attention, its share of the peak where it is not that of `efficiency`.
        scans: by key of `efficiency`, shares of the peak that cores of linear mixers reach.
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
    peak_tf32: Fraction | None = None
    peak_fp32: Fraction | None = None
    gpus_per_node: int = NODE
    topology: str = "nodes"
    host: LinkPart | None = None
    power: Fraction | None = None
    attention_half: int = 0
    attention_head: int = 0
    attention_kernels: Mapping[str, float] = field(default_factory=dict)
    scans: Mapping[str, float] = field(default_factory=dict)


@cache
def _parts() -> dict[str, GpuPart]:
    data: dict[str, Any] = read_catalogue(Path(__file__).with_name("gpus.yaml"))
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


def named_in(device: str) -> str | None:
    """The GPU of the catalogue whose words a device's name has, such as "NVIDIA H100 80GB HBM3"; None if none has."""
    told = device.lower().replace("-", " ").replace("gib", "gb").split()
    fitting = [name for name in names() if name.partition("-")[0] in told]
    whole = [name for name in fitting if set(name.split("-")) <= set(told)]
    return max(whole or fitting[:1], key=len, default=None)  # of "NVIDIA A100 80GB PCIe", the one with all three words


def link_shares(name: str) -> tuple[Fraction, Fraction]:
    """The shares of their bandwidths that links within and beyond nodes reach; all of them for unknown GPUs."""
    if name not in _parts():
        return Fraction(1), Fraction(1)
    reached = part(name).efficiency["bf16"]
    inside = Fraction(str(reached["network"]))
    return inside, Fraction(str(reached.get("adapters", inside)))


PRODUCTS, ATTENTION, MEMORY = "products", "attention", "memory"
NAMES = (  # the first that fits
    (ATTENTION, re.compile(r"flash|fmha|attn_(?:fwd|bwd)|attention|cudnn_generated_fort_native_sdpa", re.IGNORECASE)),
    (PRODUCTS, re.compile(
        r"gemm|gemv|cutlass|\bmatmul|_matmul|aten::(?:mm|bmm|addmm|linear)\b|cijk_|nvjet|xmma|wgmma|conv|dgrad|wgrad",
        re.IGNORECASE)),
    (MEMORY, re.compile(
        r"elementwise|reduce|norm|softmax|copy|memcpy dtod|memset|cat_?array|index|embedding|dropout|adam|multi_tensor"
        r"|gelu|silu|swiglu|\bbn_|batch_norm|nchw|nhwc|transpose|triton_(?:poi|red|per)|pool|scatter|gather|fill",
        re.IGNORECASE)),
)  # fmt: skip
SIXTEEN = ("bf16", "fp16")  # precisions of `efficiency`; others are not told by names


@lru_cache(maxsize=1 << 14)
def work_of(name: str) -> str | None:
    """What bounds a kernel with this name; None if that is not known."""
    return next((work for work, words in NAMES if words.search(name)), None)


def factors(recorded: str, gpu: Any) -> Mapping[str, Fraction]:
    """What durations that were recorded on a GPU are multiplied with on another one, by what bounds them.

    Args:
        recorded: its name in the catalogue.
        gpu: name, peak and bandwidth of the other one; outside the catalogue, it reaches the same shares of them.

    Raises:
        UsageError: the peak or the bandwidth of the other one is not known.
    """
    if gpu.name == recorded:
        return {PRODUCTS: Fraction(1), ATTENTION: Fraction(1), MEMORY: Fraction(1)}
    if gpu.peak is None or gpu.bandwidth is None:
        raise UsageError(f"cluster.gpu: durations of {recorded} are scaled by peak and bandwidth; give both")
    known = part(recorded)
    before = _shares(recorded)
    after = _shares(gpu.name) if gpu.name in names() else before
    speeds = {PRODUCTS: ("gemm", "peak"), ATTENTION: ("attention", "peak"), MEMORY: ("memory", "bandwidth")}
    return {
        work: getattr(known, figure) * before[share] / (getattr(gpu, figure) * after[share])
        for work, (share, figure) in speeds.items()
    }


def _shares(name: str) -> Mapping[str, Fraction]:
    by_precision = part(name).efficiency
    shares = next(by_precision[one] for one in SIXTEEN if one in by_precision)
    return {key: Fraction(str(shares[key])) for key in ("gemm", "attention", "memory")}


ENTRY = re.compile(r"^  ([\w-]+):$")
FIGURE = re.compile(r"^    (\w+): *([^#]*?) *(?:# (.*))?$")
SHARES = re.compile(r"^      (\w+): \{(.*)\} *(?:# (.*))?$")
SAME = re.compile(r"^the same(?: page)?(?P<more>[:;,].*)?$")
ABOVE = "see the head of hybrid_des/cluster/gpus.yaml"


class Figure(NamedTuple):
    """A figure of a GPU as it is written, and what it rests on."""

    name: str
    value: str
    source: str


@cache
def _entries() -> Mapping[str, tuple[Figure, ...]]:
    """The figures of all links and GPUs, by name."""
    entries: dict[str, list[Figure]] = {}
    name = before = ""
    for line in Path(__file__).with_name("gpus.yaml").read_text(encoding="utf-8").splitlines():
        if entry := ENTRY.match(line):
            name, before = entry[1], ""
            entries[name] = []
        elif name and (figure := FIGURE.match(line)):
            source = figure[3] or ""
            if same := SAME.match(source):
                source = before + (same["more"] or "")
            elif source and not source.startswith("as "):
                before = re.split("[:;]", source)[0]
            entries[name].append(Figure(figure[1], figure[2], source))
        elif name and (shares := SHARES.match(line)):
            source = shares[3] or next(one.source for one in reversed(entries[name]) if one.name == "efficiency")
            entries[name].append(Figure(f"efficiency.{shares[1]}", shares[2], source))
    return {name: tuple(figures) for name, figures in entries.items()}


def figures(gpu: str) -> list[Figure]:
    """The figures of a GPU and of its links, in the order of the catalogue."""
    known = _entries()
    listed = []
    for figure in known[gpu]:
        if figure.name == "efficiency":
            continue  # its precisions follow
        if "see above" in figure.source:
            figure = figure._replace(source=figure.source.replace("see above", ABOVE))
        if figure.name in LINKS:
            width = next(one for one in known[figure.value] if one.name == LINKS[figure.name])
            source = "; ".join(filter(None, (figure.source, width.source)))
            figure = Figure(figure.name, f"{figure.value}, {width.value}", source)
        listed.append(figure)
    return listed
