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
    END_OF_STEP,
    LATENCY,
    PARTS,
    PHASES,
    QUEUEING,
    TRANSFER,
    drawn_pieces,
    first_from,
    idle_pieces,
)
from hybrid_des.analysis.step_times import total
from hybrid_des.cluster.purposes import ACTIVATION
from hybrid_des.planning.program_table import NONE, Column, Columns
from hybrid_des.simulation.outcome import Run

Parts = dict[str, int]  # reason → picoseconds of all ranks


def waiting(run: Run) -> tuple[Parts, Parts]:
    """Split the time that ranks wait for other ranks, at the end of a step too, and for pipeline messages.

    The latter is empty if no messages were recorded, if sends block, or if a rank's ops also wait for collectives.
    """
    timeline = run.timeline
    pieces = idle_pieces(timeline)
    drawn = drawn_pieces(timeline, pieces)
    took = drawn["end"] - drawn["start"]
    ranks = {name: total(took[drawn["cause"] == PARTS.index(name)]) for name in (*PHASES, END_OF_STEP)}
    blocking, others = run.scenario.schedule.p2p == "blocking", len(timeline.waits["rank"])
    if timeline.messages is None or run.fabric is None or blocking or others:
        return ranks, {}
    mine = pieces["cause"] == CAUSES.index(ACTIVATION.cause)
    return ranks, _of_messages(run, {name: column[mine] for name, column in pieces.items()})


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
    """Receiver, arrival, transfer and latency of each pipeline message."""
    timeline = run.timeline
    rows = timeline.messages_of(lambda channel: channel.stage == NONE)
    table = timeline.routed(rows)
    there, channel = table >= 0, rows["channel"][table]
    took = rows["end"] - rows["start"]
    transfer = np.where(there, took[table], 0).max(axis=1, initial=0)
    if timeline.fair:
        link = timeline.of_channel["link"][rows["channel"]]
        alone = service_alone(run.fabric, timeline.links, link, rows["bytes"])
        transfer = np.minimum(np.where(there, alone[table], 0).max(axis=1, initial=0), transfer)
    latency = np.where(there, timeline.of_channel["latency"][channel], 0).sum(axis=1)
    return timeline.of_channel["receiver"][channel[:, 0]], timeline.arrival(rows, table), transfer, latency
