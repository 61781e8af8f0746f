"""What costs depend on: sections of a scenario, frozen, so that plans with equal ones share their costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from hybrid_des.cost_model.documents import Load, PackedSteps, packed_steps
from hybrid_des.cost_model.elementwise import is_array, quotients
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.sections.cluster import WIDE, Cluster
from hybrid_des.scenario.sections.efficiency import Efficiency
from hybrid_des.scenario.sections.experts import ExpertTraffic
from hybrid_des.scenario.sections.operators import Operators
from hybrid_des.scenario.sections.optimizer import Optimizer
from hybrid_des.scenario.sections.shards import Shards
from hybrid_des.scenario.sections.training import ModelChoice, Offload, Overlap, Parallel, Schedule, Workload
from hybrid_des.scenario.stacks import STACKS, framework_of
from hybrid_des.workload.models.operations import Attention, CoreForm, Scores


class Accumulation(NamedTuple):
    """How the gradients of micro-batches are summed.

    Attributes:
        codec: of gradients, whose size in memory it determines.
        fused: whether they are accumulated inside products; None: unless in 16 bits.
        several: whether there is more than one micro-batch.
        once: whether replicas that divide gradients do so once per step, until when whole ones are summed.
    """

    codec: str
    fused: bool | None
    several: bool
    once: bool


class LoadDraws(NamedTuple):
    """How the loads of experts are drawn.

    Attributes:
        seed: of the random numbers.
        steps: where steps differ in how many tokens want each expert, or in where experts are: their number.
        step: the one of these whose costs are meant.
    """

    seed: int
    steps: int
    step: int = 0


class CostBasis(NamedTuple):
    """The sections that costs are computed from, and single keys of others.

    Attributes:
        accumulation: of gradients.
        ordering: with a workload: the schedule, since durations may be given for every op.
        microbatch_size: with a model: samples.
        chunked: whether the plan will say which stages a rank holds.
        together: the number of replicas that learn together, over which `sharding` divides.
        draws: of the loads of experts.
        load: with `data`: what a micro-batch holds; of all, the mean.
        packed: with `data`: the documents of all steps.
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
    optimizer: Optimizer
    precision: str
    recompute: str | tuple[str, ...]
    recompute_layers: int | None
    sharding: str
    shards: Shards
    accumulation: Accumulation
    ordering: Schedule | None
    microbatch_size: int
    chunked: bool
    together: int
    draws: LoadDraws
    load: Load | None = None
    packed: PackedSteps | None = None

    @classmethod
    def of(cls, scenario: Scenario) -> CostBasis:
        """Those of a scenario."""
        schedule, gradients, experts = scenario.schedule, scenario.gradients, scenario.experts
        packed = packed_steps(scenario)
        return cls(
            **{name: getattr(scenario, name) for name in cls._fields if name in type(scenario).model_fields},
            ordering=None if scenario.workload is None else schedule,
            accumulation=Accumulation(
                gradients.codec, gradients.fused, (packed or schedule).microbatches > 1, scenario.scatters_once
            ),
            microbatch_size=schedule.microbatch_size,
            chunked=schedule.chunks > 1,
            together=scenario.parallel.data // scenario.outer_groups,
            draws=LoadDraws(scenario.seed if experts.drawn else 0, scenario.steps if experts.varies else 1),
            load=None if packed is None else packed.usual,
            packed=packed,
        )

    @property
    def layered(self) -> bool:
        """Whether weights or gradients are divided within a step, layer by layer."""
        return self.shards.layered(self.sharding, self.parallel)

    @property
    def kept_precision(self) -> str:
        """The precision in which inputs of products are kept for the backward."""
        framework = framework_of(self.model)
        converted = framework is not None and framework.keeps_converted
        return self.precision if converted or self.precision in WIDE else "bf16"

    @property
    def interleaved(self) -> bool:
        """Whether tensors have several samples, token by token."""
        framework = framework_of(self.model)
        return self.microbatch_size > 1 and self.load is None and framework is not None and framework.interleaves

    @property
    def gathers(self) -> tuple[int, int, int]:
        """As `Stack.gathers`, of the framework."""
        return (framework_of(self.model) or STACKS["megatron"]).gathers

    @property
    def element(self) -> int:
        """Bytes of a weight, and of an element of activations."""
        return 4 if self.precision in WIDE else 2

    @property
    def tokens(self) -> int:
        """Of a model: the tokens of a micro-batch on one rank."""
        assert self.model is not None
        if self.load is not None:
            return self.load.tokens // self.load.ranks
        return self.model.network.tokens * self.microbatch_size // self.parallel.context

    @property
    def empty(self) -> bool:
        """Whether a rank has no tokens in a micro-batch; none of several at once is empty."""
        return not is_array(self.tokens) and not self.tokens

    @property
    def routed(self) -> int | Fraction:
        """The same, on the mean of the ranks that share its experts: each computes as many, whoever sent them."""
        if self.load is None or not self.load.routed:
            return self.tokens
        return Fraction(sum(self.load.routed), len(self.load.routed))

    @property
    def context(self) -> int:
        """The number of ranks that share each document."""
        return self.parallel.context if self.load is None else self.load.ranks

    def reach(self, attention: Attention) -> Fraction:
        """Keys that a query meets, relative to those in the model's samples; half of both if causal."""
        load = self.load
        return Fraction(1) if load is None else Fraction(load.squares, load.tokens * attention.sequence)

    def attended(self, attention: Attention | Scores) -> Sequence[tuple[float, float, CoreForm]]:
        """Forward FLOP per token of a micro-batch, keys, and the core's form; where local, length by length.

        Without one, FLOP go with squared lengths and what does not depend on keys with lengths, so that the sum over
        documents is that of the mean number of keys.
        """
        flop, load = attention.flop, self.load
        if load is None:
            return [(float(flop), attention.keys, attention.form)]
        if not attention.local:
            each = flop / attention.sequence
            keys = quotients(load.squares, load.tokens)
            return [(quotients(load.squares, load.tokens, each), keys, attention.form)]
        windows = ((replace(attention, sequence=keys), keys * count) for keys, count in Counter(load.lengths).items())
        return [(float(one.flop * Fraction(tokens, load.tokens)), one.keys, one.form) for one, tokens in windows]

    @property
    def alone(self) -> bool:
        """Whether no other rank shares the layers."""
        return self.parallel.tensor == self.parallel.expert == self.context == 1

    def documents(self, attention: Attention) -> Mapping[int, float]:
        """Length → number of documents of a micro-batch that have it; of samples without `data`, one length."""
        if self.load is None:
            return {attention.sequence: self.tokens * self.context / attention.sequence}
        return Counter(self.load.lengths)

    @property
    def regular(self) -> int:
        """The number of ranks that divide norms and residuals."""
        return self.parallel.tensor if self.parallel.sequence else 1
