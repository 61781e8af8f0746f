"""Recorded times of collectives on another number of ranks.

A ring of n ranks sends 2(n − 1)/n of a buffer around in an all-reduce, (n − 1)/n in an all-gather, a reduce-scatter or
an all-to-all (Patarasuk and Yuan, Journal of Parallel and Distributed Computing 69, 2009; `busbw` of nccl-tests). With
the same bytes and links, times are in these ratios. Latencies, and links between more nodes, are not in them.
"""

from fractions import Fraction

from hybrid_des.interchange.profiles.graph import EVERYBODY, Node
from hybrid_des.scenario.definition import Scenario

AROUND = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")  # what moves (n − 1)/n of a buffer


def scale_of(does: str, recorded: int | None, ranks: int) -> Fraction:
    """Time of a collective on so many ranks, over that on the recorded number; 1 if that is not known."""
    if does not in AROUND or recorded is None or recorded < 2 or ranks < 2:
        return Fraction(1)
    return Fraction(ranks - 1, ranks) / Fraction(recorded - 1, recorded)


def recorded_time(node: Node, traces: int, scenario: Scenario) -> int:
    """Picoseconds of a collective that takes its recorded time, in a scenario of so many traces; 0: it is simulated."""
    workload = scenario.workload
    assert workload is not None
    kept = workload.transfers == "recorded" or bool(node.place.get("given"))
    if not node.duration or (node.size and not kept):
        return 0
    recorded = traces if traces > 1 else workload.recorded_ranks
    scale = scale_of(node.does, recorded, scenario.parallel.ranks) if node.group == EVERYBODY else 1
    return round(node.duration * scale)
