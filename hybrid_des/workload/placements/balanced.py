"""Balanced: each expert on one rank, so that all ranks serve about as many tokens; nothing is copied."""

from hybrid_des.options import Count, Options
from hybrid_des.workload.placements.packing import spread
from hybrid_des.workload.placements.registration import Placement, Wanted, placement


class Balanced(Options):
    """When experts move."""

    replan: Count | None = None
    """Steps after which experts are placed anew, by the loads seen so far. Default: placed once, by all of them."""


@placement("balanced", summary="experts on ranks so that all serve about as many tokens", options=Balanced)
def balanced(wanted: Wanted, options: Balanced) -> Placement:
    """The most wanted expert first, each on the rank that has the fewest tokens so far."""
    return spread(wanted, len(wanted.loads))
