"""Costs alone, without simulating a step: of a micro-batch per stage, layer and operation; of collectives by size.

costs(load("scenarios/a100_8x.yaml"))[["stage", "forward_s", "parameters"]]
collective("ring", "scenarios/h100_2x8.yaml", sizes=["1 MB", "1 GB"])[["bytes", "time_us"]]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hybrid_des.cost_model.basis import CostBasis
from hybrid_des.cost_model.costing import layer_parts
from hybrid_des.cost_model.layer_costs import Exchange
from hybrid_des.cost_model.modelled import keeping
from hybrid_des.cost_model.pipeline_ranks import costs_per_rank
from hybrid_des.cost_model.rank_costs import RankCosts, StageCosts
from hybrid_des.cost_model.stages import costs_of, model_stages
from hybrid_des.errors import UsageError
from hybrid_des.pipeline.plan import Plan
from hybrid_des.planning.lowering import planned_peaks
from hybrid_des.planning.planner import build_plan
from hybrid_des.planning.wiring import fabric_of, times_of
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.loading import Source, load
from hybrid_des.scenario.overrides import Overrides
from hybrid_des.units import PICOSECONDS_PER_SECOND, format_bytes
from hybrid_des.workload.models.operations import (
    Attention,
    Elementwise,
    Gemm,
    Kernel,
    Operation,
    Scan,
    Scores,
    SelectiveAttention,
)

if TYPE_CHECKING:
    import pandas as pd

TOTAL, COLLECTIVES = "total", "collectives"  # rows of a layer; the second follows the name of an axis


def costs(scenario: Source, layers: bool = False, *, overrides: Overrides = ()) -> pd.DataFrame:
    """The costs of one micro-batch on a rank, in seconds and bytes.

    Times of stages are computation only. `{axis}_exposed_s` and `{axis}_hidden_s` are collectives along an axis, in a
    forward and a backward together, and `{axis}_slowed_s` is how much they slow the computation that overlaps them;
    `state_bytes` is parameters, gradients and optimizer state; `kept_bytes` the activations kept from a forward to its
    backward; `peak_bytes` the peak memory of the whole rank.

    Args:
        scenario: any scenario, the path of its file, or a mapping; for a workload, costs are as given.
        layers: a row per layer and operation instead of one per stage. Collectives are rows too; their time in a
            backward is in `input_gradient_s`. The row `total` is the sum of the layer.
        overrides: changes to it, such as ["schedule.kind=gpipe"] or {"schedule.kind": "gpipe"}.

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

    scenario = load(scenario, overrides)
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
        parameters = cost.states.parameters + cost.states.experts
        resident = None if ranks.stages else round(ranks.per_parameter[rank] * parameters)
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
    by_axis = {traffic.axis: traffic for traffic in cost.traffic}
    times = {
        f"{axis}_{kind}_s": getattr(by_axis[axis], kind) if axis in by_axis else 0
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
        position = {"stage": stage, "layer": layer.name}
        for operation, times in parts.operations:
            if not any(times):
                continue  # of a list for other software
            yield {**position, "operation": operation.name, "what": described(operation), **_columns(*times)}
        for traffic in cost.traffic:
            sent = [one for one in (*parts.forward, *parts.backward) if one.axis == traffic.axis]
            waits = (traffic.forward / PICOSECONDS_PER_SECOND, traffic.backward / PICOSECONDS_PER_SECOND, 0.0)
            yield {
                **position,
                "operation": f"{traffic.axis} {COLLECTIVES}",
                "what": _exchanged(sent),
                **_columns(*waits),
            }
        if parts.again:
            levels = "+".join([scenario.recompute] if isinstance(scenario.recompute, str) else scenario.recompute)
            yield {**position, "operation": "again", "what": f"recompute {levels}", **_columns(0.0, parts.again, 0.0)}
        whole = (time / PICOSECONDS_PER_SECOND for time in (cost.forward, cost.time("I"), cost.weight))
        yield {**position, "operation": TOTAL, "what": "", **_columns(*whole), **_sizes(cost)}


def _columns(*times: float) -> dict[str, float]:
    """Seconds, as columns; those of a whole layer include its collectives and recomputation."""
    return dict(zip(("forward_s", "input_gradient_s", "weight_gradient_s"), times, strict=True))


def _sizes(cost: StageCosts, resident: int | None = None) -> dict[str, int]:
    return {
        "message_bytes": cost.message,
        "parameters": cost.states.parameters + cost.states.experts,
        "state_bytes": cost.states.resident if resident is None else resident,
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
        met = f" of at most {operation.keys:,}" if isinstance(operation, SelectiveAttention) else ""
        return f"{kind}, {operation.heads} heads of {operation.key_size}, {operation.sequence:,} keys{met}"
    if isinstance(operation, Scores):
        return f"{operation.heads} heads of {operation.size}, {operation.keys:,} keys, on every tensor rank"
    if isinstance(operation, Elementwise):
        return f"moves {format_bytes(operation.forward)} and {format_bytes(operation.backward)} per token"
    if isinstance(operation, Scan):
        return f"{float(operation.flop):.4g} FLOP per token, {operation.heads} heads"
    assert isinstance(operation, Kernel)
    return f"{float(operation.flop):.4g} FLOP, {format_bytes(operation.bytes)} per token"


def _exchanged(exchanges: Sequence[Exchange]) -> str:
    """A layer's collectives along one axis, forward and backward together."""
    counts: Counter[tuple[str, int]] = Counter()
    for exchange in exchanges:
        counts[exchange.does, exchange.size] += exchange.repeats
    return ", ".join(f"{count} × {does} of {format_bytes(size)}" for (does, size), count in counts.items())
