"""Collectives run once, alone, in all groups at the same time: how long each takes, and which is the fastest.

Of the sets of groups that share no link and are alike, one is simulated (`network.separation`), and of its members
that do the same, one (`orbits`). The result is exact to the picosecond, as if all members of all groups were
simulated; where neither applies, all are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from hybrid_des import collectives
from hybrid_des.collectives.benchmark import NOTHING, Outcome, OvertakenError, Seat, carried_out
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.codecs import Codec
from hybrid_des.collectives.group import ProcessGroup
from hybrid_des.engine.clock import Environment
from hybrid_des.engine.lineage import LineageEnvironment
from hybrid_des.engine.recorder import Recorder
from hybrid_des.errors import Refusal, UsageError
from hybrid_des.folding import FoldRefusal, UnwieldyError
from hybrid_des.folding.folded_transport import folded_transport
from hybrid_des.folding.images import Ranks, check_images, first_equal
from hybrid_des.folding.orbits import Fold, FoldedAxis, root_of
from hybrid_des.layout import Layout
from hybrid_des.network.fabric import Fabric
from hybrid_des.network.separation import Alike, separated
from hybrid_des.network.transport import Links, Transport

MOST_TRIES = 2  # folds that may turn out to be inexact while simulated; after two, others rarely do better
SHARINGS = ("fifo", "fair")  # those under which it is known which message waits for which


class Cast(NamedTuple):
    """Groups that are simulated together, and how.

    Attributes:
        groups: with their servers.
        sets: the number of such sets that they stand for.
        folds: candidates for which members stand for others, the fewest first; not yet known to be exact.
    """

    groups: Sequence[ProcessGroup]
    sets: int
    folds: Sequence[Fold]

    @property
    def acting(self) -> int:
        """The number of members and servers simulated, if the first fold is exact."""
        return sum(len(group.ranks) for group in self.groups) // (self.folds[0].order if self.folds else 1)


@dataclass(frozen=True)
class Rehearsal:
    """The groups in which collectives are tried out.

    Attributes:
        fabric: the wiring.
        layout: the ranks; those along data, or else context, may stand for each other.
        groups: the ranks of each group, in ascending order.
        elements: for each group, the number of elements of a member's buffer.
        codec: that of the buffers.
        options: those of the collectives; each ignores those that it does not declare.
        sharing: how links are shared.
        folded: whether some groups and members stand for others.
        too_many: maps a collective's name, its options and, for each group, the numbers of members and of simulated
            members (on all channels) to the reason why it cannot be simulated; empty if it can.
    """

    fabric: Fabric
    layout: Layout
    groups: Sequence[Sequence[int]]
    elements: Sequence[int]
    codec: Codec
    options: collectives.Given = None
    sharing: str = "fifo"
    folded: bool = True
    too_many: Callable[[str, Mapping[str, Any], Sequence[tuple[int, int]]], str] = lambda name, options, groups: ""

    @property
    def spare(self) -> Sequence[int]:
        """The places for servers: GPUs that no rank uses."""
        return range(self.layout.ranks, self.fabric.gpus)

    def quickest(self, *, halves: bool = False) -> tuple[str, Outcome]:
        """The name and outcome of the fastest all-reduce (ties: the first by name).

        With `halves`, only those are tried that consist of a reduce-scatter and an all-gather.
        Those that do not support these groups or this wiring are left out. The others are run in order of increasing
        effort, each for no longer than the fastest so far.

        Raises:
            UnwieldyError: one would need too many messages.
            Refusal: none supports them.
        """
        given = [name for name, value in dict(self.options or {}).items() if value is not None]
        casts = {}
        for name in collectives.all_reduces(given, halves=halves):
            with suppress(Refusal, UsageError):
                casts[name] = self.casts(name)
        for name, each in casts.items():
            for cast in each:
                self._check_size(name, cast, cast.folds[0] if cast.folds else None)
        found: dict[str, Outcome] = {}
        for name in sorted(casts, key=lambda name: (sum(cast.acting for cast in casts[name]), name)):
            limit = min((outcome.duration for outcome in found.values()), default=None)
            try:
                found[name] = self._performed(name, casts[name], limit if self.folded else None)
            except UnwieldyError:
                raise
            except (Refusal, UsageError, OvertakenError):
                continue
        if not found:
            raise Refusal("no all-reduce supports these groups on this wiring")
        best = min(found, key=lambda name: (found[name].duration, name))
        return best, found[best]

    def measure(self, name: str) -> Outcome:
        """Run a collective.

        Raises:
            Refusal: it does not support these groups or this wiring, or needs too many messages.
            DeadlockError: its members deadlock.
        """
        return self._performed(name, self.casts(name), None)

    def casts(self, name: str) -> list[Cast]:
        """The groups to simulate, those with the largest buffers first.

        Raises:
            Refusal: the collective does not support the wiring.
        """
        groups = [
            collectives.process_group(
                name, collectives.Site(self.fabric, ranks, self.spare), self.options, stage=number
            )
            for number, ranks in enumerate(self.groups)
        ]
        alike = [Alike(range(len(groups)), 1)]
        if self.folded:
            alike = separated(self.fabric, [group.ranks for group in groups], self.elements)
        alike.sort(key=lambda one: -sum(self.elements[number] for number in one.groups))
        casts = []
        for one in alike:
            together = [groups[number] for number in one.groups]
            casts.append(Cast(together, one.sets, list(self._folds(together)) if self.folded else []))
        return casts

    def _folds(self, groups: Sequence[ProcessGroup]) -> Iterator[Fold]:
        """The folds that look exact, those with the fewest members first."""
        axis = next((axis for axis in ("data", "context") if self.layout.sizes.get(axis, 1) > 1), None)
        if axis is None or self.sharing not in SHARINGS:
            return
        size = self.layout.sizes[axis]
        power = not size & (size - 1)
        for keep in (keep for keep in range(1, size) if size % keep == 0):
            for swap in (False, True)[: 1 + power]:
                fold = Fold(self.layout, [FoldedAxis(axis, keep, swap)])
                with suppress(FoldRefusal):
                    self._check_nodes(fold)
                    for group in groups:
                        buffer = Buffer(self.elements[group.stage], self.codec)
                        check_images(fold, group, [buffer], self.options, nodes=self._nodes, groups={})
                    yield fold
                    break

    def _check_nodes(self, fold: Fold) -> None:
        """Check that the images of ranks on one node are on one node; otherwise their routes are rarely alike."""
        nodes = self._nodes
        first = first_equal(nodes)  # of each rank's node
        for element in fold.generators:
            images = nodes[fold.move(np.arange(len(nodes)), element)]
            if (images != images[first]).any():
                raise FoldRefusal("ranks share a node, their images do not")

    @cached_property
    def _nodes(self) -> Ranks:
        """The node of each rank."""
        return np.fromiter(self.fabric.node_of[: self.layout.ranks], dtype=np.int64, count=self.layout.ranks)

    def _performed(self, name: str, casts: Sequence[Cast], limit: int | None) -> Outcome:
        """Simulate all casts; see `carried_out` for the limit."""
        whole = NOTHING
        for cast in casts:
            one = self._of_cast(name, cast, limit)
            even = one.even and (whole is NOTHING or (whole.even and one.duration == whole.duration))
            whole = Outcome(
                max(whole.duration, one.duration),
                whole.messages + cast.sets * one.messages,
                whole.bytes + cast.sets * one.bytes,
                whole.scales + cast.sets * one.scales,
                even,
            )
        return whole

    def _of_cast(self, name: str, cast: Cast, limit: int | None) -> Outcome:
        for fold in (*cast.folds[:MOST_TRIES], None):
            self._check_size(name, cast, fold)
            with suppress(FoldRefusal):
                return self._run(name, cast.groups, fold, limit)
        raise AssertionError("unfolded runs are not refused")

    def _check_size(self, name: str, cast: Cast, fold: Fold | None) -> None:
        order = 1 if fold is None else fold.order
        sizes = [(group.size, group.size // order * (len(group.channels) or 1)) for group in cast.groups]
        if found := self.too_many(name, dict(self.options or {}), sizes):
            raise UnwieldyError(found)

    def _run(self, name: str, groups: Sequence[ProcessGroup], fold: Fold | None, limit: int | None) -> Outcome:
        """Simulate groups, all members or those that a fold keeps."""
        network = self._network(fold)
        env = network.env
        seats = (
            Seat(group, place)
            for group in groups
            for place, rank in enumerate(group.ranks)
            if fold is None or fold.simulated(rank)
        )
        return carried_out(
            network,
            collectives.configured(name, self.options),
            seats,
            lambda number, place: Buffer(self.elements[number], self.codec),
            begin=(lambda rank: env.begin(root_of(rank))) if isinstance(env, LineageEnvironment) else None,
            limit=limit,
        )

    def _network(self, fold: Fold | None) -> Transport:
        if fold is None:
            return Transport(Links(Environment(), self.fabric, self.sharing), Recorder())
        return folded_transport(self.fabric, self.sharing, Recorder(), fold)
