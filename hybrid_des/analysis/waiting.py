"""The idle time of a run in finer parts than the summary's causes, from its rows alone.

    dependency         warm-up (until a rank's first backward), drain (after its last forward), and the rest between
    pipeline_message   the latency and transfer of the message that ended the wait; before these, queueing

`explain` knows more, since it records what released everything; here nothing is simulated again.
"""

from __future__ import annotations

import numpy as np

from hybrid_des.analysis.critical_path.messages import service_alone
from hybrid_des.analysis.idle import (
    CAUSES,
    DEPENDENCY,
    DRAIN,
    LATENCY,
    QUEUEING,
    REASONS,
    STEADY,
    TRANSFER,
    WARM_UP,
    first_from,
    idle_pieces,
)
from hybrid_des.analysis.step_times import total
from hybrid_des.network.fabric import Fabric
from hybrid_des.network.purpose import ACTIVATION
from hybrid_des.simulation.run import Run
from hybrid_des.timeline import NONE, Column, Columns, Timeline

Parts = dict[str, int]  # reason → picoseconds of all ranks


def waiting(run: Run) -> tuple[Parts, Parts]:
    """Split the time that ranks wait for other ranks, and for pipeline messages; the latter is empty if unknown.

    It is unknown if no messages were recorded, if sends block, or if a rank's ops also wait for collectives.
    """
    timeline = run.timeline
    pieces = idle_pieces(timeline)
    took = np.where(pieces["cause"] == CAUSES.index(DEPENDENCY), pieces["end"] - pieces["start"], 0)
    dependency = {name: total(took[pieces["reason"] == REASONS.index(name)]) for name in (WARM_UP, STEADY, DRAIN)}
    blocking, others = run.scenario.schedule.p2p == "blocking", len(timeline.waits["rank"])
    if timeline.messages is None or run.fabric is None or blocking or others:
        return dependency, {}
    mine = pieces["cause"] == CAUSES.index(ACTIVATION.cause)
    return dependency, _of_messages(run, {name: column[mine] for name, column in pieces.items()})


def _of_messages(run: Run, pieces: Columns) -> Parts:
    """The waits for messages by the state of the last message to arrive."""
    receiver, arrival, transfer, latency = _arrivals(run)
    wait = pieces["end"] - pieces["start"]
    if not len(wait) or not len(arrival):
        return {}
    message = first_from((receiver, arrival), (pieces["rank"], pieces["released"]))
    known = (receiver[message] == pieces["rank"]) & (arrival[message] == pieces["released"])
    late = np.where(known, np.minimum(latency[message], wait), 0)
    moving = np.where(known, np.minimum(transfer[message], wait - late), 0)
    return {QUEUEING: total(wait - late - moving), TRANSFER: total(moving), LATENCY: total(late)}


def _arrivals(run: Run) -> tuple[Column, Column, Column, Column]:
    """Receiver, arrival, transfer and latency of each pipeline message (`network.sharing` has the formula)."""
    timeline = run.timeline
    rows = timeline.messages_of(lambda channel: channel.stage == NONE)
    channel = rows["channel"]
    if not len(channel):
        return channel, channel, channel, channel
    hops = np.array([one.hop for one in timeline.channels])
    order = np.argsort(channel, kind="stable")
    of = channel[order]
    turn = np.arange(len(of)) - np.searchsorted(of, of)  # the n-th message of a flow is the n-th on each of its links
    flow, hop = of - hops[of], hops[of]
    place = np.lexsort((hop, turn, flow))
    first = np.flatnonzero(hop[place] == 0)
    length = np.diff(np.append(first, len(place)))
    table = np.full((len(first), int(length.max())), NONE)
    table[np.repeat(np.arange(len(first)), length), hop[place]] = order[place]
    here = table >= 0
    asked, start, end = (np.where(here, rows[name][table], 0) for name in ("asked", "start", "end"))
    flows = flow[place][first]
    latency = _latencies(run, flows, table.shape[1])
    each, last = np.arange(len(first)), length - 1
    receiver = np.array([one.receiver for one in timeline.channels])[flows]
    if run.scenario.cluster.sharing == "fair":
        assert run.fabric is not None
        arrival = end[:, 0] + latency.sum(axis=1)
        alone = np.where(here, _alone(run.fabric, timeline, channel, rows["bytes"])[table], 0).max(axis=1)
        return receiver, arrival, np.minimum(alone, end[:, 0] - start[:, 0]), latency.sum(axis=1)
    slowest = np.maximum.accumulate(np.where(here, end - start, 0), axis=1)
    before = np.where(last > 0, slowest[each, np.maximum(last - 1, 0)], 0)
    arrival = np.maximum(end[each, last], asked[each, last] + before) + latency[each, last]
    return receiver, arrival, slowest[:, -1], latency.sum(axis=1)


def _latencies(run: Run, flows: Column, most: int) -> Column:
    """Message × link: the latency after each link of its route."""
    assert run.fabric is not None
    found = np.zeros((len(run.timeline.channels), most), dtype=np.int64)
    for one in np.unique(flows).tolist():
        channel = run.timeline.channels[one]
        latencies = run.fabric.route(channel.sender, channel.receiver).latencies
        found[one, : len(latencies)] = latencies
    return np.asarray(found[flows])


def _alone(fabric: Fabric, timeline: Timeline, channel: Column, size: Column) -> Column:
    """Picoseconds that each row's message takes if nothing else uses its link."""
    links = sorted({one.link for one in timeline.channels})
    number = {name: place for place, name in enumerate(links)}
    link_of = np.array([number[one.link] for one in timeline.channels])
    return service_alone(fabric, links, link_of[channel], size)
