"""Two runs side by side: the step, its causes, what changed, and what each change did.

A side is a scenario that is simulated, or the folder that a run was written to. Ops and messages are matched by
identity where both sides have the same ops; else, as under another layout, ops are compared by what they do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from hybrid_des.analysis.critical_path.traced import traced_run
from hybrid_des.analysis.difference import Difference, difference
from hybrid_des.analysis.matching import (
    apart,
    changes,
    classes,
    first_difference,
    have_same_ops,
    matched,
    side_by_side,
    unmatched,
)
from hybrid_des.analysis.metrics import summary
from hybrid_des.analysis.notebook_view import as_html
from hybrid_des.analysis.safe_csv import read_cell
from hybrid_des.analysis.table import ARRIVED, COLUMNS, COMPUTE, EXACT, table
from hybrid_des.analysis.ties import Ties, ties_of
from hybrid_des.errors import UsageError
from hybrid_des.scenario.definition import LABELS, Scenario
from hybrid_des.scenario.export import flow_text
from hybrid_des.scenario.loading import Source, given_values, load
from hybrid_des.scenario.overrides import Overrides
from hybrid_des.scenario.sizes import FOLDED_FROM
from hybrid_des.shortcuts.expansion import of_all_ranks
from hybrid_des.simulation.outcome import Run
from hybrid_des.units import PICOSECONDS_PER_SECOND, format_change, format_seconds

if TYPE_CHECKING:
    import pandas as pd
from hybrid_des.analysis.effects import Effect, bounds, effects

DIGITS = 12  # decimal places of seconds: picoseconds


SUMMARY, CSV, PARQUET = "summary.json", "timeline.csv", "timeline.parquet"


_NOT_COMPARED = {*LABELS, "version", "search", "sweep", "plot"}  # keys that change no step


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
        return f"<Comparison: {a}, {b}: {format_change(self.regression)}>"

    def _repr_html_(self) -> str:
        """What differs, for notebooks."""
        return as_html(repr(self)[1:-1], {"Causes": self.tables()["causes"]})

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
        """Whether the steps differ by less than 2 %, and not for certain."""
        return bool(self.change and self.difference and self.difference.is_tie(self.regression))

    @cached_property
    def difference(self) -> Difference | None:
        """How sure the change is; None if a side is a folder, or without a model, or of another one."""
        if self.a.run is None or self.b.run is None:
            return None
        return difference(self.a.run.scenario, self.b.run.scenario)

    @cached_property
    def pairs(self) -> pd.DataFrame:
        """The rows of both timelines, matched; if ranks have other ops, none is."""
        pairs = matched(self.a.rows, self.b.rows)
        layouts = [side.run.scenario.parallel.layout for side in (self.a, self.b) if side.run is not None]
        return pairs if layouts[:1] == layouts[-1:] and have_same_ops(pairs) else apart(pairs)

    @cached_property
    def same_ops(self) -> bool:
        """Whether ranks have the same ops on both sides, so that these are matched one by one."""
        return have_same_ops(self.pairs)

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

    def settings(self) -> list[dict[str, Any]] | None:
        """The settings that differ, by both files; a value is None if it is not given. None if a side is a folder."""
        if self.a.given is None or self.b.given is None:
            return None
        first, second = (_flat(side.given) for side in (self.a, self.b))
        keys = [key for key in dict.fromkeys([*first, *second]) if key.partition(".")[0] not in _NOT_COMPARED]
        differ = (key for key in keys if first.get(key) != second.get(key))
        return [{"key": key, "a": first.get(key), "b": second.get(key)} for key in differ]

    def times(self) -> list[dict[str, Any]]:
        """Seconds of the mean GPU by what it does, as in `step_shares`: their changes sum to that of the step."""
        sides = [(side.summary.get("step_shares", {}), side.summary["step_time_s"]) for side in (self.a, self.b)]
        if not all(shares for shares, _ in sides):
            return []
        first, second = ({name: share * step for name, share in shares.items()} for shares, step in sides)
        return [row for row in side_by_side("time", first, second) if row["a_s"] or row["b_s"]]

    def classes(self) -> list[dict[str, Any]]:
        """Time of ops by what they do, mean per rank and step."""
        return [
            {key: value / max(self.a.steps, 1) if isinstance(value, float) else value for key, value in row.items()}
            for row in classes(self.a.rows, self.b.rows)
        ]

    def causes(self) -> list[dict[str, Any]]:
        """Busy and idle time by cause, mean per rank."""
        first, second = ({"busy": side.summary["busy_s"], **side.summary["idle_s"]} for side in (self.a, self.b))
        rows = side_by_side("cause", first, second)
        return [{**row, "change_s": round(row["change_s"], DIGITS)} for row in rows]

    def bill(self) -> dict[str, dict[str, float]]:
        """Days, GPU-hours, cost and energy of both trainings; empty unless both have a `bill` in one currency."""
        first, second = (side.summary.get("bill", {}) for side in (self.a, self.b))
        common = [key for key in ("days", "gpu_hours", "cost", "energy_mwh") if key in first and key in second]
        if first.get("currency") != second.get("currency"):
            return {}
        return {key: {"a": first[key], "b": second[key], "change": second[key] - first[key]} for key in common}

    def to_mapping(self) -> dict[str, Any]:
        """Everything as plain values; times in seconds, effects and bounds in seconds per step."""
        effects = None if self.effects is None else [
            {"name": one.name, "in_a_s": self._seconds(one.in_a), "in_b_s": self._seconds(one.in_b)}
            for one in self.effects
        ]  # fmt: skip
        sides = {"a": self.a, "b": self.b}
        return {
            **{key: {"name": side.name, "step_time_s": side.summary["step_time_s"]} for key, side in sides.items()},
            "change_s": self.change,
            "change": self.regression,
            "settings": self.settings(),
            "times": self.times(),
            "causes": self.causes(),
            "same_ops": self.same_ops,
            "classes": self.classes(),
            "ranks": changes(self.pairs, ["rank"], COMPUTE),
            "ops": changes(self.pairs, ["rank", "kind"], COMPUTE),
            "links": changes(self.pairs, ["lane"], "links"),
            "unmatched": unmatched(self.pairs),
            "first_difference": first_difference(self.pairs) if self.same_ops else None,
            "effects": effects,
            "interaction_s": self.interaction,
            "ties": {
                key: None if ties is None else ties.to_mapping(self.a.steps)
                for key, ties in zip(sides, self.ties, strict=True)
            },
            "bounds_s": None if self.bounds is None else [self._seconds(bound) for bound in self.bounds],
            **({"bill": bill} if (bill := self.bill()) else {}),
            **({"difference": self.difference.to_mapping(self.regression)} if self.difference else {}),
        }

    def tables(self) -> dict[str, pd.DataFrame]:
        """The lists of `to_mapping` as DataFrames by its keys, and `pairs`, the matched rows of both timelines.

        `settings` are those that differ, `times` and `classes` what GPUs do, by share of the step and by op; `causes`
        is busy and idle time by cause, mean per rank; `ranks`, `ops` and `links` are changes of durations; `effects`
        (empty if a side is a folder) is each changed class alone, in A and in B.
        """
        import pandas as pd

        lists = {
            name: rows for name, rows in self.to_mapping().items() if isinstance(rows, list) and name != "bounds_s"
        }
        return {**{name: pd.DataFrame(rows) for name, rows in lists.items()}, "pairs": self.pairs}

    def _seconds(self, picoseconds: int) -> float:
        return picoseconds / PICOSECONDS_PER_SECOND / max(self.a.steps, 1)


def compare(first: Side | Source, second: Side | Source | None = None, *, overrides: Overrides = ()) -> Comparison:
    """Compare two runs: scenarios, paths of their files, mappings, or folders written by `--out`.

    Args:
        first: A.
        second: B; without one, A with the overrides.
        overrides: changes to B, which is then a scenario: ["schedule.kind=zb-h1"] or {"schedule.kind": "zb-h1"}.

    Raises:
        UsageError: they have different numbers of ranks or steps, or overrides are given for a folder of results.

    Example:
        >>> from hybrid_des import compare
        >>> both = compare("scenarios/a100_8x.yaml", overrides={"schedule.kind": "zb-h1"})
        >>> both
        <Comparison: a100_8x 1.435 s, a100_8x 1.194 s: −16.8 %>
        >>> both.tables()["causes"].set_index("cause").change_s.round(3).head(3)
        cause
        busy                0.000
        dependency         -0.120
        pipeline_message   -0.001
        Name: change_s, dtype: float64
    """
    a, b = side_of(first), side_of(first if second is None else second, overrides)
    ranks = [side.summary["ranks"] for side in (a, b)]
    if ranks[0] != ranks[1]:
        raise UsageError(f"compare: {a.name} has {ranks[0]} ranks, {b.name} has {ranks[1]}; expected the same number")
    if a.steps != b.steps:
        raise UsageError(f"compare: {a.name} has {a.steps} steps, {b.name} has {b.steps}; expected the same number")
    return Comparison(a, b)


def _flat(values: Any, path: str = "") -> dict[str, Any]:
    """The values of a mapping by their paths."""
    if not isinstance(values, Mapping):
        return {path: yaml.safe_load(flow_text(values))}  # numbers and texts as files write them
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{path}.{key}" if path else str(key))
    return flat


def side_of(what: Side | Source, overrides: Overrides = ()) -> Side:
    """A side by what a user names: a scenario, the path of its file, a mapping, or the folder of a run.

    Raises:
        HybridDesError: it cannot be read, changed or simulated.
    """
    over = isinstance(what, Side) or (isinstance(what, str | Path) and Path(what).is_dir())
    if over and overrides:
        name = what.name if isinstance(what, Side) else what
        raise UsageError(f"compare: {name}: a finished run, which cannot be changed; expected a scenario")
    if isinstance(what, Side):
        return what
    if over and isinstance(what, str | Path):
        return side_of_folder(Path(what))
    return side_of_scenario(load(what, overrides))


def side_of_scenario(scenario: Scenario, given: Mapping[str, Any] | None = None) -> Side:
    """Simulate a scenario with all causes recorded.

    Args:
        scenario: what to simulate.
        given: the values that it was made from, such as those of its file; default: the fewest that make it.
    """
    run = traced_run(scenario)
    few = scenario.fold == "auto" and scenario.parallel.ranks < FOLDED_FROM
    shown = of_all_ranks(run) if run.fold and few else run
    return Side(
        scenario.name,
        summary(shown),
        table(shown.timeline, exact=True),
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
        wanted = [name for name in COLUMNS if name not in rows and name != ARRIVED]  # which older folders lack
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
