"""The plans of a search: the product of the given axes, and of those below that nobody states.

    parallel        every pipeline · data · tensor · context of all GPUs, tensor ranks within a node; with `workload`,
                    pipeline · data
    experts         every number of ranks that divides the experts and the ranks along data and context
    micro-batches   of 1, 2, 4 and 8 samples; always the scenario's samples per step
    schedule        every registered one, those of many chunks with 2, 4 and 8; one if there is no pipeline
    recompute       every level that keeps less
    sharding        where several ranks hold the same parameters: none and zero-1, without a pipeline every level
    buckets         none, and 128 MiB where gradients are reduced during the pipeline
    packing         every registered one, if an axis names it
    shards.ranks    if an axis names it: all, and the divisors of a node's GPUs, where ranks communicate layer by layer
    shards.reshard  if an axis names it: with zero-3 what is usual, and the other
    optimizer.kind  if an axis names it: every one
    rl              with engines that generate samples: splits of the GPUs, as `splits` has them

What the file states stays as it is, unless an axis names it: an axis with values, or the name alone, which stands for
the values above. The sizes of the layout multiply to the number of GPUs, so an axis of one of them varies them all, and
replicas vary where a stated layout would leave GPUs unused. An axis of the schedule's kind varies its chunks. An axis
of `cluster.nodes` or `cluster.gpu` gives each plan its own GPUs.

Without axes, those of `default_axes` vary whatever the file states, and all else stays.

Nothing is left out silently: a plan that is listed is simulated, or has a reason why not.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import product
from math import prod
from typing import Any

from pydantic import ValidationError

from hybrid_des.errors import HybridDesError
from hybrid_des.pipeline import schedules
from hybrid_des.scenario.composition import value_at
from hybrid_des.scenario.defaults import fill
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.keys import SHARDING
from hybrid_des.scenario.sections.cluster import Cluster
from hybrid_des.scenario.unused_gpus import left_unused, used_gpus
from hybrid_des.studies.neighbours.shards import fitting
from hybrid_des.studies.plan_search import default_axes, splits
from hybrid_des.studies.plan_search.default_axes import planned
from hybrid_des.studies.plan_search.terms import PACKING, VARIED, Settings
from hybrid_des.studies.sweep.axes import MOST_CASES, Case, is_key
from hybrid_des.studies.sweep.runner import with_case
from hybrid_des.workload.optimizers import OPTIMIZERS
from hybrid_des.workload.packing import registration as packers

SIZES = (1, 2, 4, 8)  # samples of a micro-batch
CHUNKS = (2, 4, 8)
BUCKETS = ("none", "128 MiB")
PLAIN = "1f1b"  # without a pipeline, all orders are the same
RANKS = ("parallel.pipeline", "parallel.data", "parallel.tensor", "parallel.context")
LAYOUT = (*RANKS, "parallel.expert")
Completions = Sequence[tuple[str, Callable[[Scenario, Mapping[str, Any]], Iterable[Mapping[str, Any]]]]]


def plans_in(settings: Settings) -> list[Case]:
    """Every plan of the space, each once; a value None leaves the key out.

    Raises:
        ScenarioError: there is none, or there are too many, or execution traces leave nothing to plan.
    """
    document, written, kept = settings.document, settings.written, kept_in(settings)
    if written.workload is not None and written.workload.trace is not None and written.workload.durations is None:
        message = "is one plan, done as recorded; expected `workload.durations` too, or `sweep` to vary the machine"
        raise document.error(("workload", "trace"), message)
    plans: dict[str, Case] = {}
    on_its_cluster = _on_clusters(settings)
    completions = DEFAULT if settings.by_default else OPEN
    completions = (*completions, *((name, NAMED[name]) for name in settings.names if name in NAMED))
    completions = (*(MEASURED if splits.is_measured(written) else completions), SCALED)
    packings = tuple({PACKING: name} for name in packers.names()) if PACKING in settings.names else ({},)
    of_loops = (splits.values_of_axis(document, written, name) for name in settings.names if name in splits.NAMES)
    for combination in product(*settings.axes, *of_loops, packings):
        given = {path: value for part in combination for path, value in part.items() if is_key(path)}
        for plan in _completed(on_its_cluster(given), {**kept, **given}, completions):
            plans.setdefault(repr(plan), plan)
            if len(plans) > MOST_CASES:
                raise document.error(("search",), f"more than {MOST_CASES} plans")
    if not plans:
        gpus = written.cluster.gpus
        message = f"an empty space: no plan uses all {gpus} GPUs and has the values of `axes` and of the file"
        raise document.error(("search", "axes"), message)
    return list(plans.values())


def _on_clusters(settings: Settings) -> Callable[[Case], Scenario]:
    """A function from values to the file's scenario on the cluster that they describe; on its own if none can be."""
    known: dict[str, Scenario] = {}

    def on_its_cluster(given: Case) -> Scenario:
        values = {path: value for path, value in given.items() if path.startswith("cluster.")}
        if not values:
            return settings.written
        if repr(values) not in known:
            known[repr(values)] = settings.written
            with suppress(HybridDesError, ValidationError):  # else the plan says what is wrong
                described = fill(with_case(settings.document, values, "search").value)["cluster"]
                update = {"cluster": Cluster.model_validate(described)}
                known[repr(values)] = settings.written.model_copy(update=update)
        return known[repr(values)]

    return on_its_cluster


def kept_in(settings: Settings) -> Case:
    """The values that the file states and no axis names: those of every plan."""
    named = {path for axis in settings.axes for case in axis for path in case}.union(*map(_meant, settings.names))
    if named.intersection(LAYOUT):
        named.update(LAYOUT)
    if named & {"schedule.kind", "schedule.file"}:
        named.update(("schedule.kind", "schedule.chunks"))
    stated = {path: value_at(settings.document.value, path) for path in (*VARIED, PACKING)}
    if splits.is_measured(settings.written):
        stated |= {path: getattr(settings.written.parallel, path.partition(".")[2]) for path in RANKS}
    if value_at(settings.document.value, "schedule.microbatches") is not None and settings.written.model is not None:
        stated["schedule.microbatch_size"] = settings.written.schedule.microbatch_size
    kept = {path: value for path, value in stated.items() if value is not None and path not in named}
    if settings.by_default and settings.written.model is not None and not default_axes.is_divided(settings.written):
        kept["parallel.context"] = 1
    if _leaves_gpus(settings, kept):
        kept.pop("parallel.data", None)
    return kept


def _leaves_gpus(settings: Settings, kept: Case) -> bool:
    """Whether a layout that is stated whole leaves GPUs unused, or may on a cluster of another size."""
    written, given = settings.written, {path for axis in settings.axes for case in axis for path in case}
    if splits.NODES in given.union(settings.names):
        return True
    if _open_sizes(written, {**kept, **dict.fromkeys(given)}):
        return False
    of_replica = written.parallel.ranks // written.parallel.data
    own = any(path.startswith("cluster.") for path in given)
    return own or (used_gpus(written) < written.cluster.gpus and written.cluster.gpus % of_replica == 0)


def unused_by(settings: Settings, plans: Sequence[Case]) -> str | None:
    """How many GPUs all plans leave unused, in words; None if one uses all, or if plans have GPUs of their own."""
    written, gpus = settings.written, settings.written.cluster.gpus
    if any(path.startswith("cluster.") or path == splits.NODES for plan in plans for path in plan):
        return None
    servers = used_gpus(written) - written.parallel.ranks
    sizes = ([planned(written, plan, path) for path in RANKS] for plan in plans)
    used = servers + max(prod(size for size in layout if isinstance(size, int)) for layout in sizes)
    return left_unused(gpus, used) + " by any plan" if used < gpus else None


def _meant(name: str) -> Sequence[str]:
    """The keys that the name of an axis stands for."""
    return LAYOUT if name == "parallel" else (name,)


def values_of(plans: Iterable[Case]) -> dict[str, list[Any]]:
    """Key → its distinct values, for the keys that have several."""
    by_path: dict[str, dict[str, Any]] = {}
    for plan in plans:
        for path, value in plan.items():
            by_path.setdefault(path, {})[repr(value)] = value
    return {path: list(values.values()) for path, values in by_path.items() if len(values) > 1}


def _completed(written: Scenario, given: Case, completions: Completions) -> Iterator[Case]:
    """The plans that have the given values."""
    plans: list[Mapping[str, Any]] = [given]
    for path, complete in completions:
        plans = [{**plan, **more} for plan in plans for more in ([{}] if path in plan else complete(written, plan))]
    yield from plans


def _ranks(written: Scenario, plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    axes = _open_sizes(written, plan)
    if not axes:
        yield {}
        return
    taken = 1
    for path in RANKS:
        size = 1 if path in axes else planned(written, plan, path)
        taken *= size if isinstance(size, int) and size > 0 else 1
    gpus = splits.ranked_gpus(written, plan)
    if gpus < taken or gpus % taken:
        return
    widest = max(kind.gpus_per_node for kind in written.cluster.kinds)
    for sizes in factors(gpus // taken, len(axes)):
        ranks = dict(zip(axes, sizes, strict=True))
        if ranks.get("parallel.tensor", 1) <= widest:
            yield ranks


def _open_sizes(written: Scenario, plan: Mapping[str, Any]) -> list[str]:
    """The sizes of the layout that a plan leaves open."""
    axes = [path for path in RANKS if path not in plan and (written.model or path in RANKS[:2])]
    if written.workload is not None and written.workload.per == "rank" and RANKS[0] in axes:
        axes.remove(RANKS[0])  # more ranks would be a larger model
    return axes


def factors(number: int, count: int) -> Iterator[tuple[int, ...]]:
    """Every way to write a number as an ordered product of `count` factors."""
    if count == 1:
        yield (number,)
        return
    for first in (one for one in range(1, number + 1) if number % one == 0):
        for rest in factors(number // first, count - 1):
            yield first, *rest


def _experts(written: Scenario, plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    experts = getattr(written.model.options, "experts", None) if written.model else None
    if experts is None:
        yield {}
        return
    holders = _holders(written, plan)
    if each := written.parallel.expert_tensor:
        holders = holders * planned(written, plan, "parallel.tensor") // each
    for size in range(1, experts.count + 1):
        if experts.count % size == 0 and holders % size == 0:
            yield {"parallel.expert": size}


def _holders(written: Scenario, plan: Mapping[str, Any]) -> int:
    """Ranks that hold the same parameters."""
    return int(planned(written, plan, "parallel.data") * planned(written, plan, "parallel.context"))


def _samples(
    written: Scenario, plan: Mapping[str, Any], sizes: Callable[[Scenario], Sequence[int]] = lambda written: SIZES
) -> Iterator[Mapping[str, Any]]:
    """The same samples per step, in micro-batches of several sizes."""
    schedule = written.schedule
    if "schedule.microbatches" in plan or "batch" in plan or written.rl is not None:  # whose batch is of samples
        yield {}
        return
    if written.model is None:
        batch, replicas = schedule.microbatches * written.parallel.data, planned(written, plan, "parallel.data")
        if batch % replicas == 0:
            yield {"schedule.microbatches": batch // replicas}
        return
    batch = schedule.microbatches * schedule.microbatch_size * written.parallel.data
    same = {"batch": batch, "schedule.microbatches": None}
    if "schedule.microbatch_size" in plan:
        yield same
        return
    yield from ({**same, "schedule.microbatch_size": size} for size in sizes(written) if batch % size == 0)


def _schedule(written: Scenario, plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The schedules, each with its chunks."""
    if plan.get("schedule.file") is not None or ("schedule.kind" not in plan and written.schedule.file is not None):
        yield {}
        return
    pipeline = planned(written, plan, "parallel.pipeline") > 1
    given = [plan["schedule.kind"]] if "schedule.kind" in plan else schedules.names() if pipeline else [PLAIN]
    for kind in given:
        named = {} if "schedule.kind" in plan else {"schedule.kind": kind}
        if "schedule.chunks" in plan:
            yield named
            continue
        known = kind in schedules.names()
        many = known and schedules.find(kind).facts["many_chunks"] and schedules.find(kind).facts["chunks"] is None
        yield from ({**named, "schedule.chunks": chunks} for chunks in (CHUNKS if many else (None,)))


def _recompute(written: Scenario, plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    levels = ["none"]
    if written.model is not None:
        keeps_scores = getattr(written.model.options, "attention", "flash") == "plain"
        levels += ["selective", "full"] if keeps_scores else ["full"]
    elif written.workload is not None and not written.workload.recompute and written.workload.memory.activation:
        levels += ["full"]
    whole = {} if written.recompute_layers is None else {"recompute_layers": None}
    yield from ({"recompute": level, **whole} for level in levels)


def _ranks_by_default(written: Scenario, plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Layouts; where tensor ranks begin, they divide norms and residuals too, as Megatron-LM and torchtitan do."""
    for ranks in _ranks(written, plan):
        begins = written.parallel.tensor == 1 < ranks.get("parallel.tensor", 1)
        yield {**ranks, "parallel.sequence": True} if begins else ranks


def _shards_by_default(written: Scenario, plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Groups of the file that a layout does not allow are left out, as in moves."""
    own = {} if written.shards.ranks is None else {"shards.ranks": written.shards.ranks}
    yield {**own, **fitting(written, plan)}


def _recompute_by_default(written: Scenario, plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from default_axes.recompute_of(written, [*_recompute(written, plan)])


def _sharding(written: Scenario, plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    shared, pipeline = _holders(written, plan) > 1, planned(written, plan, "parallel.pipeline") > 1
    yield from ({"sharding": level} for level in SHARDING[: 1 if not shared else 2 if pipeline else 4])


def _buckets(written: Scenario, plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if not planned(written, plan, "gradients.overlap"):
        yield {}
        return
    fsdp = plan.get("sharding") in SHARDING[2:] and planned(written, plan, "parallel.pipeline") == 1
    whole = written.gradients.overlap and written.gradients.bucket_rule == "stage"
    own = BUCKETS[0] if fsdp or whole else None  # None: that of the rule, which a model has with overlap
    sizes = [own, *BUCKETS[1:]] if _holders(written, plan) > 1 and not fsdp else [own]
    yield from ({"gradients.bucket": size} for size in sizes)


def _groups(written: Scenario, plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield {"shards.ranks": None}
    level, again = planned(written, plan, "sharding"), planned(written, plan, "shards.reshard") is True
    layered = level in SHARDING[2:] and (planned(written, plan, "parallel.pipeline") == 1 or again)
    holders, per_node = _holders(written, plan), min(kind.gpus_per_node for kind in written.cluster.kinds)
    if layered:
        sizes = (size for size in range(2, per_node + 1) if per_node % size == 0 == holders % size and size < holders)
        yield from ({"shards.ranks": size} for size in sizes)


def _reshard(written: Scenario, plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield {"shards.reshard": None}
    if planned(written, plan, "sharding") == SHARDING[-1]:
        yield {"shards.reshard": planned(written, plan, "parallel.pipeline") > 1}


def _optimizers(written: Scenario, plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from ({"optimizer.kind": kind} for kind in OPTIMIZERS)


NAMED = {"shards.ranks": _groups, "shards.reshard": _reshard, "optimizer.kind": _optimizers}
OPEN: Completions = (
    ("", _ranks), ("parallel.expert", _experts), ("", _samples), ("", _schedule),
    ("recompute", _recompute), ("sharding", _sharding), ("gradients.bucket", _buckets),
)  # fmt: skip
MEASURED: Completions = (("", _ranks),)  # of a measured trainer
SCALED = (splits.TIME, splits.measured_time)
DEFAULT: Completions = (
    ("", _ranks_by_default), ("parallel.expert", _experts), ("", partial(_samples, sizes=default_axes.sizes_of)),
    ("", default_axes.schedules_of), ("recompute", _recompute_by_default),
    ("", _shards_by_default),
)  # fmt: skip
