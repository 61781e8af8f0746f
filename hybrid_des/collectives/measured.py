"""An all-reduce with times from a table of measurements (`hybrid-des measure`, or `measure --from` nccl-tests).

    all members rendezvous; the measured time starts when the last one arrives; then all have the sum
    no link is used, so other traffic neither delays it nor is delayed; for that, calibrate the links
    instead (`hybrid-des measure --from FILE --link`)

Every member encodes its buffer once, and the sum once.
"""

from hybrid_des.cluster.link_figures import AllReduceTable
from hybrid_des.cluster.time_table import CollectiveTable, TimeTable
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.group import Group, Routine
from hybrid_des.collectives.permutation import any_order
from hybrid_des.collectives.registration import collective
from hybrid_des.errors import Refusal
from hybrid_des.options import Options


class Measured(Options):
    """Measurements of an all-reduce."""

    table: AllReduceTable
    """A CSV file of times by size, written by `hybrid-des measure --from`, or by group too, by `measure`.

    Implies `algorithm: measured`."""


@collective("measured", summary="times from a table of measurements", options=Measured, images=any_order)
def measured(group: Group, buffer: Buffer, options: Measured) -> Routine:
    """All-reduce `buffer` over the group.

    Raises:
        Refusal: the table was measured on another number of ranks, or on one node only.
    """
    time = measured_time(options.table, group.size, len(set(group.nodes)), buffer.bytes)
    whole = buffer.split(1)
    first, *others = yield group.meet(whole.encode(0), time)
    whole.put(0, first)
    for message in others:
        whole.add(0, message)
    whole.agree(0)


def measured_time(table: TimeTable | CollectiveTable, ranks: int, nodes: int, size: int) -> int:
    """Picoseconds of an all-reduce over a group; the table of one group is for its number of ranks only.

    Raises:
        Refusal: the table has no such group.
    """
    if isinstance(table, CollectiveTable):
        time = table.time("all-reduce", ranks, nodes, size)
        if time is None:
            where = "on one node" if nodes == 1 else "that span nodes"
            raise Refusal(f"measured: {table.source} has no all-reduce of groups {where}")
        return time
    if table.ranks not in (None, ranks):
        raise Refusal(f"measured: {table.source} is for {table.ranks} ranks, this group has {ranks}")
    if table.nodes not in (None, nodes):
        raise Refusal(f"measured: {table.source} is for {table.nodes} nodes, this group is on {nodes}")
    return table.time(size)
