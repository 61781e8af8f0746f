"""Redundant: the most wanted experts are copied to other ranks, which share their tokens."""

from hybrid_des.errors import Refusal
from hybrid_des.options import Count, Options
from hybrid_des.workload.placements.packing import spread
from hybrid_des.workload.placements.registration import Placement, Wanted, placement


class Redundant(Options):
    """How many experts are copied, and when."""

    copies: Count
    """Copies in addition to the experts themselves, over all ranks that share them."""
    replan: Count | None = None
    """Steps after which experts are placed anew, by the loads seen so far. Default: placed once, by all of them."""


@placement("redundant", summary="copies of the most wanted experts on other ranks", options=Redundant)
def redundant(wanted: Wanted, options: Redundant) -> Placement:
    """Copies go to the expert with the most tokens per copy, one by one.

    Raises:
        Refusal: the copies cannot be divided over the ranks.
    """
    ranks, slots = len(wanted.nodes), len(wanted.loads) + options.copies
    if slots % ranks:
        raise Refusal(f"experts.copies: {slots} experts and copies cannot be divided evenly over {ranks} ranks")
    return spread(wanted, slots)
