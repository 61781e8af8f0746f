"""Experts that are wanted unequally, as lines of a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hybrid_des.report.fact import Fact
from hybrid_des.units import format_bytes, format_share, signed_seconds


def expert_lines(facts: Mapping[str, Any]) -> Iterator[Fact]:
    """What it costs that some experts are more wanted than others, layer by layer, and what would help."""
    if "expert_imbalance_s" in facts:
        share = facts["expert_imbalance_s"] / facts["step_time_s"] if facts["step_time_s"] else 0.0
        why = "some experts are more wanted than others" if share else "all ranks serve as many tokens"
        note = f"per rank, {format_share(share)} of the step: {why}"
        yield Fact("experts' imbalance", signed_seconds(facts["expert_imbalance_s"]), note)
    if not (use := facts.get("experts")):
        return
    unequal = any(layer["imbalance_s"] or layer["busiest_ratio"] != 1 for layer in use["layers"])
    for layer in use["layers"] if unequal else ():
        yield Fact(f"  layer {layer['layer']}", signed_seconds(layer["imbalance_s"]), _ratios(layer))
    more = use["layers_with_experts"] - len(use["layers"])
    if more > 0 and unequal:
        yield Fact("", "", f"and {more} more layer{'s' if more > 1 else ''} with experts; step {use['step']}")
    if use["dropped_ratio"]:
        yield Fact("  dropped", format_share(use["dropped_ratio"]), "of the choices of tokens find no room")
    if adapters := use.get("adapters"):
        mean = format_bytes(adapters["mean_bytes"])
        note = f"per NIC of node {adapters['busiest_node']} and step; {mean} on average"
        yield Fact("  busiest NICs", format_bytes(adapters["bytes"]), note)
    if copies := use.get("copies"):
        weights, gradients = (format_bytes(copies.get(key, 0)) for key in ("weight_bytes", "gradient_bytes"))
        yield Fact("  copies and moves", weights, f"of weights per step, {gradients} of gradients")


def _ratios(layer: Mapping[str, Any]) -> str:
    """The busiest rank as it is, and with a balanced placement."""
    now, then = layer["busiest_ratio"], layer["balanced_busiest_ratio"]
    busiest = f"its busiest rank has {now:.2f}× the mean"
    if then >= now:
        return f"{busiest}; no balanced placement has less"
    moves = layer["balanced_moves"]
    return f"{busiest}; balanced {then:.2f}×, {signed_seconds(layer['balanced_imbalance_s'])}, {moves} experts moved"
