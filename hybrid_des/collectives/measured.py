"""An all-reduce that takes the time that a table of measurements gives (`hybrid-des calibrate`, nccl-tests).

    all members meet; when the last one is there the measured time runs; then all have the sum
    no link carries anything: what else travels meanwhile is neither held up nor holds this up
    to have that, calibrate the links instead (`hybrid-des calibrate --link`)

Whatever the table says. Every member puts its buffer through the codec once, and so does everybody with the sum.
"""

from __future__ import annotations

from hybrid_des.collectives import collective
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.group import Group, Routine
from hybrid_des.errors import Refusal
from hybrid_des.network.figures import Table
from hybrid_des.options import Options


class Measured(Options):
    """The measurements."""

    table: Table
    """A CSV file buffer size → time, as `hybrid-des calibrate` makes; alone it stands for the algorithm."""


@collective("measured", summary="takes the time that a table of measurements gives", options=Measured)
def measured(group: Group, buffer: Buffer, options: Measured) -> Routine:
    """All-reduce `buffer` over the group.

    Raises:
        Refusal: the table was measured on another number of ranks.
    """
    table = options.table
    if table.ranks not in (None, group.size):
        raise Refusal(f"measured: {table.source} is for {table.ranks} ranks, this group has {group.size}")
    whole = buffer.split(1)
    first, *others = yield group.meet(whole.encode(0), table.time(buffer.bytes))
    whole.put(0, first)
    for message in others:
        whole.add(0, message)
    whole.agree(0)
