"""Costs alone, without simulating a step: of a micro-batch per stage, layer and operation; of collectives by size.

costs(load("scenarios/a100_8x.yaml"))[["stage", "forward_s", "parameters"]]
collective("ring", "scenarios/h100_2x8.yaml", sizes=["1 MB", "1 GB"])[["bytes", "time_us"]]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hybrid_des import collectives
from hybrid_des.collectives import codecs
from hybrid_des.errors import Refusal, UsageError, one_line
from hybrid_des.folding.times import CollectiveTimes, Concurrent
from hybrid_des.layout import Layout
from hybrid_des.models import Attention, Elementwise, Gemm, Kernel
from hybrid_des.models.layer import Operation
from hybrid_des.options import plain
from hybrid_des.pipeline.plan import Plan
from hybrid_des.planning.lowering import planned_peaks
from hybrid_des.planning.planner import build_plan
from hybrid_des.planning.wiring import fabric_of, times_of
from hybrid_des.scenario import Scenario, Source, document_of, load, scenario_of
from hybrid_des.scenario.sizes import (
    MOST_MESSAGES,
    MOST_PAIRS,
    PAIRS,
    most_channels,
    reduction_messages,
    reduction_pairs,
)
from hybrid_des.units import PICOSECONDS_PER_SECOND, format_bytes, parse_quantity
from hybrid_des.workload.costs import CostBasis, RankCosts, StageCosts
from hybrid_des.workload.layer_costs import Exchange
from hybrid_des.workload.modelled import keeping, layer_parts
from hybrid_des.workload.stages import costs_of, costs_per_rank, model_stages

if TYPE_CHECKING:
    import pandas as pd


TOTAL, COLLECTIVES = "total", "collectives"  # rows of a layer; the second follows the name of an axis


def costs(scenario: Source, layers: bool = False) -> pd.DataFrame:
    """The costs of one micro-batch on a rank, in seconds and bytes.

    Times of stages are computation only. `{axis}_exposed_s` and `{axis}_hidden_s` are collectives along an axis, in a
    forward and a backward together, and `{axis}_slowed_s` is what they take from the computation beside them;
    `state_bytes` is parameters, gradients and optimizer state; `kept_bytes` the activations kept from a forward to its
    backward; `peak_bytes` the peak memory of the whole rank.

    Args:
        scenario: any scenario, the path of its file, or a mapping; for a workload, costs are as given.
        layers: a row per layer and operation instead of one per stage. Collectives are rows too; their time in a
            backward is in `input_gradient_s`. The row `total` is the sum of the layer.

    Raises:
        UsageError: `layers` is set, and the scenario has no model; or it has an execution trace instead of a schedule.
        Refusal: the model or the schedule does not support these sizes.

    Example:
        >>> from hybrid_des import costs
        >>> costs("scenarios/a100_8x.yaml")[["stage", "forward_s", "parameters", "peak_bytes"]]
           stage  forward_s  parameters  peak_bytes
        0      0       0.05   125000000  6800000000
        1      1       0.05   125000000  5600000000
        2      2       0.05   125000000  4400000000
        3      3       0.05   125000000  3200000000
    """
    import pandas as pd

    scenario = load(scenario)
    if layers and scenario.model is None:
        raise UsageError("a workload gives no layers; --layers needs a scenario with a model")
    if scenario.traced:
        raise UsageError(f"{scenario.name}: an execution trace gives no costs of stages; expected a schedule")
    fabric = fabric_of(scenario)
    ranks = costs_per_rank(CostBasis.of(scenario), times_of(scenario, fabric))
    plan = build_plan(scenario.schedule, scenario.parallel.layout, ranks, fabric)
    plan.check()
    rows = _layer_rows(scenario, ranks, plan) if layers else _stage_rows(scenario, ranks, plan)
    return pd.DataFrame(list(rows))


def _stage_rows(scenario: Scenario, ranks: RankCosts, plan: Plan) -> Iterator[dict[str, Any]]:
    whole = costs_of(ranks, plan)
    peaks = planned_peaks(plan, whole)
    sizes = {axis: getattr(scenario.parallel, axis) for axis in ("tensor", "context", "expert")}
    axes = [axis for axis, size in sizes.items() if size > 1]
    for (rank, chunk), stage in sorted(plan.stage_of.items(), key=lambda item: (item[1], item[0])):
        cost = whole.stages[rank, chunk]
        resident = None if ranks.stages else round(ranks.per_parameter[rank] * (cost.parameters + cost.experts))
        yield {
            "stage": stage,
            "pipeline_rank": rank,
            "chunk": chunk,
            **({"layers": len(cost.layers)} if ranks.stages else {}),
            **_times(cost),
            **_collectives(cost, axes),
            **_sizes(cost, resident),
            "peak_bytes": peaks[rank],
        }


def _times(cost: StageCosts) -> dict[str, float]:
    """Seconds of computation, without collectives; recomputation is separate."""
    forward = cost.forward - sum(traffic.forward for traffic in cost.traffic)
    inputs = cost.time("I") - cost.again - sum(traffic.backward for traffic in cost.traffic)
    times = {"forward": forward, "input_gradient": max(0, inputs), "weight_gradient": cost.weight}
    return {f"{name}_s": time / PICOSECONDS_PER_SECOND for name, time in {**times, "recomputed": cost.again}.items()}


def _collectives(cost: StageCosts, axes: Sequence[str]) -> dict[str, float]:
    found = {traffic.axis: traffic for traffic in cost.traffic}
    times = {
        f"{axis}_{kind}_s": getattr(found[axis], kind) if axis in found else 0
        for axis in axes
        for kind in ("exposed", "hidden", "slowed")
    }
    return {name: time / PICOSECONDS_PER_SECOND for name, time in times.items()}


def _layer_rows(scenario: Scenario, ranks: RankCosts, plan: Plan) -> Iterator[dict[str, Any]]:
    assert scenario.model is not None
    of_stages = [each.layers for each in model_stages(ranks, plan)]
    costs = [(stage, cost) for stage, layers in enumerate(of_stages) for cost in layers]
    basis = CostBasis.of(scenario)
    layers = zip(scenario.model.network.layers, layer_parts(basis), layer_parts(keeping(basis)), costs, strict=True)
    for layer, again, once, (stage, cost) in layers:
        parts = again if cost.again else once
        place = {"stage": stage, "layer": layer.name}
        for operation, times in parts.operations:
            yield {**place, "operation": operation.name, "what": described(operation), **_columns(*times)}
        for traffic in cost.traffic:
            sent = [one for one in (*parts.forward, *parts.backward) if one.axis == traffic.axis]
            waits = (traffic.forward / PICOSECONDS_PER_SECOND, traffic.backward / PICOSECONDS_PER_SECOND, 0.0)
            yield {**place, "operation": f"{traffic.axis} {COLLECTIVES}", "what": _exchanged(sent), **_columns(*waits)}
        if parts.again:
            levels = "+".join([scenario.recompute] if isinstance(scenario.recompute, str) else scenario.recompute)
            yield {**place, "operation": "again", "what": f"recompute {levels}", **_columns(0.0, parts.again, 0.0)}
        whole = (time / PICOSECONDS_PER_SECOND for time in (cost.forward, cost.time("I"), cost.weight))
        yield {**place, "operation": TOTAL, "what": "", **_columns(*whole), **_sizes(cost)}


def _columns(*times: float) -> dict[str, float]:
    """Seconds, as columns; those of a whole layer include its collectives and recomputation."""
    return dict(zip(("forward_s", "input_gradient_s", "weight_gradient_s"), times, strict=True))


def _sizes(cost: StageCosts, resident: int | None = None) -> dict[str, int]:
    return {
        "message_bytes": cost.message,
        "parameters": cost.parameters + cost.experts,
        "state_bytes": cost.resident if resident is None else resident,
        "kept_bytes": cost.kept,
        "transient_bytes": cost.transient,
    }


def described(operation: Operation) -> str:
    """Description of an operation: its work per token, before tensor ranks divide it."""
    if isinstance(operation, Gemm):
        count = f"{operation.count} × " if operation.count > 1 else ""
        divided = {"none": "", "sequence": ", by tokens"}.get(operation.split, f", by {operation.split}")
        return f"product {count}{operation.k:,} → {operation.n:,}{divided}"
    if isinstance(operation, Attention):
        kind = f"{'flash' if operation.flash else 'plain'}{', causal' if operation.causal else ''}"
        return f"{kind}, {operation.heads} heads of {operation.key_size}, {operation.sequence:,} keys"
    if isinstance(operation, Elementwise):
        return f"moves {format_bytes(operation.forward)} and {format_bytes(operation.backward)} per token"
    assert isinstance(operation, Kernel)
    return f"{float(operation.flop):.4g} FLOP, {format_bytes(operation.bytes)} per token"


def _exchanged(exchanges: Sequence[Exchange]) -> str:
    """A layer's collectives along one axis, forward and backward together."""
    counts: Counter[tuple[str, int]] = Counter()
    for one in exchanges:
        counts[one.does, one.size] += one.repeats
    return ", ".join(f"{count} × {does} of {format_bytes(size)}" for (does, size), count in counts.items())


# How long collectives take alone on the first ranks of a cluster, by the size of the buffer.


ALL = "all"
MOST_BYTES = 10**13
SIZES = tuple(2**power for power in range(10, 31, 2))  # 1 KiB … 1 GiB
PORT = {"bandwidth": "25 GB/s", "latency": "1 us"}


class BenchRow(NamedTuple):
    """One line of the table: bytes, elements, picoseconds; algorithm and bus bandwidth in GB/s; the collective."""

    size: int
    elements: int
    time: int
    algorithm: float
    bus: float
    name: str

    def columns(self) -> dict[str, Any]:
        """The row by the names of its columns, as in `collective.csv`."""
        return {"bytes": self.size, "time_us": self.time / 10**6, "algorithm_bandwidth_gb_per_s": self.algorithm,
                "bus_bandwidth_gb_per_s": self.bus, "algorithm": self.name}  # fmt: skip


class Bench(NamedTuple):
    """The setup of a benchmark: the first ranks of a scenario's cluster."""

    scenario: Scenario
    times: CollectiveTimes
    ranks: int

    @classmethod
    def of(cls, scenario: Scenario, name: str, sizes: int, ranks: int | None = None) -> Bench:
        """The setup for one collective, or all, and a number of sizes.

        Args:
            scenario: its cluster, and the options of its `gradients`.
            name: a collective, `auto` or `all`.
            sizes: the number of buffer sizes.
            ranks: the size of the group; default: all of the scenario.

        Raises:
            UsageError: the group is too small, larger than the cluster, or more than can be simulated.
        """
        ranks, gpus = scenario.parallel.ranks if ranks is None else ranks, scenario.cluster.gpus
        if ranks < 2:
            raise UsageError(f"--ranks {ranks}: a collective needs at least 2")
        if ranks > gpus:
            raise UsageError(f"--ranks {ranks}: the cluster of {one_line(scenario.name)} has {gpus} GPUs")
        tried, options = collectives.AUTO if name == ALL else name, dict(scenario.gradients.options or {})
        messages = sizes * reduction_messages(tried, ranks, options, most_channels(scenario))
        pairs = reduction_pairs(tried, ranks, options)
        for count, most, what in ((pairs, MOST_PAIRS, PAIRS), (messages, MOST_MESSAGES, f"messages for {sizes} sizes")):
            if count > most:
                many = f"{count:.3g} {what} are more than can be simulated (at most {most:.3g})"
                raise UsageError(f"--ranks {ranks}: {many}")
        layout, folded = Layout({"data": ranks}, ("data",)), scenario.fold != "off"
        return cls(scenario, CollectiveTimes(fabric_of(scenario), layout, scenario.cluster.alone, folded=folded), ranks)

    def row(self, name: str, size: int) -> BenchRow:
        """Measure one collective, or the fastest all-reduce for `auto`, with a buffer of so many bytes."""
        gradients = self.scenario.gradients
        codec = codecs.find(gradients.codec).build()
        elements = max(1, int(size / codec.bytes_per_element))
        asked = Concurrent([range(self.ranks)], [elements], codec, gradients.options)
        ran, outcome = self.times.fastest(asked) if name == collectives.AUTO else (name, self.times.of(name, asked))
        rate = size * 1000 / outcome.duration if outcome.duration else 0.0
        factor = collectives.bus_factor(collectives.find(ran).facts["does"], self.ranks)
        return BenchRow(size, elements, outcome.duration, rate, rate * float(factor), ran)

    def limit(self) -> float | None:
        """Bandwidth of the slowest link between neighbours of the group, in GB/s; None if all are infinite."""
        fabric = self.times.fabric
        routes = (fabric.route(rank, (rank + 1) % self.ranks) for rank in range(self.ranks))
        known = [fabric.links[link].bandwidth for route in routes for link in route.links]
        return min((float(one) / 1e9 for one in known if one is not None), default=None)


def behind_a_switch(ranks: int, per_node: int = 1, port: Mapping[str, str] = PORT, spare: int = 0) -> dict[str, Any]:
    """A scenario of one replica per rank, in nodes with one port per GPU on a non-blocking network.

    Args:
        ranks: the number of ranks.
        per_node: of these per node.
        port: `bandwidth` and `latency` of every port.
        spare: places for servers beside the ranks.
    """
    share = max(1, per_node)  # less is reported with the rest of the scenario
    return {
        "name": f"{ranks} ranks, {per_node} per node, {port['bandwidth']}, {port['latency']}",
        "cluster": {
            "nodes": max(1, -(-ranks // share) + -(-spare // share)),
            "gpus_per_node": per_node,
            "nvlink": {**port, "in_switch": per_node > 1},
            "infiniband": {**port, "nics_per_node": per_node},
        },
        "parallel": {"data": ranks},
        "schedule": {"kind": "gpipe", "microbatches": 1},
        "workload": {"forward": 0, "backward": 0},
        "gradients": {},
    }


def collective(
    name: str,
    scenario: Source | None = None,
    overrides: Sequence[str] = (),
    *,
    sizes: Sequence[int | str] = SIZES,
    ranks: int | None = None,
) -> pd.DataFrame:
    """Simulate a collective alone on idle links, for several sizes of the buffer.

    Args:
        name: a collective, such as `ring`; `auto` for the fastest all-reduce of each size; `all` for every all-reduce
            that the group and the wiring allow.
        scenario: the cluster on whose first ranks it runs: a scenario, the path of its file, or a mapping; its
            `gradients` do not count. Default: ranks on a non-blocking network, each with a port of 25 GB/s and 1 µs.
        overrides: strings such as "gradients.codec=fp16" or "cluster.infiniband.bandwidth=50 GB/s".
        sizes: of the buffer, in bytes or as "1 MiB".
        ranks: the size of the group; default: all of the scenario, or 8.

    Returns:
        One row per collective and size: `bytes`, `time_us`, `algorithm_bandwidth_gb_per_s`, `bus_bandwidth_gb_per_s`
        (nccl-tests, doc/PERFORMANCE.md), `algorithm`.

    Raises:
        ScenarioError: the scenario or an override is wrong.
        Refusal: the collective does not support the group or the wiring.
        UsageError: a size is wrong, or the group cannot be simulated.

    Example:
        >>> from hybrid_des import collective
        >>> table = collective("ring", ranks=8, sizes=["1 MiB", "1 GiB"])
        >>> table[["bytes", "time_us"]].round(1)
                bytes  time_us
        0     1048576     87.4
        1  1073741824  75175.9
        >>> collective("auto", "scenarios/h100_2x8.yaml", sizes=["64 KiB"]).algorithm[0]
        'recursive-doubling'
    """
    import pandas as pd

    if name not in (collectives.AUTO, ALL):
        collectives.find(name)
    many, ranks = [_bytes(size) for size in plain(sizes)], plain(ranks)
    document = document_of(behind_a_switch(8 if ranks is None else ranks) if scenario is None else scenario)
    algorithm = collectives.AUTO if name == ALL else name
    document.value["gradients"] = {"algorithm": algorithm} if algorithm in collectives.algorithms() else {}
    bench = Bench.of(scenario_of(document_of(document.value, overrides)), name, len(many), ranks)
    rows: list[BenchRow] = []
    for one in collectives.all_reduces(bench.scenario.gradients.options) if name == ALL else [name]:
        try:
            rows += [bench.row(one, size) for size in many]
        except Refusal:
            if name != ALL:
                raise
    return pd.DataFrame([row.columns() for row in rows])


def _bytes(size: int | str) -> int:
    try:
        count = int(parse_quantity(size, "size"))
    except ValueError as error:
        raise UsageError(f"sizes: {error}") from None
    if not 1 <= count <= MOST_BYTES:
        raise UsageError(f"sizes: {size}: expected from one byte to {MOST_BYTES:.0e}")
    return count
