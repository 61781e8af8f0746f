"""The rows of all ranks, from those of the ranks that were simulated for them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from hybrid_des.folding.orbits import Fold
from hybrid_des.network.channel import Channel
from hybrid_des.network.fabric import Fabric
from hybrid_des.timeline import Column, Columns, Timeline


def expanded(timeline: Timeline, fold: Fold, fabric: Fabric) -> Timeline:
    """The timeline of all ranks: the rows of the simulated ones, then of their first images, and so on."""
    elements = list(fold.elements())

    def everywhere(rows: Columns) -> Columns:
        return {
            name: np.concatenate([fold.move(column, element) if name == "rank" else column for element in elements])
            for name, column in rows.items()
        }

    def images(channel: Channel) -> Mapping[int, Channel]:
        ends = [(fold.move(channel.sender, element), fold.move(channel.receiver, element)) for element in elements]
        return {
            image: channel._replace(sender=here, receiver=there, link=fabric.route(here, there).links[channel.hop])
            for image, (here, there) in enumerate(ends)
        }

    of_channel = [images(channel) for channel in timeline.channels]
    messages = timeline.all_messages()
    names = ("ops", "steps", "reductions", "memory", "gathers", "waits", "exchanges")
    rows: dict[str, Any] = {name: everywhere(getattr(timeline, name)) for name in names}
    return replace(
        timeline,
        channels=[pictures[image] for image in range(len(elements)) for pictures in of_channel],
        messages=None if messages is None else _messages(messages, len(of_channel), len(elements)),
        stream=None,
        alike=1,
        **rows,
    )


def _messages(rows: Columns, channels: int, images: int) -> Mapping[str, Column]:
    return {
        name: np.concatenate([column + channels * image if name == "channel" else column for image in range(images)])
        for name, column in rows.items()
    }
