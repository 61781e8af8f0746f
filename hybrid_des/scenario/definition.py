"""The scenario: a frozen, validated description of a simulation, whose sections are consistent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Self

from pydantic import model_validator

from hybrid_des.cluster import topologies
from hybrid_des.errors import OptionRefusal, Refusal
from hybrid_des.options import MOST
from hybrid_des.pipeline import schedules
from hybrid_des.scenario.defaults import FilledValues, fill
from hybrid_des.scenario.groups import misfits_of_outer, misfits_of_sites
from hybrid_des.scenario.keys import LABEL, ScenarioKeys
from hybrid_des.scenario.loops import misfits_of_loop
from hybrid_des.scenario.problem import Problem, Problems, misfit
from hybrid_des.scenario.scans import misfits_of_scans
from hybrid_des.scenario.sections.bill import misfits_of_bill
from hybrid_des.scenario.sections.cluster import QUANTISED, WIDE, WITHOUT_PRIORITIES
from hybrid_des.scenario.sections.data import misfits_of_data
from hybrid_des.scenario.sections.experts import ExpertTraffic, misfits_of_experts, misfits_of_loads, misfits_of_streams
from hybrid_des.scenario.sections.faults import misfits_of_faults
from hybrid_des.scenario.sections.operators import Operators, misfits_of_operators
from hybrid_des.scenario.sections.optimizer import Optimizer, misfits_of_optimizer
from hybrid_des.scenario.sections.perturbations import misfits_of_background, misfits_of_jitter, misfits_of_slow
from hybrid_des.scenario.sections.rl import MeasuredTrainer
from hybrid_des.scenario.sections.shards import Shards, misfits_of_shards
from hybrid_des.scenario.sections.training import (
    Offload,
    divided,
    misfits_of_durations,
    misfits_of_offload,
    misfits_of_recompute,
    misfits_of_sharding,
    misfits_of_workload,
)
from hybrid_des.scenario.sizes import excesses
from hybrid_des.scenario.stacks import misfits_of_attention
from hybrid_des.workload.models.kinds.registration import ModelRefusal
from hybrid_des.workload.models.layer import OPS

MODELLED = {  # keys that are read with `model` only, and their defaults
    "precision": "bf16", "overlap.tensor": 0, "overlap.experts": 0, "overlap.weight_gradients": False,
    "efficiency": None, "batch": None, "tensor_traffic": "auto", "layer_collectives": "nccl",
    "schedule.microbatch_size": 1,
    "parallel.sequence": False, "parallel.context_method": "ring", "parallel.stages": "even",
    "parallel.expert_tensor": None, "experts": ExpertTraffic(), "offload": Offload(), "cuda_graphs": "none",
    "gradients.fused": None, "operators": Operators(), "optimizer": Optimizer(), "shards": Shards(), "data": None,
}  # fmt: skip


class Scenario(ScenarioKeys):
    """A training step to simulate: machine, layout, schedule, costs."""

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, values: object) -> object:
        return fill(values) if isinstance(values, Mapping) and not isinstance(values, FilledValues) else values

    @model_validator(mode="after")
    def _check(self) -> Self:
        problems = [problem for check in _CHECKS for problem in check(self)]
        if problems:
            raise Problems(problems)
        return self


LABELS = frozenset(name for name, field in Scenario.model_fields.items() if LABEL in field.metadata)


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


def _fold_fits(scenario: Scenario) -> Iterator[Problem]:
    """A fold must divide the replicas, and they must not each train on their own samples."""
    fold, replicas = scenario.fold, scenario.parallel.data
    if not isinstance(fold, int):
        return
    if replicas % fold:
        yield misfit(f"{replicas} replicas cannot be folded to {fold}; expected a divisor", "fold", "parallel.data")
    elif scenario.numerics is not None and fold < replicas:
        yield misfit("with `numerics` every replica trains on its own samples; expected off", "fold", "numerics")


def _costs_are_given_once(scenario: Scenario) -> Iterator[Problem]:
    if scenario.model is not None and scenario.workload is not None:
        message = "replaces `workload`; give only one of the two (null removes an inherited one)"
        yield misfit(message, "model")  # whatever is wrong inside of the workload
    if scenario.model is None and scenario.workload is None:
        yield misfit("is required, or a `model`", "workload", "model")


def _batch_fits(scenario: Scenario) -> Iterator[Problem]:
    """A batch is a whole number of micro-batches on every replica; a measured trainer says nothing of either."""
    if scenario.rl is not None and isinstance(scenario.rl.trainer, MeasuredTrainer):
        return
    schedule, replicas, batch = scenario.schedule, scenario.parallel.data, scenario.batch
    samples = replicas * schedule.microbatch_size
    if batch is not None and batch != samples * schedule.microbatches:
        if batch % samples:
            size = f"{replicas} replicas × micro-batches of {schedule.microbatch_size}"
            message = f"must be a multiple of {samples} ({size}), not {batch}"
        else:
            given = f"{replicas} replicas × {schedule.microbatches} micro-batches of {schedule.microbatch_size}"
            message = f"{given} are {samples * schedule.microbatches} samples, not {batch}"
        yield misfit(message, "batch", "schedule.microbatches", "schedule.microbatch_size", "parallel.data")


def _model_divides(scenario: Scenario) -> Iterator[Problem]:
    """Options that divide a model require one, with sizes that are divisible."""
    if scenario.model is None:
        yield from _model_is_required(scenario)
        return
    if scenario.model.lacking:
        return
    try:
        network = scenario.model.network
    except ModelRefusal as refusal:
        yield misfit(refusal.message, f"model.{refusal.option}", "model.kinds")
        return
    parallel = scenario.parallel
    if parallel.pipeline > 1 and any(layer.passed for layer in network.layers if layer.is_block):
        message = (
            "blocks before all trained ones have no backward, and pipelines send gradients to each stage; expected 1"
        )
        yield misfit(message, "parallel.pipeline", "model.frozen")
    if parallel.context > 1 and network.sample != "sequence":
        yield misfit("this model has no sequence that context parallelism divides", "parallel.context", "model")
    elif network.tokens % parallel.context:
        message = f"{network.tokens} tokens cannot be divided over {parallel.context} ranks"
        yield misfit(message, "parallel.context", "model")
    for axis in ("tensor", "expert"):
        try:
            network.check_division(**{axis: getattr(parallel, axis)})
        except Refusal as refusal:
            yield misfit(str(refusal), f"parallel.{axis}", "model")
    yield from misfits_of_experts(parallel, scenario.outer_groups)
    every, batch = scenario.gradients.every, scenario.batch
    yield from misfits_of_data(scenario.data, parallel, scenario.schedule, network=network, batch=batch, every=every)
    counts = [layer.routing.count for layer in network.layers if layer.routing]
    sends = any(layer.dispatched for layer in network.layers)
    yield from misfits_of_loads(scenario.experts, counts, parallel.expert, sends=sends)
    of_blocks = [{module.name for module in layer.modules} for layer in network.layers if layer.is_block]
    held, kinds = set().union(*of_blocks), getattr(scenario.model.options, "kinds", None)
    if isinstance(scenario.recompute, tuple) and (lacks := set(scenario.recompute) - held):
        message = f"this model has no {' or '.join(sorted(lacks))}; expected some of {', '.join(sorted(held))}"
        yield misfit(message, "recompute", "model")
    elif scenario.recompute == (OPS,) and kinds and not all(OPS in names for names in of_blocks):
        message = (
            f"{OPS}: what it repeats is not known of all kinds of layers of this model; expected a level or modules"
        )
        yield misfit(message, "recompute", "model")
    if scenario.operators.mlp_tile is not None and "mlp" not in held:
        yield misfit("this model has no MLP outside experts", "operators.mlp_tile", "model")
    reached = 0.0 if scenario.efficiency is None else float(scenario.efficiency.attention)
    kernel, gpu = scenario.operators.attention, scenario.cluster.kinds[0].gpu.name
    yield from misfits_of_attention(kernel, scenario.model.options, gpu, reached)
    yield from misfits_of_scans(network, parallel, scenario.efficiency, gpu)
    yield from _gpus_run_models(scenario)


def _model_is_required(scenario: Scenario) -> Iterator[Problem]:
    traced = scenario.workload is not None and scenario.workload.trace is not None
    for key, default in MODELLED.items():
        if attrgetter(key)(scenario) != default and not (traced and key == "efficiency"):  # of links
            yield misfit("is read with `model` only", key, "model")
    for axis in ("tensor", "context", "expert"):
        if getattr(scenario.parallel, axis) > 1:
            yield misfit("divides the layers of a `model`; with `workload`, expected 1", f"parallel.{axis}", "model")


def _gpus_run_models(scenario: Scenario) -> Iterator[Problem]:
    """GPUs of one kind, whose figures are known."""
    cluster, engines_apart = scenario.cluster, scenario.rl is not None
    used = [kind.gpu for kind in (cluster.nodes_for(scenario.parallel.ranks) if engines_apart else cluster.kinds)]
    needed = QUANTISED.get(scenario.precision, ())
    lacking = [gpu.name for gpu in used if any(getattr(gpu, peak) is None for peak in needed)]
    if lacking:
        what = "8-bit" if needed == QUANTISED["fp8"] else scenario.precision
        message = f"{lacking[0]} has no {what} GEMMs; expected another precision or cluster.gpu"
        yield misfit(message, "precision", "cluster.gpu")
    peak = WIDE.get(scenario.precision)
    if peak and any(getattr(gpu, peak) is None for gpu in used):
        message = f"the {scenario.precision} rate of {used[0].name} is not known; expected its figures with {peak}"
        yield misfit(message, "precision", "cluster.gpu")
    alone = {"sharding": "none", "experts.dispatch": "bf16", "experts.placement": "static"} if peak else {}
    for path, expected in alone.items():
        if (stated := attrgetter(path)(scenario)) != expected:
            message = f"{stated}: sends in 16 or 8 bits; with precision {scenario.precision}, expected {expected}"
            yield misfit(message, path, "precision")
    if len({gpu.name for gpu in used}) > 1:
        message = "a model's times are those of one kind of GPU; give slower nodes a `speed`"
        yield misfit(message, "cluster.nodes", "model")
    for key in ("peak", "bandwidth", "multiprocessors"):
        if any(getattr(gpu, key) is None for gpu in used):
            yield misfit("is required by `model`", f"cluster.gpu.{key}", "model")


def _sharding_fits(scenario: Scenario) -> Iterator[Problem]:
    """Sharding and recomputation must be compatible with the other sections."""
    yield from misfits_of_streams(scenario.experts, scenario.overlap, scenario.recompute, layered=scenario.fsdp)
    if scenario.recompute_layers is not None and (scenario.recompute != "full" or scenario.model is None):
        message = "is read with a `model` and `recompute: full` only"
        yield misfit(message, "recompute_layers", "recompute", "model")
    yield from misfits_of_sharding(scenario.sharding, scenario.overlap, scenario.gradients, scenario.workload)
    yield from misfits_of_operators(scenario.operators)
    gathers = scenario.fsdp and scenario.sharding == "zero-3" and scenario.shards.reshard is not False
    yield from misfits_of_offload(scenario.offload, scenario.recompute, gathers=gathers)
    yield from misfits_of_optimizer(scenario.optimizer, scenario.sharding)
    yield from misfits_of_shards(scenario.shards, scenario.parallel, scenario.sharding, layered=scenario.fsdp)
    if scenario.workload is not None:
        yield from misfits_of_recompute(scenario.recompute, scenario.workload)
    if scenario.fsdp and scenario.gradients.bucket is not None:
        message = f"{scenario.sharding} scatters gradients layer by layer; expected none"
        yield misfit(message, "gradients.bucket", "sharding")
    if scenario.gradients.scattered == "step" and not scenario.fsdp:
        message = "is read with zero-2 and zero-3 outside pipelines only"
        yield misfit(message, "gradients.scattered", "sharding", "parallel.pipeline")
    if scenario.gradients.first_bucket != 2**20 and scenario.gradients.bucket_rule != "ddp":
        yield misfit("is read with `bucket_rule: ddp` only", "gradients.first_bucket", "gradients.bucket_rule")
    if scenario.fsdp and scenario.tensor_traffic == "messages":
        message = f"{scenario.sharding} replays the collectives of layers; expected auto or replay"
        yield misfit(message, "tensor_traffic", "sharding", "parallel.pipeline")
    if scenario.numerics is not None:
        for path, whole in divided(scenario.parallel, scenario.sharding).items():
            yield misfit(f"the small model of `numerics` cannot be divided; expected {whole}", path, "numerics")


def _options_are_read(scenario: Scenario) -> Iterator[Problem]:
    """Required options must be given; an option without effect is an error unless it states the implied value."""
    for name in ("cluster", "schedule", "gradients", "model", "experts", "data"):
        section = getattr(scenario, name)
        if section is not None:
            yield from section.misfits_of_options(name, scenario.parallel.pipeline)
    if scenario.data is not None:
        yield from scenario.data.lengths.misfits_of_options("data.lengths", scenario.parallel.pipeline)


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
    if kind is None and file is None and not scenario.traced:
        yield misfit(f"is required, one of {', '.join(schedules.names())}", "schedule.kind", "schedule.file")
    if kind is not None and file is not None:
        yield misfit("replaces `kind`; give only one of the two", "schedule.file", "schedule.kind")


def _trace_fits(scenario: Scenario) -> Iterator[Problem]:
    """An execution trace is done as recorded; with a schedule, times of ops must come from elsewhere."""
    workload = scenario.workload
    if workload is None or workload.trace is None:
        return
    if not scenario.traced:
        if workload.durations is None and not (workload.forward or workload.backward):
            message = "orders ops anew, whose times `workload.trace` does not have; expected `workload.durations` too"
            yield misfit(message, "schedule.kind", "workload.trace", "workload.durations")
        return
    idle = {
        "numerics": scenario.numerics is not None, "sharding": scenario.sharding != "none",
        "jitter": bool(scenario.jitter), "recompute": scenario.recompute != "none",
        "gradients.every": scenario.gradients.every > 1,
    }  # fmt: skip
    for path, given in idle.items():
        if given:
            usual = 1 if path == "gradients.every" else "none"
            message = f"does not apply to what `workload.trace` has recorded; expected {usual}"
            yield misfit(message, path, "workload.trace")


def _chunks_fit(scenario: Scenario) -> Iterator[Problem]:
    kind, chunks = scenario.schedule.kind, scenario.schedule.chunks
    if kind is None:
        return
    facts = schedules.find(kind).facts
    fixed = facts["chunks"] or (None if facts["many_chunks"] else 1)
    if fixed is not None and chunks != fixed:
        yield misfit(f"{kind} has {fixed} per rank, not {chunks}", "schedule.chunks", "schedule.kind")


def _workload_fits(scenario: Scenario) -> Iterator[Problem]:
    if scenario.gradients.error_feedback and scenario.numerics is None:
        yield misfit("needs real gradients; add a numerics: section", "gradients.error_feedback", "numerics")
    if scenario.workload is not None:
        yield from misfits_of_workload(scenario.workload, scenario.parallel.pipeline)


def _layers_fit(scenario: Scenario) -> Iterator[Problem]:
    stages = scenario.parallel.pipeline * scenario.schedule.chunks
    if scenario.numerics is not None and scenario.numerics.layers < stages:
        message = f"{scenario.numerics.layers} layers cannot be split over {stages} stages"
        yield misfit(message, "numerics.layers", "parallel.pipeline", "schedule.chunks")


def _perturbations_fit(scenario: Scenario) -> Iterator[Problem]:
    schedule, ranks = scenario.schedule, scenario.parallel.pipeline
    stages = ranks * schedule.chunks if schedule.file is None else MOST
    yield from misfits_of_slow(scenario.slow, scenario.cluster, stages)
    if scenario.workload is not None:
        yield from misfits_of_durations(scenario.workload, scenario.recompute)
    yield from misfits_of_jitter(scenario.jitter, ranks)
    if scenario.faults is not None:
        yield from misfits_of_faults(scenario.faults, scenario.cluster, scenario.parallel)


def _links_are_shared(scenario: Scenario) -> Iterator[Problem]:
    """Priorities need a model of sharing that reads them, and traffic of others two ends."""
    cluster = scenario.cluster
    if cluster.sharing not in WITHOUT_PRIORITIES and cluster.priorities.model_fields_set:
        message = f"needs sharing: {' or '.join(WITHOUT_PRIORITIES)}; {cluster.sharing} has no priorities"
        yield misfit(message, "cluster.priorities", "cluster.sharing")
    yield from misfits_of_background(scenario.background, cluster)


def _outer_fits(scenario: Scenario) -> Iterator[Problem]:
    """Sites divide the nodes, and groups of replicas, each at one site, the replicas."""
    problems = list(misfits_of_sites(scenario.cluster))
    yield from problems or misfits_of_outer(scenario)


def _bill_fits(scenario: Scenario) -> Iterator[Problem]:
    figures = (scenario.price, scenario.power, scenario.train)
    yield from misfits_of_bill(*figures, scenario.cluster, scenario.model, scenario.gradients.every)


_CHECKS = (
    _ranks_fit, _fold_fits, _costs_are_given_once, _batch_fits, _model_divides, _sharding_fits, _options_are_read,
    _wiring_exists, excesses, _schedule_is_one, _trace_fits, _chunks_fit, _workload_fits, _layers_fit,
    _perturbations_fit, _links_are_shared, _outer_fits, _bill_fits, misfits_of_loop,
)  # fmt: skip
