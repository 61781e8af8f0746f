"""The rows of all ranks, from those of the ranks that were simulated for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from hybrid_des.cluster.channel import Channel
from hybrid_des.cluster.fabric import Fabric
from hybrid_des.simulation.folding.endpoints import Endpoints
from hybrid_des.simulation.folding.symmetry import Element, Fold
from hybrid_des.simulation.timeline import Column, Columns, Timeline


def expanded(timeline: Timeline, fold: Fold, fabric: Fabric) -> Timeline:
    """The timeline of all ranks: the rows of the simulated ones, then of their first images, and so on."""
    elements, endpoints = list(fold.elements()), Endpoints(fold, fabric)

    def everywhere(rows: Columns) -> Columns:
        return {
            name: np.concatenate([fold.move(column, element) if name == "rank" else column for element in elements])
            for name, column in rows.items()
        }

    def image(channel: Channel, element: Element) -> Channel:
        here, there = endpoints.move(channel.sender, element), endpoints.move(channel.receiver, element)
        return channel._replace(sender=here, receiver=there, link=fabric.route(here, there).links[channel.hop])

    messages = timeline.all_messages()
    names = ("ops", "steps", "reductions", "memory", "gathers", "waits", "exchanges")
    rows: dict[str, Any] = {name: everywhere(getattr(timeline, name)) for name in names}
    return replace(
        timeline,
        channels=[image(channel, element) for element in elements for channel in timeline.channels],
        messages=None if messages is None else _messages(messages, len(timeline.channels), len(elements)),
        stream=None,
        alike=1,
        **rows,
    )


def _messages(rows: Columns, channels: int, images: int) -> Mapping[str, Column]:
    return {
        name: np.concatenate([column + channels * image if name == "channel" else column for image in range(images)])
        for name, column in rows.items()
    }
