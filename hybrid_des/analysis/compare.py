"""Two runs side by side: the step, its causes, what changed, and what each change did.

A side is a scenario that is simulated, or the folder that a run was written to. Ops and messages are matched by
identity.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hybrid_des.analysis.counterfactual.ladder import first_order, only_times_differ
from hybrid_des.analysis.counterfactual.what_if import Variant, link_kind, name_of_place, traced_run
from hybrid_des.analysis.critical_path.graph import graph_of
from hybrid_des.analysis.critical_path.slack import Slack
from hybrid_des.analysis.explanation import Ties, ties_of
from hybrid_des.analysis.metrics import summary
from hybrid_des.analysis.table import (
    COLUMNS,
    COMPUTE,
    EXACT,
    changes,
    first_difference,
    matched,
    read_cell,
    table,
    unmatched,
)
from hybrid_des.errors import HybridDesError, ScenarioError, UsageError
from hybrid_des.network.fabric import Fabric, Route
from hybrid_des.planning.program import Call, Program
from hybrid_des.planning.wiring import fabric_of
from hybrid_des.scenario import LABELS, Scenario, Source, given_values, load, scenario_from
from hybrid_des.simulation.run import Run
from hybrid_des.simulation.speeds import DurationOverride
from hybrid_des.units import PICOSECONDS_PER_SECOND, format_seconds, grouped_by

if TYPE_CHECKING:
    import pandas as pd


DIGITS = 12  # decimal places of seconds: picoseconds
SUMMARY, CSV, PARQUET = "summary.json", "timeline.csv", "timeline.parquet"
NEEDED = ("name", "ranks", "step_time_s", "busy_s", "idle_s")


@dataclass(frozen=True, repr=False)
class Side:
    """One of two runs.

    Attributes:
        name: name of the scenario.
        summary: the summary, by its public keys.
        rows: the timeline with whole picoseconds: `asked_ps`, `start_ps`, `end_ps`.
        run: the traced run; None for a folder.
        given: the values that the scenario was made from; None for a folder.
    """

    name: str
    summary: Mapping[str, Any]
    rows: pd.DataFrame
    run: Run | None = None
    given: Mapping[str, Any] | None = None

    def __repr__(self) -> str:
        return f"<Side {self.name}>"

    @property
    def steps(self) -> int:
        """Number of training steps."""
        return int(self.rows["step"].max()) + 1 if len(self.rows) else 0


@dataclass(frozen=True, repr=False)
class Comparison:
    """Two runs side by side: A and B."""

    a: Side
    b: Side

    def __repr__(self) -> str:
        a, b = (f"{side.name} {format_seconds(side.summary['step_time_s'])}" for side in (self.a, self.b))
        return f"<Comparison: {a}, {b}: {self.regression:+.1%}>"

    @property
    def change(self) -> float:
        """The change of the step in seconds."""
        return round(float(self.b.summary["step_time_s"] - self.a.summary["step_time_s"]), DIGITS)

    @property
    def regression(self) -> float:
        """The change of the step as a share of A's."""
        before = self.a.summary["step_time_s"]
        return self.change / before if before else 0.0

    @property
    def tied(self) -> bool:
        """Whether the steps differ by less than predictions of measured runs were off (90 %)."""
        interval = self.a.summary.get("experience", {}).get("interval_s")
        return bool(interval and self.change and interval[0] <= self.b.summary["step_time_s"] <= interval[1])

    @cached_property
    def pairs(self) -> pd.DataFrame:
        """The rows of both timelines, matched."""
        return matched(self.a.rows, self.b.rows)

    @cached_property
    def effects(self) -> list[Effect] | None:
        """The effect of each changed class; None if a side is a folder."""
        if self.a.run is None or self.b.run is None:
            return None
        return effects(self.a.run, self.b.run, self.a.given, self.b.given)

    @cached_property
    def bounds(self) -> tuple[int, int] | None:
        """Lower and upper bound of the change if order and messages are the same, in picoseconds of the whole run."""
        return bounds(self.a.run, self.b.run) if self.a.run and self.b.run else None

    @cached_property
    def ties(self) -> tuple[Ties | None, Ties | None]:
        """How far each side's step depends on ties; None if it does not, or is a folder."""
        first, second = (None if side.run is None else ties_of(side.run) for side in (self.a, self.b))
        return first, second

    @property
    def interaction(self) -> float | None:
        """The effect that the changed classes have only together, in seconds per step."""
        if self.effects is None or self.a.run is None or self.b.run is None:
            return None
        whole = self.b.run.timeline.duration - self.a.run.timeline.duration
        return self._seconds(whole - sum(effect.in_a for effect in self.effects))

    def causes(self) -> list[dict[str, Any]]:
        """Busy and idle time by cause, mean per rank."""
        first, second = ({"busy": side.summary["busy_s"], **side.summary["idle_s"]} for side in (self.a, self.b))
        return [
            {"cause": name, "a_s": first.get(name, 0.0), "b_s": second.get(name, 0.0),
             "change_s": round(second.get(name, 0.0) - first.get(name, 0.0), DIGITS)}
            for name in dict.fromkeys([*first, *second])
        ]  # fmt: skip

    def to_mapping(self) -> dict[str, Any]:
        """Everything as plain values; times in seconds, effects and bounds in seconds per step."""
        found = None if self.effects is None else [
            {"name": one.name, "in_a_s": self._seconds(one.in_a), "in_b_s": self._seconds(one.in_b)}
            for one in self.effects
        ]  # fmt: skip
        return {
            **{key: {"name": side.name, "step_time_s": side.summary["step_time_s"]} for key, side in self._sides()},
            "change_s": self.change,
            "change": self.regression,
            "causes": self.causes(),
            "ranks": changes(self.pairs, ["rank"], COMPUTE),
            "ops": changes(self.pairs, ["rank", "kind"], COMPUTE),
            "links": changes(self.pairs, ["lane"], "links"),
            "unmatched": unmatched(self.pairs),
            "first_difference": first_difference(self.pairs),
            "effects": found,
            "interaction_s": self.interaction,
            "ties": {
                key: None if ties is None else ties.to_mapping(self.a.steps)
                for (key, _), ties in zip(self._sides(), self.ties, strict=True)
            },
            "bounds_s": None if self.bounds is None else [self._seconds(bound) for bound in self.bounds],
        }

    def tables(self) -> dict[str, pd.DataFrame]:
        """The lists of `to_mapping` as DataFrames by its keys, and `pairs`, the matched rows of both timelines.

        `causes` is busy and idle time by cause, mean per rank; `ranks`, `ops` and `links` are changes of durations;
        `effects` (empty if a side is a folder) is each changed class alone, in A and in B.
        """
        import pandas as pd

        lists = {
            name: rows for name, rows in self.to_mapping().items() if isinstance(rows, list) and name != "bounds_s"
        }
        return {**{name: pd.DataFrame(rows) for name, rows in lists.items()}, "pairs": self.pairs}

    def _sides(self) -> tuple[tuple[str, Side], tuple[str, Side]]:
        return ("a", self.a), ("b", self.b)

    def _seconds(self, picoseconds: int) -> float:
        return picoseconds / PICOSECONDS_PER_SECOND / max(self.a.steps, 1)


def compare(first: Side | Source, second: Side | Source) -> Comparison:
    """Compare two runs: scenarios, paths of their files, mappings, or folders written by `--out`.

    Raises:
        UsageError: they have different numbers of ranks or steps.

    Example:
        >>> from hybrid_des import compare, load
        >>> both = compare("scenarios/a100_8x.yaml", load("scenarios/a100_8x.yaml", ["schedule.kind=zb-h1"]))
        >>> both
        <Comparison: a100_8x 1.435 s, a100_8x 1.194 s: -16.8%>
        >>> both.tables()["causes"].set_index("cause").change_s.round(3).head(3)
        cause
        busy                0.000
        dependency         -0.120
        pipeline_message   -0.001
        Name: change_s, dtype: float64
    """
    a, b = side_of(first), side_of(second)
    ranks = [side.summary["ranks"] for side in (a, b)]
    if ranks[0] != ranks[1]:
        raise UsageError(f"compare: {a.name} has {ranks[0]} ranks, {b.name} has {ranks[1]}; expected the same number")
    if a.steps != b.steps:
        raise UsageError(f"compare: {a.name} has {a.steps} steps, {b.name} has {b.steps}; expected the same number")
    return Comparison(a, b)


def side_of(what: Side | Source) -> Side:
    """A side by what a user names: a scenario, the path of its file, a mapping, or the folder of a run.

    Raises:
        HybridDesError: it cannot be read or simulated.
    """
    if isinstance(what, Side):
        return what
    if isinstance(what, str | Path) and Path(what).is_dir():
        return side_of_folder(Path(what))
    return side_of_scenario(load(what))


def side_of_scenario(scenario: Scenario, given: Mapping[str, Any] | None = None) -> Side:
    """Simulate a scenario with all causes recorded.

    Args:
        scenario: what to simulate.
        given: the values that it was made from, such as those of its file; default: the fewest that make it.
    """
    run = traced_run(scenario)
    return Side(
        scenario.name,
        summary(run),
        table(run.timeline, exact=True),
        run,
        given_values(scenario) if given is None else given,
    )


def side_of_folder(folder: Path) -> Side:
    """Read the folder that a run was written to.

    Raises:
        UsageError: the folder is not that of a run, or its files cannot be read.
    """
    import pandas as pd

    missing = [name for name in (SUMMARY, CSV) if not (folder / name).is_file()]
    if missing:
        what = f"has no {' and no '.join(missing)}; expected a folder written by --out"
        raise UsageError(f"{folder}: {what}")
    try:
        facts = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        if not isinstance(facts, dict) or not set(NEEDED) <= facts.keys():
            raise ValueError(f"expected the keys {', '.join(NEEDED)}")
    except ValueError as error:
        raise UsageError(f"{folder / SUMMARY}: not the summary of a run: {error}") from None
    try:
        rows = pd.read_csv(folder / CSV, converters={"lane": read_cell, "kind": read_cell})
        wanted = [name for name in COLUMNS if name not in rows]
        if wanted:
            raise ValueError(f"no column {wanted[0]}")
        exact = _exact(folder)
        for name in EXACT:
            seconds = rows[f"{name.removesuffix('_ps')}_s"]
            rows[name] = (
                exact[name] if exact is not None else (seconds * PICOSECONDS_PER_SECOND).round().astype("int64")
            )
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{folder / CSV}: not the timeline of a run: {str(error).splitlines()[0]}") from None
    return Side(str(facts["name"]), facts, rows)


def _exact(folder: Path) -> pd.DataFrame | None:
    """The whole picoseconds of the Parquet file, if it exists and can be read."""
    if not (folder / PARQUET).is_file():
        return None
    import pandas as pd

    try:
        return pd.read_parquet(folder / PARQUET, columns=[*EXACT])
    except (ImportError, ValueError, OSError):
        return None


# The effect of each changed class on the step: exchanged alone, in both runs; the rest is their interaction.


Pair = tuple[str, Variant, Variant]  # a class, A with it from B, B with it from A
FINE = ("cluster", "workload", "efficiency")  # exchanged by rank and kind of link where only times differ
NO_VALUE = object()
COUNTED = {"seed", "steps"}  # how often and with which random numbers a step is repeated


class Effect(NamedTuple):
    """A class that differs: how much it alone changes A, and how much reverting it would change B, in picoseconds.

    Both are changes of the run's end from A to B: T(A with it from B) − T(A), and T(B) − T(B with it from A).
    """

    name: str
    in_a: int
    in_b: int


class Exchanged(NamedTuple):
    """Both runs with the same sections from each other's values, where that is possible."""

    there: Scenario
    back: Scenario


def effects(
    one: Run,
    other: Run,
    given: Mapping[str, Any] | None = None,
    of_other: Mapping[str, Any] | None = None,
) -> list[Effect]:
    """Each changed class alone: sections of the scenario; durations by pipeline rank, kinds of links, latencies.

    A section is taken from the other's values as `--set` takes it: what follows from it is derived again. Sections
    that change durations, bandwidths and latencies only are exchanged by rank and kind of link instead. Classes that
    cannot be exchanged alone are left out.

    Args:
        one: the run A.
        other: the run B.
        given: the values that A's scenario was made from; default: the fewest that make it.
        of_other: the same of B's.
    """
    mine = given_values(one.scenario) if given is None else given
    theirs = given_values(other.scenario) if of_other is None else of_other
    changed = {key: both for key in _keys(mine, theirs) if (both := _exchanged(one, other, mine, theirs, key))}
    same = one.timeline.programs.is_like(other.timeline.programs)
    fine = [key for key, both in changed.items() if key in FINE and same and _retimes(one, other, both)]
    pairs = [(key, Variant(both.there), Variant(both.back)) for key, both in changed.items() if key not in fine]
    if fine and (both := _exchanged(one, other, mine, theirs, *fine)):
        pairs += [*_durations(one, other, both), *_wires(one, other, both)]
    ends = one.timeline.duration, other.timeline.duration
    found = []
    for name, there, back in pairs:
        with suppress(HybridDesError):
            found.append(Effect(name, there.simulated().duration - ends[0], ends[1] - back.simulated().duration))
    return sorted(found, key=lambda effect: -abs(effect.in_a))


def _keys(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """The sections whose values differ, as they were given."""
    return [
        key
        for key in Scenario.model_fields
        if key not in LABELS | COUNTED and mine.get(key, NO_VALUE) != theirs.get(key, NO_VALUE)
    ]


def _exchanged(
    one: Run, other: Run, mine: Mapping[str, Any], theirs: Mapping[str, Any], *keys: str
) -> Exchanged | None:
    """Both scenarios with the other's sections; None if one is impossible, or is the same with them."""
    try:
        both = Exchanged(_with(mine, theirs, keys), _with(theirs, mine, keys))
    except ScenarioError:
        return None
    return None if both.there == one.scenario and both.back == other.scenario else both


def _with(values: Mapping[str, Any], others: Mapping[str, Any], keys: Sequence[str]) -> Scenario:
    kept = {key: value for key, value in values.items() if key not in keys}
    return scenario_from(kept | {key: others[key] for key in keys if key in others})


def _retimes(one: Run, other: Run, both: Exchanged) -> bool:
    """Whether an exchange changes durations, bandwidths and latencies only, on the same wires."""
    for run, changed in ((one, both.there), (other, both.back)):
        wires = None if run.fabric is None else run.fabric.links.keys()
        options = run.scenario.cluster.options == changed.cluster.options
        if not only_times_differ(run.scenario, changed) or not options or wires != fabric_of(changed).links.keys():
            return False
    return True


def _durations(one: Run, other: Run, both: Exchanged) -> Iterator[Pair]:
    """Ranks whose ops take different times: by node if these are fewer than pipeline ranks, or a single rank.

    The links are each run's own, since collectives inside ops are as quick as their links.
    """
    a, b = Variant.of(one), Variant.of(other)
    mine, theirs = (_never_slow(side).programs() for side in (a, replace(a, scenario=both.there)))
    mine_of_b, theirs_of_b = (_never_slow(side).programs() for side in (b, replace(b, scenario=both.back)))
    layout, cluster = a.scenario.parallel.layout, a.scenario.cluster
    differ = [rank for rank in range(layout.ranks) if mine[rank].durations != theirs[rank].durations]
    places = grouped_by(differ, lambda rank: name_of_place(a, layout.coordinate(rank, "pipeline")))
    nodes = grouped_by(differ, lambda rank: f"node {cluster.node_of(rank)}")
    groups = nodes if len(nodes) < len(places) else places
    if len(differ) == 1:
        groups = {f"rank {differ[0]}": differ}
    for name, ranks in groups.items():
        there = a.with_retime(_those_of(theirs, mine, {*ranks}))
        yield name, there, b.with_retime(_those_of(theirs_of_b, mine_of_b, {*ranks}))


def bounds(one: Run, other: Run) -> tuple[int, int] | None:
    """Lower and upper bound of the change of the run's end if the order of everything is the same, in picoseconds.

    The lower bound is the change along A's critical paths, the upper bound that along B's. None if the runs have
    different ops or messages.
    """
    low = first_order(one, Slack.of(graph_of(one)), Variant.of(other))
    high = first_order(other, Slack.of(graph_of(other)), Variant.of(one))
    if low is None or high is None:
        return None
    return low - one.timeline.duration, other.timeline.duration - high


def _never_slow(side: Variant) -> Variant:
    """A side without its `slow` entries, which are a section of their own."""
    return replace(side, scenario=side.scenario.model_copy(update={"slow": ()}))


def _those_of(programs: list[Program], instead_of: list[Program], ranks: AbstractSet[int]) -> DurationOverride:
    """The durations that some ranks have in other programs, instead of those in their own."""

    def retime(rank: int, call: Call, took: int) -> int:
        if rank not in ranks:
            return took
        was, now = (
            here.duration if (here := side[rank].ops.get(call.number)) else 0 for side in (instead_of, programs)
        )
        return now if took == was else took if was == now else round(took * now / was)

    return DurationOverride(retime, lambda rank: rank in ranks and (id(programs[rank]), id(instead_of[rank])))


def _wires(one: Run, other: Run, both: Exchanged) -> Iterator[Pair]:
    """Kinds of links that differ, then all latencies."""
    a, b = Variant.of(one), Variant.of(other)
    assert a.fabric is not None and b.fabric is not None
    mine, theirs, of_b, back_of_b = a.fabric, fabric_of(both.there), b.fabric, fabric_of(both.back)
    differ = (name for name, link in mine.links.items() if link.bandwidth != theirs.links[name].bandwidth)
    for kind, names in grouped_by(differ, link_kind).items():
        there = replace(a, fabric=_taken(mine, theirs, names))
        yield f"{kind} bandwidth", there, replace(b, fabric=_taken(of_b, back_of_b, names))
    if _latencies(mine) != _latencies(theirs):
        there = replace(a, fabric=_delayed(mine, theirs))
        yield "latencies", there, replace(b, fabric=_delayed(of_b, back_of_b))


def _taken(fabric: Fabric, other: Fabric, names: list[str]) -> Fabric:
    return replace(fabric, links={**fabric.links, **{name: other.links[name] for name in names}})


def _latencies(fabric: Fabric) -> list[int]:
    """The latencies between the first GPU and every other."""
    return [fabric.route(0, other).latency for other in range(1, fabric.gpus)]


def _delayed(fabric: Fabric, other: Fabric) -> Fabric:
    def route(sender: int, receiver: int) -> Route:
        mine, theirs = fabric.route(sender, receiver), other.route(sender, receiver)
        return Route(mine.links, theirs.latencies if len(theirs.latencies) == len(mine.links) else mine.latencies)

    return replace(fabric, route=route)
