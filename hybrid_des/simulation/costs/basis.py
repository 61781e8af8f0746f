"""What costs depend on: sections of a scenario, frozen, so that plans with equal ones share their costs."""

from __future__ import annotations

from typing import NamedTuple

from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.sections.cluster import Cluster
from hybrid_des.scenario.sections.efficiency import Efficiency
from hybrid_des.scenario.sections.experts import ExpertTraffic
from hybrid_des.scenario.sections.operators import Operators
from hybrid_des.scenario.sections.training import (
    ModelChoice,
    Offload,
    Overlap,
    Parallel,
    Schedule,
    Workload,
)


class CostBasis(NamedTuple):
    """The sections that costs are computed from, and single keys of others.

    Attributes:
        codec: of gradients, whose size in memory it determines.
        fused: whether gradients are accumulated inside products; None: unless in 16 bits.
        ordering: with a workload: the schedule, since durations may be given for every op.
        microbatch_size: with a model: samples.
        accumulates: whether gradients of several micro-batches are summed.
        chunked: whether the plan will say which stages a rank holds.
        loads_seed: where the loads of experts are drawn.
    """

    cluster: Cluster
    parallel: Parallel
    workload: Workload | None
    model: ModelChoice | None
    efficiency: Efficiency | None
    overlap: Overlap
    experts: ExpertTraffic
    layer_collectives: str
    offload: Offload
    cuda_graphs: str
    operators: Operators
    precision: str
    recompute: str | tuple[str, ...]
    recompute_layers: int | None
    sharding: str
    codec: str
    fused: bool | None
    ordering: Schedule | None
    microbatch_size: int
    accumulates: bool
    chunked: bool
    loads_seed: int

    @classmethod
    def of(cls, scenario: Scenario) -> CostBasis:
        """Those of a scenario."""
        schedule = scenario.schedule
        return cls(
            **{name: getattr(scenario, name) for name in cls._fields if name in type(scenario).model_fields},
            ordering=None if scenario.workload is None else schedule,
            codec=scenario.gradients.codec,
            fused=scenario.gradients.fused,
            microbatch_size=schedule.microbatch_size,
            accumulates=schedule.microbatches > 1,
            chunked=schedule.chunks > 1,
            loads_seed=scenario.seed if scenario.experts.concentration else 0,
        )

    @property
    def tokens(self) -> int:
        """Of a model: the tokens of a micro-batch on one rank."""
        assert self.model is not None
        return self.model.network.tokens * self.microbatch_size // self.parallel.context

    @property
    def regular(self) -> int:
        """The number of ranks that divide norms and residuals."""
        return self.parallel.tensor if self.parallel.sequence else 1
