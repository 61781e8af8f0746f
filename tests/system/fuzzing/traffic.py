"""Checks of the messages in a timeline: routes, links, and rings."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from typing import Any

from system.fuzzing.facts import SECOND
from system.fuzzing.recount import Recount, Row

PIPELINE = ("activation", "gradient")


def links(one: Recount) -> Iterator[str]:
    """No link carries more than it can, and under `fifo` each serves one message at a time, in order, never idle."""
    lanes = defaultdict(list)
    for row in one.messages:
        lanes[row.lane].append(row)
    for lane, rows in lanes.items():
        if one.fifo:
            rows.sort(key=lambda row: (row.start, row.end, row.asked))
            for row in rows:
                if row.end - row.start != (time := one.wiring.time(lane, row.bytes)):
                    yield f"{lane}: {row.bytes} bytes take {row.end - row.start} ps, not {time}"
            free = 0
            for row in rows:
                if row.start != max(row.asked, free):
                    yield f"{lane}: a message is served at {row.start}, not at {max(row.asked, free)}"
                free = row.end
            if any(a.asked > b.asked for a, b in pairwise(rows)):
                yield f"{lane}: messages are not served in order of arrival"
        else:
            yield from _within_bandwidth(one, lane, rows)


def _within_bandwidth(one: Recount, lane: str, rows: list[Row]) -> Iterator[str]:
    """In no span of time do messages that lie wholly in it hold more bytes than the link moves in that time."""
    bandwidth = one.wiring.bandwidth(lane)
    if bandwidth is None:
        return
    rows.sort(key=lambda row: row.end)
    starts = sorted({row.start for row in rows})
    for start in starts[:: max(1, len(starts) // 20)]:
        carried = Fraction(0)  # bytes less half a picosecond's worth for each message, whose end is rounded
        for row in rows:
            carried += row.bytes - bandwidth / (2 * SECOND) if row.start >= start else 0
            if carried > 0 and (row.end - start + 1) * bandwidth < carried * SECOND:
                yield f"{lane}: {row.end - start} ps for {float(carried)} bytes"
                return


def shapes(one: Recount) -> Iterator[str]:
    """Every message is of a stage that exists, on the links of its route, and as often on each of them."""
    hops: Counter[tuple[object, ...]] = Counter()
    for row in one.messages:
        hops[row.step, row.rank, row.peer, row.kind, row.stage, row.microbatch, row.bytes, row.hop] += 1
        if not 0 <= row.stage < one.facts.stages or not 0 <= row.step < one.facts.steps:
            yield f"a message of step {row.step}, stage {row.stage}"
        if row.rank in one.facts.place_of and one.facts.place_of[row.rank] != (row.replica, row.pipeline_rank):
            yield f"rank {row.rank} as replica {row.replica}, pipeline rank {row.pipeline_rank}"
        if {row.rank, row.peer} <= one.facts.place_of.keys():
            way = one.wiring.route(row.rank, row.peer)
            if row.hop >= len(way) or way[row.hop][0] != row.lane:
                yield f"rank {row.rank} to rank {row.peer}: hop {row.hop} on {row.lane}"
        elif row.kind in (*PIPELINE, "ring"):
            yield f"a {row.kind} message from rank {row.rank} to rank {row.peer}"
        around = rings(one, row.stage) if row.kind == "ring" and 0 <= row.stage < one.facts.stages else []
        if around and row.peer not in [_right(members, row.rank) for members in around]:
            yield f"stage {row.stage}: rank {row.rank} sends to rank {row.peer} in rings of {around}"
    for (*message, hop), count in hops.items():
        if hop and count != hops[(*message, 0)]:
            yield f"{message}: {hops[(*message, 0)]} at the first link, {count} at link {hop}"


def rings(one: Recount, stage: int) -> list[list[int]]:
    """The rings of a stage's gradients."""
    found = one.rings.get(stage)
    if found is None:
        channels = one.facts.values.get("gradients", {}).get("channels", "auto")
        found = one.rings[stage] = one.wiring.rings(one.facts.members(stage), channels)
    return found


def _right(members: list[int], rank: int) -> int | None:
    """The next member of a ring."""
    return members[(members.index(rank) + 1) % len(members)] if rank in members else None


def ring(one: Recount) -> Iterator[str]:
    """A ring of n ranks sends every gradient 2(n−1) times in all."""
    per_element = {"fp64": 8, "fp32": 4, "fp16": 2, "bf16": 2}.get(
        one.facts.values.get("gradients", {}).get("codec", "fp32")
    )
    counted = Counter()
    for row in one.messages:
        if row.kind == "ring" and row.hop == 0:
            counted[row.step, row.stage] += row.bytes
    for (step, stage), count in counted.items():
        times = 2 * (len(one.facts.members(stage)) - 1)
        exact = times * one.facts.parameters[stage] * (per_element or 0)
        if per_element and abs(count - exact) >= per_element * times:
            yield f"step {step}, stage {stage}: the ring sends {count} bytes, not {exact}"


def turns(one: Recount) -> Iterator[str]:
    """In a ring, a rank sends on as soon as it has received, and begins a bucket when the one before is complete.

    With several rings, of which a timeline does not say which a message belongs to, it is never ahead by more than one
    message on each.
    """
    flows: dict[tuple[int, ...], list[list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in sorted(one.messages, key=lambda row: (row.start, row.end, row.asked)):
        if row.kind == "ring":
            flows[row.step, row.rank, row.stage][row.hop].append(row)
    through: dict[tuple[int, int], int] = {}
    for (step, rank, stage), hops in sorted(flows.items(), key=lambda flow: (flow[0][:2], -flow[0][2])):
        around = rings(one, stage)
        group = around[0]
        if len(around) > 1:
            yield from _ahead(one, flows, (step, rank, stage), around)
            continue
        received = list(zip(*flows[step, group[group.index(rank) - 1], stage].values(), strict=False))
        arrivals = [one.arrival(sorted(message, key=lambda row: row.hop)) for message in received]
        turn = 2 * (len(group) - 1)
        if None in arrivals or len(arrivals) != len(hops[0]) or len(hops[0]) % turn:
            yield f"step {step}, stage {stage}: rank {rank} sends {len(hops[0])} messages and receives {arrivals}"
            continue
        for k, row in enumerate(hops[0]):
            before = max(arrivals[k - 1], hops[0][k - 1].asked) if k % turn else through.get((step, rank), 0)
            first = one.ops[step, rank][-1].end if not one.overlap and k % turn == 0 else 0
            if not one.facts.blocking and row.asked != max(before, first) and not (one.overlap and k % turn == 0):
                yield f"step {step}, stage {stage}: rank {rank} sends at {row.asked}, not at {max(before, first)}"
            if k % turn == turn - 1:
                through[step, rank] = max(arrivals[k], row.asked)


def _ahead(one: Recount, flows: Any, place: tuple[int, int, int], around: list[list[int]]) -> Iterator[str]:
    """A rank sends as often on all rings together as it receives, and at most one message on each before."""
    step, rank, stage = place
    left = {ring[ring.index(rank) - 1] for ring in around}
    arrivals, mine = [], 0
    for sender in left:
        hops = defaultdict(list)
        for hop, rows in flows[step, sender, stage].items():
            if to_rank := [row for row in rows if row.peer == rank]:  # ways to others may have more hops
                hops[hop] = to_rank
        found = [one.arrival(sorted(chain, key=lambda row: row.hop)) for chain in zip(*hops.values(), strict=False)]
        arrivals += found
        mine += len(found)
    sends = sorted(row.asked for row in flows[place][0])
    turn = 2 * (len(around[0]) - 1) * len(around)
    if None in arrivals or len(sends) != mine or mine % turn:
        yield f"step {step}, stage {stage}: rank {rank} sends {len(sends)} messages and receives {arrivals}"
        return
    arrivals.sort()
    for k, asked in enumerate(sends[len(around) :], start=len(around)):
        if asked < arrivals[k - len(around)]:
            yield f"step {step}, stage {stage}: rank {rank} sends at {asked}, before {arrivals[k - len(around)]}"
