"""Placements of experts: a registered function says which experts each rank holds, given how many tokens want each.

    from hybrid_des.workload.placements import Placement, Wanted, placement

    @placement("mine", summary="…")
    def mine(wanted: Wanted) -> Placement: ...

An expert may be on several ranks: its copies share its tokens evenly. Options extend a scenario's `experts`; an option
`replan` is the number of steps after which experts are placed anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import index
from typing import Any, NamedTuple

from hybrid_des.errors import UsageError
from hybrid_des.options import Options
from hybrid_des.registry import Registry

Placement = tuple[tuple[int, ...], ...]  # rank → its experts; all ranks hold as many
Builder = Callable[..., Placement]  # (wanted[, options]) → placement

STATIC = "static"
_REGISTRY: Registry[Builder] = Registry("placement", "hybrid_des.workload.placements", returns=tuple)

names = _REGISTRY.names
find = _REGISTRY.__getitem__


class Wanted(NamedTuple):
    """What a placement goes by.

    Attributes:
        loads: tokens of each expert, relative to the mean.
        nodes: the node of each rank that shares the experts.
        groups: groups of neighbouring experts, of which a token uses some; 1 if there are none.
    """

    loads: tuple[float, ...]
    nodes: tuple[int, ...]
    groups: int = 1

    @property
    def in_order(self) -> Placement:
        """Equal numbers of neighbouring experts on each rank."""
        each = len(self.loads) // len(self.nodes)
        return tuple(tuple(range(rank * each, (rank + 1) * each)) for rank in range(len(self.nodes)))


def placement(name: str, *, summary: str, options: type[Options] | None = None) -> Callable[[Builder], Builder]:
    """Register a placement.

    Args:
        name: value of a scenario's `experts.placement`.
        summary: one-line description.
        options: class of its options; an instance is the function's second argument.
    """
    return _REGISTRY(name, options, summary=summary)


def placed(name: str, wanted: Wanted, options: Options | Mapping[str, Any] | None = None) -> Placement:
    """Where a placement puts experts.

    Raises:
        Refusal: it does not support these sizes.
        UsageError: a rank has more experts than another, or an expert is nowhere.
    """
    entry = find(name)
    built = entry.build(wanted, *entry.arguments(options))
    try:
        experts_of: Placement = tuple(tuple(map(index, held)) for held in built)
    except TypeError:
        raise UsageError(f'placement "{name}": expected the numbers of its experts for each rank') from None
    ranks, experts = len(wanted.nodes), range(len(wanted.loads))
    if len(experts_of) != ranks or len({len(held) for held in experts_of}) != 1:
        sizes = ", ".join(str(len(held)) for held in experts_of)
        raise UsageError(f'placement "{name}": expected equal numbers of experts on {ranks} ranks, found {sizes}')
    held = {expert for of_rank in experts_of for expert in of_rank}
    if lost := [expert for expert in experts if expert not in held]:
        raise UsageError(f'placement "{name}": expert {lost[0]} is on no rank')
    if strange := sorted(held - set(experts)):
        raise UsageError(f'placement "{name}": there is no expert {strange[0]}; they are 0 … {experts[-1]}')
    return experts_of
