"""The scenario: a frozen, validated description of a simulation, whose sections are consistent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from hybrid_des.errors import Refusal, UsageError
from hybrid_des.models.kinds import ModelRefusal
from hybrid_des.network import topologies
from hybrid_des.network.topologies import OptionRefusal
from hybrid_des.options import MOST, Count, Elsewhere, Flag, Text, choice, mark_of, whole
from hybrid_des.pipeline import schedules
from hybrid_des.scenario.defaults import fill, of_ranks
from hybrid_des.scenario.fault_checks import misfits_of_faults
from hybrid_des.scenario.faults import FaultsOrNone
from hybrid_des.scenario.folded import Fold, fold_fits
from hybrid_des.scenario.machine import Cluster
from hybrid_des.scenario.perturbed import Perturbed, misfits_of_perturbations
from hybrid_des.scenario.plugins import PluginSection
from hybrid_des.scenario.problem import Problem, Problems
from hybrid_des.scenario.recipe import Efficiency, Overlap, PublishedOrOwn
from hybrid_des.scenario.sections import Gradients, NumericsOrNone, Parallel, Schedule, Workload
from hybrid_des.scenario.sharded import divided, misfits_of_recompute, misfits_of_sharding
from hybrid_des.scenario.sizes import excesses
from hybrid_des.scenario.workload_checks import misfits_of_workload

MODELLED = {  # keys that are read with `model` only, and their defaults
    "precision": "bf16", "overlap.tensor": 0, "overlap.experts": 0, "efficiency": None, "batch": None,
    "tensor_traffic": "auto", "schedule.microbatch_size": 1, "parallel.sequence": False,
    "parallel.context_method": "ring", "parallel.stages": "even",
}  # fmt: skip


class Scenario(Perturbed):
    """A training step to simulate: machine, layout, schedule, costs."""

    version: Annotated[int, whole(1, 1)] = 1
    """Version of this format."""
    name: Text = "scenario"
    """Name in reports and output. Default: the file's stem."""
    description: Text = ""
    """What it shows."""
    cluster: Cluster
    parallel: Parallel = Field(default_factory=Parallel)
    schedule: Schedule
    workload: Workload | None = None
    model: PublishedOrOwn = None
    """Instead of `workload`: the network that is trained; a published one by name, or its sizes."""
    precision: Annotated[str, choice("bf16", "fp16", "fp8")] = "bf16"
    """Precision of products; fp8: attention and logits in bf16."""
    recompute: Annotated[Literal["none", "selective", "full"], choice("none", "selective", "full")] = "none"
    """What the backward recomputes instead of keeping it: nothing, the attention core, or whole layers."""
    sharding: Annotated[str, choice("none", "zero-1", "zero-2", "zero-3")] = "none"
    """What replicas divide: the optimizer's state (zero-1), also gradients (zero-2), also weights (zero-3)."""
    overlap: Overlap = Field(default_factory=Overlap)
    tensor_traffic: Annotated[Literal["auto", "replay", "messages"], choice("auto", "replay", "messages")] = "auto"
    """Collectives inside ops: their durations replayed, or every message; auto: replayed where that is exact."""
    efficiency: Efficiency | None = None
    """Achieved shares of the GPU's peaks."""
    batch: Count | None = None
    """Samples per step over all replicas, instead of schedule.microbatches."""
    gradients: Gradients = Field(default_factory=Gradients)
    numerics: NumericsOrNone = None
    """Real training on the simulated GPUs."""
    faults: FaultsOrNone = None
    """Weeks of failures and recoveries, for `hybrid-des goodput`."""
    steps: Annotated[int, whole(1, 2**22)] = 1
    """Training steps."""
    barrier: Flag = True
    """Whether all ranks start a step together."""
    seed: Annotated[int, whole(0, 2**63 - 1)] = 0
    """Seed of all random numbers."""
    on_oom: Annotated[Literal["warn", "error"], choice("warn", "error")] = "warn"
    """What happens when a GPU runs out of memory."""
    fold: Fold = "auto"
    """Replicas that do the same are simulated once; auto: as few as is exact, in runs of many GPUs; or how many."""
    record: Annotated[Literal["all", "compute", "none"], choice("all", "compute", "none")] = "all"
    """What the timeline records; compute: no rows for messages; none: summary only."""

    @property
    def layered(self) -> bool:
        """Whether gradients or weights are divided within a step, so that ranks communicate layer by layer."""
        return self.sharding in ("zero-2", "zero-3") and self.parallel.pipeline == 1

    def placed(self, gpus: Sequence[int]) -> Scenario:
        """The same scenario as a job on these GPUs of its cluster, by rank; further ones may host servers.

        Raises:
            UsageError: they are too few, or not different GPUs of the cluster.
        """
        if len(gpus) < self.parallel.ranks:
            raise UsageError(f"{self.name}: {self.parallel.ranks} ranks need one GPU each, found {len(gpus)}")
        return self.model_copy(update={"cluster": self.cluster.placed(gpus)})

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, values: Any) -> Any:
        return fill(values) if isinstance(values, Mapping) else values

    @model_validator(mode="after")
    def _check(self) -> Scenario:
        problems = [problem for check in _CHECKS for problem in check(self)]
        if problems:
            raise Problems(problems)
        return self


def _misfit(message: str, at: str, *others: str) -> Problem:
    """A problem at the first of several inconsistent paths."""
    paths = tuple(tuple(path.split(".")) for path in (at, *others))
    return Problem(paths[0], message, paths)


def _ranks_fit(scenario: Scenario) -> Iterator[Problem]:
    parallel, cluster = scenario.parallel, scenario.cluster
    if parallel.ranks > cluster.gpus:
        sizes = f"nodes {cluster.nodes} × gpus_per_node {cluster.gpus_per_node}"
        if not isinstance(cluster.nodes, int):
            sizes = f"in {sum(kind.count for kind in cluster.kinds)} nodes"
        axes = ("pipeline", "data", "tensor", *(("context",) if parallel.context > 1 else ()))
        yield Problem(
            ("parallel",),
            f"{parallel.ranks} ranks ({' × '.join(f'{axis} {getattr(parallel, axis)}' for axis in axes)}) "
            f"need one GPU each; the cluster has {cluster.gpus} ({sizes})",
            (*(("parallel", axis) for axis in axes), ("cluster", "nodes"), ("cluster", "gpus_per_node")),
        )


def _costs_are_given_once(scenario: Scenario) -> Iterator[Problem]:
    if scenario.model is not None and scenario.workload is not None:
        message = "replaces `workload`; give only one of the two (null removes an inherited one)"
        yield _misfit(message, "model")  # whatever is wrong inside of the workload
    if scenario.model is None and scenario.workload is None:
        yield _misfit("is required, or a `model`", "workload", "model")


def _batch_fits(scenario: Scenario) -> Iterator[Problem]:
    """A batch is a whole number of micro-batches on every replica."""
    schedule, replicas, batch = scenario.schedule, scenario.parallel.data, scenario.batch
    samples = replicas * schedule.microbatch_size
    if batch is not None and batch != samples * schedule.microbatches:
        if batch % samples:
            size = f"{replicas} replicas × micro-batches of {schedule.microbatch_size}"
            message = f"must be a multiple of {samples} ({size}), not {batch}"
        else:
            given = f"{replicas} replicas × {schedule.microbatches} micro-batches of {schedule.microbatch_size}"
            message = f"{given} are {samples * schedule.microbatches} samples, not {batch}"
        yield _misfit(message, "batch", "schedule.microbatches", "schedule.microbatch_size", "parallel.data")


def _model_divides(scenario: Scenario) -> Iterator[Problem]:
    """Options that divide a model require one, with sizes that are divisible."""
    parallel = scenario.parallel
    if scenario.model is None:
        for key, default in MODELLED.items():
            if attrgetter(key)(scenario) != default:
                yield _misfit("is read with `model` only", key, "model")
        for axis in ("tensor", "context", "expert"):
            if getattr(parallel, axis) > 1:
                yield _misfit(
                    "divides the layers of a `model`; with `workload`, expected 1", f"parallel.{axis}", "model"
                )
        return
    if scenario.model.lacking:
        return
    try:
        network = scenario.model.network
    except ModelRefusal as refusal:
        yield _misfit(refusal.message, f"model.{refusal.option}")
        return
    if parallel.context > 1 and network.sample != "sequence":
        yield _misfit("this model has no sequence that context parallelism divides", "parallel.context", "model")
    elif network.tokens % parallel.context:
        message = f"{network.tokens} tokens cannot be divided over {parallel.context} ranks"
        yield _misfit(message, "parallel.context", "model")
    for axis in ("tensor", "expert"):
        try:
            network.check_division(**{axis: getattr(parallel, axis)})
        except Refusal as refusal:
            yield _misfit(str(refusal), f"parallel.{axis}", "model")
    if parallel.data * parallel.context % parallel.expert:
        message = (
            f"{parallel.data * parallel.context} ranks along data and context cannot be grouped by {parallel.expert}"
        )
        yield _misfit(message, "parallel.expert", "parallel.data", "parallel.context")
    if scenario.precision == "fp8" and any(kind.gpu.peak_fp8 is None for kind in scenario.cluster.kinds):
        yield _misfit("this GPU has no 8-bit products", "precision", "cluster.gpu")
    if len({kind.gpu.name for kind in scenario.cluster.kinds}) > 1:
        message = "a model's times are those of one kind of GPU; give slower nodes a `speed`"
        yield _misfit(message, "cluster.nodes", "model")
    for key in ("peak", "bandwidth", "multiprocessors"):
        if any(getattr(kind.gpu, key) is None for kind in scenario.cluster.kinds):
            yield _misfit("is required by `model`", f"cluster.gpu.{key}", "model")


def _sharding_fits(scenario: Scenario) -> Iterator[Problem]:
    """Sharding and recomputation must be compatible with the other sections."""
    for message, *paths in (
        *misfits_of_sharding(scenario.sharding, scenario.overlap, scenario.gradients, scenario.workload),
        *misfits_of_recompute(scenario.recompute, scenario.workload),
    ):
        yield _misfit(message, *paths)
    if scenario.layered and scenario.gradients.bucket is not None:
        message = f"{scenario.sharding} scatters gradients layer by layer; expected none"
        yield _misfit(message, "gradients.bucket", "sharding")
    if scenario.layered and scenario.tensor_traffic == "messages":
        message = f"{scenario.sharding} replays the collectives of layers; expected auto or replay"
        yield _misfit(message, "tensor_traffic", "sharding", "parallel.pipeline")
    if scenario.numerics is not None:
        for path, whole in divided(scenario.parallel, scenario.sharding).items():
            yield _misfit(f"the small model of `numerics` cannot be divided; expected {whole}", path, "numerics")


def _options_are_read(scenario: Scenario) -> Iterator[Problem]:
    """Required options must be given; an option without effect is an error unless it states the implied value."""
    for name in ("cluster", "schedule", "gradients", "model"):
        section: PluginSection | None = getattr(scenario, name)
        if section is None:
            continue
        plugins = section.plugins
        chosen = plugins.chosen(dict(section))
        what = chosen.name if chosen else ""
        for key in section.lacking:
            yield _misfit(f"is required by {what}", f"{name}.{key}", f"{name}.{plugins.key}")
        for key, value in section.unread.items():
            readers = plugins.readers()[key]
            mark = mark_of(next(iter(readers.values())), Elsewhere)
            if mark is None or value != of_ranks(mark.value, scenario.parallel.pipeline):
                message = f"is not read by {what}; read by {', '.join(readers)}"
                yield _misfit(message, f"{name}.{key}", f"{name}.{plugins.key}")


def _wiring_exists(scenario: Scenario) -> Iterator[Problem]:
    """The topology must support the cluster."""
    cluster = scenario.cluster
    entry = topologies.find(cluster.topology)
    if entry.facts["check"] is None or cluster.gpus > MOST or cluster.lacking:
        return
    own = ("topology", "nodes", "gpus_per_node", "nvlink", "infiniband")
    needs = tuple(("cluster", key) for key in (*own, *entry.keys))
    try:
        entry.facts["check"](cluster.spec, *entry.arguments(cluster.options))
    except OptionRefusal as refusal:
        yield Problem(("cluster", refusal.option, *refusal.at), refusal.message, needs)
    except Refusal as refusal:
        yield Problem(needs[0], str(refusal), needs)


def _schedule_is_one(scenario: Scenario) -> Iterator[Problem]:
    kind, file = scenario.schedule.kind, scenario.schedule.file
    if kind is None and file is None:
        yield _misfit(f"is required, one of {', '.join(schedules.names())}", "schedule.kind", "schedule.file")
    if kind is not None and file is not None:
        yield _misfit("replaces `kind`; give only one of the two", "schedule.file", "schedule.kind")


def _chunks_fit(scenario: Scenario) -> Iterator[Problem]:
    kind, chunks = scenario.schedule.kind, scenario.schedule.chunks
    if kind is None:
        return
    facts = schedules.find(kind).facts
    fixed = facts["chunks"] or (None if facts["many_chunks"] else 1)
    if fixed is not None and chunks != fixed:
        yield _misfit(f"{kind} has {fixed} per rank, not {chunks}", "schedule.chunks", "schedule.kind")


def _errors_exist(scenario: Scenario) -> Iterator[Problem]:
    if scenario.gradients.error_feedback and scenario.numerics is None:
        yield _misfit("needs real gradients; add a numerics: section", "gradients.error_feedback", "numerics")


def _workload_fits(scenario: Scenario) -> Iterator[Problem]:
    for one in misfits_of_workload(scenario.workload, scenario.parallel.pipeline):
        yield _misfit(*one)


def _layers_fit(scenario: Scenario) -> Iterator[Problem]:
    stages = scenario.parallel.pipeline * scenario.schedule.chunks
    if scenario.numerics is not None and scenario.numerics.layers < stages:
        message = f"{scenario.numerics.layers} layers cannot be split over {stages} stages"
        yield _misfit(message, "numerics.layers", "parallel.pipeline", "schedule.chunks")


_CHECKS = (
    _ranks_fit, fold_fits, _costs_are_given_once, _batch_fits, _model_divides, _sharding_fits, _options_are_read,
    _wiring_exists, excesses, _schedule_is_one, _chunks_fit, _errors_exist, _workload_fits, _layers_fit,
    misfits_of_perturbations, misfits_of_faults,
)  # fmt: skip
