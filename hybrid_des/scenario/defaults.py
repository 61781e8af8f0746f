"""Defaults that depend on other values: links on the GPU, chunks and options on the schedule, gradients on the model.

Invalid values pass through unchanged; validation reports them afterwards.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from fractions import Fraction
from math import ceil

from hybrid_des.cluster import gpus as catalogue
from hybrid_des.collectives import codecs
from hybrid_des.options import OfRanks, mark_of, of_ranks
from hybrid_des.pipeline import schedules
from hybrid_des.scenario.sections.cluster import NODES, QUANTISED, WIDE, Cluster
from hybrid_des.scenario.sections.rl import longest_sample
from hybrid_des.scenario.sections.training import Gradients, Schedule, expanded
from hybrid_des.scenario.sections.values import per_rank, read_tensors
from hybrid_des.scenario.stacks import fill_as_framework, fill_as_stack

_PERCENT = re.compile(r"\s*(\d+\.?\d*|\.\d+)\s*%\s*")


ALONE = "1f1b"  # the schedule of one pipeline rank, where all are the same


FEWEST_CHUNKS = 2  # of schedules whose chunks are free: with one, none of them is what its name says


_FIGURES = ("bandwidth", "latency")  # of a link; a table replaces them


_OF_NCCL = {*Gradients.own_keys(), "channels"}  # keys of gradients that leave the algorithm to NCCL's tuner


class FilledValues(dict[str, object]):
    """Values with these defaults filled in; some of their sections may be validated already."""


def fill(values: Mapping[str, object]) -> FilledValues:
    """Copy the values with these defaults filled in."""
    if "model" in values:
        values = {**values, "model": expanded(values["model"])}
    filled = FilledValues({key: dict(value) if isinstance(value, Mapping) else value for key, value in values.items()})
    modelled = values.get("model") not in (None, "none")
    costs = {"efficiency": fill_efficiency} if modelled else {"workload": _fill_workload}
    fills = {"cluster": _fill_cluster, "schedule": _fill_schedule, **costs, "gradients": _fill_gradients}
    for name, complete in fills.items():
        section = filled.setdefault(name, {} if name != "workload" else None)  # costs have no defaults
        if isinstance(section, dict):
            complete(section, filled)
    parallel = filled.setdefault("parallel", {}) if _of_several_kinds(filled) else None
    if isinstance(parallel, dict):
        parallel.setdefault("stages", "balanced")  # equal numbers of unequal blocks are no equal stages
    loop = values.get("rl")
    data = filled.setdefault("data", {}) if isinstance(loop, Mapping) else None
    if isinstance(loop, Mapping) and isinstance(data, dict):
        longest = longest_sample(loop) or 1  # where it does not say, that is said
        data.setdefault("lengths", {"kind": "fixed", "length": longest, "max": longest})  # in place of those of a take
    overlap = filled.setdefault("overlap", {}) if values.get("sharding") == "zero-3" else None
    if isinstance(overlap, dict):
        overlap.setdefault("parameters", True)  # as the frameworks that shard weights do
    return filled


def _of_several_kinds(scenario: Mapping[str, object]) -> bool:
    """Whether a model's blocks differ by its pattern."""
    model = scenario.get("model")
    kinds = model.get("kinds") if isinstance(model, Mapping) else None
    return isinstance(kinds, Mapping) and len(kinds) > 1


def fill_efficiency(efficiency: dict[str, object], scenario: dict[str, object]) -> None:
    """Complete a model's `efficiency` by its stack, and by that of the catalogue for its GPU and precision."""
    fill_as_stack(efficiency, scenario)
    cluster, precision, operators = scenario["cluster"], scenario.get("precision", "bf16"), scenario.get("operators")
    optimizer = scenario.setdefault("optimizer", {}) if precision in tuple(WIDE) else None
    if isinstance(optimizer, dict):
        optimizer.setdefault("state", {"master": "none"})  # the weights themselves have 32 bits
    gpu = cluster.get("gpu") if isinstance(cluster, Mapping) else None
    if isinstance(gpu, str) and gpu in catalogue.names() and isinstance(precision, str):
        reached = catalogue.part(gpu).efficiency
        family = reached.get(precision.partition("-")[0], reached["bf16"])  # one that the GPU lacks has its own check
        of_precision = reached.get(precision, family)
        if scenario.get("layer_collectives") != "textbook":  # NCCL's have times to start of their own
            of_precision = {key: value for key, value in of_precision.items() if key != "collective_overhead"}
        of_attention = {key: getattr(catalogue.part(gpu), key) for key in ("attention_half", "attention_head")}
        kernel = operators.get("attention") if isinstance(operators, Mapping) else None
        kernels = catalogue.part(gpu).attention_kernels
        if isinstance(kernel, str) and kernel in kernels:
            of_attention["attention"] = kernels[kernel]
        if precision in QUANTISED:  # the efficiency in few bits says little about 16 bits
            of_precision = {"gemm_16bit": reached["bf16"]["gemm"], **of_precision}
        efficiency.update({**of_precision, **of_attention, **efficiency})


def _fill_cluster(cluster: dict[str, object], scenario: Mapping[str, object]) -> None:
    gpu = cluster.setdefault("gpu", catalogue.DEFAULT)
    part = _part(gpu)
    cluster.setdefault("gpus_per_node", part.gpus_per_node)
    if part.topology != NODES and not cluster.keys() & {"topology", *Cluster.plugins.readers()}:
        cluster["topology"] = part.topology
    keys = Cluster.keys_given(cluster)
    links = _links_of_gpu(gpu, cluster["gpus_per_node"])
    _fill_links(cluster, {name: link for name, link in links.items() if name in keys})
    nodes = cluster.get("nodes")
    if isinstance(nodes, list | tuple):
        cluster["nodes"] = [_node(node, cluster) for node in nodes]


def _node(given: object, cluster: Mapping[str, object]) -> object:
    """Complete one kind of node from its own GPU or, if it names none, from the cluster."""
    if not isinstance(given, Mapping):
        return given
    node = {"gpu": cluster["gpu"], "gpus_per_node": cluster["gpus_per_node"], **given}
    own = _links_of_gpu(node["gpu"], node["gpus_per_node"])
    inherits = "gpu" not in given
    below = {
        name: cluster[name] if inherits and not _measured_away(cluster[name], given.get(name)) else own[name]
        for name in ("nvlink", "infiniband")
    }
    _fill_links(node, below)
    return node


def _measured_away(below: object, given: object) -> bool:
    """Whether given figures replace the cluster's table."""
    has_table = isinstance(below, Mapping) and below.get("table") is not None
    return has_table and isinstance(given, Mapping) and any(key in given for key in _FIGURES)


def _part(gpu: object) -> catalogue.GpuPart:
    """A GPU of the catalogue; the default for a user-defined one."""
    return catalogue.part(gpu if isinstance(gpu, str) and gpu in catalogue.names() else catalogue.DEFAULT)


def _links_of_gpu(gpu: object, per_node: object) -> dict[str, dict[str, object]]:
    """The links a GPU is sold with; a user-defined GPU has those of the default GPU.

    Part of an NVLink domain larger than eight has as many adapters per GPU as the whole.
    """
    part = _part(gpu)
    links: dict[str, dict[str, object]] = {
        name: {"bandwidth": link.bandwidth, "latency": link.latency}
        for name, link in (("nvlink", part.nvlink), ("infiniband", part.infiniband), ("pcie", part.pcie))
    }
    nics = part.nics_per_node
    if part.gpus_per_node > catalogue.NODE and isinstance(per_node, int):
        nics = max(1, nics * per_node // part.gpus_per_node)
    links["infiniband"]["nics_per_node"] = nics
    links["nvlink"]["in_switch"] = part.nvlink.in_switch
    return links


def _fill_links(section: dict[str, object], links: Mapping[str, object]) -> None:
    for name, link in links.items():
        given = section.get(name, {})
        if not isinstance(given, Mapping):
            continue
        replaced = () if given.get("table") is None else _FIGURES
        defaults = link.items() if isinstance(link, Mapping) else ()
        section[name] = {**{key: value for key, value in defaults if key not in replaced}, **given}


def _fill_gradients(gradients: dict[str, object], scenario: Mapping[str, object]) -> None:
    if Gradients.plugins.key not in gradients and gradients.keys() - Gradients.own_keys().keys():
        requiring = Gradients.plugins.requiring(gradients)
        if len(requiring) == 1:  # an option that only one algorithm requires selects it
            gradients[Gradients.plugins.key] = requiring[0]
    if scenario.get("model") not in (None, "none") and gradients.keys() <= _OF_NCCL:
        gradients.setdefault(Gradients.plugins.key, "nccl")
    fill_as_framework(gradients, scenario)
    rule, codec = gradients.get("bucket_rule"), gradients.get("codec", "fp32")
    if rule == "ddp":
        gradients.setdefault("bucket", "25 MiB")
    elif rule == "megatron" and isinstance(codec, str) and codec in codecs.names():
        most = megatron_bucket(_along(scenario, "data"))
        gradients.setdefault("bucket", ceil(most * codecs.find(codec).build().bytes_per_element))


def megatron_bucket(replicas: int) -> int:
    """Gradients per bucket by default in Megatron-LM (megatron/core/distributed)."""
    return max(40_000_000, 1_000_000 * replicas)


def _fill_schedule(schedule: dict[str, object], scenario: Mapping[str, object]) -> None:
    alone = _along(scenario, "pipeline") == 1
    workload = scenario.get("workload")
    traced = isinstance(workload, Mapping) and workload.get("trace") is not None
    if alone and not traced and schedule.get("kind") is None and schedule.get("file") is None:
        schedule["kind"] = ALONE
    kind, batch = schedule.get("kind"), scenario.get("batch")
    samples = _along(scenario, "data") * _number(schedule.get("microbatch_size", 1))
    if batch is not None and samples:
        schedule.setdefault("microbatches", max(1, batch // samples) if isinstance(batch, int) else 1)
    elif alone or traced:
        schedule.setdefault("microbatches", 1)
    if isinstance(kind, str) and kind in schedules.names():
        facts = schedules.find(kind).facts
        schedule.setdefault("chunks", facts["chunks"] or (FEWEST_CHUNKS if facts["many_chunks"] else 1))
    for key, field in Schedule.keys_given(schedule).items():
        mark = mark_of(field, OfRanks)
        if mark is not None and (key in schedule or mark.default is not None):
            schedule[key] = of_ranks(schedule.get(key, mark.default), _along(scenario, "pipeline"))


def _fill_workload(workload: dict[str, object], scenario: Mapping[str, object]) -> None:
    """Convert a `weight` given as a percentage into a time; times in a file replace those given here."""
    if workload.get("durations") is not None or workload.get("trace") is not None:
        for key in ("forward", "backward"):
            workload.setdefault(key, 0)
    if workload.get("tensors") is not None:
        with suppress(ValueError):  # reported when the tensors are validated
            sums = [sum(sizes) for sizes in read_tensors(workload["tensors"])]
            workload.setdefault("parameters", sums if len(sums) > 1 else sums[0])
    weight = workload.get("weight")
    share = _PERCENT.fullmatch(weight) if isinstance(weight, str) else None
    if share is None:
        return
    try:
        backward = per_rank("time").read(workload.get("backward"))
    except ValueError:  # reported when the backward itself is validated
        workload["weight"] = 0
        return
    part = Fraction(share.group(1)) / 100
    workload["weight"] = [part * time for time in backward] if isinstance(backward, tuple) else part * backward


def _along(scenario: Mapping[str, object], axis: str) -> int:
    """The number of ranks along an axis of parallelism."""
    parallel = scenario.get("parallel", {})
    return _number(parallel.get(axis, 1) if isinstance(parallel, Mapping) else 1)


def _number(value: object) -> int:
    return int(value) if isinstance(value, int | Fraction) else 1
