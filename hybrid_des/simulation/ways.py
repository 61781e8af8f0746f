"""The ways in which collectives are simulated: by messages or, where no rows of messages are asked for, faster.

    way                where              what is taken                 while it runs              by
    ─────────────────  ─────────────────  ────────────────────────────  ─────────────────────────  ─────────────────────
    by messages        anywhere           nothing                       others may pass            every message
    apart              folded runs        padded rings of one channel,  others may pass            `folding.rings_apart`
                                          of 512 members or more
    alone              folded runs        rings of any channels, if a   nothing uses their links   `folding.rings_alone`
                                          member sends 32 messages
    reductions alone   the same, if only those that reduce are undisturbed
    gathers alone      the same, if only those that gather are undisturbed
    followed           where nothing      the textbook's rings of one   nothing uses their links   `rings_at_once`
                       folds              channel, of 32 members
    layers alone       where nothing      collectives inside ops of up  nothing uses their links   `collectives_alone`
                       folds              to 64 members

Rings are those of gradients and sharded parameters. All ways but the first need `fifo` or uncontended links, and keep
no rows of messages. A run is simulated in the first one that is not refused: if folded, apart, then alone
(`rings_alone.taken_at_once`); if not, followed, then with collectives of layers alone (`undisturbed`); at last by
messages. Times are the same in all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar

from hybrid_des.simulation.collectives_alone import CollectivesAlone
from hybrid_des.simulation.communicators import AtOnce
from hybrid_des.simulation.folding.refusals import FoldRefusal
from hybrid_des.simulation.folding.rings_alone import RingsAlone
from hybrid_des.simulation.folding.rings_apart import RingsApart
from hybrid_des.simulation.folding.symmetry import Fold
from hybrid_des.simulation.folds import Replicas, folds_of_pipelines
from hybrid_des.simulation.noted_plans import NotedPlans
from hybrid_des.simulation.planning.planner import Parts
from hybrid_des.simulation.ring_links import DisturbedError, PassedError, is_taken
from hybrid_des.simulation.rings_at_once import RingsAtOnce

Ended = TypeVar("Ended")

Way = Literal["by messages", "apart", "alone", "reductions alone", "gathers alone", "followed", "layers alone"]

_DISTURBED = NotedPlans()  # with the try in which a collective was disturbed, and the links


class Try(NamedTuple):
    """Which ranks are simulated, None for all, and in which way."""

    fold: Fold | None
    way: Way

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells it from other ones."""
        return () if self.fold is None else self.fold.folded_axes, self.way


def tries_of(replicas: Replicas, *, ordered: bool = False) -> list[Try]:
    """What may be tried to take collectives at once where, by messages, no rank stands for others.

    Args:
        replicas: those of the run.
        ordered: whether GPUs start in an order of their own, in which rings are not followed.
    """
    scenario, parts = replicas.scenario, replicas.parts
    varies = scenario.slow or scenario.background or parts.training
    if varies or scenario.record == "all" or scenario.cluster.service not in ("fifo", "uncontended"):
        return []
    taken = [is_taken(processes) and not (parts.slowdown or ordered) for processes, _ in parts.reductions.processes]
    folds = [*(folds_of_pipelines(replicas) if all(taken) else ()), None] if any(taken) else []
    layers = parts.traffic.messages and not scenario.jitter
    return [*(Try(fold, "followed") for fold in folds), *([Try(None, "layers alone")] if layers else [])]


def undisturbed(
    simulate: Callable[[Fold | None, Way], Ended], replicas: Replicas | None, fold: Fold | None, *, ordered: bool
) -> Ended:
    """Simulate with collectives taken at once in the first try in which all can be told, else by messages.

    Args:
        simulate: simulates the ranks of a fold, or all, in a way.
        replicas: those of the run; None if all messages are asked for.
        fold: which ranks are simulated by messages.
        ordered: as in `tries_of`.
    """
    if replicas is not None and fold is None:
        plan, tries = replicas.parts.plan, tries_of(replicas, ordered=ordered)
        on = replicas.scenario.cluster.service, id(replicas.parts.fabric)
        for this in tries:
            if not _DISTURBED.has(plan, *this.key, *on):
                try:
                    return simulate(*this)
                except (DisturbedError, FoldRefusal) as why:
                    for same in tries if isinstance(why, PassedError) else [this]:
                        _DISTURBED.note(plan, *same.key, *on)
    return simulate(fold, "by messages")


def at_once(way: Way, transport: Any, parts: Parts, service: str) -> AtOnce | CollectivesAlone | None:
    """What takes collectives in a way; None for their messages.

    Args:
        way: the way.
        transport: the network of the run, made for it.
        parts: those of the run.
        service: the model of how links are shared.
    """
    if way == "by messages":
        return None
    if way == "layers alone":
        return CollectivesAlone(transport, parts, service)
    if way == "apart":
        return RingsApart(transport, parts.reductions)
    return RingsAtOnce(transport, parts) if way == "followed" else RingsAlone(transport, parts.reductions, way)
