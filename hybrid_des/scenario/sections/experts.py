"""The section that says how tokens travel to their experts, and what it must agree on with others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from hybrid_des.collectives.buffer import MOST_CHANNELS
from hybrid_des.options import Factor, Flag, Number, Section, choice, whole
from hybrid_des.scenario.problem import Problem, misfit

if TYPE_CHECKING:
    from hybrid_des.scenario.sections.training import Overlap, Parallel


class ExpertTraffic(Section):
    """How tokens travel to their experts and back."""

    dispatcher: Annotated[Literal["per-node", "all-to-all"], choice("per-node", "all-to-all")] = "per-node"
    """per-node: a token crosses the network once per node with any of its experts; all-to-all: once per expert."""
    dispatch: Annotated[Literal["bf16", "fp8"], choice("bf16", "fp8")] = "bf16"
    """Elements on the way to experts, and of gradients that retrace the way back; the other two ways have 16 bits."""
    channels: Annotated[int, whole(1, MOST_CHANNELS)] | None = None
    """per-node: ranks of each node that take in tokens from other nodes. Default: all of the group's."""
    concentration: Factor | None = None
    """Dirichlet parameter per expert from which each layer's shares of tokens are drawn; none: all are equal."""
    loads: tuple[Number, ...] = ()
    """Tokens of each expert, relative or absolute, in all layers, instead of `concentration`."""
    streams: Flag = False
    """Whether exchanges run on a stream of their own, beside the computation of a fused pair's other op."""
    delay_weight: Flag = False
    """With streams: whether weight gradients are computed while gradients travel back from the experts."""
    multiprocessors: Annotated[int, whole(0, 2**10)] | None = None
    """Multiprocessors that an exchange takes from computation beside it. Default: `efficiency.slowed` applies."""


def misfits_of_experts(parallel: Parallel) -> Iterator[Problem]:
    """Groups of experts that ranks cannot form."""
    layout = parallel.layout
    if parallel.tensor % parallel.of_expert:
        message = f"{parallel.tensor} tensor ranks cannot be grouped by {parallel.of_expert}"
        yield misfit(message, "parallel.expert_tensor", "parallel.tensor")
        return
    holders, along = parallel.data * parallel.context, "data and context"
    if layout.across_tensor:
        holders, along = holders * parallel.tensor // parallel.of_expert, "tensor, data and context"
    if holders % parallel.expert:
        message = f"{holders} ranks along {along} cannot be grouped by {parallel.expert}"
        yield misfit(message, "parallel.expert", "parallel.data", "parallel.context")
    if layout.across_tensor and not parallel.sequence:
        message = "tensor ranks with different experts send different tokens; expected true"
        yield misfit(message, "parallel.sequence", "parallel.expert_tensor")
    if layout.across_tensor and layout.strides["tensor"] > min(layout.strides["data"], layout.strides["context"]):
        message = "experts are divided over neighbouring tensor ranks; expected tensor before data and context"
        yield misfit(message, "parallel.order", "parallel.expert_tensor")


def misfits_of_streams(
    experts: ExpertTraffic, overlap: Overlap, recompute: object, *, layered: bool
) -> Iterator[Problem]:
    """Values that contradict `experts.streams`; `layered`: whether ops communicate layer by layer."""
    if not experts.streams:
        if experts.delay_weight:
            yield misfit("is read with `experts.streams` only", "experts.delay_weight", "experts.streams")
        return
    if overlap.experts:
        yield misfit("follows from `experts.streams`; give only one of the two", "overlap.experts", "experts.streams")
    if overlap.weight_gradients and experts.delay_weight:
        message = "computes weight gradients later, so that they overlap no reduction; give only one of the two"
        yield misfit(message, "experts.delay_weight", "overlap.weight_gradients")
    if recompute == "full":
        yield misfit("repeats exchanges, which streams do not; expected none or selective", "recompute")
    if layered:
        yield misfit("communicates layer by layer; expected none or zero-1", "sharding", "experts.streams")


def misfits_of_loads(experts: ExpertTraffic, counts: set[int]) -> Iterator[Problem]:
    """Tables of tokens per expert that do not fit the model, whose layers have these numbers of experts."""
    if experts.concentration is not None and experts.loads:
        yield misfit("replaces `concentration`; give only one of the two", "experts.loads", "experts.concentration")
    given = "experts.loads" if experts.loads else "experts.concentration"
    if not counts and (experts.loads or experts.concentration):
        yield misfit("this model has no experts", given, "model")
    elif experts.loads and (counts != {len(experts.loads)} or not any(experts.loads)):
        expected = " or ".join(map(str, sorted(counts)))
        yield misfit(f"{len(experts.loads)} numbers; expected {expected}, not all 0", "experts.loads", "model")
