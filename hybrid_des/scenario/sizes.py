"""Sizes that would exhaust memory or take days, estimated before anything is built; simple, rough counts.

| counted                                          | estimate                                                    |
|--------------------------------------------------|-------------------------------------------------------------|
| links                                            | 2 per GPU and 2 per NIC that are simulated                  |
| stages                                           | pipeline ranks × chunks                                     |
| ops in the plan of a replica                     | 2 per stage and micro-batch                                 |
| ops of a run                                     | these × replicas × tensor and context ranks × steps         |
| messages of a run                                | pipeline: 2 per micro-batch and pair of neighbouring stages |
|                                                  | reduction: see `collectives.most_messages`                  |
|                                                  | inside ops: 4 per layer, pass, micro-batch, rank and peer   |
| pairs of GPUs that send to each other            | reduction: see `collectives.most_pairs`                     |
| bytes of the small models                        | 48 per weight and copy (one more copy trains serially), 24  |
|                                                  | per activation: sample × layer × width                      |
| bytes a GPU could hold                           | parameters, and the activations of all micro-batches        |

Replicas that are folded together count once. If a scenario leaves their number to the run, one simulated replica is
assumed; sizes that turn out too large are refused once the run knows the number (`too_large`), and so is a collective
that `auto` would have to try (`too_many`).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any

from hybrid_des import collectives
from hybrid_des.collectives import codecs, token_exchange
from hybrid_des.errors import Refusal, UsageError
from hybrid_des.scenario.keys import ScenarioKeys
from hybrid_des.scenario.problem import Problem, misfit
from hybrid_des.scenario.sections.numerics import Numerics
from hybrid_des.scenario.sections.training import ModelChoice

FOLDED_FROM = 129  # number of GPUs from which `fold: auto` folds replicas; up to 128, all of them are shown
MESSAGES_FOLDED = 100_000  # number of messages from which it folds fewer GPUs too: more take longer than a fold to find


MOST_GPUS = 2**24


MOST_LINKS = 2**20


MOST_STAGES = 2**13


MOST_PLANNED = 2**20  # ops in the plan of a replica


MOST_OPS = 2**26


MOST_MESSAGES = 2**28


MOST_RECORDED = 2**26  # messages with `record: all`


MOST_PAIRS = 2**22  # each with its route and mailboxes: 3 KB measured in an all-to-all of 1000 ranks


MOST_TRAINED = 2**33  # bytes of the small models


MOST_HELD = 2**63 - 1  # bytes, as recorded


PAIRS = "pairs of ranks that send to each other"


BY_RULE = ("nodes", "rails", "leaf-spine", "pcie")  # topologies that create links on demand


PerRank = Fraction | tuple[Fraction, ...]


def excesses(scenario: ScenarioKeys, fixed: Collection[str] = ()) -> Iterator[Problem]:
    """The first count of a `Scenario` that is too large, with the estimate; others would follow from it.

    Whoever asks decides about the `fixed` keys, whatever the scenario says.
    """
    for count, most, what, paths in _counts(scenario, _kept(scenario)):
        if count > most:
            problem = misfit(_refused(count, most, what) + _way_out(scenario, _kept(scenario), fixed), *paths.split())
            yield problem._replace(path=("cluster",)) if what in ("GPUs", "links") else problem
            return


def too_large(scenario: ScenarioKeys, kept: int, reason: str = "", fixed: Collection[str] = ()) -> str:
    """Why a run cannot be simulated; empty if it can.

    Args:
        scenario: what is to be simulated.
        kept: the number of replicas that are.
        reason: why they are not fewer.
        fixed: keys about which whoever asks decides, whatever the scenario says.
    """
    if kept <= _kept(scenario):  # counted when the scenario was checked
        return ""
    why = next((_refused(count, most, what) for count, most, what, _ in _counts(scenario, kept) if count > most), "")
    differ = f"; replicas differ: {reason}" if reason else ""
    return f"{why}{differ}{_way_out(scenario, kept, fixed)}" if why else ""


def _way_out(scenario: ScenarioKeys, kept: int, fixed: Collection[str]) -> str:
    """The first settings, of those that change no time of a step, with which a run is small enough; empty without."""
    settings: list[dict[str, Any]] = [{"record": "compute"}, {"steps": 1}, {"record": "compute", "steps": 1}]
    for changes in settings:
        if any(key in fixed or getattr(scenario, key) == value for key, value in changes.items()):
            continue
        if all(count <= most for count, most, *_ in _counts(scenario.model_copy(update=changes), kept)):
            return f"; with {' and '.join(f'{key}: {value}' for key, value in changes.items())} it can be simulated"
    return ""


def _kept(scenario: ScenarioKeys) -> int:
    """The least number of replicas that are simulated."""
    replicas, fold = scenario.parallel.data, scenario.fold
    if fold == "off" or (fold == "auto" and scenario.parallel.ranks < FOLDED_FROM) or scenario.numerics is not None:
        return replicas
    return 1 if fold == "auto" else int(fold)


def _counts(scenario: ScenarioKeys, kept: int) -> Iterator[tuple[int, int, str, str]]:
    """The counts of a run that simulates `kept` replicas: estimate, limit, name, and the keys it depends on."""
    parallel, schedule = scenario.parallel, scenario.schedule
    share = Fraction(kept, parallel.data)
    in_layers = 1 if scenario.fsdp else share  # layers' collectives are those of all replicas
    stages = parallel.pipeline * schedule.chunks
    planned = 2 * stages * schedule.microbatches
    ran = planned * (parallel.ranks // parallel.pipeline) * scenario.steps * share
    links = _links(scenario) * (share if scenario.cluster.topology in BY_RULE else 1)
    sent, what = (MOST_RECORDED, " with `record: all`") if scenario.record == "all" else (MOST_MESSAGES, "")
    of_reduction = "gradients parallel.data workload.parameters"
    yield scenario.cluster.gpus, MOST_GPUS, "GPUs", "cluster.nodes cluster.gpus_per_node"
    yield int(links), MOST_LINKS, "links", "cluster.nodes cluster.gpus_per_node cluster.infiniband"
    yield stages, MOST_STAGES, "stages", "parallel.pipeline schedule.chunks"
    yield planned, MOST_PLANNED, "ops", "schedule.microbatches parallel.pipeline schedule.chunks"
    yield int(ran), MOST_OPS, "ops in all steps", "steps parallel.data schedule.microbatches parallel.pipeline"
    of_messages = f"{of_reduction} steps schedule.microbatches record"
    yield int(_messages(scenario) * in_layers), sent, f"messages{what}", of_messages
    yield int(_pairs(scenario) * in_layers), MOST_PAIRS, PAIRS, of_reduction
    of_ops = "tensor_traffic schedule.microbatches parallel model steps"
    yield int(_inside_ops(scenario) * share), sent, "messages inside ops", of_ops
    yield _trained(scenario), MOST_TRAINED, "bytes of trained models", "numerics parallel.data"
    yield _held(scenario), MOST_HELD, "bytes on a GPU", "workload schedule.microbatches"


def _refused(count: int, most: int, what: str) -> str:
    return f"{_written(count)} {what} are more than can be simulated (at most {_written(most)})"


def too_many(algorithm: str, options: Mapping[str, object], groups: Iterable[tuple[int, int]]) -> str:
    """Why a collective cannot be simulated once in some groups; empty if it can.

    Args:
        algorithm: its name.
        options: its options by name.
        groups: for each, the number of members and the number of simulated ones, on all channels.
    """
    members = list(groups)
    for estimate, most, what in (
        (collectives.most_messages, MOST_MESSAGES, "messages"),
        (collectives.most_pairs, MOST_PAIRS, PAIRS),
    ):
        calls = ((estimate(algorithm, collectives.CallSize(size), options), size, acting) for size, acting in members)
        count = sum(sent * acting // size for sent, size, acting in calls)
        if count > most:
            return f"{algorithm}: {_refused(count, most, what)}"
    return ""


def most_channels(scenario: ScenarioKeys) -> int:
    """Channels of a ring, at most: one per adapter, and per GPU of a node that is not taken by other tensor ranks."""
    parallel, nodes = scenario.parallel, scenario.cluster.kinds
    if parallel.ranks <= nodes[0].gpus_per_node:  # on one node
        return scenario.gradients.channels or 1
    most = max(min(kind.infiniband.nics_per_node, kind.gpus_per_node // parallel.tensor) for kind in nodes)
    return scenario.gradients.channels or max(1, most)


def _written(count: int) -> str:
    return f"{count}" if count < 10**8 else f"{count:.3g}"


def _links(scenario: ScenarioKeys) -> int:
    return sum(2 * kind.count * (kind.gpus_per_node + kind.infiniband.nics_per_node) for kind in scenario.cluster.kinds)


def _messages(scenario: ScenarioKeys) -> int:
    parallel, schedule = scenario.parallel, scenario.schedule
    stages = parallel.pipeline * schedule.chunks
    messages = 2 * (stages - 1) * schedule.microbatches * parallel.data
    if parallel.data > 1:
        gradients = scenario.gradients
        name, buckets = gradients.algorithm, _buckets(scenario, stages)
        if scenario.sharding != "none" and name != collectives.AUTO:
            name, _ = collectives.phases_of(name) or (name, name)
        size = gradients.bucket or _reduced(scenario) // max(buckets, 1)
        call = collectives.CallSize(parallel.data, most_channels(scenario), size)
        messages += buckets * _estimated(collectives.most_messages, name, call, gradients.options)
    return messages * scenario.steps


def _pairs(scenario: ScenarioKeys) -> int:
    """Pairs in the reductions of all pipeline ranks."""
    parallel, gradients = scenario.parallel, scenario.gradients
    if parallel.data == 1 or not _buckets(scenario, 1):
        return 0
    call = collectives.CallSize(parallel.data)
    return parallel.pipeline * _estimated(collectives.most_pairs, gradients.algorithm, call, gradients.options)


def _estimated(estimate: Callable[..., int], name: str, call: collectives.CallSize, options: Any) -> int:
    """An estimate for a collective; 0 if an option is missing or wrong, which is reported separately."""
    try:
        return estimate(name, call, options)
    except UsageError:
        return 0


def _inside_ops(scenario: ScenarioKeys) -> int:
    """Messages of the collectives of layers: about two collectives of 2 · peers per rank and axis, in each pass."""
    if scenario.model is None or scenario.tensor_traffic != "messages" or scenario.model.lacking:
        return 0
    parallel, passes = scenario.parallel, 3 if scenario.recompute == "full" else 2
    try:
        layers = len(scenario.model.network.layers)
    except Refusal:  # inconsistent sizes are reported separately
        return 0
    segments = token_exchange.MOST_SEGMENTS if scenario.experts.dispatcher == "per-node" else 1
    peers = parallel.tensor - 1 + parallel.context - 1 + segments * (parallel.expert - 1)
    ranks = parallel.ranks // parallel.pipeline  # and all pipeline ranks together hold all layers
    return 4 * peers * passes * layers * ranks * scenario.schedule.microbatches * scenario.steps


def _buckets(scenario: ScenarioKeys, stages: int) -> int:
    """Buckets of all stages."""
    gradients, workload, size = scenario.gradients, scenario.workload, _reduced(scenario)
    if not size:
        return 0
    if gradients.bucket is None:
        return stages
    per_rank = workload is not None and workload.per == "rank"
    alike = scenario.parallel.pipeline if per_rank and gradients.bucket_rule != "megatron" else 1
    return stages + alike * int(size // gradients.bucket)


def _reduced(scenario: ScenarioKeys) -> int:
    """Bytes of the gradients of all stages."""
    workload = scenario.workload
    parameters = _of_model(scenario.model) if workload is None else _most(workload.parameters)
    parameters = parameters or _weights(scenario.numerics)  # the small model is counted unless the workload says
    return int(parameters * codecs.find(scenario.gradients.codec).build().bytes_per_element)


def _of_model(model: ModelChoice | None) -> int:
    """Parameters of a model; 0 if there is none or its sizes are inconsistent, which is reported separately."""
    try:
        return 0 if model is None or model.lacking else int(model.network.parameters)
    except Refusal:
        return 0


def _trained(scenario: ScenarioKeys) -> int:
    numerics, replicas = scenario.numerics, scenario.parallel.data
    if numerics is None:
        return 0
    weights = _weights(numerics)
    samples = numerics.batch * scenario.schedule.microbatches * replicas
    return 48 * weights * (replicas + 1) + 24 * samples * numerics.layers * numerics.width


def _weights(numerics: Numerics | None) -> int:
    """Weights of a small model; 0 without one."""
    return 0 if numerics is None else int(numerics.layers * numerics.width**2)


def _held(scenario: ScenarioKeys) -> int:
    workload = scenario.workload
    if workload is None:  # those of a model are computed
        return 0
    resident = 2 * _most(workload.memory.per_parameter) * _most(workload.parameters)  # of up to two copies
    return int(resident + scenario.schedule.microbatches * _most(workload.memory.activation))


def _most(value: PerRank) -> Fraction:
    return max(value, default=Fraction(0)) if isinstance(value, tuple) else value
