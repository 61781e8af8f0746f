"""An all-reduce with times from a table of measurements (`hybrid-des calibrate`, nccl-tests).

    all members rendezvous; the measured time starts when the last one arrives; then all have the sum
    no link is used, so other traffic neither delays it nor is delayed; for that, calibrate the links
    instead (`hybrid-des calibrate --link`)

Every member encodes its buffer once, and the sum once.
"""

from hybrid_des.cluster.link_figures import AllReduceTable
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.group import Group, Routine
from hybrid_des.collectives.permutation import any_order
from hybrid_des.collectives.registration import collective
from hybrid_des.errors import Refusal
from hybrid_des.options import Options


class Measured(Options):
    """Measurements of an all-reduce."""

    table: AllReduceTable
    """A CSV file of buffer sizes and times, as written by `hybrid-des calibrate`; implies `algorithm: measured`."""


@collective("measured", summary="times from a table of measurements", options=Measured, images=any_order)
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
