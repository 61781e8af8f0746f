"""The messages of all jobs on the links of one fabric: bytes and busy time by job, and who waits for whom.

    asked ──── waiting ──── start ── service ── end           fifo, priority: a message waits while others are served
    asked = start ────────── slower than alone ─────── end    fair, priority-fair: it shares its links with others

Under the first two, services on a link do not overlap, so a wait is divided exactly among the jobs whose messages the
link serves meanwhile. Under the others a message loses the time beyond what it would take alone; that is attributed to
the jobs that are on the same link meanwhile, on the one of its links where they are the longest, and to each for no
longer than it is there.

Of jobs that are folded, the rows are those of simulated ranks: an image of a message is on the image of its link, as
long as on its own. So links that are images of each other are looked at once, for the first of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from hybrid_des.analysis.critical_path.messages import service_alone
from hybrid_des.analysis.idle import passed
from hybrid_des.cluster.channel import Channel
from hybrid_des.cluster.fabric import Fabric
from hybrid_des.folding.joint_symmetry import FoldedLinks
from hybrid_des.planning.program_table import Column, Columns

OTHERS = "background"  # the owner of background traffic


class OwnerRows(NamedTuple):
    """The message rows of one job, or of background traffic, at times of the fabric.

    Attributes:
        images: what links and ranks stand for, if only some ranks of the job were simulated.
    """

    name: str
    channels: Sequence[Channel]
    rows: Columns
    start: int = 0
    images: FoldedLinks | None = None

    def first(self, link: str) -> str:
        """The link that was simulated for one that its messages use."""
        return self.images.orbits[link].first if self.images else link

    def times(self, link: str) -> int:
        """How often each message that is on an image of a link has an image on that link."""
        if self.images is None or link not in self.images.orbits:
            return 1
        return self.images.fold.order // self.images.orbits[link].size


class Wait(NamedTuple):
    """How long messages of a job wait behind those of another on a link, in picoseconds over all messages."""

    job: str
    behind: str
    link: str
    waited: int
    messages: int


@dataclass(frozen=True)
class FabricRows:
    """The rows of all owners.

    Attributes:
        owners: the jobs and, if there is any, the background traffic.
        fabric: all of the wiring.
        concurrent: whether messages share links.
    """

    owners: Sequence[OwnerRows]
    fabric: Fabric
    concurrent: bool

    @cached_property
    def _simulated(self) -> Mapping[str, str]:
        """Link that carried messages → the one that was simulated for it."""
        simulated: dict[str, str] = {}
        for owner in self.owners:
            firsts = {owner.first(link) for link in {channel.link for channel in owner.channels}}
            orbits = owner.images.orbits if owner.images else dict.fromkeys(firsts)
            simulated |= {link: first for link in orbits if (first := owner.first(link)) in firsts}
        return simulated

    @cached_property
    def links(self) -> Sequence[str]:
        """The links that carried messages, sorted."""
        return sorted(self._simulated)

    @cached_property
    def _first(self) -> Column:
        """By link: the number of the one that was simulated for it."""
        number = {name: place for place, name in enumerate(self.links)}
        return np.array([number[self._simulated[name]] for name in self.links], dtype=np.int64)

    @cached_property
    def _of(self) -> Sequence[Columns]:
        """For each owner: `link`, `asked`, `start`, `end`, `bytes`, `flow`, and `alone`, the time on an idle link.

        A link is the simulated one.
        """
        number = {name: self._first[place] for place, name in enumerate(self.links)}
        listed = []
        for owner in self.owners:
            rows, channel = owner.rows, owner.rows["channel"]
            of_channel = np.array([number[one.link] for one in owner.channels], dtype=np.int64)
            hops = np.array([one.hop for one in owner.channels], dtype=np.int64)
            link = of_channel[channel] if len(of_channel) else np.zeros(0, dtype=np.int64)
            flow = channel - hops[channel] if len(hops) else link
            alone = service_alone(self.fabric, self.links, link, rows["bytes"])
            times = {name: rows[name] + owner.start for name in ("asked", "start", "end")}
            listed.append({**times, "link": link, "flow": flow, "bytes": rows["bytes"], "alone": alone})
        return listed

    @property
    def end(self) -> int:
        """When the last message has left its last link."""
        return max((int(rows["end"].max(initial=0)) for rows in self._of), default=0)

    def bytes_of(self, key: str = "bytes") -> dict[str, dict[str, int]]:
        """Link → owner → bytes; or with `alone`, the picoseconds that these occupy the link."""
        sums = {}
        for owner, rows in zip(self.owners, self._of, strict=True):
            counted = np.zeros(len(self.links), dtype=np.int64)
            np.add.at(counted, rows["link"], rows[key])
            sums[owner.name] = (counted[self._first] * [owner.times(link) for link in self.links]).tolist()
        return {
            link: {name: counts[place] for name, counts in sums.items() if counts[place]}
            for place, link in enumerate(self.links)
        }

    def on(self, link: str) -> Iterator[tuple[str, Column, Column, Column]]:
        """The name of each owner of messages on a link, their starts and ends, and their times on the idle link."""
        number = self._first[self.links.index(link)]
        for owner, rows in zip(self.owners, self._of, strict=True):
            at = np.repeat(np.flatnonzero(rows["link"] == number), owner.times(link))
            if len(at):
                yield owner.name, rows["start"][at], rows["end"][at], rows["alone"][at]

    @cached_property
    def shared(self) -> Sequence[int]:
        """The numbers of the links that carried messages of several owners."""
        return np.flatnonzero(np.isin(self._first, self._shared)).tolist()

    @cached_property
    def _shared(self) -> Sequence[int]:
        """Those of them that were simulated."""
        used = np.zeros(len(self.links), dtype=np.int64)
        for rows in self._of:
            used[np.unique(rows["link"])] += 1
        return np.flatnonzero(used > 1).tolist()

    def beside(self, name: str) -> Column:
        """For each message row of an owner, the picoseconds for which others' messages are on its link meanwhile."""
        job = next(number for number, owner in enumerate(self.owners) if owner.name == name)
        rows = self._of[job]
        overlap = np.zeros(len(rows["link"]), dtype=np.int64)
        for link in self._shared:
            at = np.flatnonzero(rows["link"] == link)
            theirs = [other for number, other in enumerate(self._of) if number != job]
            start, end = (
                np.concatenate([other[key][other["link"] == link] for other in theirs]) for key in ("start", "end")
            )
            if len(at) and len(start):
                since = rows["start" if self.concurrent else "asked"][at]
                overlap[at] = _Periods.merged(start, end).between(since, rows["end"][at])
        return overlap

    @cached_property
    def waits(self) -> list[Wait]:
        """Who waits for whom and where, the longest first."""
        waits = self._lost() if self.concurrent else self._queued()
        return sorted(waits, key=lambda wait: (-wait.waited, wait.job, wait.link, wait.behind))

    def _queued(self) -> list[Wait]:
        waits = []
        for link in self._shared:
            mine = [np.flatnonzero(rows["link"] == link) for rows in self._of]
            served = [_Periods(rows["start"][at], rows["end"][at]) for rows, at in zip(self._of, mine, strict=True)]
            for job, (rows, at) in enumerate(zip(self._of, mine, strict=True)):
                for other, periods in enumerate(served):
                    if other != job:
                        waited = periods.between(rows["asked"][at], rows["start"][at])
                        waits += self._wait(job, other, link, waited)
        return waits

    def _wait(self, job: int, other: int, link: int, waited: Column) -> list[Wait]:
        """The waits on a simulated link and on its images."""
        if self.owners[job].name == OTHERS or not waited.any():
            return []
        ends, times = (self.owners[job].name, self.owners[other].name), self.owners[job].times(self.links[link])
        sums = times * int(waited.sum()), times * int(np.count_nonzero(waited))
        return [Wait(*ends, self.links[image], *sums) for image in np.flatnonzero(self._first == link).tolist()]

    def _lost(self) -> list[Wait]:
        waits: list[Wait] = []
        periods = {
            (owner, link): _Periods.merged(rows["start"][at], rows["end"][at])
            for owner, rows in enumerate(self._of)
            for link in self._shared
            if len(at := np.flatnonzero(rows["link"] == link))
        }
        for job, rows in enumerate(self._of):
            beside = np.zeros((len(self.owners), len(rows["link"])), dtype=np.int64)
            for link in self._shared:
                at = np.flatnonzero(rows["link"] == link)
                for other in range(len(self.owners)):
                    if other != job and (other, link) in periods:
                        beside[other, at] = periods[other, link].between(rows["start"][at], rows["end"][at])
            waits += self._attributed(job, beside)
        return waits

    def _attributed(self, job: int, beside: Column) -> list[Wait]:
        """The time that each message loses, to those beside it on the link where they are the longest."""
        rows, waits = self._of[job], list[Wait]()
        order = np.lexsort((-beside.sum(axis=0), rows["start"], rows["flow"]))
        if not len(order):
            return waits
        keys = np.stack([rows["flow"][order], rows["start"][order]])
        first = np.flatnonzero(np.append(True, np.any(keys[:, 1:] != keys[:, :-1], axis=0)))
        took = (rows["end"] - rows["start"])[order][first]
        lost = np.maximum(took - np.maximum.reduceat(rows["alone"][order], first), 0)
        at = order[first]
        for other in range(len(self.owners)):
            part = np.minimum(lost, beside[other, at])
            for link in np.unique(rows["link"][at][part > 0]).tolist():
                waits += self._wait(job, other, link, part[rows["link"][at] == link])
        return waits


class _Periods:
    """Disjoint periods in order of time."""

    def __init__(self, start: Column, end: Column) -> None:
        order = np.argsort(start, kind="stable")
        self._each = start[order], end[order]

    @classmethod
    def merged(cls, start: Column, end: Column) -> _Periods:
        """The union of periods that may overlap."""
        order = np.argsort(start, kind="stable")
        start, end = start[order], np.maximum.accumulate(end[order])
        first = np.flatnonzero(np.append(True, start[1:] > end[:-1]))
        return cls(start[first], end[np.append(first[1:] - 1, len(end) - 1)])

    def between(self, start: Column, end: Column) -> Column:
        """How much of the time from each start to each end they cover."""
        return passed(*self._each, end) - passed(*self._each, start)


def owned(
    name: str,
    channels: Sequence[Channel],
    rows: Mapping[str, Column] | None,
    start: int = 0,
    images: FoldedLinks | None = None,
) -> OwnerRows:
    """The rows of an owner; none, if they were not recorded."""
    nothing = {key: np.zeros(0, dtype=np.int64) for key in ("channel", "asked", "start", "end", "bytes")}
    return OwnerRows(name, channels if rows is not None else (), nothing if rows is None else rows, start, images)
