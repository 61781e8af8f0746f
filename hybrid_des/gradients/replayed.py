"""Collectives of single layers, for sharded weights that are gathered when they are needed (ZeRO-3, FSDP).

A collective per layer, micro-batch and rank would need too many messages, so each distinct one is simulated once: in
all groups at the same time, along all channels of each, and alone on the scenario's wiring. Its duration is replayed:
it still begins when the last member of its group arrives, so groups with a slow member wait.
"""

from __future__ import annotations

from functools import lru_cache

from hybrid_des.collectives import codecs
from hybrid_des.collectives.benchmark import NOTHING, Outcome
from hybrid_des.collectives.channels import measure_rings
from hybrid_des.collectives.codecs import Codec
from hybrid_des.gradients.groups import parts_of_stage
from hybrid_des.layout import Layout
from hybrid_des.network.fabric import Fabric
from hybrid_des.network.rings import channels
from hybrid_des.scenario import Gradients

SCATTER, GATHER = "ring-reduce-scatter", "ring-all-gather"


class LayerTraffic:
    """The collectives of layers among the ranks that hold the same ones, in a layout without pipeline.

    Attributes:
        groups: the groups of each part: of all parameters outside experts, and of those in experts.
    """

    def __init__(self, layout: Layout, gradients: Gradients, fabric: Fabric, sharing: str) -> None:
        """Find the groups.

        Args:
            layout: the ranks.
            gradients: their codec and channels.
            fabric: the wiring.
            sharing: how links are shared.
        """
        held, expert = layout.holders, layout.expert
        apart = [ranks[first::expert] for ranks in held for first in range(expert)] if expert > 1 else []
        self.groups = [[ranks for ranks in groups if len(ranks) > 1] for groups in (held, apart)]
        self._expert = expert
        self._fabric = fabric
        self._sharing = sharing
        self._codec = codecs.find(gradients.codec).build()
        self._channels = gradients.channels
        self._parameters = codecs.find("bf16").build()
        self._measured = lru_cache(maxsize=None)(self._measure)

    @property
    def channels(self) -> int | None:
        """The most rings that a group has; None if there is no group."""
        each = (channels(self._fabric, groups[0], self._channels) for groups in self.groups if groups)
        return max(map(len, each), default=None)

    def gather(self, regular: int, experts: int) -> tuple[Outcome, ...]:
        """The all-gathers of a layer's parameters: one for all but experts, one for experts."""
        return self._outcomes(GATHER, regular, experts, self._parameters)

    def scatter(self, regular: int, experts: int) -> tuple[Outcome, ...]:
        """The reduce-scatters of a layer's gradients."""
        return self._outcomes(SCATTER, regular, experts, self._codec)

    def _outcomes(self, name: str, regular: int, experts: int, codec: Codec) -> tuple[Outcome, ...]:
        sizes = parts_of_stage(regular, experts, self._expert)
        return tuple(self._measured(name, part, size, codec) for part, size in enumerate(sizes))

    def _measure(self, name: str, part: int, elements: int, codec: Codec) -> Outcome:
        """Simulate a collective once in all groups of a part."""
        groups = self.groups[part]
        if not groups or not elements:
            return NOTHING
        return measure_rings(self._fabric, name, groups, elements, codec, self._sharing, count=self._channels)
