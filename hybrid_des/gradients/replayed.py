"""Collectives of single layers, for sharded weights that are gathered when they are needed (ZeRO-3, FSDP).

A collective per layer, micro-batch and rank would be too many messages: each distinct one is simulated once, in all
groups at the same time and alone on the scenario's wiring, and its duration is replayed. Where it is replayed, it still
begins when the last member of its group is there, and groups with a slow member wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from simpy.events import Event

from hybrid_des.collectives import codecs
from hybrid_des.collectives.benchmark import Outcome, measure
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.codecs import Codec
from hybrid_des.engine.clock import Environment
from hybrid_des.engine.events import Arrival
from hybrid_des.gradients.groups import SCATTER, parts_of_stage
from hybrid_des.layout import Layout
from hybrid_des.network.fabric import Fabric

GATHER = "ring-all-gather"
NOTHING = Outcome(0, 0, 0, 0)


class Meeting:
    """Where the members of a group begin a collective of known duration together.

    Attributes:
        until: when the latest collective ends.
    """

    def __init__(self, env: Environment, size: int) -> None:
        self._env = env
        self._size = self._missing = size
        self._over = Arrival(env)
        self._periods: list[tuple[int, int]] = []
        self.until = 0

    def join(self, duration: int) -> Event:
        """Arrive; the event happens `duration` picoseconds after the last member's arrival."""
        over, now = self._over, self._env.now
        self._missing -= 1
        if not self._missing:
            self.until = now + duration
            self._periods.append((now, self.until))
            over.happen(self.until, None)
            self._missing, self._over = self._size, Arrival(self._env)
        return over

    def busy(self, since: int) -> int:
        """Picoseconds from `since` until now during which a collective was under way."""
        now, took = self._env.now, 0
        for start, end in reversed(self._periods):
            if end <= since:
                break
            took += min(end, now) - max(start, since)
        return took


class LayerTraffic:
    """The collectives of layers among the ranks that hold the same ones, in a layout without pipeline."""

    def __init__(self, layout: Layout, expert: int, codec: str, fabric: Fabric, sharing: str) -> None:
        """Find the groups.

        Args:
            layout: the ranks.
            expert: how many ranks share the experts of a layer.
            codec: of gradients.
            fabric: the wiring.
            sharing: how links are shared.
        """
        held = [layout.group(tensor, "context", "data") for tensor in layout.group(0, "tensor")]
        apart = [ranks[first::expert] for ranks in held for first in range(expert)] if expert > 1 else []
        self._groups = [[ranks for ranks in groups if len(ranks) > 1] for groups in (held, apart)]
        self._expert = expert
        self._fabric = fabric
        self._sharing = sharing
        self._codec = codecs.find(codec).build()
        self._parameters = codecs.find("bf16").build()
        self._measured = lru_cache(maxsize=None)(self._measure)

    def gather(self, regular: int, experts: int) -> tuple[Outcome, ...]:
        """The all-gathers of a layer's parameters: one for all but experts, one for experts."""
        return self._outcomes(GATHER, regular, experts, self._parameters)

    def scatter(self, regular: int, experts: int) -> tuple[Outcome, ...]:
        """The reduce-scatters of a layer's gradients."""
        return self._outcomes(SCATTER, regular, experts, self._codec)

    def meetings(self, env: Environment) -> Mapping[int, Sequence[Meeting | None]]:
        """Rank → where it meets the other members of its groups, part by part."""
        found: dict[int, list[Meeting | None]] = {}
        for part, groups in enumerate(self._groups):
            for ranks in groups:
                meeting = Meeting(env, len(ranks))
                for rank in ranks:
                    found.setdefault(rank, [None, None])[part] = meeting
        return found

    def _outcomes(self, name: str, regular: int, experts: int, codec: Codec) -> tuple[Outcome, ...]:
        sizes = parts_of_stage(regular, experts, self._expert)
        return tuple(self._measured(name, part, size, codec) for part, size in enumerate(sizes))

    def _measure(self, name: str, part: int, elements: int, codec: Codec) -> Outcome:
        """Simulate a collective once in all groups of a part."""
        groups = self._groups[part]
        if not groups or not elements:
            return NOTHING
        return measure(self._fabric, name, groups, lambda group, place: Buffer(elements, codec), sharing=self._sharing)
