"""Collectives and messages of the ranks that have a trace, matched; and how far apart the ranks' clocks are.

A collective is matched by its identity (`Comms Id`), else by its number in its group, else as the n-th of its kind
there in a step. A message is matched
with the n-th between its two ranks, if the kernels name the other end or the group has two members. What overlaps in
time on no common interval was not the same collective, if its group is not named: every rank is inside the kernel while
data moves. Transfer is the latest end less the latest start, a rank's wait the latest start less its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from statistics import median
from typing import NamedTuple

from hybrid_des.interchange.profiles.graph import EXCHANGE
from hybrid_des.interchange.profiles.kineto import Communication, KinetoTrace
from hybrid_des.units import grouped_by

TOGETHER = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")  # no member ends before all have begun
ALL_TO_ALL = re.compile(r"all_?to_?all", re.IGNORECASE)
ALONE = "rank"
UNNAMED = ""  # the group of collectives whose kernels do not name it
SHARED = 0.9  # of the collectives of an unnamed group that must overlap on all ranks, for it to be one group
MOST_LISTED = 8  # ranks in the label of a group


IDENTITY, SEQUENCE = attrgetter("identity"), attrgetter("sequence")


class Key(NamedTuple):
    """A collective: its step, group, kind, and number there or identity."""

    step: int
    group: str
    does: str
    number: int


class Member(NamedTuple):
    """One rank's part in a collective; times are nanoseconds, the rank is a place among the traces."""

    rank: int
    start: int
    end: int
    communication: Communication


Collectives = dict[Key, list[Member]]


def transfer_of(members: Sequence[Member]) -> int:
    """Nanoseconds from the latest start to the latest end."""
    return max(member.end for member in members) - max(member.start for member in members)


def does_of(trace: KinetoTrace, communication: Communication) -> str:
    """What a kernel of communication does; sends and receives are an all-to-all where their op is one."""
    if communication.does == EXCHANGE and ALL_TO_ALL.search(trace.op[communication.kernel]):
        return "all-to-all"
    return communication.does


def collectives_of(traces: Sequence[KinetoTrace], shifts: Sequence[int], *, checked: bool = True) -> Collectives:
    """All collectives and messages, with those of their members that have a trace.

    With `checked`, members whose kernels overlap on no common interval are told apart; `shifts` put them on one clock.
    """
    labels = _labels(traces)
    present = {one.rank: place for place, one in enumerate(traces)}
    told = [(number, _told_by(number, traces)) for number in (IDENTITY, SEQUENCE)]
    collectives: Collectives = {}
    for rank, trace in enumerate(traces):
        turns: dict[tuple[int, str, str], int] = {}
        for each in trace.communications:
            does = does_of(trace, each)
            group = _pair(trace.rank, each, present) if does == EXCHANGE else labels[each.group, each.members]
            if group is None:
                group = f"{ALONE} {trace.rank}"  # the other end has no trace, or is not known
            kind = int(trace.step[each.kernel]), group, does
            turn = turns[kind] = turns.get(kind, -1) + 1
            by = next((number for number, kinds in told if (each.group, does) in kinds), None)
            number = by(each) if by is not None and does != EXCHANGE else None  # ranks count messages by themselves
            start = int(trace.start[each.kernel]) + shifts[rank]
            member = Member(rank, start, start + int(trace.duration[each.kernel]), each)
            key = Key(*kind, turn if number is None else number)
            collectives.setdefault(key, []).append(member)
    return _apart(collectives, [one.rank for one in traces]) if checked else collectives


def _labels(traces: Sequence[KinetoTrace]) -> dict[tuple[str, tuple[int, ...]], str]:
    """A name for each group: its own, with its ranks where ranks use one name for several groups."""
    groups = {(one.group, one.members) for trace in traces for one in trace.communications}
    known: dict[str, set[tuple[int, ...]]] = {}
    for name, members in groups:
        known.setdefault(name, set()).add(members)
    return {(name, members): _listed(members) if not name else name if len(known[name]) == 1
            else f"{name} of {_listed(members)}" for name, members in groups}  # fmt: skip


def _listed(members: Sequence[int]) -> str:
    more = ",…" if len(members) > MOST_LISTED else ""
    return ",".join(map(str, members[:MOST_LISTED])) + more


def _told_by(number: Callable[[Communication], int | None], traces: Sequence[KinetoTrace]) -> set[tuple[str, str]]:
    """Groups and kinds whose collectives all have such a number, each another one: those of coalesced ones repeat."""
    repeated, numbered = set(), set()
    for trace in traces:
        seen = set()
        for communication in trace.communications:
            kind, value = (communication.group, does_of(trace, communication)), number(communication)
            numbered.add(kind)
            if value is None or (*kind, value) in seen:
                repeated.add(kind)
            seen.add((*kind, value))
    return numbered - repeated


def _pair(rank: int, communication: Communication, present: Mapping[int, int]) -> str | None:
    """What tells the messages between two ranks apart; None if the other one has no trace, or is not known."""
    if communication.peer is not None:
        ends = (rank, communication.peer) if communication.sends else (communication.peer, rank)
        return f"{ends[0]} to {ends[1]}" if communication.peer in present else None
    both = len(communication.members) == 2 and all(member in present for member in communication.members)
    return f"{communication.members[0]} and {communication.members[1]}" if both else None


def _apart(collectives: Collectives, names: Sequence[int]) -> Collectives:
    """The same, where ranks that were not in one collective are told apart; `names` are the ranks of the traces."""
    alike = [
        key for key in collectives if key.group == UNNAMED or (key.does == EXCHANGE and not key.group.startswith(ALONE))
    ]
    for keys in grouped_by(alike, lambda key: (key.step, key.group, key.does)).values():
        whole = [key for key in keys if len(collectives[key]) == (2 if key.does == EXCHANGE else len(names))]
        together = [key for key in whole if _overlap(collectives[key])]
        if len(whole) < len(keys) or len(together) < SHARED * len(keys):
            for key in keys:
                for member in collectives.pop(key):
                    collectives[key._replace(group=f"{key.group} on rank {names[member.rank]}".strip())] = [member]
    return collectives


def _overlap(members: Sequence[Member]) -> bool:
    return max(member.start for member in members) <= min(member.end for member in members)


def clock_offsets(collectives: Collectives, ranks: int) -> list[int]:
    """Nanoseconds to add to the times of each rank: none, unless collectives end further apart than they take."""
    together: dict[tuple[int, int], list[int]] = {}
    messages: dict[tuple[int, int], list[int]] = {}
    for key, members in collectives.items():
        pairs = together if key.does in TOGETHER else messages if key.does == EXCHANGE else {}
        for member in members[1:]:
            pairs.setdefault((members[0].rank, member.rank), []).append(members[0].end - member.end)
    differences = [{pair: int(median(each)) for pair, each in by.items()} for by in (together, messages)]
    offsets, _ = connected(differences, ranks)
    transfers = [
        max(m.end + offsets[m.rank] for m in members) - max(m.start + offsets[m.rank] for m in members)
        for key, members in collectives.items()
        if key.does in TOGETHER and len(members) > 1
    ]
    usual = median(transfers) if transfers else 0
    return offsets if max(map(abs, offsets)) > max(usual, 1) else [0] * ranks


def connected(differences: Sequence[Mapping[tuple[int, int], int]], ranks: int) -> tuple[list[int], list[int]]:
    """The offset of each rank to the first that it is connected with, and that one; earlier differences count more."""
    offset, part = [0] * ranks, list(range(ranks))
    for by_pair in differences:
        for (this, other), difference in by_pair.items():
            if part[this] == part[other]:
                continue
            moved = offset[this] + difference - offset[other]  # other ends together with this
            first, second = sorted((part[this], part[other]))
            if part[other] == first:
                moved = -moved
            for rank in range(ranks):
                if part[rank] == second:
                    offset[rank] += moved
                    part[rank] = first
    return offset, part
