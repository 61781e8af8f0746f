"""Static: equal numbers of neighbouring experts on each rank, whatever is wanted."""

from hybrid_des.workload.placements.registration import STATIC, Placement, Wanted, placement


@placement(STATIC, summary="neighbouring experts on each rank")
def static(wanted: Wanted) -> Placement:
    """Experts 0 … E/R − 1 on the first rank, and so on."""
    return wanted.in_order
