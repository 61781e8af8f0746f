"""The sections `parallel`, `schedule`, `workload`, `gradients` and `numerics` of a scenario.

Quantities are exact fractions of SI base units. Field docstrings go into the JSON Schema (`hybrid-des schema`).
"""

from fractions import Fraction
from functools import lru_cache
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from hybrid_des import collectives
from hybrid_des.layout import Layout
from hybrid_des.numerics.layers import TrainingSettings
from hybrid_des.options import MOST, Count, Flag, Number, OfRanks, Section, SharedOptions, Time, choice, whole
from hybrid_des.pipeline import schedules
from hybrid_des.pipeline.order_csv import OrderFile
from hybrid_des.pipeline.plan import WEIGHT_SHARE
from hybrid_des.registry import Entry
from hybrid_des.scenario.plugins import Plugins, PluginSection
from hybrid_des.scenario.values import (
    AlgorithmName,
    BucketSize,
    CodecName,
    File,
    Order,
    RankNumbers,
    RankShares,
    RankSizes,
    RankTimes,
    ScheduleName,
    Stages,
    TaskName,
    or_none,
)

ZERO = Fraction(0)


@lru_cache(maxsize=8)
def _layout(order: tuple[str, ...], sizes: tuple[int, ...], expert: int) -> Layout:
    """One layout for equal sizes, since it caches its results."""
    return Layout(dict(zip(order, sizes, strict=True)), order, expert)


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
    context_method: Annotated[str, choice("ring", "all-to-all", "all-gather")] = "ring"
    """How context ranks share attention."""
    expert: Count = 1
    """Ranks along context and data that share the experts of each layer."""
    stages: Stages = "even"
    """With `model`: how layers are cut into stages; even, ends-1, balanced, or a list of layers per stage."""
    order: Order = ("tensor", "data", "pipeline")
    """Which axis varies fastest along ranks, first to last. `context` follows `tensor` unless given."""

    @property
    def layout(self) -> Layout:
        """The ranks with their coordinates."""
        place = self.order.index("tensor") + 1
        order = self.order if "context" in self.order else (*self.order[:place], "context", *self.order[place:])
        return _layout(order, tuple([getattr(self, axis) for axis in order]), self.expert)

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
    """Model chunks (virtual pipeline stages) per pipeline rank. Default 1, or the number fixed by the kind."""
    p2p: Annotated[Literal["async", "blocking"], choice("async", "blocking")] = "async"
    """blocking: a rank waits for its sends and receives to complete."""


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


class Workload(Section):
    """Durations of ops and sizes of tensors."""

    per: Annotated[Literal["rank", "model"], choice("rank", "model")] = "rank"
    """Whether each number is for one pipeline rank's share or for the whole model."""
    durations: File = None
    """Instead of `forward` and `backward`: a CSV or Parquet file with the duration of every op."""
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
    optimizer: RankTimes = ZERO
    """Time of the optimizer step."""
    memory: Memory = Field(default_factory=Memory)
    """Memory use of a GPU."""
    ends: Ends = Field(default_factory=Ends)
    """Extra time of the first and the last pipeline rank."""


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
    """How gradients are encoded in messages."""
    bucket: BucketSize = None
    """Bucket size; none: one bucket per stage. Default none, or that of the bucket rule."""
    bucket_rule: Annotated[Literal["stage", "ddp", "megatron"], choice("stage", "ddp", "megatron")] = "stage"
    """stage: buckets are sent when the op that fills them ends; ddp, megatron: during the op, as in that framework.

    Default sizes: ddp 25 MiB; megatron 40 million gradients, or one million per replica if that is more."""
    overlap: Flag = False
    """Whether a bucket is reduced as soon as its last weight gradient is ready."""
    pad: Flag = False
    """Whether buckets are filled up to a multiple of the group's size, as by Megatron's distributed optimizer."""
    error_feedback: Flag = False
    """With numerics: whether the error of a lossy codec is kept and sent in the next step."""

    @property
    def channels(self) -> int | None:
        """The number of rings that run at once; None: as many as a group can use."""
        found: int | None = getattr(self.options, "channels", None)
        return found


class Numerics(Section):
    """A small model that the simulated GPUs actually train; times and bytes still come from the workload."""

    model: Annotated[str, choice("mlp")] = "mlp"
    """A multi-layer perceptron with residual hidden layers."""
    layers: Annotated[int, whole(1, 4096)] = 8
    """Total number of layers, split over the stages."""
    width: Annotated[int, whole(1, 4096)] = 32
    """Features between layers."""
    batch: Count = 4
    """Samples per micro-batch."""
    task: TaskName = "two-spirals"
    """The data set; digits needs scikit-learn."""
    learning_rate: Number = Fraction(1, 10)
    """Learning rate of the optimizer."""
    optimizer: Annotated[str, choice("sgd", "adam")] = "sgd"
    """Optimizer."""
    dtype: Annotated[str, choice("fp64", "fp32")] = "fp64"
    """Data type of weights, activations and gradients."""

    @property
    def settings(self) -> TrainingSettings:
        """The settings in the form that `hybrid_des.numerics` takes."""
        return TrainingSettings(**{key: value for key, value in self if key != "model"})


NumericsOrNone = Annotated[Numerics | None, or_none(Literal["none"] | Numerics | None)]
