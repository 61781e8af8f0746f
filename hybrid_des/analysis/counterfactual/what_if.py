"""What-ifs: a run with other durations, other links, or of another scenario, and changes written as text.

cluster.infiniband.bandwidth=2x       the value times two
cluster.nodes.1.speed=1.05            another value
workload.forward.1=0.5x               of one pipeline rank, if the scenario has one number for all
rank.1.time=0.75x                     all ops of a global rank; kind.B.time: all ops of a kind
links.bandwidth=2x  links.latency=0x  of all links; link.node0/nic0/out.bandwidth: of one
a=inf,b=0                             both at once
"""

from __future__ import annotations

import copy
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from hybrid_des import collectives
from hybrid_des.analysis.critical_path.traced import FEWEST_FOLDED
from hybrid_des.analysis.difference import Difference
from hybrid_des.cluster.fabric import ChangedLinks, Fabric, LinkSpec, Route
from hybrid_des.cluster.topologies.nodes import KNOWN_ROUTES
from hybrid_des.cost_model.collective_times import CollectiveTimes
from hybrid_des.errors import ScenarioError, UsageError, unknown
from hybrid_des.pipeline.plan import Plan
from hybrid_des.planning.planner import Parts, parts_of
from hybrid_des.planning.program import Call, Program
from hybrid_des.planning.program_table import OP_KINDS
from hybrid_des.planning.wiring import fabric_of
from hybrid_des.scenario.composition import override
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.export import to_mapping
from hybrid_des.scenario.loading import given_values, misnamed, scenario_of
from hybrid_des.scenario.problem import paths_of, unknown_key
from hybrid_des.scenario.strict_yaml import Document
from hybrid_des.shortcuts.attempts import remembering
from hybrid_des.shortcuts.common_beginning import in_common, least_of_changed
from hybrid_des.shortcuts.folds import Replicas, folds_of
from hybrid_des.shortcuts.least_remaining import least_remaining
from hybrid_des.shortcuts.run import run
from hybrid_des.simulation.jobs import UNCONTENDED
from hybrid_des.simulation.outcome import Run
from hybrid_des.simulation.outer import alike, groups_apart
from hybrid_des.simulation.speeds import DurationOverride, Programs
from hybrid_des.simulation.watch import TooLateError, Watch

Build = Callable[[Sequence[str]], Scenario]  # overrides → scenario
Factors = Mapping[str, Fraction | None]  # link → factor of its bandwidth; None: infinite

DIGITS = 30  # decimal places of a fraction
_NEXT = re.compile(r",(?=\s*[A-Za-z_][\w./-]*=)")
_FACTOR = re.compile(r"\s*(\d+\.?\d*|\.\d+)\s*[x×]\s*")
OF_NO_KEY = re.compile(r"(rank|kind|link)\.(.+)\.(time|bandwidth)|links\.(bandwidth|latency)")


@dataclass(frozen=True)
class Variant:
    """A changed run to simulate; variants that only differ in durations of ops are planned once.

    Attributes:
        scenario: the scenario.
        plan, fabric: replacements for the scenario's own.
        retime: changed durations of ops.
        times: how long collectives take on the scenario's own wiring, as far as that was simulated.
        known: the parts of a run with the same plan, for what it found out (`attempts.remembering`).
    """

    scenario: Scenario
    plan: Plan | None = None
    fabric: Fabric | None = None
    retime: DurationOverride | None = None
    times: CollectiveTimes | None = None
    known: Parts | None = field(default=None, compare=False)

    @classmethod
    def of(cls, base: Run) -> Variant:
        """The run itself; its plan is kept regardless of later changes."""
        return cls.planned(base.scenario, base.parts)

    @classmethod
    def planned(cls, scenario: Scenario, parts: Parts) -> Variant:
        """A run that has been planned, likewise."""
        variant = cls(scenario, parts.plan, parts.fabric, known=parts)
        variant.__dict__["parts"] = parts
        return variant

    @property
    def duration(self) -> int:
        """The picoseconds that it takes, simulated without any rows."""
        return self.simulated(detailed=False).duration

    def simulated(
        self, latest: Fraction | None = None, *, detailed: bool = True, changed_from: Run | None = None
    ) -> Run:
        """Simulate it, recording rows of ops only, or none.

        Args:
            latest: picoseconds before which it must end.
            detailed: whether rows of ops are recorded.
            changed_from: a run that may begin as it does, which shows earlier that it does not.

        Raises:
            TooLateError: it does not end before the latest time, if one is given.
        """
        fold = "off" if self.scenario.fold == "off" else "auto"  # a change may tell replicas apart
        quiet = self.scenario.model_copy(update={"record": "compute", "on_oom": "warn", "fold": fold})
        own = any((detailed, quiet.gradients.every == 1, quiet.numerics, self.plan, self.fabric, self.retime))
        if not own and alike(quiet) and (groups := groups_apart(quiet)):  # all take as long as any
            return Variant.planned(*groups[0]).simulated(latest, detailed=False)
        watch = None
        if latest is not None:
            watch = Watch(latest=latest) if self.retime else self._watch(quiet, latest, changed_from)
        parts = self.parts if self.known is None else remembering(self.parts, self.known)
        return run(
            quiet, self.plan, self.fabric,
            retime=self.retime, parts=parts, watch=watch, fold_from=FEWEST_FOLDED, detailed=detailed,
        )  # fmt: skip

    def _watch(self, quiet: Scenario, latest: Fraction, known: Run | None) -> Watch:
        """What ends a run that is late; it does not begin if that is known before, at best before it is planned."""
        late = TooLateError(f"not done before {latest} picoseconds")
        if known is not None and (parts := self._undecided(known)) is not None:
            least = least_remaining(quiet, parts, chosen=False)
            if least_of_changed(known, quiet, parts, least) >= latest:
                raise late
        least = least_remaining(quiet, self.parts)
        if least is not None and least.run >= latest:
            raise late
        if known is not None and least_of_changed(known, quiet, self.parts, least) >= latest:
            raise late
        return Watch(latest=latest, least=least)

    def _undecided(self, known: Run) -> Parts | None:
        """The parts reduced by a known run's algorithm, where it would have to be chosen and may not matter.

        The programs of ranks do not depend on it. None if nothing can be known of them, or nothing is to be chosen.
        """
        mine, its = self.scenario, known.scenario.gradients
        chosen = mine.gradients.algorithm != collectives.AUTO or its.algorithm == collectives.AUTO or mine.fsdp
        if chosen or self.times is not known.parts.times or in_common(known, known.parts) is None:
            return None
        return parts_of(mine, self.plan, self.fabric, times=self.times, reduced_by=its)

    @property
    def folded(self) -> int:
        """How many ranks each simulated one stands for, as far as can be told without simulating."""
        alike = Replicas(self.scenario.model_copy(update={"fold": "auto"}), self.parts, self.retime, FEWEST_FOLDED)
        return next((fold.order for fold in folds_of(alike, [])), 1)

    @cached_property
    def parts(self) -> Parts:
        """What planning makes of it, without training, which takes no simulated time."""
        planned = parts_of(self.scenario, self.plan, self.fabric, times=self.times)
        return replace(planned, training=None, workers={}) if planned.training else planned

    def timed_like(self, base: Run) -> Variant:
        """The same with the times of collectives that a run on its own wiring knows, if they stay as they are.

        Nothing is simulated twice so: an exchange of tokens among unequally wanted experts takes thousands of messages.
        """
        mine, its = self.scenario, base.scenario
        same = mine.cluster == its.cluster and mine.parallel.layout == its.parallel.layout and mine.slow == its.slow
        shares = mine.link_shares == its.link_shares and (mine.fold == "off") == (its.fold == "off")
        alike = same and shares and (mine.numerics is None) == (its.numerics is None)
        return replace(self, times=base.parts.times) if self.fabric is None and alike else self

    @cached_property
    def programs(self) -> list[Program]:
        """The program of each global rank, with permanent slowness, before `retime`."""
        layout, programs = self.scenario.parallel.layout, Programs(self.scenario, self.parts)
        nodes = zip(layout.along("pipeline").tolist(), self.scenario.cluster.nodes_of(range(layout.ranks)), strict=True)
        return [programs.of(rank, place, node.speed)[0] for rank, (place, node) in enumerate(nodes)]

    @cached_property
    def means(self) -> Mapping[tuple[str, ...], Fraction]:
        """The mean picoseconds of ops of each kind, over all ranks and steps, of those that take time."""
        sums: dict[tuple[str, ...], int] = defaultdict(int)
        counts: dict[tuple[str, ...], int] = defaultdict(int)
        for program, ranks in Counter(self.programs).items():  # equal ranks share a program
            calls = (call for of_step in (program, *program.further) for call in of_step.ops.values())
            for call in filter(lambda call: call.duration, calls):
                sums[kinds_of(call)] += call.duration * ranks
                counts[kinds_of(call)] += ranks
        return {kinds: Fraction(whole, counts[kinds]) for kinds, whole in sums.items()}

    def program_of(self, rank: int) -> Program:
        """The program of one global rank, likewise."""
        pipeline_rank = self.scenario.parallel.layout.coordinate(rank, "pipeline")
        (node,) = self.scenario.cluster.nodes_of([rank])
        return Programs(self.scenario, self.parts).of(rank, pipeline_rank, node.speed)[0]

    def without_queueing(self) -> Variant:
        """Give every message its links to itself."""
        cluster = self.scenario.cluster.model_copy(update={"sharing": UNCONTENDED})
        return replace(self, scenario=self.scenario.model_copy(update={"cluster": cluster}))

    def with_links(self, factors: Factors) -> Variant:
        """Scale the bandwidth of some links; links with measured times can only become infinite."""
        assert self.fabric is not None
        links = {name: _scaled_link(link, factors.get(name, Fraction(1))) for name, link in self.fabric.links.items()}
        return replace(self, fabric=over_links(self.fabric, links))

    def with_all_links(self, factor: Fraction | None) -> Variant:
        """Scale the bandwidth of all links."""
        return self._with_each_link(lambda link: _scaled_link(link, factor))

    def with_kinds_of_links(self, kinds: Collection[str], factor: Fraction | None) -> Variant:
        """Scale the bandwidth of all links of some kinds."""
        return self._with_each_link(lambda link: _scaled_link(link, factor) if link_kind(link.name) in kinds else link)

    def _with_each_link(self, change: Callable[[LinkSpec], LinkSpec]) -> Variant:
        """Change links by their kind and bandwidth, so that blocks of GPUs stay equal; only those that are used."""
        assert self.fabric is not None
        return replace(self, fabric=replace(self.fabric, links=ChangedLinks(self.fabric.links, change)))

    def with_latency(self, factor: Fraction) -> Variant:
        """Scale all latencies of routes."""
        assert self.fabric is not None
        route, times = self.fabric.route, factor if factor.denominator > 1 else factor.numerator

        @lru_cache(maxsize=KNOWN_ROUTES)
        def scaled(sender: int, receiver: int) -> Route:
            original = route(sender, receiver)
            return Route(original.links, tuple([round(latency * times) for latency in original.latencies]))

        return replace(self, fabric=replace(self.fabric, route=scaled))

    def with_retime(self, retime: DurationOverride) -> Variant:
        """Change the durations of ops, on top of earlier changes."""
        variant = replace(self, retime=retime if self.retime is None else retime.after(self.retime))
        variant.__dict__["parts"] = self.parts
        return variant


def over_links(fabric: Fabric, links: Mapping[str, LinkSpec]) -> Fabric:
    """The same wiring over other links; blocks of GPUs are no longer equal where links of a kind change differently."""
    changes = {(link_kind(name), fabric.links[name].bandwidth, link.bandwidth) for name, link in links.items()}
    alike = len({change[:2] for change in changes}) == len(changes)
    return replace(fabric, links=links, blocks=fabric.blocks if alike else None)


def _scaled_link(link: LinkSpec, factor: Fraction | None) -> LinkSpec:
    if factor is None:
        return link._replace(bandwidth=None)
    if factor == 1 or type(link.bandwidth) is not Fraction:
        return link
    return link._replace(bandwidth=link.bandwidth * factor)


class SimulatedChange(NamedTuple):
    """A simulated change.

    Attributes:
        change: the change, in the syntax of `--what-if` and `--set`, or in words.
        duration, steps, microbatches: of the changed run: picoseconds, steps, micro-batches per replica and step.
        first_order: the end of the run if order and messages stayed; None if they change.
        against: of a proposal, one of memory, slow ranks, uneven ranks, documents, host, bubble, network,
            links.
        gain: of a proposal the saved share of the time per micro-batch.
        fits: whether no GPU exceeds its memory.
        sure: how sure the change is; None if that is not known.
        asked: whether a user asked for it.
    """

    change: str
    duration: int
    steps: int
    microbatches: int
    first_order: int | None = None
    against: str = ""
    gain: float = 0.0
    fits: bool = True
    sure: Difference | None = None
    asked: bool = False


class Part(NamedTuple):
    """A part of a run that can be made quicker: the ops of some global ranks or of a kind, or a kind of links."""

    sort: str  # rank, kind or link
    name: str
    members: Collection[Any]  # global ranks, kinds of ops, or kinds of links

    def scaled(self, at: Variant, factor: Fraction | None) -> Variant:
        """A run with the durations of these ops, or the bandwidths of these links, times a factor; None: infinite."""
        if self.sort == "link":
            return at.with_kinds_of_links(self.members, factor)
        assert factor is not None

        def retime(rank: int, call: Call, took: int) -> int:
            return round(took * factor) if (rank if self.sort == "rank" else call.kind) in self.members else took

        return at.with_retime(DurationOverride(retime, lambda rank: self.sort == "rank" and rank in self.members))


def part_at(at: Variant, pipeline_rank: int) -> Part:
    """The global ranks of a pipeline rank, by its name in reports."""
    places = at.scenario.parallel.layout.along("pipeline")
    ranks = frozenset(np.flatnonzero(places == pipeline_rank).tolist())
    return Part("rank", name_of_place(at, pipeline_rank), ranks)


def kinds_in(at: Variant) -> Iterator[Part]:
    """The kinds of ops on the first rank."""
    kinds = {call.kind for call in at.program_of(0).ops.values()}
    return (Part("kind", kind, (kind,)) for kind in OP_KINDS if kind in kinds)


def links_in(at: Variant) -> Iterator[Part]:
    """The kinds of links whose bandwidth is a number; of equal blocks of GPUs, those of the first."""
    assert at.fabric is not None
    links, blocks = at.fabric.links, at.fabric.blocks
    names = (name for name in links if blocks is None or not blocks.of(name))
    kinds = dict.fromkeys(link_kind(name) for name in names if type(links[name].bandwidth) is Fraction)
    return (Part("link", kind, (kind,)) for kind in kinds)


def link_kind(name: str) -> str:
    """The kind of a link: its name without numbers and directions, such as "nvlink" or "nic"."""
    return _last_of("/".join(name.split("/")[-2:])) or _plain(name)  # two parts of a name decide, a few for all links


@lru_cache(maxsize=4096)
def _last_of(name: str) -> str:
    return _plain(name).rpartition("/")[2]


def _plain(name: str) -> str:
    return re.sub(r"[-/](in|out|up|down)$", "", re.sub(r"\d+", "", name))


def at_the_mean(variant: Variant, ranks: Collection[int] | None = None) -> DurationOverride:
    """Give ops, of all ranks or of some, the mean duration of their kind over all ranks and steps.

    This is the ideal duration of ops in the straggler study of Lin et al. (OSDI 2025). Ops that take no time, such as
    those of micro-batches without documents, still take none, and do not count.
    """
    means = variant.means

    @cache
    def mean(kinds: tuple[str, ...], whole: int, took: int) -> int:
        return round(took * means[kinds] / whole)

    def retime(rank: int, call: Call, took: int) -> int:
        whole = call.duration
        if not whole or (ranks is not None and rank not in ranks):
            return took
        return mean(kinds_of(call), whole, took)

    return DurationOverride(retime, lambda rank: ranks is None or rank in ranks)


def kinds_of(call: Call) -> tuple[str, ...]:
    """The kinds of a call's ops, regardless of micro-batch; empty for the optimizer."""
    return tuple(op.kind for op in call.ops)


def name_of_place(at: Variant, pipeline_rank: int) -> str:
    """The name of a pipeline rank in reports, which may stand for several global ranks."""
    layout = at.scenario.parallel.layout
    if layout.sizes["pipeline"] == 1:
        return "all ranks"
    if layout.ranks == layout.sizes["pipeline"]:
        return f"rank {pipeline_rank}"
    return f"pipeline rank {pipeline_rank}"


def builder_of(scenario: Scenario) -> Build:
    """A function that builds changed scenarios from one that was not read from a file."""
    given = cache(lambda: given_values(scenario))

    def build(overrides: Sequence[str]) -> Scenario:
        document = Document(copy.deepcopy(given()), "scenario")
        override(document, overrides)
        return scenario_of(document)

    return build


def variant_of(text: str, base: Variant, build: Build) -> Variant:
    """Read a what-if.

    Raises:
        UsageError: a key does not exist, or a value cannot be scaled or is not valid for its key.
    """
    label = f"--what-if {text}"
    overrides, own = [], []
    for key, value in parts_in(text, label):
        if match := OF_NO_KEY.fullmatch(key):
            own.append((match, value))
        else:
            overrides.append(override_of(key, value, base.scenario, label))
    variant = base
    if overrides:
        try:
            scenario = build(overrides)
        except ScenarioError as error:
            raise UsageError(f"{label}: {error.problems[0].partition(': ')[2] or error}") from None
        variant = Variant(scenario, None, fabric_of(scenario) if own else None)
    for match, value in own:
        variant = changed(variant, match, value, label)
    return variant


def parts_in(text: str, label: str) -> Iterator[tuple[str, str]]:
    """The keys and values of a what-if.

    Raises:
        UsageError: one is missing.
    """
    for part in _NEXT.split(text):
        key, equals, value = (one.strip() for one in part.partition("="))
        if not equals or not key or not value:
            raise UsageError(f"{label}: expected a key and a factor or value, such as cluster.nvlink.bandwidth=2x")
        yield key, value


def override_of(key: str, value: str, scenario: Scenario, label: str) -> str:
    """A part as an override of the scenario: a factor is applied; to change one entry, the whole list is replaced."""
    factor = _FACTOR.fullmatch(value)
    if key.partition(".")[0] in ("rank", "kind", "link", "links"):
        raise UsageError(f"{label}: {key}: expected links.bandwidth, link.NAME.bandwidth, rank.N.time or kind.B.time")
    if (wrong := misnamed(key)) is not None:
        figures = [path for path in paths_of("bandwidth", Scenario) if factor and path.split(".")[-2:-1] == [key]]
        raise UsageError(f"{label}: {key}: {unknown_key(key, (), figures) if figures else wrong}")
    name, _, last = key.rpartition(".")
    if name and last.isdecimal():
        current = _at(to_mapping(scenario), name, label)
        if not isinstance(current, dict | list):
            current = [current] * scenario.parallel.pipeline
            if int(last) >= len(current):
                raise UsageError(f"{label}: there are {len(current)} pipeline ranks; it has no {last}")
            current[int(last)] = _scaled(current[int(last)], factor, label) if factor else value
            return f"{name}=[{', '.join(map(_written, current))}]"
    if factor is None:
        return f"{key}={value}"
    return f"{key}={_written(_scaled(_at(to_mapping(scenario), key, label), factor, label))}"


def _at(mapping: Mapping[str, Any], key: str, label: str) -> Any:
    """The value of a key in a scenario."""
    at: Any = mapping
    for name in key.split("."):
        try:
            at = at[int(name)] if isinstance(at, list) else at[name]
        except (KeyError, IndexError, TypeError, ValueError):
            raise UsageError(f"{label}: the scenario has no value there to scale; give a value") from None
    return at


def _scaled(value: Any, factor: re.Match[str], label: str) -> Any:
    times = Fraction(factor[1])
    if value == "inf":
        return value
    if isinstance(value, list):
        return [_scaled(one, factor, label) for one in value]
    try:
        number = Fraction(str(value)) if not isinstance(value, bool) else None
    except ValueError:
        number = None
    if number is None:
        what = f"a section, of which a number can be scaled: {', '.join(value)}" if isinstance(value, dict) else None
        raise UsageError(f"{label}: {what or f'{value} is not a number that can be scaled'}")
    return number * times


def _written(value: Any) -> str:
    """A value as YAML; a fraction without a finite decimal is rounded to 30 digits."""
    if isinstance(value, list):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, Fraction) and value.denominator > 1:
        return f"{round(value * 10**DIGITS)}e-{DIGITS}"
    return str(value)


def changed(variant: Variant, match: re.Match[str], value: str, label: str) -> Variant:
    """A variant with a scaled class that is not a key of the scenario."""
    sort, name, what, all_of = match.groups()
    infinite = value == "inf" and "bandwidth" in (what, all_of)
    factor = _FACTOR.fullmatch(value)
    if factor is None and not infinite:
        raise UsageError(f"{label}: expected a factor such as 0.5x{' or inf' if 'bandwidth' in (what, all_of) else ''}")
    times = None if factor is None else Fraction(factor[1])
    if times == 0 and "bandwidth" in (what, all_of):
        raise UsageError(f"{label}: a bandwidth of 0 delivers nothing")
    if all_of == "latency":
        assert times is not None
        return variant.with_latency(times)
    if all_of == "bandwidth":
        return variant.with_all_links(times)
    if sort == "link" and what == "bandwidth":
        assert variant.fabric is not None
        if name not in variant.fabric.links:
            raise UsageError(f"{label}: {unknown(name, variant.fabric.links)}")
        return variant.with_links({name: times})
    if what != "time" or times is None:
        raise UsageError(f"{label}: of a {sort}, expected its {'bandwidth' if sort == 'link' else 'time'}")
    ranks = variant.scenario.parallel.layout.ranks
    if sort == "rank" and (not name.isdecimal() or int(name) >= ranks):
        raise UsageError(f"{label}: there is no rank {name}; ranks are 0 … {ranks - 1}")
    if sort == "kind" and name not in OP_KINDS:
        raise UsageError(f"{label}: {unknown(name, OP_KINDS)}")
    return Part(sort, name, (int(name) if sort == "rank" else name,)).scaled(variant, times)
