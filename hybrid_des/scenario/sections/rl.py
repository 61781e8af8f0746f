"""The section `rl`: engines that generate samples, a queue, and the training step whose weights return to the engines.

    rl:
      samples: 16
      prompt: 150
      response: {kind: lognormal, mean: 1600, sigma: 1, max: 28672}
      rollout: {nodes: 8-15, tensor: 4}
      sync: {time: 4.1 s}

The trainer is the rest of the scenario; `batch` counts the samples of an optimizer step, and `steps` weight syncs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, PlainValidator, TypeAdapter

from hybrid_des.options import (
    Count,
    Factor,
    Flag,
    LastingSpan,
    Natural,
    Number,
    Section,
    Span,
    Time,
    choice,
    describe,
    given,
)
from hybrid_des.scenario.problem import Problem, misfit
from hybrid_des.scenario.sections.cluster import Cluster
from hybrid_des.scenario.sections.data import Lengths
from hybrid_des.scenario.sections.plugins import Plugins, PluginSection
from hybrid_des.scenario.sections.values import DistributionName, File, Numbers, or_none, share
from hybrid_des.workload import distributions

if TYPE_CHECKING:
    from hybrid_des.scenario.sections.training import Parallel

TRAINER = "trainer"  # where colocated engines are
PATH = "rl.rollout"
# efficiencies that only decode steps have
OF_STEPS = {"bandwidth", "experts", "layer", "step", "sequence", "latency", "across"}
MOST_SAMPLES = 2**24  # between two weight syncs


def _part(value: object) -> object:
    """Read "80 %" as a number."""
    match = re.fullmatch(r"\s*(\d+\.?\d*)\s*%\s*", value) if isinstance(value, str) else None
    return Fraction(match[1]) / 100 if match else value


PERCENT = BeforeValidator(_part, json_schema_input_type=float | str)


def _same(value: object) -> object:
    """A number of tokens that all have."""
    number = isinstance(value, int) and not isinstance(value, bool)
    return {"kind": "fixed", "length": value} if number else value


Tokens = Annotated[Lengths, BeforeValidator(_same, json_schema_input_type=int | Lengths)]


class Delay(PluginSection):
    """A time, perhaps multiplied by a random factor."""

    plugins: ClassVar[Plugins] = Plugins("distribution", distributions.names, distributions.find)
    time: Span
    """The time, of which a distribution draws multiples."""
    distribution: DistributionName | None = None
    """Distribution of the factor by which the time is multiplied. Default: none."""


class Reward(Delay):
    """What computes rewards: servers with a queue."""

    workers: Count | None = None
    """How many rewards are computed at the same time. Default: any number."""
    per: Annotated[Literal["sample", "group"], choice("sample", "group")] = "sample"
    """What one reward is computed of: a sample, or all samples of a prompt together."""


class Turns(Section):
    """Tool calls between parts of a response."""

    count: Tokens
    """Parts of a response, of which the last ends it; the response's tokens are divided evenly among them."""
    wait: Delay
    """How long a tool takes between two parts."""
    tokens: Natural = 0
    """Tokens of a tool's answer, which the engine reads as it reads a prompt."""
    keep: Flag = True
    """Whether the sample's keys and values stay in memory meanwhile; false: they are computed again."""


class DecodeEfficiency(Section):
    """What engines reach of the GPU's figures, and what a decode step costs beside them."""

    bandwidth: Annotated[Factor, PERCENT] = Fraction(95, 100)
    """Share of the memory bandwidth for weights that all tokens read, and for keys and values."""
    experts: Annotated[Factor, PERCENT] = Fraction(605, 1000)
    """Share of the memory bandwidth for the weights of experts."""
    compute: Annotated[Factor, PERCENT] = Fraction(49, 100)
    """Share of the GPU's peak."""
    layer: Time = Fraction(29, 10**6)
    """Time per layer of a decode step."""
    step: Time = Fraction(3, 1000)
    """Time per decode step."""
    sequence: Time = Fraction(41, 10**7)
    """Time per sequence of a decode step."""
    latency: Time = Fraction(54, 10**7)
    """Latency of each of the two all-reduces of a layer, with several tensor ranks on one node."""
    across: Factor = Fraction(1)
    """With tensor ranks on several nodes: time of an all-reduce, as a multiple of NCCL's messages on the links."""
    reached: Annotated[Factor, PERCENT] = Fraction(1)
    """Speed of the engine relative to these figures; divides all of its times."""
    table: File = None
    """Instead of all this: a CSV file of measured steps with the columns sequences, tokens and seconds."""


class Rollout(Section):
    """The engines that generate samples."""

    nodes: Numbers | None = None
    """Their nodes, which the trainer does not use: 8-15, or a list."""
    on: Annotated[Literal["trainer"] | None, or_none(Literal["none", "trainer"]), choice(TRAINER)] = None
    """Instead of `nodes`: the trainer's own GPUs, in turns."""
    switch: Span = Fraction(0)
    """With `on`: time to change from training to generation, and as much to change back."""
    tensor: Count = 1
    """Tensor ranks of a replica."""
    data: Count = 1
    """Data-parallel ranks of a replica, each with sequences of its own."""
    expert: Count = 1
    """Expert-parallel ranks of a replica."""
    concurrency: Count = 256
    """The most sequences that a replica generates at the same time."""
    memory: Annotated[Fraction, share(above_0=True), PERCENT] = Fraction(8, 10)
    """Share of the GPU's memory for weights, keys and values."""
    precision: Annotated[str, choice("bf16", "fp16", "fp8")] = "bf16"
    """Precision of the engine's weights and GEMMs."""
    efficiency: DecodeEfficiency = Field(default_factory=DecodeEfficiency)

    @property
    def gpus_per_replica(self) -> int:
        """GPUs that serve one replica."""
        return self.tensor * self.data


@cache
def _rollouts() -> TypeAdapter[tuple[Rollout, ...]]:
    return TypeAdapter(tuple[Rollout, ...])


def _engines(value: object) -> tuple[Rollout, ...]:
    """Read one kind of engines, or a list of kinds."""
    if isinstance(value, list | tuple) and value:
        return _rollouts().validate_python(value)
    if not isinstance(value, Mapping | Rollout):
        raise ValueError(f"expected engines such as {{nodes: 8-15, tensor: 4}}, found {describe(value)}")
    return (Rollout.model_validate(value),)


Engines = Annotated[tuple[Rollout, ...], PlainValidator(_engines, json_schema_input_type=Rollout | tuple[Rollout, ...])]


class Passes(Section):
    """Forward passes of the trainer's GPUs over the samples of a step, before it trains on them."""

    old: Flag = False
    """The policy that is trained, for the log-probabilities before the first update."""
    reference: Flag = False
    """A frozen model of the same size, for the KL penalty."""
    critic: Flag = False
    """A model of the same size that estimates values."""

    @property
    def names(self) -> tuple[str, ...]:
        """Those that are made."""
        return tuple(name for name, made in self if made)


class Sync(Section):
    """New weights on their way from the trainer to the engines."""

    every: Count = 1
    """Batches of `rl.updates` optimizer steps between two syncs."""
    time: Span | None = None
    """How long a sync takes, measured."""
    mechanism: Annotated[Literal["gather", "buckets", "shards"] | None, choice("gather", "buckets", "shards")] = None
    """Instead of `time`, as messages: gathered, then broadcast; the same tensor by tensor; or from shard to shard."""
    load: Time = Fraction(0)
    """With `mechanism`: time to load a tensor into an engine."""
    running: Annotated[str, choice("resume", "continue", "wait", "restart")] = "resume"
    """Unfinished samples at a sync: stopped, their keys and values computed anew; kept; awaited; or begun anew."""


class Lend(Section):
    """The trainer's GPUs generate while it waits."""

    below: Annotated[Fraction, share(above_0=True), PERCENT]
    """They do until this share of the samples of the next take is ready."""
    to_rollout: Span
    """Time to change from training to generation."""
    to_trainer: Span
    """Time to change back."""


class MeasuredTrainer(Section):
    """A measured training step, instead of a simulated one."""

    time: LastingSpan | None = None
    """Time of the `rl.updates` optimizer steps of a batch, with their forward passes."""
    table: File = None
    """Instead of `time`: a CSV file with the columns tokens and seconds, of an optimizer step."""


def _trainer(value: object) -> object:
    if value in ("simulated", "sampled") or isinstance(value, Mapping | MeasuredTrainer):
        return value
    raise ValueError(f"expected simulated, sampled, {{time: 113 s}} or {{table: FILE}}, found {describe(value)}")


class Rl(Section):
    """Reinforcement learning: engines that generate samples, a queue, and a trainer whose weights return to them."""

    samples: Count
    """Samples per prompt; they reach the queue together."""
    prompt: Tokens
    """Tokens of a prompt: a number, or a distribution as in `data.lengths`."""
    response: Tokens
    """Tokens of a response: a number, or a distribution, of which `mean` is that after the cut at `max`."""
    rollout: Engines
    """The engines: one kind, or a list."""
    sync: Sync
    updates: Count = 1
    """Optimizer steps of a batch, after which weights can be sent."""
    take: Count = 1
    """Optimizer steps whose samples the trainer waits for together."""
    ahead: Number = Fraction(0)
    """How much more may be generated than is trained before the next sync, in batches: the allowed staleness."""
    counted: Annotated[Literal["sync", "now"], choice("sync", "now")] = "sync"
    """When trained samples make room for new ones: at the next sync, or at once."""
    barrier: Flag = False
    """Whether the samples of a batch are begun only when the batch before has been taken (one step off)."""
    order: Annotated[Literal["completed", "oldest"], choice("completed", "oldest")] = "completed"
    """Which samples are trained first: those completed first, or those begun first."""
    max_age: Natural | None = None
    """Samples begun more than so many syncs ago are treated as `stale` has it. Default: any age is trained."""
    stale: Annotated[Literal["train", "drop"], choice("train", "drop")] = "train"
    """With `max_age`: whether older samples are trained all the same, or dropped and their prompts drawn again."""
    passes: Passes = Field(default_factory=Passes)
    reward: Annotated[Reward | None, or_none(Literal["none"] | Reward | None)] = None
    """How rewards are computed. Default: at once."""
    turns: Annotated[Turns | None, or_none(Literal["none"] | Turns | None)] = None
    """Tool calls within a response. Default: none."""
    filter: Annotated[Fraction, share(below_1=True), PERCENT] = Fraction(0)
    """Share of the prompts whose samples are thrown away, since all have the same reward; others are drawn."""
    lend: Annotated[Lend | None, or_none(Literal["none"] | Lend | None)] = None
    """Whether the trainer's GPUs generate while it waits. Default: they do not."""
    rest: Span = Fraction(0)
    """Time per batch that neither side's GPUs explain: moving data, switching memory, tokenizing."""
    trainer: Annotated[
        Literal["simulated", "sampled"] | MeasuredTrainer,
        BeforeValidator(_trainer, json_schema_input_type=Literal["simulated", "sampled"] | MeasuredTrainer),
    ] = "simulated"
    """Training steps: simulated (some of them, where all are too many: `sampled`), or measured ones."""

    @property
    def colocated(self) -> bool:
        """Whether engines and trainer share their GPUs in turns."""
        return self.rollout[0].on == TRAINER


RlOrNone = Annotated[Rl | None, given(Rl, Literal["none"] | Rl, none=True)]


def engine_gpus(rollout: Rollout, cluster: Cluster, trainer: int) -> tuple[int, ...]:
    """The GPUs of the engines of one kind, by number, where the trainer has this many; those of nodes in order."""
    if rollout.on == TRAINER:
        return tuple(range(trainer))
    firsts, first = [], 0
    for kind in cluster.kinds:
        for _ in range(kind.count):
            firsts.append((first, kind.gpus_per_node))
            first += kind.gpus_per_node
    return tuple(gpu for node in rollout.nodes or () for gpu in range(firsts[node][0], sum(firsts[node])))


def longest_sample(rl: Mapping[Any, Any]) -> int | None:
    """The most tokens of a sample, prompt and response, of an unread section; None if it does not say."""
    parts = []
    for name in ("prompt", "response"):
        value = _same(rl.get(name))
        most = (value.get("max") or value.get("length")) if isinstance(value, Mapping) else None
        if not isinstance(most, int) or isinstance(most, bool):
            return None
        parts.append(most)
    return sum(parts)


def misfits_of_rl(
    rl: Rl, cluster: Cluster, parallel: Parallel, batch: int | None, *, modelled: bool
) -> Iterator[Problem]:
    """Contradictions within `rl`, and between it and the trainer, of which a `model` may be given or not."""
    if not modelled:
        yield misfit("needs a `model`, which engines serve too", "rl", "model")
    if batch is None:
        yield misfit("is required by `rl`: the samples of an optimizer step", "batch", "rl")
    elif batch % rl.samples:
        message = f"{batch} samples of an optimizer step are not a multiple of {rl.samples} per prompt"
        yield misfit(message, "rl.samples", "batch")
    if rl.updates % rl.take:
        message = f"must divide rl.updates ({rl.updates}), the optimizer steps of a batch"
        yield misfit(message, "rl.take", "rl.updates")
    if (rl.sync.time is None) == (rl.sync.mechanism is None):
        yield misfit("expected either a measured `time` or a `mechanism`; no rate fits all", "rl.sync.time", "rl.sync")
    if isinstance(rl.trainer, MeasuredTrainer) and (rl.trainer.time is None) == (rl.trainer.table is None):
        yield misfit("expected either `time` or `table`", "rl.trainer", "rl.trainer")
    if (samples := batch * rl.updates * rl.sync.every if batch else 0) > MOST_SAMPLES:
        message = f"{samples} samples between two weight syncs are more than can be simulated ({MOST_SAMPLES})"
        yield misfit(message, "batch", "rl.updates", "rl.sync.every")
    yield from _misfits_of_unread(rl)
    yield from _misfits_of_lengths(rl)
    yield from _misfits_of_engines(rl, cluster, parallel.ranks)


def _misfits_of_unread(rl: Rl) -> Iterator[Problem]:
    """Keys that have no effect beside others."""
    if rl.stale == "drop" and rl.max_age is None:
        yield misfit("drop is read with `max_age` only", "rl.stale", "rl.max_age")
    if rl.stale != "drop" and rl.max_age is not None:
        yield misfit("is read with `stale: drop` only; samples of any age are trained", "rl.max_age", "rl.stale")
    if rl.sync.load and rl.sync.mechanism is None:
        yield misfit("is part of a measured `time`; expected 0", "rl.sync.load", "rl.sync.time")
    if isinstance(rl.trainer, MeasuredTrainer):
        for name in rl.passes.names:
            message = "is part of the measured time of `rl.trainer`; expected false"
            yield misfit(message, f"rl.passes.{name}", "rl.trainer")
    for path, rollout in _paths(rl):
        if rollout.switch and rollout.on is None:
            yield misfit("is read with `on: trainer` only", f"{path}.switch", f"{path}.on")
        if rollout.efficiency.table is not None:
            for name in sorted(rollout.efficiency.model_fields_set & OF_STEPS):
                message = "is replaced by measured steps; give only one of the two"
                yield misfit(message, f"{path}.efficiency.{name}", f"{path}.efficiency.table")


def _paths(rl: Rl) -> Iterator[tuple[str, Rollout]]:
    """Each kind of engines with its path."""
    several = len(rl.rollout) > 1
    yield from ((f"{PATH}.{number}" if several else PATH, rollout) for number, rollout in enumerate(rl.rollout))


def _misfits_of_lengths(rl: Rl) -> Iterator[Problem]:
    lengths = {"rl.prompt": rl.prompt, "rl.response": rl.response}
    if rl.turns is not None:
        lengths["rl.turns.count"] = rl.turns.count
        yield from rl.turns.wait.misfits_of_options("rl.turns.wait", 1)
    if rl.reward is not None:
        yield from rl.reward.misfits_of_options("rl.reward", 1)
    for path, tokens in lengths.items():
        yield from tokens.misfits_of_options(path, 1)
        if tokens.kind == "fixed" and getattr(tokens.options, "length", None) is None:
            yield misfit("is required: there is no default here", f"{path}.length", path)
        elif tokens.max is None and tokens.kind not in ("fixed", "histogram", "file"):
            yield misfit("is required: where longer ones are cut", f"{path}.max", path)
        elif tokens.max is not None and tokens.min > tokens.max:
            yield misfit(f"must be at most {tokens.max}, the longest", f"{path}.min", f"{path}.max")
        elif tokens.kind == "lognormal" and not tokens.lacking and tokens.max is not None:
            mean = tokens.options.mean  # type: ignore[union-attr]
            if not tokens.min < mean < tokens.max:
                message = f"a mean after the cut is above {tokens.min} and below {tokens.max}, not {describe(mean)}"
                yield misfit(message, f"{path}.mean", f"{path}.max")


def _misfits_of_engines(rl: Rl, cluster: Cluster, trainer: int) -> Iterator[Problem]:
    """Engines need GPUs that the trainer, with so many ranks, does not use, or take turns with it."""
    nodes = sum(kind.count for kind in cluster.kinds)
    used = set(range(len(cluster.nodes_for(trainer))))
    several = len(rl.rollout) > 1
    for path, rollout in _paths(rl):
        if (rollout.nodes is None) == (rollout.on is None):
            yield misfit("expected nodes of the engines, or `on: trainer`", f"{path}.nodes", f"{path}.on")
            continue
        if rollout.on is not None and several:
            yield misfit("trainer: the only kind of engines then", f"{path}.on", PATH)
        if beyond := [node for node in rollout.nodes or () if node >= nodes]:
            yield misfit(f"the cluster has {nodes} nodes; there is no node {beyond[0]}", f"{path}.nodes", "cluster")
            continue
        if both := sorted(used & set(rollout.nodes or ())):
            message = f"node {both[0]} is the trainer's too, whose {trainer} ranks use the first GPUs of the cluster"
            yield misfit(message, f"{path}.nodes", "parallel")
            continue
        used |= set(rollout.nodes or ())
        gpus = len(engine_gpus(rollout, cluster, trainer))
        if not gpus:
            yield misfit("leaves no GPUs to the engines", f"{path}.nodes", "cluster")
        elif gpus % rollout.gpus_per_replica:
            message = f"{gpus} GPUs are not a multiple of the {rollout.gpus_per_replica} of a replica (tensor × data)"
            yield misfit(message, f"{path}.tensor", f"{path}.data", f"{path}.nodes")
        if rollout.gpus_per_replica % rollout.expert:
            message = f"must divide the {rollout.gpus_per_replica} GPUs of a replica (tensor × data)"
            yield misfit(message, f"{path}.expert", f"{path}.tensor", f"{path}.data")
    if rl.lend is not None and trainer < rl.rollout[0].gpus_per_replica:
        message = f"{trainer} GPUs of the trainer are fewer than the {rl.rollout[0].gpus_per_replica} of a replica"
        yield misfit(message, "rl.lend", "parallel")
    if rl.colocated:
        unused = {"rl.ahead": not rl.ahead, "rl.barrier": not rl.barrier, "rl.lend": rl.lend is None}
        for path, idle in unused.items():
            if not idle:
                message = "engines and trainer take turns on the same GPUs (`on: trainer`); expected 0, false or none"
                yield misfit(message, path, f"{PATH}.on")
