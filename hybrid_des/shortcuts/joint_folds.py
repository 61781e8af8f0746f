"""Which folds of several jobs that share links are exact together, and runs that are folded so.

Each job has its own fold, and jobs meet on links: so all of their images have to map the links that they share alike
(`folding.joint_symmetry`). Only jobs whose messages share bandwidth (`fair`) are folded: no order decides anything.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from itertools import islice, product
from math import inf
from types import MappingProxyType
from typing import NamedTuple

from hybrid_des.cluster.fabric import Fabric, placed
from hybrid_des.cluster.transport import Links
from hybrid_des.engine.causes import Causes, TracedView, traced
from hybrid_des.folding.joint_symmetry import FoldedLinks, JointLinks, JointTransport, compatible
from hybrid_des.folding.refusals import FoldRefusal
from hybrid_des.folding.symmetry import Fold
from hybrid_des.folding.traced_fold import TracedJointTransport
from hybrid_des.planning.links_used import connections_used
from hybrid_des.planning.planner import Parts, parts_of
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.sections.cluster import WITHOUT_PRIORITIES
from hybrid_des.shortcuts.expansion import of_all_ranks
from hybrid_des.shortcuts.folds import Replicas, folds_of_job
from hybrid_des.simulation.jobs import How, Network, groups_of, recorder_of
from hybrid_des.simulation.outcome import Run
from hybrid_des.simulation.run import JobRequest, NetworkOf, run_jobs
from hybrid_des.simulation.watch import TooManyEventsError

MOST_OF_JOB, MOST_TRIES = 12, 144  # folds of a job, and combinations of jobs, that are looked at
MESSAGES = 20_000  # of the steps that jobs ask for, from which they are folded: fewer take as long as folds to find


class Planned(NamedTuple):
    """A job and its parts."""

    scenario: Scenario
    parts: Parts

    @property
    def messages(self) -> int:
        """Of all of its steps."""
        return self.scenario.steps * self.parts.messages


class JobsTogether(NamedTuple):
    """Runs of jobs on common links.

    Attributes:
        runs: one per job; their events are those that were simulated.
        folds: how these were folded, if their rows are those of the simulated ranks only.
        events: about as many as runs without folds take: an image has its own events but for the ends of instants,
            which all have in common.
    """

    runs: list[Run]
    events: int
    folds: Sequence[FoldedLinks] = ()


def folded_jobs(
    scenarios: Sequence[Scenario],
    fabric: Fabric,
    starts: Sequence[int],
    most_events: float = inf,
    traces: Mapping[int, Causes] = MappingProxyType({}),
) -> JobsTogether | None:
    """Simulate jobs that repeat their steps until all have done theirs; None if they are not folded.

    Args:
        scenarios: the jobs.
        fabric: all of the wiring.
        starts: when each job starts, in picoseconds.
        most_events: as counted here.
        traces: record causes of jobs, by number; the runs then have the rows of the simulated ranks only.

    Raises:
        FoldRefusal: they turn out to differ.
        TooManyEventsError: they take more events.
    """
    views = [placed(fabric, scenario.cluster.placement) for scenario in scenarios]
    jobs = [Planned(one, parts_of(one, fabric=view)) for one, view in zip(scenarios, views, strict=True)]
    if traces and any(job.parts.reductions.algorithm == "parameter-server" for job in jobs):
        return None  # of equal arrivals, which a server takes in any order, images would name different ones
    folds = joint_folds(jobs)
    if folds is None:
        return None
    links = JointLinks(fabric, scenarios[0].cluster.service)
    asked = [
        JobRequest(job.scenario, start, job.parts, traces.get(number), joint_network(images))
        for number, (job, start, images) in enumerate(zip(jobs, starts, folds, strict=True))
    ]
    runs = run_jobs(asked, links, repeat=True, most_events=most_events)
    simulated = sum(Fraction(run.messages, images.fold.order) for run, images in zip(runs, folds, strict=True))
    ends = links.ends
    events = ends + round((links.env.events - ends) * sum(run.messages for run in runs) / max(simulated, 1))
    if events > most_events:
        raise TooManyEventsError(f"more than {most_events:,.0f} events")
    return JobsTogether(runs, events, folds) if traces else JobsTogether([of_all_ranks(run) for run in runs], events)


def joint_network(images: FoldedLinks) -> NetworkOf:
    """Makes the network of a job of which each simulated rank stands for its images, on links that others share."""

    def network(scenario: Scenario, parts: Parts, links: Links, how: How) -> Network:
        assert isinstance(links, JointLinks)
        recorder, trace = recorder_of(scenario, how, alone=False), how.trace
        kind = JointTransport if trace is None else TracedJointTransport
        record = recorder if trace is None else traced(recorder, trace)
        common = groups_of(parts), parts.programs.blocking, scenario.cluster.priority_of
        transport = kind(links, record, images, *common)
        if trace is not None:
            transport.env = TracedView(links.env, trace)
        return Network(recorder, transport, images.fold)

    return network


def joint_folds(jobs: Sequence[Planned]) -> list[FoldedLinks] | None:
    """The folds of jobs that share links, which leave the fewest messages; None if none is exact, or they send few."""
    if sum(job.messages for job in jobs) < MESSAGES or not all(map(_may_fold, jobs)):
        return None
    folds = [_folds(job) for job in jobs]

    def left(chosen: Sequence[FoldedLinks]) -> float:
        return sum(job.messages / images.fold.order for job, images in zip(jobs, chosen, strict=True))

    for chosen in islice(sorted(product(*folds), key=left), MOST_TRIES):
        if all(images.fold.order == 1 for images in chosen):
            return None
        if compatible(chosen):
            return list(chosen)
    return None


def _may_fold(job: Planned) -> bool:
    """Whether the order of messages decides nothing, and all replicas do the same."""
    scenario, parts = job
    fair = WITHOUT_PRIORITIES.get(scenario.cluster.service, scenario.cluster.service) == "fair"
    if not fair or scenario.fold != "auto" or parts.meeting is not None or parts.fabric.reducers:
        return False
    return not Replicas(_without_priorities(scenario), parts).differ


def _without_priorities(scenario: Scenario) -> Scenario:
    return scenario.model_copy(update={"cluster": scenario.cluster.model_copy(update={"sharing": "fair"})})


def _folds(job: Planned) -> list[FoldedLinks]:
    """Some folds of a job that map its routes to routes; that of no ranks is one."""
    scenario, parts = job
    connections = set(connections_used(scenario, parts))

    def images() -> Iterator[FoldedLinks]:
        for fold in folds_of_job(Replicas(_without_priorities(scenario), parts)):
            with suppress(FoldRefusal):
                yield FoldedLinks(parts.fabric, fold, connections)

    return [*islice(images(), MOST_OF_JOB), FoldedLinks(parts.fabric, Fold(scenario.parallel.layout, []), connections)]
