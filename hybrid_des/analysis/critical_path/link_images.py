"""The links of a run, and the images of those that were simulated for others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hybrid_des.analysis.critical_path.images import Images
from hybrid_des.cluster.channel import Channel
from hybrid_des.cluster.fabric import Fabric
from hybrid_des.engine.causes import Causes
from hybrid_des.planning.program_table import Column
from hybrid_des.simulation.timeline import Timeline


@dataclass(frozen=True)
class LinkImages:
    """The links that messages of simulated ranks are sent over, under their own names.

    Attributes:
        names: of the links, sorted.
        lane: by link, the number of the simulated one.
        turned: by link, the element that maps the simulated one to it.
        limited: by link, whether it has a bandwidth, so that messages may have to wait for each other.
        channels: by lane, a channel on one of its images.
    """

    names: Sequence[str]
    lane: Column
    turned: Column
    limited: Column
    channels: Sequence[Channel]
    fabric: Fabric
    folded: Images

    @classmethod
    def of(cls, timeline: Timeline, trace: Causes, fabric: Fabric, images: Images) -> LinkImages:
        """The links of a run."""
        names, link = timeline.links, timeline.of_channel["link"]
        own = np.zeros(len(names), dtype=np.int64)
        own[link] = np.arange(len(link))  # the last channel on each link
        channels = [timeline.channels[number] for number in own.tolist()]
        limited = np.array([fabric.links[name].bandwidth is not None for name in names], dtype=np.int64)
        if images.order == 1:
            return cls(names, np.arange(len(names)), np.zeros(len(names), np.int64), limited, channels, fabric, images)
        legs = [trace.legs[number] for number in own.tolist()]
        lanes = {name: number for number, name in enumerate(dict.fromkeys(name for name, _ in legs))}
        lane = np.array([lanes[name] for name, _ in legs], dtype=np.int64)
        first = [channels[place] for place in np.unique(lane, return_index=True)[1].tolist()]
        return cls(names, lane, images.numbered([turned for _, turned in legs]), limited, first, fabric, images)

    def images(self, lane: int) -> list[str]:
        """The names of all images of a simulated link."""
        channel, every = self.channels[lane], np.arange(self.folded.order)
        ends = (self.folded.moved(rank, every).tolist() for rank in (channel.sender, channel.receiver))
        return [self.fabric.route(*both).links[channel.hop] for both in zip(*ends, strict=True)]
