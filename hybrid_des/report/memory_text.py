"""What fills the fullest GPU, in words: a line in `explain`, and the text of `explain --memory`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hybrid_des.analysis.memory_use import MemoryUse
from hybrid_des.report.content import count
from hybrid_des.report.text import folded
from hybrid_des.units import format_bytes, format_seconds

NAMES = {"optimizer": "optimizer state", "transients": "buffers of the backward"}
WHAT = {  # of `simulation.memory.memory_parts`
    "parameters": "weights in 16 bits", "gradients": "gradients of the weights",
    "optimizer": "32-bit weights and moments", "activations": "kept from forward to backward",
    "transients": "gradients of activations, logits, buffers",
}  # fmt: skip
SCALE = 10**9  # bytes in a gigabyte


def gigabytes(size: int) -> str:
    """A size in gigabytes with three digits, or in smaller units if it is small."""
    return f"{size / SCALE:.3g} GB" if size >= SCALE / 100 else format_bytes(size)


def of_memory(held: int, memory: int) -> str:
    """What is held of a GPU's memory: "14.5 of 80 GB"."""
    if min(held, memory) < SCALE / 100:
        return f"{format_bytes(held)} of {format_bytes(memory)}"
    return f"{held / SCALE:.3g} of {memory / SCALE:.4g} GB"


def tensors_text(use: MemoryUse) -> str:
    """What fills the fullest GPU, the largest first, in one sentence."""
    sizes = sorted(use.parts.items(), key=lambda part: -part[1])
    parts = [f"{_name(use, name)} {gigabytes(size)}" for name, size in sizes if size]
    return f"rank {use.peak.rank}: {', '.join(parts)}"


def _name(use: MemoryUse, name: str) -> str:
    if name == "activations" and use.held:
        return f"activations of {count(use.held, use.unit)}"
    return NAMES.get(name, name)


def render_memory(name: str, use: MemoryUse, width: int = 100) -> str:
    """The text of `explain --memory`: what fills the fullest GPU, and when.

    Args:
        name: of the scenario.
        use: what `memory_use` found.
        width: columns to wrap at.
    """
    memory = use.peak.gpu.memory
    left = f"{gigabytes(-use.peak.excess)} left" if use.peak.fits else f"{gigabytes(use.peak.excess)} too much"
    where = f"rank {use.peak.rank}, pipeline rank {use.pipeline_rank}"
    title = f"{name}: the fullest GPU ({where}) holds {of_memory(use.peak.held, memory)}, {left}"
    return "\n".join([*folded(title, width), *_table(use, width), *folded(_when(use), width)])


def _table(use: MemoryUse, width: int) -> Iterator[str]:
    """The tensors with their sizes, the largest first; of activations, those of each kind of layer."""
    for name, size in sorted(use.parts.items(), key=lambda part: -part[1]):
        yield from _row(gigabytes(size), _name(use, name), WHAT.get(name, ""), width)
        if name == "activations":
            for layers in use.layers:
                what = f"{count(layers.layers, 'layer')}, each {format_bytes(layers.each)} per micro-batch"
                yield from _row(gigabytes(layers.bytes), f"  {layers.name}", what, width)


def _row(size: str, name: str, what: str, width: int) -> Sequence[str]:
    return folded(f"{size:>9}  {name:<42}{what}".rstrip(), width, 13)


def _when(use: MemoryUse) -> str:
    """When the peak is, and how long the GPU is nearly full."""
    if use.at_s is None:
        return "When it is full is not recorded."
    kinds = " and ".join(_op(one) for one in use.during.split("+") if one)
    op = f", as the {kinds} begins" if kinds else ""
    nearly = f"within 5 % of that for {use.nearly_full * 100:.0f} % of the step"
    return f"Full at {format_seconds(use.at_s)}{op}; {nearly}, and at least {gigabytes(use.least)} at any time."


def _op(name: str) -> str:
    """An op such as "F3" in words."""
    kinds = {"F": "forward", "W": "weight gradients"}
    return f"{kinds.get(name[0], 'backward')} of micro-batch {name[1:]}"
