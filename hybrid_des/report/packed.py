"""What a report says of documents and how they are packed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hybrid_des.report.fact import Fact
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.sections.data import STEP, WHOLE
from hybrid_des.units import format_number, format_share

LEAST_PADDING = 0.0005  # a share that is shown


def packed_line(scenario: Scenario, facts: Mapping[str, Any]) -> list[str]:
    """The documents of a step, and how they are packed, in one line; none without `data`."""
    if scenario.data is None:
        return []
    figures = facts["data"]
    length, held = figures["length"], figures["microbatch_tokens"]
    cut = f", {format_number(figures['truncated'])} cut" if figures["truncated"] else ""
    lengths = _range(length) if length["min"] < length["max"] else f"{length['max']:,}"
    fills = _range(held) if held["min"] < held["max"] else f"{held['max']:,}"
    padded = {True: ", padded to the longest", STEP: ", padded to the fullest"}.get(scenario.data.padded, "")
    documents = f"{figures['documents']:,.0f} documents"
    return [
        f"{documents} per step of {lengths} tokens{cut}; "
        f"packing {scenario.data.packing}: {fills} tokens per micro-batch{padded}"
    ]


def packed_facts(scenario: Scenario, facts: Mapping[str, Any]) -> list[Fact]:
    """How much replicas differ, or ranks that hold different documents; nothing where they do not."""
    if scenario.data is None or facts["data"]["replica_squares_ratio"] == 1:
        return []
    figures = facts["data"]
    ratio = f"{figures['replica_squares_ratio']:.2f}×"
    padding = (
        f"; {format_share(figures['padding'])} of tokens are padding" if figures["padding"] >= LEAST_PADDING else ""
    )
    ranks = "context ranks" if context_apart(scenario) else "replicas"
    note = f"the mean of all {ranks} in squared lengths, with which attention grows{padding}"
    return [Fact(f"busiest {ranks[:-1]}", ratio, note)]


def context_apart(scenario: Scenario) -> bool:
    """Whether context ranks compute different documents."""
    if scenario.data is None or scenario.parallel.context == 1:
        return False
    return bool(scenario.data.packer.facts["lanes"]) or scenario.parallel.context_method == WHOLE


def _range(figures: Mapping[str, Any]) -> str:
    return f"{figures['min']:,} … {figures['max']:,} (mean {figures['mean']:,.0f})"
