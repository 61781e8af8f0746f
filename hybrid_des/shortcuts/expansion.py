"""The rows of all ranks, from those of the ranks that were simulated for them.

An image does what its representative does, at the same times: it has the same rows, with its own rank, links and peers.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from hybrid_des.cluster.channel import Channel
from hybrid_des.cluster.fabric import Fabric
from hybrid_des.folding.folded_routes import Endpoints
from hybrid_des.folding.symmetry import Element, Fold
from hybrid_des.planning.program_table import Column, Columns
from hybrid_des.simulation.outcome import Run
from hybrid_des.simulation.timeline import Timeline


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


def of_all_ranks(run: Run) -> Run:
    """A folded run with the rows of all ranks, as if all had been simulated."""
    fold, ranks = run.fold, range(run.timeline.layout.ranks)
    assert fold is not None
    number = {rank: number for number, rank in enumerate(run.ranks)}
    same = [number[fold.representative(rank)[0]] for rank in ranks]
    return replace(
        run,
        timeline=expanded(run.timeline, fold, run.fabric),
        ranks=ranks,
        peak_chunks=[run.peak_chunks[number] for number in same],
        peak_memory=[run.peak_memory[number] for number in same],
        slowed=None if run.slowed is None else run.slowed * fold.order,
        fold=None,
    )
