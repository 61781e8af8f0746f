"""The scenario: what is simulated, frozen and checked. Quantities are exact fractions of SI base units.

The text under each field is what editors show; `hybrid-des schema` prints it as JSON Schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from hybrid_des.layout import Layout
from hybrid_des.numerics.settings import TrainingSettings
from hybrid_des.scenario.checks import problems_of
from hybrid_des.scenario.defaults import fill
from hybrid_des.scenario.gradients import Gradients
from hybrid_des.scenario.machine import Cluster
from hybrid_des.scenario.problem import Problems
from hybrid_des.scenario.section import MOST, OrNone, Section
from hybrid_des.scenario.values import (
    File,
    Flag,
    Limit,
    Number,
    Numbers,
    Order,
    Shares,
    Sizes,
    Text,
    Time,
    Times,
    choice,
    registered,
    whole,
)

ZERO, ONE = Fraction(0), Fraction(1)


class Parallel(Section):
    """How the model and its replicas are laid out over ranks."""

    pipeline: Annotated[int, whole(1, MOST)] = 1
    """Pipeline ranks of each replica."""
    data: Annotated[int, whole(1, MOST)] = 1
    """Replicas."""
    tensor: Annotated[int, whole(1, MOST)] = 1
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


class Schedule(Section):
    """In which order each pipeline rank works."""

    kind: Annotated[str, registered("pipeline.schedules")] | None = None
    """A schedule by name."""
    file: File = None
    """Instead of `kind`: a CSV file in PyTorch's order format."""
    microbatches: Annotated[int, whole(1, MOST, multiple=True)]
    """Micro-batches of a replica and step; a number, or a multiple of the pipeline's ranks such as 2p."""
    chunks: Annotated[int, whole(1, MOST)] = 1
    """Model chunks held by each pipeline rank. Default 1, or what the kind fixes."""
    backward_order: Annotated[str, choice("fifo", "lifo")] | None = None
    """In which order micro-batches go back; for kinds that leave it open."""
    fused: Flag = True
    """Dualpipe kinds: whether a forward and a backward run as one."""
    fused_time: Number = ONE
    """Dualpipe kinds: time of a fused pair divided by the time of its parts."""
    max_activations: Limit = None
    """zb-auto: most micro-batches in flight; a number, or a multiple of the pipeline's ranks such as 2p."""
    p2p: Annotated[Literal["async", "blocking"], choice("async", "blocking")] = "async"
    """blocking: a rank waits until its sends and receives are through."""


class Memory(Section):
    """What a GPU has to hold."""

    per_parameter: Sizes = Fraction(16)
    """Bytes held for each parameter, with its gradient and optimizer state."""
    activation: Sizes = ZERO
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
    forward: Times
    """Forward of one micro-batch; a time, or a list with one for each pipeline rank."""
    backward: Times
    """Whole backward of one micro-batch: input gradient and weight gradient together."""
    weight: Times | None = None
    """The part of `backward` that is weight gradient; a time, or a share such as 40 %. Default half."""
    recompute: Shares = ZERO
    """Share of `forward` done again before each backward, 0 … 1."""
    activation: Sizes = ZERO
    """Tensor sent between neighbouring stages per micro-batch."""
    parameters: Numbers = ZERO
    """Parameters held."""
    optimizer: Times = ZERO
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
    batch: Annotated[int, whole(1, MOST)] = 4
    """Samples in a micro-batch."""
    task: Annotated[str, registered("numerics.datasets")] = "two-spirals"
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


class Scenario(Section):
    """A training step to simulate: machine, layout, schedule, costs."""

    version: Annotated[int, whole(1, 1)] = 1
    """Version of this format."""
    name: Text = "scenario"
    """Default: the file's stem."""
    description: Text = ""
    """What it shows."""
    cluster: Cluster
    parallel: Parallel = Field(default_factory=Parallel)
    schedule: Schedule
    workload: Workload
    gradients: Gradients = Field(default_factory=Gradients)
    numerics: Annotated[Numerics | None, OrNone()] = None
    """Real training on the simulated GPUs."""
    steps: Annotated[int, whole(1, 2**22)] = 1
    """Training steps."""
    barrier: Flag = True
    """Whether all ranks start a step together."""
    seed: Annotated[int, whole(0, 2**63 - 1)] = 0
    """Where random numbers start."""
    on_oom: Annotated[Literal["warn", "error"], choice("warn", "error")] = "warn"
    """What happens where a GPU's memory is passed."""
    record: Annotated[Literal["all", "compute", "none"], choice("all", "compute", "none")] = "all"
    """What the timeline keeps; compute: no rows for messages; none: summary only."""

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, values: Any) -> Any:
        return fill(values) if isinstance(values, Mapping) else values

    @model_validator(mode="after")
    def _check(self) -> Scenario:
        problems = problems_of(self)
        if problems:
            raise Problems(problems)
        return self
