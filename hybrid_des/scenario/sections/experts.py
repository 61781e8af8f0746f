"""The section on experts: how tokens travel to them, how many want each, and where they are; what it must agree on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from hybrid_des.collectives.buffer import MOST_CHANNELS
from hybrid_des.options import Count, Factor, Flag, Number, Reads, choice, describe, read_quantity, whole
from hybrid_des.scenario.problem import Problem, misfit
from hybrid_des.scenario.sections.plugins import Plugins, PluginSection
from hybrid_des.scenario.sections.values import File, PlacementName
from hybrid_des.workload import placements
from hybrid_des.workload.expert_loads import WORKLOADS
from hybrid_des.workload.placements.registration import STATIC

if TYPE_CHECKING:
    from hybrid_des.scenario.sections.training import Overlap, Parallel


def _loads(value: object) -> Table:
    """A row of tokens per expert, rows for layers, or such rows for steps."""
    if value is None or value in ([], ()):
        return ()
    depth, inner = 0, value
    while isinstance(inner, Sequence) and not isinstance(inner, str) and inner:
        depth, inner = depth + 1, inner[0]
    if not 0 < depth <= 3:
        raise ValueError(f"expected a list of numbers, or a list of them per layer, found {describe(value)}")
    for _ in range(3 - depth):
        value = [value]
    return tuple(tuple(tuple(_row(row)) for row in _list(rows)) for rows in _list(value))


def _list(value: object) -> Sequence[object]:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise ValueError(f"expected nested lists by step, layer and expert, found {describe(value)}")
    return value


def _row(value: object) -> Iterator[Fraction]:
    row = [read_quantity(number, "number") for number in _list(value)]
    if not any(row):
        raise ValueError("expected numbers that are not all 0")
    yield from row


Table = tuple[tuple[tuple[Fraction, ...], ...], ...]


def _array(items: dict[str, object]) -> dict[str, object]:
    return {"type": "array", "items": items}


_ROW = _array({"type": "number", "minimum": 0})
LoadsTable = Annotated[Table, Reads(_loads, {"anyOf": [_ROW, _array(_ROW), _array(_array(_ROW))]})]
Named = Literal["W0", "W1", "W2", "W3", "W4", "W5", "W6", "W7"]


class ExpertTraffic(PluginSection):
    """How tokens travel to their experts and back, how many want each expert, and where experts are."""

    plugins: ClassVar[Plugins] = Plugins("placement", placements.names, placements.find, STATIC)
    dispatcher: Annotated[Literal["per-node", "all-to-all"], choice("per-node", "all-to-all")] = "per-node"
    """per-node: a token crosses the network once per node with any of its experts; all-to-all: once per expert."""
    library: Annotated[Literal["deepep", "hybridep"], choice("deepep", "hybridep")] = "deepep"
    """per-node: the library that sends tokens. hybridep: ranks first gather which experts tokens have, and tokens carry
    the router's weights of all experts of a node; its kernels reach 0.87 of a port within a node."""
    dispatch: Annotated[Literal["bf16", "fp8"], choice("bf16", "fp8")] = "bf16"
    """Elements on the way to experts, and of gradients that retrace the way back; the other two ways have 16 bits."""
    kernel: Annotated[Literal["per-expert", "fused"], choice("per-expert", "fused")] = "per-expert"
    """per-expert: a call of cuBLAS for each expert's GEMM, as by TransformerEngine; fused: one kernel for all.

    Default by `model.written`."""
    router: Annotated[Literal["fused", "eager"], choice("fused", "eager")] = "fused"
    """What chooses the experts: one kernel, or PyTorch's operators, as without Megatron-LM's `--moe-router-fusion`.

    Default by `model.written`."""
    channels: Annotated[int, whole(1, MOST_CHANNELS)] | None = None
    """per-node: ranks of each node that take in tokens from other nodes. Default: all of the group's."""
    concentration: Factor | None = None
    """Dirichlet parameter per expert from which each layer's shares of tokens are drawn; none: all are equal."""
    power_law: Number | None = None
    """Instead: the exponent α of a power law from which each layer's tokens per expert are drawn; 0: all are equal."""
    workload: Annotated[Named, choice(*WORKLOADS)] | None = None
    """Instead: one of the workloads of Megatron-LM's benchmark of unequally wanted experts, W0 … W7, in all layers."""
    loads: LoadsTable = ()
    """Instead: tokens of each expert, relative or absolute: one row for all layers, a row per layer with experts, or
    such rows per step, from the first one again after the last."""
    loads_file: File = None
    """Instead: a CSV file with such rows: optional columns `step` and `layer`, and a column per expert."""
    redraw: Count | None = None
    """With `concentration` or `power_law`: steps after which loads are drawn anew. Default: never."""
    capacity_factor: Factor | None = None
    """The most tokens that an expert takes, relative to the mean; further ones are dropped. Default: all."""
    pad: Flag = False
    """With `capacity_factor`: whether experts with fewer tokens are padded to it; needs dispatcher all-to-all."""
    placement: PlacementName = STATIC
    """Which ranks hold which experts."""
    streams: Flag = False
    """Whether all-to-alls run on a stream of their own, during the computation of a fused pair's other op."""
    delay_weight: Flag = False
    """With streams: whether weight gradients are computed while gradients travel back from the experts."""
    multiprocessors: Annotated[int, whole(0, 2**10)] | None = None
    """Multiprocessors that an all-to-all takes from simultaneous computation. Default: `efficiency.slowed` applies."""

    @property
    def sources(self) -> list[str]:
        """The keys that say how many tokens want each expert."""
        names = ("concentration", "power_law", "workload", "loads_file")
        return [name for name in names if getattr(self, name) is not None] + (["loads"] if self.loads else [])

    @property
    def moved(self) -> bool:
        """Whether a placement may put experts elsewhere than the model has them."""
        return self.placement != STATIC

    @property
    def unequal(self) -> bool:
        """Whether experts may be wanted unequally, dropped or padded, or elsewhere than the model has them."""
        return bool(self.sources) or self.capacity_factor is not None or self.moved

    @property
    def drawn(self) -> bool:
        """Whether loads are random."""
        return self.concentration is not None or self.power_law is not None

    @property
    def replan(self) -> int | None:
        """Steps after which experts are placed anew."""
        steps: int | None = getattr(self.options, "replan", None)
        return steps

    @property
    def varies(self) -> bool:
        """Whether steps may differ in how many tokens want each expert, or in where experts are."""
        several = len(self.loads) > 1 or self.loads_file is not None or self.redraw is not None
        return several or self.workload in ("W6", "W7") or self.replan is not None


def misfits_of_experts(parallel: Parallel, groups: int) -> Iterator[Problem]:
    """Groups of experts that ranks cannot form; each is within one of so many groups of replicas that learn apart."""
    layout = parallel.layout
    if parallel.tensor % parallel.of_expert:
        message = f"{parallel.tensor} tensor ranks cannot be grouped by {parallel.of_expert}"
        yield misfit(message, "parallel.expert_tensor", "parallel.tensor")
        return
    holders, along = parallel.data * parallel.context, "data and context"
    if layout.across_tensor:
        holders, along = holders * parallel.tensor // parallel.of_expert, "tensor, data and context"
    if holders % (parallel.expert * groups):
        apart = f", within each of {groups} groups of replicas (`gradients.every`)" if groups > 1 else ""
        message = f"{holders} ranks along {along} cannot be grouped by {parallel.expert}{apart}"
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
    if recompute == "full" or (isinstance(recompute, tuple) and "moe" in recompute):
        yield misfit(
            "repeats the all-to-alls, which streams do not model; expected none, selective or other modules",
            "recompute",
        )
    if layered:
        yield misfit("communicates layer by layer; expected none or zero-1", "sharding", "experts.streams")


def misfits_of_loads(experts: ExpertTraffic, counts: Sequence[int], expert: int, *, sends: bool) -> Iterator[Problem]:
    """Loads and placements that do not fit the model, and all keys that it does not read.

    Args:
        experts: the section.
        counts: numbers of experts of the layers whose routing is known.
        expert: ranks that share them.
        sends: whether any layer sends tokens to experts, such as one of a user's own kind whose routing is not known.
    """
    given = [f"experts.{name}" for name in experts.sources]
    for another in given[1:]:
        yield misfit(f"given with {given[0].partition('.')[2]}; give only one of the two", another, given[0])
    if not counts:
        usual, of_loads = ExpertTraffic(), (*experts.sources, "placement", "capacity_factor")
        for name in of_loads if sends else experts.own_keys():
            if getattr(experts, name) != getattr(usual, name):
                message = f"this model has no experts{' whose routing is known' if sends else ''}; expected no such key"
                yield misfit(message, f"experts.{name}", "model")
        return
    yield from _misfits_of_table(experts.loads, counts)
    if experts.redraw is not None and not experts.drawn:
        yield misfit("is read with `concentration` or `power_law` only", "experts.redraw", "experts.power_law")
    if experts.pad and experts.capacity_factor is None:
        yield misfit("is read with `capacity_factor` only", "experts.pad", "experts.capacity_factor")
    if experts.pad and experts.dispatcher != "all-to-all":
        yield misfit("travels with dispatcher all-to-all only", "experts.pad", "experts.dispatcher")
    if experts.moved and expert == 1:
        message = f"{experts.placement}: one rank holds all experts; expected several (parallel.expert), or static"
        yield misfit(message, "experts.placement", "parallel.expert")


def _misfits_of_table(loads: Table, counts: Sequence[int]) -> Iterator[Problem]:
    expected = " or ".join(map(str, sorted(set(counts))))
    for step, rows in enumerate(loads):
        where = f" at step {step}" if len(loads) > 1 else ""
        if len(rows) not in (1, len(counts)):
            message = f"{len(rows)} rows{where}; expected 1, or one for each of the {len(counts)} layers with experts"
            yield misfit(message, "experts.loads", "model")
            return
        for number, count in enumerate(counts):
            row = rows[number if len(rows) > 1 else 0]
            if len(row) != count:
                at = f" in row {number}{where}" if len(rows) > 1 else where
                message = f"{len(row)} numbers{at}; expected {count if len(rows) > 1 else expected}"
                yield misfit(message, "experts.loads", "model")
                return
