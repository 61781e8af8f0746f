"""The keys of a scenario: its sections, and what follows from several of them."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated, Literal, Self

from pydantic import Field, PrivateAttr

from hybrid_des import collectives
from hybrid_des.cluster import gpus
from hybrid_des.errors import UsageError
from hybrid_des.options import Count, Flag, Section, Text, choice, given, whole
from hybrid_des.scenario.sections.bill import PowerOrNone, PriceOrNone, TrainOrNone
from hybrid_des.scenario.sections.cluster import QUANTISED, WIDE, Cluster
from hybrid_des.scenario.sections.data import DataOrNone
from hybrid_des.scenario.sections.efficiency import Efficiency
from hybrid_des.scenario.sections.experts import ExpertTraffic
from hybrid_des.scenario.sections.faults import FaultsOrNone
from hybrid_des.scenario.sections.numerics import NumericsOrNone
from hybrid_des.scenario.sections.operators import Operators
from hybrid_des.scenario.sections.optimizer import Optimizer
from hybrid_des.scenario.sections.perturbations import AllJitter, AllSlow, Background
from hybrid_des.scenario.sections.rl import RlOrNone
from hybrid_des.scenario.sections.shards import Shards
from hybrid_des.scenario.sections.training import (
    Gradients,
    Offload,
    Overlap,
    Parallel,
    PublishedOrOwn,
    Schedule,
    Workload,
)
from hybrid_des.scenario.sections.values import Fold, Recompute

SHARDING = ("none", "zero-1", "zero-2", "zero-3")  # each divides what the one before does, and more
SHARDING_NAMES = {  # PyTorch's names, and Megatron-LM's
    "fsdp": "zero-3", "fsdp2": "zero-3", "full_shard": "zero-3", "shard_grad_op": "zero-2", "no_shard": "none",
    "hsdp": "zero-3 with shards.ranks", "hybrid_shard": "zero-3 with shards.ranks", "ddp": "none",
    "distributed_optimizer": "zero-1", "use_distributed_optimizer": "zero-1",
}  # fmt: skip
LABEL = object()  # marks sections that describe a run or say what is kept of it, and change nothing that it simulates


class ScenarioKeys(Section):
    """What a scenario says: machine, layout, schedule, costs; a `Scenario` is one whose values agree."""

    _first_replica: int = PrivateAttr(default=0)
    _link_shares: tuple[Fraction, Fraction] | None = PrivateAttr(default=None)

    slow: AllSlow = ()
    """Components that run slower or faster than usual, permanently or for an interval of simulated time."""
    jitter: AllJitter = ()
    """Random durations of ops; a mapping, or a list of mappings whose factors are multiplied."""
    version: Annotated[int, whole(1, 1), LABEL] = 1
    """Version of this format."""
    name: Annotated[Text, LABEL] = "scenario"
    """Name in reports and output. Default: the file's stem."""
    description: Annotated[Text, LABEL] = ""
    """What it shows."""
    cluster: Cluster
    parallel: Parallel = Field(default_factory=Parallel)
    schedule: Schedule
    workload: Annotated[Workload | None, given(Workload)] = None
    model: PublishedOrOwn = None
    """Instead of `workload`: the network that is trained; a published one by name, or its sizes."""
    precision: Annotated[str, choice("bf16", "fp16", *QUANTISED, *WIDE)] = "bf16"
    """Precision of GEMMs; in 8 and 4 bits, attention and logits are in bf16.

    tf32, fp32: all weights and activations have 32 bits.

    fp8: a scale per tensor, from earlier steps; fp8-current: from the tensor itself, read once more for it;
    fp8-blockwise: a scale per 128 elements; mxfp8: per 32; nvfp4: 4 bits, a scale per 16."""
    recompute: Recompute = "none"
    """What the backward recomputes instead of keeping it: nothing, the attention core, whole layers, or modules."""
    recompute_layers: Count | None = None
    """With `recompute: full`: how many layers of every stage it applies to, the first ones. Default: all."""
    sharding: Annotated[str, choice(*SHARDING, meant=SHARDING_NAMES)] = "none"
    """What replicas divide: the optimizer's state (zero-1), also gradients (zero-2), also weights (zero-3)."""
    shards: Shards = Field(default_factory=Shards)
    """With zero-2 and zero-3: groups of ranks that divide, and whether weights are gathered again in pipelines."""
    overlap: Overlap = Field(default_factory=Overlap)
    experts: ExpertTraffic = Field(default_factory=ExpertTraffic)
    """How tokens travel to their experts and back."""
    tensor_traffic: Annotated[Literal["auto", "replay", "messages"], choice("auto", "replay", "messages")] = "auto"
    """Collectives inside ops: their durations replayed, or every message; auto: replayed where that is exact."""
    layer_collectives: Annotated[Literal["nccl", "textbook"], choice("nccl", "textbook")] = "nccl"
    """What tensor, context and expert ranks run: what NCCL would, or rings and direct all-to-alls at link speed."""
    offload: Offload = Field(default_factory=Offload)
    cuda_graphs: Annotated[Literal["none", "layers", "full"], choice("none", "layers", "full")] = "none"
    """What is launched as a graph, without the host: nothing, layers but for their experts, or the whole step."""
    operators: Operators = Field(default_factory=Operators)
    optimizer: Optimizer = Field(default_factory=Optimizer)
    efficiency: Efficiency | None = None
    """Achieved shares of the GPU's peaks."""
    batch: Count | None = None
    """Samples per step over all replicas, instead of schedule.microbatches."""
    data: DataOrNone = None
    """Documents of unequal length, instead of samples that all have the model's `sequence`."""
    gradients: Gradients = Field(default_factory=Gradients)
    numerics: NumericsOrNone = None
    """Real training on the simulated GPUs."""
    faults: FaultsOrNone = None
    """Weeks of failures and recoveries, for `hybrid-des goodput`."""
    rl: RlOrNone = None
    """Reinforcement learning: engines that generate samples for this training step, and a queue between them."""
    price: Annotated[PriceOrNone, LABEL] = None
    """What GPUs cost, for the bill of the whole training."""
    power: Annotated[PowerOrNone, LABEL] = None
    """What GPUs and nodes draw, for the bill of the whole training."""
    train: Annotated[TrainOrNone, LABEL] = None
    """How long the whole training is, for its bill."""
    background: tuple[Background, ...] = ()
    """Traffic of others on the links of the cluster, as long as the training runs."""
    steps: Annotated[int, whole(1, 2**22)] = 1
    """Training steps."""
    barrier: Flag = True
    """Whether all ranks start a step together."""
    seed: Annotated[int, whole(0, 2**63 - 1)] = 0
    """Seed of all random numbers."""
    on_oom: Annotated[Literal["warn", "error"], choice("warn", "error"), LABEL] = "warn"
    """What happens when a GPU runs out of memory."""
    fold: Annotated[Fold, LABEL] = "auto"
    """Replicas that do the same are simulated once; auto: as few as is exact, in runs of many GPUs; or how many."""
    record: Annotated[Literal["all", "compute", "none"], choice("all", "compute", "none"), LABEL] = "all"
    """What the timeline records; compute: no rows for messages; none: summary only."""

    @property
    def scatters_once(self) -> bool:
        """Whether gradients that replicas divide are whole until the last micro-batch: in a pipeline, or as stated."""
        kept = self.parallel.pipeline > 1 and self.shards.kept(self.parallel)
        once = (kept or self.gradients.scattered == "step") and self.schedule.microbatches > 1
        return not self.fsdp or once

    @property
    def fsdp(self) -> bool:
        """Whether gradients or weights are divided within a step, so that ranks communicate layer by layer."""
        return self.shards.layered(self.sharding, self.parallel)

    @property
    def link_shares(self) -> tuple[Fraction, Fraction]:
        """The shares of their bandwidths that links within and beyond nodes reach."""
        return self._link_shares or self.shares_of_links(library=self.of_library)

    @property
    def of_library(self) -> bool:
        """Whether gradients are reduced as a library would."""
        algorithm = self.gradients.algorithm
        return algorithm != collectives.AUTO and bool(collectives.find(algorithm).facts["tuned"])

    def on_links(self, shares: tuple[Fraction, Fraction]) -> Self:
        """The same scenario where links reach these shares, which other jobs on them decide."""
        view = self.model_copy()
        view._link_shares = shares
        return view

    def shares_of_links(self, *, library: bool) -> tuple[Fraction, Fraction]:
        """The same if collectives are a library's, whose pace is that of real links, or a textbook's."""
        if (given := self.efficiency) is not None:
            return given.network, given.adapters or given.network
        return gpus.link_shares(self.cluster.kinds[0].gpu.name) if library else (Fraction(1), Fraction(1))

    @property
    def traced(self) -> bool:
        """Whether ranks do what an execution trace says; a schedule that is given takes its place."""
        given = self.schedule.kind is not None or self.schedule.file is not None
        return self.workload is not None and self.workload.trace is not None and not given

    @property
    def outer_groups(self) -> int:
        """The number of groups of replicas with weights of their own between two exchanges; 1 if all are one."""
        gradients, sites = self.gradients, len(self.cluster.sites)
        if gradients.every == 1:
            return 1
        if gradients.outer is not None and gradients.outer.groups is not None:
            return gradients.outer.groups
        return sites if sites > 1 else self.parallel.data

    @property
    def first_replica(self) -> int:
        """The number of its first replica in the run that it is a part of, which tells random numbers apart."""
        return self._first_replica

    def part(self, first_replica: int) -> Self:
        """The same scenario as the part of a run that begins at a replica."""
        view = self.model_copy()
        view._first_replica = first_replica
        return view

    def placed(self, gpus: Sequence[int]) -> Self:
        """The same scenario as a job on these GPUs of its cluster, by rank; further ones may host servers.

        Raises:
            UsageError: they are too few, or not different GPUs of the cluster.
        """
        if len(gpus) < self.parallel.ranks:
            raise UsageError(f"{self.name}: {self.parallel.ranks} ranks need one GPU each, found {len(gpus)}")
        return self.model_copy(update={"cluster": self.cluster.placed(gpus)})
