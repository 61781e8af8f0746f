"""What to try next: changes that reduce the largest costs, each simulated; none that does not fit into memory.

    memory        where the run itself does not fit: what makes it fit, however long it takes
    slow ranks    the component at the speed of most
    uneven ranks  other cuts of the layers into stages
    documents     other packings of documents of unequal length
    host          CUDA graphs; larger micro-batches and fewer tensor ranks, which launch less for the same work
    bubble        schedules with a smaller one that fit into memory; more micro-batches
    network       overlap, buckets, the codec, the layout; then faster links, which have to be bought, unless a slow
                  link is to blame: its cost is not the network's

Only costs that are a large enough share of the step are addressed. A change that adds micro-batches to the step is
measured by the time per micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial

from hybrid_des import collectives
from hybrid_des.analysis.bill import samples_per_step
from hybrid_des.analysis.counterfactual.attribution import SLOW, Straggler, Stragglers
from hybrid_des.analysis.counterfactual.ladder import Gain, Idealisation
from hybrid_des.analysis.counterfactual.what_if import (
    Build,
    SimulatedChange,
    Variant,
    variant_of,
)
from hybrid_des.analysis.critical_path.traced import events_of_all
from hybrid_des.analysis.difference import difference
from hybrid_des.analysis.idle import HOST
from hybrid_des.analysis.step_breakdown import step_breakdown
from hybrid_des.analysis.tasks import Task
from hybrid_des.cost_model.documents import packed_steps
from hybrid_des.errors import HybridDesError
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.sections.cluster import WITHOUT_PRIORITIES
from hybrid_des.scenario.stacks import LAYERED, framework_of, splitting_rule
from hybrid_des.simulation.memory_remedies import fits, remedies
from hybrid_des.simulation.outcome import Run
from hybrid_des.workload.models.stages import RULES

EVENTS_OF_PROPOSALS = 2_000_000  # approximate total over all simulations


MEMORY = "memory"  # what a proposal is against where the run does not fit


WITH_PRIORITIES = {without: name for name, without in WITHOUT_PRIORITIES.items()}


FEWEST_SIMULATED, MOST_PROPOSALS = 3, 16  # simulations per cost


WORTH = 0.005  # share of the step above which a saving is worth a proposal


ADDED = Fraction(1, 10**5)  # share of the gradients that padding may add, so that a changed run folds


SMALL_BUCKET = 25_000_000  # bytes, about PyTorch's default


LESS_BUBBLE = {
    "zb-h1": 1,
    "interleaved-1f1b": 2,
    "zb-v": 2,
    "dualpipe-v": 2,
    "zb-h2": 1,
}  # schedules, with their chunks


@dataclass(frozen=True)
class Trials:
    """Changes that address the largest costs of a run, to be simulated.

    Attributes:
        base: the run.
        culprit: what holds it up.
        costs: the share of the step of each cost.
        changes: cost → what is tried against it.
        trial: simulates a change against a cost.
    """

    base: Run
    culprit: Straggler | None = None
    costs: Mapping[str, float] = field(default_factory=dict)
    changes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    trial: Callable[[str, str], SimulatedChange | None] = lambda cost, text: None

    @property
    def tasks(self) -> list[Task]:
        """Tasks that simulate the changes."""
        return [partial(self.trial, cost, text) for cost, texts in self.changes.items() for text in texts]

    def proposals(self, results: Sequence[SimulatedChange | None], gains: Sequence[Gain]) -> list[SimulatedChange]:
        """What helps: first what is slow at the speed of most, then for the largest costs, the most helpful first.

        Args:
            results: of the tasks.
            gains: the ranking of classes.
        """
        left = iter(results)
        tried = {cost: [next(left) for _ in texts] for cost, texts in self.changes.items()}
        if not self.costs:
            return []
        fitting = sorted(filter(None, tried.pop(MEMORY, ())), key=lambda tried: -tried.gain)
        mended = _mended(self.base, self.culprit) if fits(self.base) else ()
        if "network" in tried and _broken(self.culprit) is None and fits(self.base):
            tried["network"] += [_with_faster_links(self.base, gain) for gain in gains if gain.part.sort == "link"]
        return [*fitting, *mended, *_most_helpful(tried, self.costs)]


def _broken(culprit: Straggler | None) -> Straggler | None:
    """What holds up a run, if it is a link."""
    return culprit if culprit is not None and culprit.slow is None else None


def trials_of(
    base: Run, rungs: Sequence[Idealisation], slow: Stragglers | None, build: Build, *, own: bool = False
) -> Trials:
    """What to try.

    Args:
        base: the run.
        rungs: the ladder of idealisations.
        slow: who was slow.
        build: builds a scenario from overrides.
        own: whether its wiring is the scenario's own, so that changes which keep it share its times of collectives.
    """
    end = base.timeline.duration
    if not end:
        return Trials(base)
    culprit = slow.culprit(end) if slow else None
    broken, rung = _broken(culprit), {one.name: one.duration for one in rungs}
    costs = {  # what a slow link costs is not the network's
        "network": ((broken.least if broken else end) - rung["no latency"]) / end,
        "bubble": (rung["all ranks at the mean"] - rung["work / ranks"]) / end,
    }
    if base.scenario.efficiency is not None and base.scenario.efficiency.launch:
        costs["host"] = float(step_breakdown(base).shares[HOST])
    if (packed := packed_steps(base.scenario)) is not None and packed.varies:
        costs["documents"] = (rung["no latency"] - rung["all ranks at the mean"]) / end
    changes = {**_fitting(base), **_changes_by_cost(base, culprit, costs)}
    if slow is not None and "uneven ranks" in changes:
        costs["uneven ranks"] = 1 - slow.ideal / end
    return Trials(base, culprit, costs, changes, partial(_tried, base=base, build=build, own=own))


def _changes_by_cost(base: Run, culprit: Straggler | None, costs: Mapping[str, float]) -> dict[str, list[str]]:
    """For each cost that is a large enough share of the step, what to try against it."""
    least = max(SLOW, max(costs.values()) / 2)
    most = min(MOST_PROPOSALS, max(FEWEST_SIMULATED, EVENTS_OF_PROPOSALS // max(events_of_all(base), 1)))
    changes: dict[str, list[str]] = {}
    if costs["network"] >= least:
        changes["network"] = [*_less_exposed(base.scenario)][:most]
    if culprit is not None and culprit.usual is None:
        changes["uneven ranks"] = [*_evener(base.scenario)]
    if costs.get("documents", 0) >= SLOW:
        changes["documents"] = [*_packed_evenly(base.scenario)]
    if costs.get("host", 0) >= least:
        changes["host"] = [*_fewer_launches(base.scenario)]
    if costs["bubble"] >= least:
        changes["bubble"] = [*_less_bubble(base.scenario)][:most]
    return changes


def _fitting(base: Run) -> dict[str, list[str]]:
    """What makes a run fit that does not."""
    if fits(base) or base.scenario.model is None or base.fabric is None:
        return {}
    every = remedies(base.scenario, base.plan, base.fabric)
    fitting = (remedy.changes.items() for remedy in every if remedy.peak.fits)
    return {MEMORY: [",".join(f"{path}={value}" for path, value in changes) for changes in fitting]}


def _most_helpful(
    tried: Mapping[str, Sequence[SimulatedChange | None]], costs: Mapping[str, float]
) -> Iterator[SimulatedChange]:
    """What is worth it, by cost: the costliest first unless what helps another helps more than twice as much."""
    helping = {
        name: sorted((one for one in ones if one is not None and one.gain > WORTH), key=lambda tried: -tried.gain)
        for name, ones in tried.items()
    }
    costliest = max(reversed([*costs]), key=costs.__getitem__)
    best = {name: ones[0].gain * (2 if name == costliest else 1) for name, ones in helping.items() if ones}
    for name in sorted(best, key=lambda name: -best[name]):
        yield from helping[name]


def _mended(base: Run, culprit: Straggler | None) -> Iterator[SimulatedChange]:
    """What holds up the run, at the speed of most; nothing where it only has more work than the others."""
    if culprit is not None and culprit.usual is not None:
        change = f"{culprit.name} as quick as the others"
        yield _proposal("slow ranks", change, base, base.scenario, culprit.usual)


def _evener(scenario: Scenario) -> Iterator[str]:
    """Other cuts of the layers into stages; where times per stage are given, no setting moves work."""
    if scenario.model is not None and scenario.parallel.pipeline > 1:
        yield from (f"parallel.stages={rule}" for rule in RULES if rule != scenario.parallel.stages)


def _packed_evenly(scenario: Scenario) -> Iterator[str]:
    """Packings that divide the work of documents over ranks."""
    assert scenario.data is not None
    names = ("balanced", "dynamic-context") if scenario.batch is not None else ("balanced",)
    yield from (f"data.packing={name}" for name in names if name != scenario.data.packing)


def _less_bubble(scenario: Scenario) -> Iterator[str]:
    schedule = scenario.schedule
    if scenario.parallel.pipeline == 1 or scenario.traced:
        return
    for kind, chunks in LESS_BUBBLE.items() if schedule.kind else ():
        if kind != schedule.kind:
            yield f"schedule.kind={kind}" + (f",schedule.chunks={chunks}" if chunks != schedule.chunks else "")
    if scenario.batch is None:
        yield f"schedule.microbatches={2 * schedule.microbatches}"
    if scenario.model is not None and schedule.microbatch_size % 2 == 0:
        half = f"schedule.microbatch_size={schedule.microbatch_size // 2}"
        yield half if scenario.batch else f"{half},schedule.microbatches={2 * schedule.microbatches}"


def _fewer_launches(scenario: Scenario) -> Iterator[str]:
    """Graphs, and layouts in which one launch does more."""
    schedule, parallel = scenario.schedule, scenario.parallel
    graphs = ("none", "layers", "full")
    yield from (f"cuda_graphs={more}" for more in graphs[graphs.index(scenario.cuda_graphs) + 1 :])
    count = schedule.microbatches
    fewer = "" if scenario.batch else ",schedule.microbatches={}"
    if count % 2 == 0:
        yield f"schedule.microbatch_size={2 * schedule.microbatch_size}" + fewer.format(count // 2)
    if parallel.tensor % 2 == 0 and count % 2 == 0:
        yield f"parallel.tensor={parallel.tensor // 2},parallel.data={2 * parallel.data}" + fewer.format(count // 2)


def _less_exposed(scenario: Scenario) -> Iterator[str]:
    gradients, parallel = scenario.gradients, scenario.parallel
    if parallel.data > 1 and not scenario.traced:
        large = gradients.bucket is None or gradients.bucket > SMALL_BUCKET
        smaller = ["gradients.bucket=25 MB"] if large else []
        smaller += _filled_during_ops(scenario)
        if not gradients.overlap:
            yield "gradients.overlap=true"
            yield from (f"gradients.overlap=true,{text}" for text in smaller)
        else:
            yield from smaller
            yield "gradients.overlap=false"
        if gradients.codec == "fp32":
            yield "gradients.codec=bf16"
        if gradients.channels is not None:
            yield "gradients.channels=auto"
        if gradients.algorithm != collectives.AUTO and scenario.sharding in ("none", "zero-1"):
            yield f"gradients.algorithm={collectives.AUTO}"
        if parallel.pipeline > 1:
            places = {"data": "pipeline", "pipeline": "data"}
            yield f"parallel.order=[{', '.join(places.get(axis, axis) for axis in parallel.order)}]"
            if (urgent := WITH_PRIORITIES.get(scenario.cluster.sharing)) is not None:
                yield f"cluster.sharing={urgent},cluster.priorities.pipeline=2,cluster.priorities.gradients=1"
    if scenario.schedule.p2p == "blocking":
        yield "schedule.p2p=async"


def _filled_during_ops(scenario: Scenario) -> Iterator[str]:
    """Buckets that are ready before a rank's last op ends, where overlap alone would not bring them.

    By default a model's `bucket_rule` is that of its framework, as soon as gradients are reduced during the backward.
    """
    gradients, framework = scenario.gradients, framework_of(scenario.model)
    stated = framework is None or "bucket_rule" in gradients.model_fields_set
    if stated and gradients.bucket_rule == "stage" and scenario.sharding not in LAYERED:
        rule = splitting_rule(scenario.model, scenario.sharding)
        whole = "bucket" in gradients.model_fields_set and gradients.bucket is None
        yield f"gradients.bucket_rule={rule}" + (",gradients.bucket=25 MB" if whole else "")


def _tried(against: str, text: str, *, base: Run, build: Build, own: bool) -> SimulatedChange | None:
    """A change of keys, simulated until it cannot be worth it any more.

    None if it is not, if it is impossible, or if it needs memory that the GPUs do not have. Where the run itself does,
    what makes it fit is worth it however long it takes.
    """
    with suppress(HybridDesError):
        variant = variant_of(text, Variant.of(base), build)
        variant = even(variant.timed_like(base) if own else variant, base)
        latest = (1 - Fraction(WORTH)) * _per_microbatch(base) * _microbatches(variant.scenario)  # any later is no gain
        run = variant.simulated(None if against == MEMORY else latest, detailed=False, changed_from=base)
        if fits(run):
            return _proposal(against, text, base, variant.scenario, run.timeline.duration)
    return None


def even(variant: Variant, base: Run) -> Variant:
    """A variant with buckets padded to equal pieces, where replicas are alike only then, as they are in the run.

    That adds fewer elements to a bucket than there are members; real systems do it for the same reason.
    """
    gradients, most = variant.scenario.gradients, 1 if base.fold is None else base.fold.order
    if gradients.pad or gradients.bucket == base.scenario.gradients.bucket or variant.folded >= most:
        return variant
    scenario = variant.scenario.model_copy(update={"gradients": gradients.model_copy(update={"pad": True})})
    padded = replace(variant, scenario=scenario)
    before, after = (_reduced(one) for one in (variant, padded))
    return padded if padded.folded > variant.folded and after - before <= ADDED * before else variant


def _reduced(variant: Variant) -> int:
    """The elements that all groups of replicas reduce."""
    return sum(bucket.elements for _, group in variant.parts.reductions.processes for bucket in group.buckets)


def _with_faster_links(base: Run, gain: Gain) -> SimulatedChange:
    change = f"{gain.part.name} links {gain.change}"
    return _proposal("links", change, base, base.scenario, gain.duration)


def _proposal(against: str, change: str, base: Run, scenario: Scenario, duration: int) -> SimulatedChange:
    gain = float(1 - Fraction(duration, _microbatches(scenario)) / _per_microbatch(base))
    sure, microbatches = difference(base.scenario, scenario), scenario.schedule.microbatches
    return SimulatedChange(change, duration, scenario.steps, microbatches, against=against, gain=gain, sure=sure)


def _per_microbatch(base: Run) -> Fraction:
    """Picoseconds of a run per micro-batch of one sample."""
    return Fraction(base.timeline.duration, _microbatches(base.scenario))


def _microbatches(scenario: Scenario) -> int:
    """The micro-batches of all steps and replicas, in samples."""
    return scenario.steps * samples_per_step(scenario)
