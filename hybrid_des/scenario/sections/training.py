"""The sections that say what is trained and how: model or workload, layout, schedule and gradients.

Quantities are exact fractions of SI base units. Field docstrings go into the JSON Schema (`hybrid-des docs --schema`).
At the end stand the checks of values that these sections must agree on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from hybrid_des import collectives
from hybrid_des.cluster import gpus
from hybrid_des.errors import unknown
from hybrid_des.layout import Layout
from hybrid_des.options import (
    MOST,
    Count,
    Flag,
    OfRanks,
    Reads,
    ReadsAs,
    Section,
    SharedOptions,
    Time,
    choice,
    describe,
    given,
    whole,
)
from hybrid_des.pipeline import schedules
from hybrid_des.pipeline.order_csv import OrderFile
from hybrid_des.pipeline.plan import WEIGHT_SHARE
from hybrid_des.registry import Entry
from hybrid_des.scenario.problem import Problem, misfit
from hybrid_des.scenario.sections.outer import Outer
from hybrid_des.scenario.sections.plugins import Plugins, PluginSection
from hybrid_des.scenario.sections.values import (
    AlgorithmName,
    BucketSize,
    CodecName,
    File,
    ModelKindName,
    Order,
    PublishedName,
    RankNumbers,
    RankShares,
    RankSizes,
    RankTimes,
    ScheduleName,
    Stages,
    Tensors,
    share,
)
from hybrid_des.workload import models
from hybrid_des.workload.models import kinds
from hybrid_des.workload.models.layer import OFFLOADED, Model

ZERO = Fraction(0)
LEAST_HELD = 14  # bytes per parameter where it is sharded: a 16-bit weight, and 12 of the optimizer's state

Share = Annotated[Fraction, share()]


@lru_cache(maxsize=8)
def _layout(order: tuple[str, ...], sizes: tuple[int, ...], expert: int, expert_tensor: int) -> Layout:
    """One layout for equal sizes, since it caches its results."""
    return Layout(dict(zip(order, sizes, strict=True)), order, expert, expert_tensor)


class Parallel(Section):
    """How the model and its replicas are laid out over ranks."""

    pipeline: Count = 1
    """Pipeline ranks per replica."""
    data: Count = 1
    """Replicas."""
    tensor: Count = 1
    """GPUs that share each layer."""
    sequence: Flag = False
    """Whether tensor ranks divide norms and residuals too (sequence parallelism)."""
    context: Count = 1
    """GPUs that share each sample's tokens."""
    context_method: Annotated[str, choice("ring", "all-to-all", "all-gather", "per-document")] = "ring"
    """How context ranks share attention; per-document: each takes whole documents of `data`."""
    expert: Count = 1
    """Ranks along context and data (and tensor, see `expert_tensor`) that share the experts of each layer."""
    expert_tensor: Count | None = None
    """Tensor ranks that share each expert; 1: the others hold different experts. Default: as `tensor`."""
    stages: Stages = "even"
    """With `model`: how layers are cut into stages; even, ends-1, balanced, or a list of layers per stage.

    Default: even; balanced for a model with several `kinds` of layers."""
    order: Order = ("tensor", "data", "pipeline")
    """Which axis varies fastest along ranks, first to last. `context` follows `tensor` unless given."""

    @property
    def layout(self) -> Layout:
        """The ranks with their coordinates."""
        after = self.order.index("tensor") + 1
        order = self.order if "context" in self.order else (*self.order[:after], "context", *self.order[after:])
        return _layout(order, tuple([getattr(self, axis) for axis in order]), self.expert, self.expert_tensor or 0)

    @property
    def of_expert(self) -> int:
        """Tensor ranks that share each expert."""
        return self.expert_tensor or self.tensor

    @property
    def ranks(self) -> int:
        """Number of GPUs used."""
        return self.layout.ranks


class Schedule(PluginSection):
    """The order of ops on each pipeline rank."""

    plugins: ClassVar[Plugins] = Plugins(
        "kind", schedules.names, schedules.find, besides={None: Entry("an order file", None, options=OrderFile)}
    )
    kind: ScheduleName | None = None
    """Name of a schedule."""
    file: File = None
    """Instead of `kind`: a CSV file in PyTorch's order format."""
    microbatches: Annotated[int, whole(1, MOST, multiple=True), OfRanks()]
    """Micro-batches per replica and step; a number, or a multiple of the pipeline size such as 2p."""
    microbatch_size: Count = 1
    """With `model`: samples per micro-batch."""
    chunks: Count = 1
    """Model chunks (virtual pipeline stages) per pipeline rank. Default: fixed by the kind; 2 where free."""
    p2p: Annotated[Literal["async", "blocking"], choice("async", "blocking")] = "async"
    """blocking: a rank waits for its sends and receives to complete."""

    @property
    def virtual(self) -> bool:
        """Whether ranks have virtual stages whose number is free, as Megatron-LM's do."""
        return self.kind is not None and self.chunks > 1 and bool(schedules.find(self.kind).facts["many_chunks"])


class Memory(Section):
    """Memory use of a GPU."""

    per_parameter: RankSizes = Fraction(16)
    """Bytes per parameter, including gradient and optimizer state."""
    activation: RankSizes = ZERO
    """Bytes of activations kept per micro-batch and rank."""
    weight_share: RankShares = WEIGHT_SHARE
    """Share of them that the input part of a split backward leaves to its weight part, 0 … 1.

    Default 32h/(34h+5as), from Table 1 of arXiv 2401.10241."""


class Ends(Section):
    """Additional work of the first and the last pipeline rank (embedding, output layer)."""

    forward: Time = ZERO
    """Added to the forward on each of the two."""
    backward: Time = ZERO
    """Added to the input-gradient part of the backward on each of the two."""


def _known_gpu(value: object) -> object:
    if isinstance(value, str) and value not in gpus.names():
        raise ValueError(unknown(value, gpus.names(), "GPU"))
    return value


RecordedOn = Annotated[str | None, BeforeValidator(_known_gpu)]


class HostOverhead(Section):
    """Time that the host adds to ops, however short they are."""

    forward: Time = ZERO
    """Added to each forward of a stage."""
    backward: Time = ZERO
    """Added to each backward of a stage, or to the input part of a split one."""
    weight: Time = ZERO
    """Added to each weight part of a split backward."""
    between: Time = ZERO
    """Between the end of an op and the start of the next one on the same rank."""


class Workload(Section):
    """Durations of ops and sizes of tensors."""

    per: Annotated[Literal["rank", "model"], choice("rank", "model")] = "rank"
    """Whether each number is for one pipeline rank's share or for the whole model."""
    durations: File = None
    """Instead of `forward` and `backward`: a CSV or Parquet file with the duration of every op."""
    timing: Annotated[str, choice("recorded", "median", "mean", "auto")] = "recorded"
    """With `durations`: each op as recorded, or the median or mean of its kind on its stage; auto: means if one lacks.

    Means leave out ops that took more than twice the median."""
    trace: File = None
    """Instead of a schedule and times: a folder, or a pattern, of Chakra execution traces, one per pipeline rank."""
    transfers: Annotated[Literal["simulated", "recorded"], choice("simulated", "recorded")] = "simulated"
    """With `trace`: collectives whose sizes are known are messages, or take the recorded time."""
    recorded_ranks: Count | None = None
    """With a single `trace`: how many ranks it stands for; for others, recorded times of collectives are scaled."""
    recorded_on: RecordedOn = None
    """With `trace`: the GPU it was recorded on; on another `cluster.gpu`, kernels are scaled by what bounds them."""
    forward: RankTimes
    """Forward of one micro-batch; a time, or a list with one per pipeline rank."""
    backward: RankTimes
    """Whole backward of one micro-batch: input gradient and weight gradient together."""
    weight: RankTimes | None = None
    """The weight-gradient part of `backward`; a time, or a share such as 40 %. Default half."""
    recompute: RankShares = ZERO
    """Share of `forward` repeated before each backward (activation checkpointing), 0 … 1."""
    activation: RankSizes = ZERO
    """Tensor sent between neighbouring stages per micro-batch."""
    parameters: RankNumbers = ZERO
    """Number of parameters."""
    tensors: Tensors | None = None
    """Parameters of each tensor, in the order of the forward; a list, or a list of lists per pipeline rank.

    With bucket_rule ddp, buckets consist of whole tensors. `parameters` is their sum."""
    optimizer: RankTimes = ZERO
    """Time of the optimizer step."""
    memory: Memory = Field(default_factory=Memory)
    """Memory use of a GPU."""
    ends: Ends = Field(default_factory=Ends)
    """Extra time of the first and the last pipeline rank."""
    overhead: HostOverhead = Field(default_factory=HostOverhead)
    """Host time per op, and between ops. Recorded `durations` hold that of their ops."""


class Gradients(PluginSection):
    """How gradients are reduced over replicas."""

    plugins: ClassVar[Plugins] = Plugins(
        "algorithm",
        collectives.all_reduce_names,
        collectives.find,
        "ring",
        {collectives.AUTO: Entry(collectives.AUTO, None, options=SharedOptions)},
    )
    algorithm: AlgorithmName = "ring"
    """The all-reduce algorithm; auto: the fastest on this cluster, found by simulating each one once."""
    codec: CodecName = "fp32"
    """How gradients are encoded in messages. Default of a model: as its framework."""
    bucket: BucketSize = None
    """Bucket size; none: one bucket per stage. Default none, or that of the bucket rule."""
    bucket_rule: Annotated[Literal["stage", "ddp", "megatron"], choice("stage", "ddp", "megatron")] = "stage"
    """stage: buckets are sent when the op that fills them ends; ddp, megatron: during the op, as in that framework.

    Default of a model: as its framework, with overlap.
    Default sizes: ddp 25 MiB; megatron 40 million gradients, or one million per replica if that is more."""
    first_bucket: BucketSize = 2**20
    """With bucket_rule ddp: size at which the first bucket is full; none: that of the others."""
    overlap: Flag = False
    """Whether a bucket is reduced as soon as its last weight gradient is ready.

    Default of a model: as its framework."""
    pad: Flag = False
    """Whether buckets are filled up to a multiple of the group's size, as by Megatron's distributed optimizer."""
    every: Count = 1
    """Steps between two exchanges of groups of replicas (`outer`); 1: all replicas are reduced in every step."""
    outer: Annotated[Outer | None, given(Outer)] = None
    """The exchange, with `every`."""
    scattered: Annotated[Literal["micro-batch", "step"], choice("micro-batch", "step")] = "micro-batch"
    """With zero-2 and zero-3, outside pipelines: how often gradients are scattered.

    step: whole gradients are summed over micro-batches, as PyTorch's `no_sync` and `set_requires_gradient_sync` do."""
    fused: Flag | None = None
    """Whether weight gradients are accumulated over micro-batches inside the GEMMs that compute them.

    As with Megatron-LM's gradient accumulation fusion. Default: unless the codec is fp16."""
    error_feedback: Flag = False
    """With numerics: whether the error of a lossy codec is kept and sent in the next step."""

    @property
    def channels(self) -> int | None:
        """The number of rings that run at once; None: as many as a group can use."""
        channels: int | None = getattr(self.options, "channels", None)
        return channels


class ModelChoice(PluginSection):
    """The network: a published model, or the sizes of one."""

    plugins: ClassVar[Plugins] = Plugins("kind", kinds.names, kinds.find, kinds.DEFAULT)
    base: PublishedName | None = None
    """A published model whose sizes are the defaults."""
    kind: ModelKindName = kinds.DEFAULT
    """The kind of network."""

    @cached_property
    def network(self) -> Model:
        """Its layers.

        Raises:
            ModelRefusal: the sizes are inconsistent.
        """
        built: Model = kinds.find(self.kind).build(*self.arguments)
        return built


class Overlap(Section):
    """Communication hidden behind computation: its share, or whether it is."""

    tensor: Share = ZERO
    """Share of the tensor ranks' collectives that is hidden behind GEMMs."""
    experts: Share = ZERO
    """Share of the experts' all-to-alls that is hidden."""
    weight_gradients: Flag = False
    """Whether tensor ranks reduce a layer's input gradients while they compute its weight gradients.

    As in Megatron-LM (`--no-async-tensor-model-parallel-allreduce` disables it). Not where backwards are split."""
    parameters: Flag = False
    """Whether sharded parameters are gathered during computation. Default with zero-3: true."""


def _offloaded(value: object) -> Fraction | tuple[str, ...]:
    if not isinstance(value, list | tuple):
        number: Fraction = share().read(value)
        return number
    if len(set(map(str, value))) < len(value):
        raise ValueError("expected names of modules, each once")
    names = tuple(choice(*OFFLOADED).read(item) for item in value)
    if "fused_group_mlp" in names and {"expert_fc1", "moe_act"} & {*names}:
        raise ValueError("fused_group_mlp has those of expert_fc1 and moe_act; give only one of the two")
    if "attn_proj" in names and "core_attn" not in names:
        raise ValueError("attn_proj moves what core_attn returns; expected core_attn too")
    return names or ZERO


_OFFLOADED = {
    "anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, {"type": "array", "items": {"enum": [*OFFLOADED]}}]
}


class Offload(Section):
    """What is held in the memory of the host, and crosses the GPU's link to it beside computation."""

    optimizer: Share = ZERO
    """Share of the optimizer's state, which is read and written once per step."""
    parameters: Share = ZERO
    """With zero-3: share of weights and gradients; read before each gather of a layer, written after its backward."""
    activations: Annotated[Fraction | tuple[str, ...], Reads(_offloaded, _OFFLOADED)] = ZERO
    """Share of each block's activations, written during its forward and read during its backward.

    Or a list of modules whose inputs these are, as Megatron-LM's `--offload-modules`: [core_attn, attn_proj]."""


def expanded(value: object) -> object:
    """A model by name, or on a `base`, with all of its sizes; other values unchanged."""
    values = {"base": value} if isinstance(value, str) and value != "none" else value
    if not isinstance(values, Mapping) or values.get("base") not in models.names():
        return values
    return {**models.expanded(values), "base": values["base"]}


def _named_or_own(value: object) -> ModelChoice | None:
    if value is None or value == "none":
        return None
    if not isinstance(value, Mapping | ModelChoice):
        raise ValueError(f"expected the name of a published model, or the sizes of one, found {describe(value)}")
    return ModelChoice.model_validate(value)


PublishedOrOwn = Annotated[ModelChoice | None, ReadsAs(_named_or_own, str | ModelChoice)]


def misfits_of_workload(workload: Workload, ranks: int) -> Iterator[Problem]:
    """Lists whose length differs from the pipeline's, and weight gradients longer than the whole backward."""
    values = [*workload, *((f"memory.{name}", value) for name, value in workload.memory)]
    for name, value in values:
        if not isinstance(value, tuple):
            continue
        if workload.per == "model":
            message = "found a list; `per: model` takes one number for the whole model"
            yield misfit(message, f"workload.{name}", "workload.per")
        elif len(value) != ranks:
            message = f"found a list of {len(value)}; expected {ranks}, one per pipeline rank"
            yield misfit(message, f"workload.{name}", "parallel.pipeline", "workload.per")
    if workload.tensors is not None and len(workload.tensors) == ranks:
        held, sums = _listed(workload.parameters), [sum(sizes) for sizes in workload.tensors]
        if [held[min(rank, len(held) - 1)] for rank in range(ranks)] != sums:
            yield misfit("is not the sum of `workload.tensors`; omit it", "workload.parameters", "workload.tensors")
    if workload.weight is None:
        return
    both = [_listed(value) for value in (workload.weight, workload.backward)]
    ranks = max(map(len, both))
    for rank in range(ranks):
        weight, backward = (given[min(rank, len(given) - 1)] for given in both)
        if weight > backward:
            where = f" on pipeline rank {rank}" if ranks > 1 else ""
            message = (
                f"the weight gradient takes {float(weight):g} s{where}, more than the whole backward "
                f"({float(backward):g} s)"
            )
            yield misfit(message, "workload.weight", "workload.backward")
            return


def _listed(value: Fraction | tuple[Fraction, ...]) -> tuple[Fraction, ...]:
    return (value if isinstance(value, tuple) else (value,)) or (ZERO,)


def misfits_of_durations(workload: Workload, recompute: object) -> Iterator[Problem]:
    """Times that are given in addition to a file that holds all of them."""
    of_traces = {"workload.transfers": workload.transfers != "simulated", "workload.recorded_on": workload.recorded_on,
                 "workload.recorded_ranks": workload.recorded_ranks}  # fmt: skip
    for path, value in of_traces.items():
        if workload.trace is None and value:
            yield misfit("is read with `workload.trace` only", path, "workload.trace")
    if workload.durations is None:
        if workload.timing != "recorded":
            yield misfit("is read with `workload.durations` only", "workload.timing", "workload.durations")
        return
    given = {f"workload.{key}": getattr(workload, key) for key in ("forward", "backward", "weight", "recompute")}
    given |= {f"workload.ends.{key}": time for key, time in workload.ends}
    for path, value in {**given, "recompute": recompute != "none"}.items():
        if value:
            yield misfit("is part of `workload.durations`; give only one of the two", path, "workload.durations")


def misfits_of_recompute(recompute: str | tuple[str, ...], workload: Workload) -> Iterator[Problem]:
    """Values that contradict `recompute`; without a model there are only whole forwards to repeat."""
    if isinstance(recompute, tuple):
        yield misfit("names modules of a `model`; expected none or full", "recompute", "workload")
    elif recompute == "selective":
        message = "selective: repeats the attention core of a `model`; expected none or full"
        yield misfit(message, "recompute", "workload")
    elif recompute == "full" and workload.recompute != 0:
        message = "full: repeats all of `forward`; give only one of the two"
        yield misfit(message, "recompute", "workload.recompute")


def misfits_of_offload(offload: Offload, recompute: str | tuple[str, ...], *, gathers: bool) -> Iterator[Problem]:
    """Modules of which recomputation keeps nothing, and weights that no layer gathers anew."""
    if offload.parameters and not gathers:
        message = "is read where zero-3 gathers layers for each use; in pipelines, that is `shards.reshard: true`"
        yield misfit(message, "offload.parameters", "sharding", "shards.reshard")
    if not isinstance(offload.activations, tuple):
        return
    if recompute == "full":
        message = "names modules, of which recompute full keeps nothing; expected a share"
        yield misfit(message, "offload.activations", "recompute")
    inside = [one for one in ("expert_fc1", "moe_act", "fused_group_mlp") if one in offload.activations]
    if "moe" in recompute and isinstance(recompute, tuple) and inside:
        yield misfit(f"recompute moe keeps nothing of {', '.join(inside)}", "offload.activations", "recompute")


def misfits_of_sharding(
    sharding: str, overlap: Overlap, gradients: Gradients, workload: Workload | None
) -> Iterator[Problem]:
    """Values that contradict `sharding`."""
    if sharding == "none":
        if overlap.parameters:
            yield misfit("is read where parameters are sharded only", "overlap.parameters", "sharding")
        return
    within = sharding != "zero-1"
    able = ["nccl", "ring"] if within else [*collectives.all_reduces(halves=True), collectives.AUTO]
    if gradients.algorithm not in able:
        what = "the collectives of single layers run around rings" if within else "gradients are reduce-scattered"
        message = f"with {sharding}, {what}; expected {' or '.join(able)}"
        yield misfit(message, "gradients.algorithm", "sharding")
    if sharding == "zero-3" and gradients.overlap and not overlap.parameters:
        message = "true, but with zero-3 `overlap.parameters` decides, which is false"
        yield misfit(message, "gradients.overlap", "overlap.parameters")
    held = () if workload is None else workload.memory.per_parameter
    if any(size < LEAST_HELD for size in (held if isinstance(held, tuple) else (held,))):
        message = f"{sharding} divides weights and the state of the optimizer; expected at least {LEAST_HELD} bytes"
        yield misfit(message, "workload.memory.per_parameter", "sharding")


def divided(parallel: Parallel, sharding: str) -> dict[str, str]:
    """Options that would divide the small trained model, which cannot be divided, with the values to expect."""
    axes = [axis for axis in ("tensor", "context", "expert") if getattr(parallel, axis) > 1]
    return {f"parallel.{axis}": "1" for axis in axes} | ({"sharding": "none"} if sharding != "none" else {})
