"""Several jobs on one cluster: a file with `jobs:`, each a scenario of its own on its own GPUs.

    cluster: {...}
    jobs:
      gpt:  {scenario: gpt.yaml, nodes: 0-7}
      bert: {scenario: bert.yaml, nodes: [8, 9], start: 250 ms, priority: 1}
    background: [{from: node3, to: node9, rate: 20 GB/s}]

A job's further keys are those of its scenario and replace what its file says, so `jobs.gpt.schedule.kind` can be set,
swept and compared like any other key. The cluster of a job's own file is not read.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Annotated

from pydantic import ValidationError

from hybrid_des.cluster.fabric import ClusterSpec
from hybrid_des.errors import ScenarioError
from hybrid_des.options import Section, Text, Time, choice, describe, whole
from hybrid_des.scenario.composition import with_base
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.loading import Source, document_of, misnamed, scenario_of
from hybrid_des.scenario.overrides import Overrides
from hybrid_des.scenario.problem import problems_in, unknown_key
from hybrid_des.scenario.sections.cluster import WITHOUT_PRIORITIES, Cluster, Priority
from hybrid_des.scenario.sections.perturbations import Background, misfits_of_background
from hybrid_des.scenario.sections.plugins import AnySection
from hybrid_des.scenario.sections.values import Numbers
from hybrid_des.scenario.strict_yaml import Document, KeyPath
from hybrid_des.units import to_picoseconds
from hybrid_des.workload.models.catalogue import merged

OWN = ("version", "name", "description", "cluster", "jobs", "background", "placement", "seed", "slow", "efficiency")
OF_FILES = ("sweep", "plot", "search")  # of a job's own file; not read
PLACEMENTS = ("packed", "spread", "random")
_NAME = re.compile(r"[A-Za-z0-9][\w-]{0,63}")


Placement = Annotated[str, choice(*PLACEMENTS)]


class JobKeys(Section):
    """The keys of a job beside those of its scenario."""

    nodes: Numbers | None = None
    """Nodes whose GPUs it has, by number: 0-7, or a list."""
    ranks: Numbers | None = None
    """Instead: the GPU of each rank."""
    placement: Placement | None = None
    """Instead: where its GPUs are taken from among those that are left. Default: that of the file."""
    start: Time = Fraction(0)
    """When it starts, in simulated time."""
    priority: Priority = 0
    """With `sharing: priority` or `priority-fair`: its messages go before those of jobs with a lower one."""


class Shared(Section):
    """What the jobs of a file share."""

    version: Annotated[int, whole(1, 1)] = 1
    """Of the format."""
    name: Text = "jobs"
    """Of the file, for reports."""
    description: Text = ""
    """What it shows."""
    background: tuple[Background, ...] = ()
    """Traffic of no job."""
    placement: Placement = "packed"
    """Where jobs without `nodes` and `ranks` get their GPUs: the first ones left, spread over nodes, or at random."""
    seed: Annotated[int, whole(0, 2**63 - 1)] = 0
    """Seed of random placements, and of jobs that do not give one."""


@dataclass(frozen=True)
class PlacedJob:
    """A job with its GPUs.

    Attributes:
        name: as in the file.
        scenario: with its cluster `placed` on its GPUs.
        start: picoseconds.
        priority: of its messages among those of other jobs.
    """

    name: str
    scenario: Scenario
    start: int = 0
    priority: int = 0

    @property
    def gpus(self) -> Sequence[int]:
        """The GPUs of its ranks."""
        return self.scenario.cluster.placement[: self.scenario.parallel.ranks]


@dataclass(frozen=True)
class Jobs:
    """The jobs of a file.

    Attributes:
        name, description: of the file.
        jobs: in the order of the file.
        background: traffic of no job.
    """

    name: str
    description: str
    jobs: tuple[PlacedJob, ...]
    background: tuple[Background, ...] = ()

    @property
    def cluster(self) -> Cluster:
        """The machine, as none of the jobs sees it."""
        cluster = self.jobs[0].scenario.cluster
        return cluster.placed(range(cluster.gpus))

    def with_values(self, values: Callable[[Scenario], Mapping[str, object]]) -> Jobs:
        """The same jobs with other values of some keys, as they follow from each job's scenario."""
        made = (replace(one, scenario=one.scenario.model_copy(update=values(one.scenario))) for one in self.jobs)
        return replace(self, jobs=tuple(made))

    def with_starts(self, starts: Mapping[str, int]) -> Jobs:
        """The same jobs with other starts, in picoseconds, by name."""
        return replace(self, jobs=tuple(replace(one, start=starts.get(one.name, one.start)) for one in self.jobs))

    def with_priorities(self, priorities: Mapping[str, int]) -> Jobs:
        """The same jobs with other priorities, by name, and a model of sharing that reads them."""
        given = [priorities.get(one.name, one.priority) for one in self.jobs]
        among = [*given, *(flow.level for flow in self.background)]
        made = []
        for job, priority in zip(self.jobs, given, strict=True):
            cluster = job.scenario.cluster
            urgent = cluster.model_copy(update={"sharing": sharing_with_priorities(cluster.sharing)})
            scenario = job.scenario.model_copy(update={"cluster": urgent.urgent(priority, among)})
            made.append(replace(job, scenario=scenario, priority=priority))
        return replace(self, jobs=tuple(made))


def sharing_with_priorities(sharing: str) -> str:
    """The model of sharing that serves as this one does, and reads priorities."""
    return {without: name for name, without in WITHOUT_PRIORITIES.items()}.get(sharing, sharing)


def has_jobs(document: Document) -> bool:
    """Whether a document holds several jobs."""
    return isinstance(document.value, dict) and document.value.get("jobs") not in (None, "none")


def load_jobs(source: Source, overrides: Overrides = ()) -> Jobs:
    """Read a file, or a mapping, with `jobs:`.

    Raises:
        ScenarioError: one line per problem.
    """
    return jobs_of(document_of(source, overrides))


def jobs_of(document: Document) -> Jobs:
    """Validate a document with `jobs`.

    Raises:
        ScenarioError: one line per problem.
    """
    if not has_jobs(document):
        raise ScenarioError([document.problem(("jobs",), "is required, such as gpt: {scenario: gpt.yaml, nodes: 0-7}")])
    values, entries = document.value, document.value["jobs"]
    problems = [document.problem((key,), unknown_key(str(key), OWN)) for key in values if key not in (*OWN, *OF_FILES)]
    if not isinstance(entries, dict) or not entries:
        given = "none" if entries == {} else describe(entries)
        message = f"expected jobs by name, such as gpt: {{scenario: gpt.yaml, nodes: 0-7}}, found {given}"
        raise ScenarioError([*problems, document.problem(("jobs",), message)])
    if not isinstance(values.get("cluster"), dict):
        raise ScenarioError([*problems, document.problem(("cluster",), "is required: the machine that the jobs share")])
    shared = _section(
        Shared, document, (), {key: values[key] for key in Shared.model_fields if key in values}, problems
    )
    problems += _of_another_type(document)
    if problems or shared is None:
        raise ScenarioError(problems)
    read = [_job(document, str(name), entry, problems) for name, entry in entries.items()]
    if problems:
        raise ScenarioError([*dict.fromkeys(problems)])  # those of what all jobs share are found in each
    known = [one for one in read if one is not None]
    on_links = on_common_links([scenario for *_, scenario in known])
    valid = [(name, keys, scenario) for (name, keys, _), scenario in zip(known, on_links, strict=True)]
    problems += _disagreements(document, valid)
    machine = valid[0][2].cluster
    problems += [document.problem(one.path, one.message) for one in misfits_of_background(shared.background, machine)]
    places = _placed(document, shared, valid, problems)
    if problems:
        raise ScenarioError(problems)
    among = [*(keys.priority for _, keys, _ in valid), *(flow.level for flow in shared.background)]
    jobs = []
    for (name, keys, scenario), gpus in zip(valid, places, strict=True):
        cluster = scenario.cluster.placed(gpus).urgent(keys.priority, among)
        placed = scenario.model_copy(update={"cluster": cluster})
        jobs.append(PlacedJob(name, placed, to_picoseconds(keys.start), keys.priority))
    return Jobs(shared.name, shared.description, tuple(jobs), shared.background)


def on_common_links(scenarios: Sequence[Scenario]) -> list[Scenario]:
    """Jobs on the same links, of which only those with a model say what shares of their bandwidth they reach.

    Other jobs whose collectives are a library's take these; without any, all take the library's.
    """
    given = [one.link_shares for one in scenarios if one.efficiency is not None]
    library = [one.link_shares for one in scenarios if one.efficiency is None and one.of_library]
    shares = next(iter([*given, *library]), None)
    taking = [one.efficiency is None and (one.of_library or not given) for one in scenarios]
    return [
        one.on_links(shares) if takes and shares and library else one
        for one, takes in zip(scenarios, taking, strict=True)
    ]


Read = tuple[str, JobKeys, Scenario]


def _section(
    kind: type[AnySection], document: Document, at: KeyPath, values: Mapping[str, object], problems: list[str]
) -> AnySection | None:
    """The validated values at a path; None after adding the problems."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        problems += [document.problem((*at, *one.path), one.message) for one in problems_in(error, kind)]
    return None


def _of_another_type(document: Document) -> Iterator[str]:
    """Sections of all jobs that are neither what their key expects nor null."""
    kinds: dict[str, tuple[type, str]] = {"slow": (list, "a list"), "efficiency": (dict, "a mapping")}
    for key, (kind, expected) in kinds.items():
        value = document.value.get(key)
        if value is not None and not isinstance(value, kind):
            yield document.problem((key,), f"expected {expected}, found {describe(value)}")


def _job(document: Document, name: str, entry: object, problems: list[str]) -> Read | None:
    """One entry of `jobs`; None after adding the problems."""
    at: KeyPath = ("jobs", name)
    if not _NAME.fullmatch(name):
        problems.append(
            document.problem(at, "a job's name consists of letters, digits, _ and -, since a folder has it")
        )
    if not isinstance(entry, dict):
        problems.append(document.problem(at, f"expected {{scenario: FILE, nodes: 0-7}}, found {describe(entry)}"))
        return None
    own = {key: entry[key] for key in JobKeys.model_fields if key in entry}
    keys = _section(JobKeys, document, at, own, problems)
    if keys is not None and sum(one is not None for one in (keys.nodes, keys.ranks, keys.placement)) > 1:
        problems.append(document.problem(at, "nodes, ranks and placement exclude each other; expected one of them"))
    if "cluster" in entry:
        problems.append(
            document.problem((*at, "cluster"), "the jobs share the cluster of the file; expected none here")
        )
        return None
    try:
        scenario = scenario_of(_document_of_job(document, name, entry))
    except ScenarioError as error:
        problems += error.problems
        return None
    return None if keys is None else (name, keys, scenario)


def _document_of_job(document: Document, name: str, entry: Mapping[str, object]) -> Document:
    """The scenario of a job: that of its file or mapping, its further keys, and the cluster and seed of all."""
    at: KeyPath = ("jobs", name)
    inner, places = _inner(document, name, entry.get("scenario"))
    more = {key: value for key, value in entry.items() if key not in (*JobKeys.model_fields, "scenario")}
    for key in more:
        places = {place: text for place, text in places.items() if place[:1] != (key,)} if key not in inner else places
    inner = merged(inner, more)
    for path, text in document.places.items():
        if path[:2] == at and len(path) > 2 and path[2] in more:
            places[path[2:]] = text
        key = str(path[0]) if path else ""
        if key in ("cluster", "slow", "efficiency") and not isinstance(inner.get(key), str | int):
            places[path] = text
    for key in ("sweep", "plot", "search", "description"):
        inner.pop(key, None)
    if inner.pop("jobs", None) is not None:
        raise document.error((*at, "scenario"), "holds jobs itself; expected the scenario of one job")
    values = document.value
    inner |= {"cluster": copy.deepcopy(values["cluster"]), "name": name}
    inner.setdefault("seed", values.get("seed", 0))
    own, efficiency = inner.get("slow") or [], inner.get("efficiency") or {}
    slow, shared = copy.deepcopy([values.get("slow"), values.get("efficiency")])
    if slow and isinstance(slow, list) and isinstance(own, list):  # anything else is a problem of the job's scenario
        inner["slow"] = [*slow, *own]
    if shared and inner.get("model") and isinstance(shared, dict) and isinstance(efficiency, dict):
        inner["efficiency"] = {**shared, **efficiency}
    places[()] = document.place(at)
    return Document(inner, document.source, places)


def _inner(document: Document, name: str, given: object) -> tuple[dict[str, object], dict[KeyPath, str]]:
    """The scenario that a job names or holds, with its places."""
    at: KeyPath = ("jobs", name, "scenario")
    if given is None:
        return {}, {}
    if isinstance(given, dict):
        places = {place[3:]: text for place, text in document.places.items() if place[:3] == at}
        return copy.deepcopy(given), places
    if not isinstance(given, str) or "\0" in given:
        raise document.error(at, f"expected the path of a file, or a scenario, found {describe(given)}")
    if os.path.realpath(given) == os.path.realpath(document.source):
        raise document.error(at, f"{describe(given)} is this file itself; expected the scenario of one job")
    try:
        inner = with_base(Path(given))
    except ScenarioError as error:
        raise document.error(at, error.problems[0]) from None
    return inner.value, inner.places


def _disagreements(document: Document, read: Sequence[Read]) -> Iterator[str]:
    """Keys that all jobs must agree on."""
    if not read:
        return
    _, _, first = read[0]
    for name, _, scenario in read:
        differing = [both for both in zip(scenario.link_shares, first.link_shares, strict=True) if both[0] != both[1]]
        for here, there in differing[:1]:
            message = f"the share of the bandwidth that links reach is {float(here):g} here and "
            message += f"{float(there):g} for {read[0][0]}; the jobs have the same links"
            yield document.problem(("jobs", name, "efficiency"), message)
    for name, _, scenario in read:
        at: KeyPath = ("jobs", name)
        if [slow for slow in scenario.slow if slow.links] != [slow for slow in first.slow if slow.links]:
            yield document.problem((*at, "slow"), "slow links are those of all jobs; expected `slow` beside `jobs`")
        for key in ("background", "faults", "rl"):
            if getattr(scenario, key):
                yield document.problem((*at, key), f"expected no `{key}` in one of several jobs")


def _placed(document: Document, shared: Shared, read: Sequence[Read], problems: list[str]) -> list[Sequence[int]]:
    """The GPUs of each job: those of jobs that name them first, then the others' in the order of the file."""
    owner: dict[int, str] = {}
    gpus_of: dict[str, Sequence[int]] = {}
    named = [one for one in read if one[1].nodes is not None or one[1].ranks is not None]
    for name, keys, scenario in [*named, *(one for one in read if one not in named)]:
        spec, count = scenario.cluster.spec, scenario.parallel.ranks
        key = "nodes" if keys.nodes is not None else "ranks" if keys.ranks is not None else "placement"
        at: KeyPath = ("jobs", name, *([key] if getattr(keys, key) is not None else []))
        if key == "placement":
            free = [gpu for gpu in range(spec.gpus) if gpu not in owner]
            gpus = _taken(keys.placement or shared.placement, free, count, spec, Random(f"{shared.seed} {name}"))
            lacking = f"{count} ranks need one GPU each; {len(free)} of {spec.gpus} are left"
        else:
            gpus = _given(keys, spec)
            lacking = f"{count} ranks need one GPU each; these are {len(gpus)}"
        wrong = ""
        if any(gpu >= spec.gpus or gpu < 0 for gpu in gpus):
            unit = f"{len(spec.nodes)} nodes" if key == "nodes" else f"{spec.gpus} GPUs"
            wrong = f"the cluster has {unit}, numbered from 0"
        elif len(gpus) < count:
            wrong = lacking
        elif taken := [gpu for gpu in gpus if gpu in owner]:
            wrong = f"GPU {taken[0]} on node {spec.node_of[taken[0]]} is also given to {owner[taken[0]]}"
        if wrong:
            problems.append(document.problem(at, wrong))
            continue
        owner |= dict.fromkeys(gpus, name)
        gpus_of[name] = gpus
    return [gpus_of.get(name, ()) for name, _, _ in read]


def _given(keys: JobKeys, spec: ClusterSpec) -> list[int]:
    """The GPUs that a job names; −1 stands for those of a node that does not exist."""
    if keys.ranks is not None:
        return list(keys.ranks)
    gpus: list[int] = []
    for node in keys.nodes or ():
        if node >= len(spec.nodes):
            return [-1]
        gpus += range(spec.first_gpu(node), spec.first_gpu(node) + spec.nodes[node].gpus)
    return gpus


def _taken(placement: str, free: Sequence[int], count: int, spec: ClusterSpec, rng: Random) -> list[int]:
    """Some of the GPUs that are left, in ascending order: ranks that are neighbours are near each other."""
    if placement == "random" and count <= len(free):
        return sorted(rng.sample(free, count))
    if placement == "spread":
        seen: dict[int, int] = {}
        turn = {}
        for gpu in free:  # the n-th that is left on its node
            node = spec.node_of[gpu]
            turn[gpu] = seen[node] = seen.get(node, -1) + 1
        return sorted(sorted(free, key=lambda gpu: (turn[gpu], gpu))[:count])
    return list(free[:count])


def misnamed_in(document: Document, path: str) -> str | None:
    """The problem with a path such as `jobs.gpt.schedule.knd` in a file with several jobs; None if there is none."""
    keys = path.split(".")
    if keys[0] != "jobs":
        return None if keys[0] in OWN else unknown_key(keys[0], OWN)
    jobs = document.value["jobs"]
    names = [*map(str, jobs)] if isinstance(jobs, dict) else []
    if len(keys) < 3 or keys[1] not in names:
        return f"expected jobs.NAME.KEY with one of {', '.join(names)}"
    if len(keys) == 3 and keys[2] in (*JobKeys.model_fields, "scenario"):
        return None
    return misnamed(".".join(keys[2:]))
