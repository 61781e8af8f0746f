"""The sections of a scenario besides the machine and the gradients: layout, schedule, workload, numerics.

Quantities are exact fractions of SI base units. The text under each field is what editors show; `hybrid-des schema`
prints it as JSON Schema.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from hybrid_des.layout import Layout
from hybrid_des.numerics.settings import TrainingSettings
from hybrid_des.options import MOST, Count, Number, OfRanks, Section, Time, choice, whole
from hybrid_des.pipeline import schedules
from hybrid_des.pipeline.order_csv import OrderFile
from hybrid_des.scenario.plugins import Chosen, Plugins, PluginSection
from hybrid_des.scenario.values import (
    File,
    Order,
    RankNumbers,
    RankShares,
    RankSizes,
    RankTimes,
    ScheduleName,
    TaskName,
)

ZERO = Fraction(0)


class Parallel(Section):
    """How the model and its replicas are laid out over ranks."""

    pipeline: Count = 1
    """Pipeline ranks of each replica."""
    data: Count = 1
    """Replicas."""
    tensor: Count = 1
    """GPUs that share each layer."""
    order: Order = ("tensor", "data", "pipeline")
    """Which axis varies fastest along ranks, first to last."""

    @property
    def layout(self) -> Layout:
        """The ranks with their coordinates."""
        return Layout({axis: getattr(self, axis) for axis in self.order}, self.order)

    @property
    def ranks(self) -> int:
        """GPUs that take part."""
        return self.layout.ranks


class Schedule(PluginSection):
    """In which order each pipeline rank works."""

    plugins: ClassVar[Plugins] = Plugins(
        "kind", schedules.names, schedules.find, besides={None: Chosen("an order file", OrderFile)}
    )
    kind: ScheduleName | None = None
    """A schedule by name."""
    file: File = None
    """Instead of `kind`: a CSV file in PyTorch's order format."""
    microbatches: Annotated[int, whole(1, MOST, multiple=True), OfRanks()]
    """Micro-batches of a replica and step; a number, or a multiple of the pipeline's ranks such as 2p."""
    chunks: Count = 1
    """Model chunks held by each pipeline rank. Default 1, or what the kind fixes."""
    p2p: Annotated[Literal["async", "blocking"], choice("async", "blocking")] = "async"
    """blocking: a rank waits until its sends and receives are through."""


class Memory(Section):
    """What a GPU has to hold."""

    per_parameter: RankSizes = Fraction(16)
    """Bytes held for each parameter, with its gradient and optimizer state."""
    activation: RankSizes = ZERO
    """Activations kept per micro-batch and rank."""


class Ends(Section):
    """What the first and the last pipeline rank do besides (embedding, output layer)."""

    forward: Time = ZERO
    """Added to the forward of each of the two."""
    backward: Time = ZERO
    """Added to the input part of the backward of each of the two."""


class Workload(Section):
    """How long things take and how large they are."""

    per: Annotated[Literal["rank", "model"], choice("rank", "model")] = "rank"
    """Whether each number is for one pipeline rank's share or for the whole model."""
    forward: RankTimes
    """Forward of one micro-batch; a time, or a list with one for each pipeline rank."""
    backward: RankTimes
    """Whole backward of one micro-batch: input gradient and weight gradient together."""
    weight: RankTimes | None = None
    """The part of `backward` that is weight gradient; a time, or a share such as 40 %. Default half."""
    recompute: RankShares = ZERO
    """Share of `forward` done again before each backward, 0 … 1."""
    activation: RankSizes = ZERO
    """Tensor sent between neighbouring stages per micro-batch."""
    parameters: RankNumbers = ZERO
    """Parameters held."""
    optimizer: RankTimes = ZERO
    """Optimizer step."""
    memory: Memory = Field(default_factory=Memory)
    """What a GPU has to hold."""
    ends: Ends = Field(default_factory=Ends)
    """Extra time of the first and the last pipeline rank."""


class Numerics(Section):
    """The small model that the simulated GPUs really train; the workload alone decides times and bytes."""

    model: Annotated[str, choice("mlp")] = "mlp"
    """A multi-layer perceptron with residual hidden layers."""
    layers: Annotated[int, whole(1, 4096)] = 8
    """Layers in all, shared out over the stages."""
    width: Annotated[int, whole(1, 4096)] = 32
    """Features between layers."""
    batch: Count = 4
    """Samples in a micro-batch."""
    task: TaskName = "two-spirals"
    """The data set; digits needs scikit-learn."""
    learning_rate: Number = Fraction(1, 10)
    """How far an optimizer step goes."""
    optimizer: Annotated[str, choice("sgd", "adam")] = "sgd"
    """How gradients change weights."""
    dtype: Annotated[str, choice("fp64", "fp32")] = "fp64"
    """Of weights, activations and gradients."""

    @property
    def settings(self) -> TrainingSettings:
        """The same for training, which knows no scenario; it has one kind of model."""
        return TrainingSettings(**{key: value for key, value in self if key != "model"})
