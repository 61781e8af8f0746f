"""Results of a sweep: a table, a picture, and lines for the terminal.

Which case is best (`Ranking`): by one column, per sample where cases differ in the samples of a step.

Some cases may be as good as the best, as far as differences of measured runs were predicted.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Unpack

from hybrid_des.analysis.difference import LEAST, difference
from hybrid_des.errors import LONGEST_SHOWN, one_line
from hybrid_des.report.billed import bill_columns
from hybrid_des.report.plots.style import title, verbatim
from hybrid_des.report.text_tables import text_table
from hybrid_des.scenario.loading import Source, scenario_of
from hybrid_des.scenario.overrides import Overrides
from hybrid_des.studies.sweep.axes import Plot, Sweep, load_sweep
from hybrid_des.studies.sweep.loops import of_loops, shortest_cycle, table_of_loops
from hybrid_des.studies.sweep.rows import Row, columns, table
from hybrid_des.studies.sweep.runner import Execution, sweep_rows, with_case
from hybrid_des.units import Dimension, format_seconds, format_share, parse_quantity

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from hybrid_des.report.plots.figure import Style


LARGER_IS_BETTER = (
    "efficiency", "speedup", "mfu", "hfu", "accuracy", "goodput", "ettr", "useful_s", "mtbf_s", "spares_availability",
)  # fmt: skip


OF_WEEKS = ("horizon_s", "useful_s", "lost_s", "mtbf_s", "checkpoint_interval_s", "best_interval_s")


STEP = "step_time_s"


UNITS = {"sample": "samples_per_s", "micro-batch": "microbatches_per_s"}  # a workload does not say its samples


DIGITS = 6  # in which figures are a tie: beyond them they differ by the rounding of picoseconds


PER_STEP = ("loss", "accuracy")  # lists with one entry per step; others have one per pipeline rank


@dataclass(frozen=True)
class Ranking:
    """How the cases of a sweep are compared.

    Attributes:
        y: the column that is compared.
        unit: "sample" or "micro-batch" if cases differ in their number per step, else empty.
    """

    y: str
    unit: str = ""

    @classmethod
    def of(cls, rows: Sequence[Row], y: str) -> Ranking:
        """The comparison of these rows; failed ones have no figures."""
        good = [row for row in rows if "error" not in row]
        unit = next((unit for unit, rate in UNITS.items() if all(rate in row for row in good)), "")
        return cls(y, unit if len({_count(row, unit) for row in good}) > 1 else "")

    def key(self, row: Row) -> tuple[bool, bool, float, float]:
        """The place of a case: failed ones last, before them those that do not fit, then by `y`, ties by the step."""
        if "error" in row:
            return True, True, 0.0, 0.0
        value = self.share(row, self.y)
        signed = -value if larger_is_better(self.y) else value
        return False, bool(row.get("out_of_memory")), float(f"{signed:.{DIGITS}g}"), self.share(row, STEP)

    def share(self, row: Row, column: str) -> float:
        """A figure of a case, per sample if that is how cases compare and it grows with the samples of a step."""
        value = number(column, columns(row)[column])
        return value / (_count(row, self.unit) or 1) if self.unit and _grows(column) else value


def larger_is_better(column: str) -> bool:
    """Whether the best case has the largest value of a column."""
    return column in LARGER_IS_BETTER or column.endswith(("_per_s", "_per_gpu_s"))


def number(column: str, cell: Any) -> float:
    """A cell as one number: of a list the maximum, of one entry per step the last."""
    if isinstance(cell, list):
        return float(cell[-1] if column in PER_STEP else max(cell))
    return float(cell)


def _count(row: Row, unit: str) -> int:
    """The samples or micro-batches of a step, of all replicas."""
    return round(row[UNITS[unit]] * row[STEP]) if unit else 1


def _grows(column: str) -> bool:
    """Whether a figure grows with the samples of a step: its seconds, bytes, messages and FLOP."""
    section = column.partition(".")[0]
    if larger_is_better(column) or section in (*OF_WEEKS, "wall_s"):
        return False
    return section.endswith(("_s", "flop_per_step")) or section.startswith("bytes_") or section == "messages"


def ties_text(ranked: Sequence[Row], ranking: Ranking, sweep: Sweep) -> str:
    """A sentence on the cases that differ from the best by less than 2 %, and not for certain; empty if there are none.

    Args:
        ranked: the rows of the cases, the best first.
        ranking: how they are compared.
        sweep: the scenario of the cases.
    """
    step = ranking.share(ranked[0], STEP)
    fitting = [row for row in ranked if "error" not in row and not row.get("out_of_memory")]
    close = [row for row in fitting[1:] if ranking.share(row, STEP) < step * (1 + LEAST)]
    if not close or not step:
        return ""
    cases = [{path: row[path] for path in sweep.paths if path in row} for row in (ranked[0], *close)]
    best, *others = [scenario_of(with_case(sweep.document, case)) for case in cases]
    changes = [ranking.share(row, STEP) / step - 1 for row in close]
    known = [(change, difference(best, other)) for change, other in zip(changes, others, strict=True)]
    tied = [change for change, sure in known if sure is not None and sure.is_tie(change)]
    if not tied:
        return ""
    count = "1 other case" if len(tied) == 1 else f"{len(tied)} other cases"
    apart = f"up to {format_share(max(tied))} apart, within the 80 % prediction interval"
    return f"not certain that it is faster than {count}: {apart}"


SHOWN: Mapping[str, Callable[[Row], str]] = {
    "step time": lambda row: format_seconds(row["step_time_s"]),
    "bubble": lambda row: format_share(row["step_shares"]["bubble"]),
    "exposed": lambda row: format_share(row["exposed_communication_ratio"]),
    "efficiency": lambda row: format_share(row["efficiency"]),
    "peak memory": lambda row: f"{max(row['peak_memory_bytes']) / 1e9:.4g} GB{MISFIT if row['out_of_memory'] else ''}",
}


SHOWN_KEYS = ("step_time_s", "step_shares.bubble", "exposed_communication_ratio", "efficiency", "peak_memory_bytes")


MISFIT = " does not fit"


SHOWN_OF_WEEKS: Mapping[str, Callable[[Row], str]] = {  # of scenarios with `faults`
    "goodput": lambda row: format_share(row["goodput"], 2) if "goodput" in row else "",
    "ETTR": lambda row: format_share(row["ettr"], 2) if "ettr" in row else "",
}


MOST_ROWS = 40


MOST_TICKS = 16


LETTERS_ACROSS = 60  # total length of tick labels side by side


LABEL_SPACE = 0.08  # share of an axis that a tick label takes


_DIMENSIONS: tuple[Dimension, ...] = ("number", "span", "size", "bandwidth", "compute")


def run_sweep(
    sweep: Sweep | Source,
    overrides: Overrides = (),
    **how: Unpack[Execution],
) -> pd.DataFrame:
    """Simulate every case of a sweep; one row per case, in the order of `Sweep.cases`.

    A row holds the swept paths and the keys of the summary, or the paths and `error`; columns are those of `table`.

    Args:
        sweep: what to run; also the path of a file with a `sweep:` block, or a mapping with the content of one.
        overrides: changes to a file or mapping, such as ["sweep=[{schedule.kind: [gpipe, 1f1b]}]"] or
            {"sweep": [{"schedule.kind": ["gpipe", "1f1b"]}]}.
        **how: where cases run, and callbacks.
        jobs: local worker processes; 1 runs in this process.
        executor: instead of `jobs`, anything with the `submit` of `concurrent.futures`.
        pool: instead of `jobs`, a pool for several consecutive sweeps.
        progress: called with (cases done, cases in total) whenever a case finishes.
        finished: called with the number and the row of every case when it finishes, to save rows before an interrupt.
        waiting: called every second in which workers finish nothing; may raise to end the sweep.
        known: rows of cases, by their number, that are not simulated again.

    Raises:
        HybridDesError: as `load_sweep` and `sweep_rows`.

    Example:
        >>> from hybrid_des import run_sweep
        >>> table = run_sweep("scenarios/a100_8x.yaml", ["sweep=[{schedule.microbatches: [4, 8, 16]}]"])
        >>> table[["schedule.microbatches", "step_time_s", "bubble_ratio"]].round(3)
           schedule.microbatches  step_time_s  bubble_ratio
        0                      4        0.914         0.430
        1                      8        1.435         0.275
        2                     16        2.478         0.160
    """
    cases = sweep if isinstance(sweep, Sweep) else load_sweep(sweep, overrides)
    return table(sweep_rows(cases, **how))


def render(rows: Sequence[Row], sweep: Sweep, width: int | None = None) -> str:
    """The table for the terminal: one line per case with its values and main figures, or its error.

    Cases are ordered by the plot's `y`, or the step time, best first: those that fit, those that do not, failed ones.
    Without a plot a table that is shown whole keeps the order of the file. The best case that fits is named.
    The table is laid out for a width, if one is given.
    """
    if any("jobs" in row for row in rows):
        return _of_jobs(rows, sweep.labels, width)
    if of_loops(rows):
        listed = table_of_loops(rows[:MOST_ROWS], sweep.labels, value_shown, width)
        return f"{listed}\n\n{shortest_cycle(rows, sweep.labels, value_shown)}\n{counts(rows)}"
    y = sweep.picture.y if sweep.picture is not None else STEP
    ranking = Ranking.of(rows, y)
    ranked = sorted(rows, key=ranking.key)
    ordered = ranked if sweep.picture is not None or len(rows) > MOST_ROWS else rows
    weeks = SHOWN_OF_WEEKS if any("goodput" in row for row in rows) else {}
    per = {f"per {ranking.unit}": lambda row: format_seconds(ranking.share(row, STEP))} if ranking.unit else {}
    shown = {"step time": SHOWN["step time"], **per, **SHOWN, **weeks}
    if y not in SHOWN_KEYS and not y.startswith("bill."):
        shown[label(y)] = lambda row: f"{number(y, columns(row)[y]):.4g}"
    paths, bills = sweep.labels, bill_columns([row.get("bill") for row in ordered[:MOST_ROWS]])
    lines = []
    for position, row in enumerate(ordered[:MOST_ROWS]):
        billed = (texts[position] for texts in bills.values())
        failed = "error" in row
        figures = (
            [f"failed: {one_line(row['error'])}"] if failed else [*(show(row) for show in shown.values()), *billed]
        )
        lines.append([*(value_shown(row, path) for path in paths), *figures])
    listed = text_table([*paths, *shown, *bills], lines, width=width)
    return "\n".join([listed, "", *best_lines(ranked, ranking, sweep), counts(rows)])


def _of_jobs(rows: Sequence[Row], paths: Sequence[str], width: int | None) -> str:
    """The table of cases with several jobs: the step of each and its slowdown; the least mean slowdown is named."""
    good = [row for row in rows if "error" not in row]
    names = [*good[0]["jobs"]]
    lines = []
    for row in rows[:MOST_ROWS]:
        figures = [f"failed: {one_line(row['error'])}"] if "error" in row else [f"{row['slowdown']:.3f}×"]
        if "error" not in row:
            each = (row["jobs"][name] for name in names)
            figures += [f"{format_seconds(job['step_time_s'])} ({job['slowdown']:.3f}×)" for job in each]
        lines.append([*(value_shown(row, path) for path in paths), *figures])
    heads = [*map(one_line, paths), "mean slowdown", *names]
    table = text_table(heads, [[*line, *[""] * (len(heads) - len(line))] for line in lines], width=width)
    return f"{table}\n\n{least_slowdown(rows, paths)}\n{counts(rows)}"


def least_slowdown(rows: Sequence[Row], paths: Sequence[str]) -> str:
    """Of cases with several jobs, the one in which these slow each other down the least."""
    best = min((row for row in rows if "error" not in row), key=lambda row: float(row["slowdown"]))
    return f"least mean slowdown: {', '.join(f'{one_line(path)} {value_shown(best, path)}' for path in paths)}"


def value_shown(row: Row, path: str) -> str:
    """The value of a case, in one line."""
    return one_line(value_text(row.get(path, "")), LONGEST_SHOWN)


def value_text(value: Any) -> str:
    """A swept value for people; `default` where the case leaves the key out."""
    return "default" if value is None else str(value)


def best_lines(rows: Sequence[Row], ranking: Ranking, sweep: Sweep) -> list[str]:
    """The best case that fits, by its values, and how many others are as good as far as can be told; best first."""
    row = rows[0]
    if "error" in row:
        return []
    if row.get("out_of_memory"):
        return ["no case fits"]
    y, values = ranking.y, ", ".join(f"{one_line(path)} {value_shown(row, path)}" for path in sweep.labels)
    value = number(y, columns(row)[y])
    times = y.endswith("_s") and not larger_is_better(y)
    figure = format_seconds(value) if times else format_share(value) if y.endswith("_ratio") else f"{value:.4g}"
    share = ranking.share(row, y)
    per = f", {format_seconds(share) if times else f'{share:.4g}'} per {ranking.unit}" if share != value else ""
    best = f"best: {values}: {label(y).removesuffix(' (s)')} {figure}{per}"
    return [best, *([ties] if y == STEP and (ties := ties_text(rows, ranking, sweep)) else [])]


def counts(rows: Sequence[Row]) -> str:
    """The numbers of all cases, of those that do not fit, and of failed ones."""
    failed = sum("error" in row for row in rows)
    misfits = sum(bool(row.get("out_of_memory")) for row in rows)
    fit = f", {misfits} do not fit" if misfits else ""
    more = f"; the best {MOST_ROWS} are shown; --out DIR or --json outputs all" if len(rows) > MOST_ROWS else ""
    return f"{len(rows)} cases{fit}, {failed} failed{more}"


def draw(
    rows: Sequence[Row] | pd.DataFrame,
    picture: Plot,
    ax: Axes | None = None,
    **style: Unpack[Style],
) -> Axes:
    """Draw the sweep's `plot` on the given axes or on a new figure; failed cases are left out, misfits are hollow.

    `rows` are those of `sweep_rows`, or the table of `run_sweep`.

    Strings such as "4 ms" or "2p" are ordered by their quantities. Lists with one entry per rank are drawn as their
    maximum, those with one entry per step as their last entry. `colours` (by the values of `hue`), `labels`, `size` and
    `legend` are those of `plots.lines`.

    Raises:
        UsageError: the table has no such column, or `y` is not numeric.
    """
    import pandas as pd

    from hybrid_des.report.plots.curves import lines
    from hybrid_des.report.plots.figure import Look, points

    records = _records(rows) if isinstance(rows, pd.DataFrame) else rows
    flat = [columns(row) for row in records if "error" not in row]
    for row in flat[:1]:
        picture.check(row)
    shown = [row for row in flat if all(quantity(row[k]) == quantity(v) for k, v in picture.where.items())]
    places = _places([row[picture.x] for row in shown])
    frame = pd.DataFrame(
        {
            "x": [places[_key(row[picture.x])] for row in shown],
            "y": [number(picture.y, row[picture.y]) for row in shown],
            "hue": [", ".join(value_text(row[name]) for name in picture.hue) for row in shown],
            "fits": [not row.get("out_of_memory") for row in shown],
        }
    )
    labels = style.pop("labels", None)
    ax = lines(frame, "x", "y", "hue" if picture.hue else None, ax, fits="fits", **style)
    _set_axes(ax, picture, places, {_key(row[picture.x]): row[picture.x] for row in shown})
    drawn = ax.get_legend()
    if picture.hue and drawn is not None:
        drawn.set_title(", ".join(map(label, picture.hue)))
        drawn.set_alignment("left")
    facts = [f",  {verbatim(f'{label(name)} {value_text(value)}')}" for name, value in picture.where.items()]
    title(ax, flat[0]["name"] if flat else "", "".join(facts) if flat else "".join(facts)[3:], points(1))
    return Look(labels=labels).dress(ax)


def _is_known(cell: Any) -> bool:
    """Whether a cell of a table holds a value."""
    import pandas as pd

    return isinstance(cell, list) or not pd.isna(cell)


def _records(frame: pd.DataFrame) -> list[Row]:
    """The rows of a table, without empty cells and with lists as lists."""
    rows = [{str(name): cell for name, cell in row.items() if _is_known(cell)} for row in frame.to_dict("records")]
    return [{name: _listed(cell) for name, cell in row.items()} for row in rows]


def _listed(cell: Any) -> Any:
    return json.loads(cell) if isinstance(cell, str) and cell.startswith("[") else cell


def label(column: str) -> str:
    """Axis label of a column: without its section, with its unit in brackets."""
    words = column.partition(".")[2] if not column.startswith("idle_s") else column
    words = words or column
    for ending, unit in (("_s", " (s)"), ("_bytes", " (bytes)"), ("_ratio", " ratio")):
        words = words.removesuffix(ending) + unit if words.endswith(ending) else words
    return words.replace("idle_s.", "idle for ").replace("_per_s", " per s").replace(".", " ").replace("_", " ")


def _set_axes(ax: Axes, picture: Plot, places: dict[Any, float], cells: dict[Any, Any]) -> None:
    at = sorted(set(places.values()))
    doubling = len(at) > 2 and all(a > 0 and b >= 1.5 * a for a, b in itertools.pairwise(at))
    if doubling:
        ax.set_xscale("log", base=2)
    if len(at) <= MOST_TICKS:
        named = {
            places[key]: f"{cell:g}" if isinstance(cell, float) else value_text(cell) for key, cell in cells.items()
        }
        texts = [verbatim(named[place]) if place in _apart(at) or doubling else "" for place in at]
        crowded = sum(map(len, texts)) > LETTERS_ACROSS
        ax.set_xticks(at, texts)
        if crowded:
            for name in ax.get_xticklabels():
                name.set(rotation=30, ha="right", rotation_mode="anchor")
        ax.minorticks_off()
    ax.set_xlabel(label(picture.x))
    ax.set_ylabel(label(picture.y))
    ax.set_ylim(bottom=0)
    if picture.y.endswith("_ratio"):
        ax.yaxis.set_major_formatter(lambda value, _: f"{round(100 * value, 6):g} %")


def _apart(at: Sequence[float]) -> list[float]:
    """Ticks far enough apart for their labels."""
    room, kept = LABEL_SPACE * (at[-1] - at[0]), at[:1]
    for position in at[1:]:
        if position - kept[-1] >= room:
            kept = [*kept, position]
    return list(kept)


def _places(cells: Sequence[Any]) -> dict[Any, float]:
    """Position of each value: its quantity, or its order of appearance if any is not a quantity."""
    values = {_key(cell): quantity(cell) for cell in cells}
    if all(isinstance(value, float) for value in values.values()):
        return values
    return {key: float(place) for place, key in enumerate(values)}


def _key(cell: Any) -> Any:
    return str(cell) if isinstance(cell, list) else cell


def quantity(cell: Any) -> Any:
    """A number, quantity or multiple of p as a float; anything else unchanged."""
    if isinstance(cell, int | float | Fraction) and not isinstance(cell, bool):
        return float(cell)
    if not isinstance(cell, str):
        return cell
    text = cell.strip()
    if text.endswith(("p", "%")):
        text = text[:-1] or "1"
    for dimension in _DIMENSIONS:
        try:
            return float(parse_quantity(text, dimension))
        except ValueError:
            continue
    return cell
