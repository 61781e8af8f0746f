"""The page of weeks: the share of useful time and the largest loss in a sentence, pictures, tables."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hybrid_des.report.page.answer import verdict
from hybrid_des.report.page.study_page import (
    Cell,
    Part,
    Span,
    chart,
    chart_of,
    folded_text,
    shares_bar,
    sorted_table,
    spans_strip,
    strip_lanes,
    study_page,
    swatches,
)
from hybrid_des.report.plots.style import LINES
from hybrid_des.studies.goodput.failures import faults_of
from hybrid_des.studies.goodput.goodput import Goodput
from hybrid_des.studies.goodput.ledger import LOST, unknown_causes
from hybrid_des.studies.goodput.report import long_time
from hybrid_des.units import collected, format_share

if TYPE_CHECKING:
    import pandas as pd

USEFUL, RUNNING = "#0072B2", "running"
COLOURS = {  # by causes of lost time, and phases of the history
    "rework": "#E69F00", "checkpoint": "#56B4E9", "detection": "#888888", "repair": "#CC79A7", "swap": "#F0E442",
    "restart": "#D55E00", "flap": "#7F6A3F", "slow": "#009E73", "jitter": "#88CCEE", "fewer_replicas": "#AA4499",
}  # fmt: skip
LEAST, NARROWEST = 0.00005, 0.0006  # of the time: a smaller share is not in the bar; a shorter stop is drawn this wide
CLOSE = 0.1  # of the best interval between checkpoints: one that is as close is not advised against


def goodput_page(weeks: Goodput, intervals: pd.DataFrame | None, spares: pd.DataFrame | None) -> str:
    """The page of weeks, in one file; the tables are those of both curves."""
    facts, charts = weeks.summary, _curves(weeks, intervals, spares)
    titles = {"intervals": "Goodput against the interval between checkpoints", "spares": "Goodput against spare nodes"}
    pictures = "".join(f"<div><h3>{titles[name]}</h3>{chart(name)}</div>" for name in charts)
    body = [
        f"<p>{html.escape(weeks.scenario.description)}</p>" if weeks.scenario.description else "",
        verdict(verdict_of(weeks, intervals)),
        f"<h2>Where {long_time(facts['horizon_s'])} go, mean of {facts['replications']} replications</h2>",
        shares_bar(list(_parts(facts))), _unknown(weeks), _history(weeks),
        f'<div class="multiples">{pictures}</div>', _tables(weeks), folded_text(weeks.report()),
    ]  # fmt: skip
    return study_page(weeks.scenario.name, "".join(body), charts)


def verdict_of(weeks: Goodput, intervals: pd.DataFrame | None) -> str:
    """How much of the time is useful, what most of the rest is lost to, and whether another interval is better."""
    facts = weeks.summary
    low_high = facts["goodput_ci95"]
    sure = f" (95 % confidence interval {_percent(low_high[0])} to {_percent(low_high[1])})" if low_high else ""
    bound = "At most " if facts["unknown"] else ""
    sentence = f"{bound}{format_share(facts['goodput'])} of the time{sure} is useful training"
    known = {cause: seconds for cause, seconds in facts["lost_s"].items() if seconds}
    if known:
        cause = max(known, key=known.__getitem__)
        share = known[cause] / facts["horizon_s"]
        sentence += f"; the largest loss is {LOST[cause]}: {format_share(share)}, {long_time(known[cause])}"
    return f"{sentence}.{_better_interval(facts, intervals)}"


def _percent(share: float) -> str:
    return format_share(share, 2)


def _better_interval(facts: Mapping[str, Any], intervals: pd.DataFrame | None) -> str:
    best, every = facts["best_interval_s"], facts["checkpoint_interval_s"]
    if best is None or not every or abs(best["exact"] / every - 1) < CLOSE:
        return ""
    gives = ""
    if intervals is not None:
        row = intervals.loc[(intervals["interval_s"] - best["exact"]).abs().idxmin()]
        gives = f", which gives {format_share(row['goodput'])}"
    return f" The best interval between checkpoints is {long_time(best['exact'])}, not {long_time(every)}{gives}."


def _parts(facts: Mapping[str, Any]) -> Iterator[Part]:
    """The parts of the wall time, which sum to it."""
    whole = facts["horizon_s"]
    yield Part("useful steps", facts["useful_s"] / whole, USEFUL, _percent(facts["useful_s"] / whole))
    lost = {cause: seconds for cause, seconds in facts["lost_s"].items() if seconds}
    for cause, seconds in sorted(lost.items(), key=lambda item: -item[1]):
        if seconds > LEAST * whole:
            yield Part(LOST[cause], seconds / whole, COLOURS[cause], _percent(seconds / whole))


def _unknown(weeks: Goodput) -> str:
    missing = unknown_causes(weeks.scenario)
    texts = "; ".join(f"{LOST[cause]}: {key} is not given" for cause, key in missing.items())
    return f"<p>Not known: {html.escape(texts)}.</p>" if texts else ""


def _history(weeks: Goodput) -> str:
    """What the first replication does over its weeks."""
    whole, rows = weeks.summary["horizon_s"], weeks.history.query("replication == 0")
    spans, shown = [Span(0.0, 1.0, USEFUL)], {"training": USEFUL}
    for row in rows[rows.phase != RUNNING].to_dict("records"):
        colour = COLOURS.get(row["phase"], COLOURS["restart"])
        shown[str(row["phase"])] = colour
        share = (row["end_s"] - row["start_s"]) / whole
        spans.append(Span(row["start_s"] / whole, max(share, NARROWEST), colour))
    title = f"The first replication over time: goodput {format_share(weeks.replications.goodput[0])}"
    lane = strip_lanes([("replication 0", spans_strip(spans))], "0", long_time(whole))
    return f"<h2>{title}</h2>{swatches(shown)}{lane}"


def _curves(weeks: Goodput, intervals: pd.DataFrame | None, spares: pd.DataFrame | None) -> dict[str, Any]:
    facts, charts = weeks.summary, dict[str, Any]()
    if intervals is not None:
        best, every = facts["best_interval_s"], facts["checkpoint_interval_s"]
        marks = {"here": every, "best": best and best["exact"]}
        x = {"label": "interval between checkpoints", "kind": "seconds", "log": True}
        charts["intervals"] = _curve(intervals, "interval_s", x, marks, long_time)
    if spares is not None:
        have = faults_of(weeks.scenario).spares
        x = {"label": "spare nodes", "texts": [[int(number), str(int(number))] for number in spares["spares"]]}
        charts["spares"] = _curve(spares, "spares", x, {"here": have.nodes if have else None}, "{:.0f}".format)
    return charts


def _curve(
    table: pd.DataFrame, column: str, x: Mapping[str, Any], marks: Mapping[str, Any], text: Any
) -> dict[str, Any]:
    """Goodput against a column, with the interval of each point in its words."""
    points = []
    for row in table.sort_values(column).to_dict("records"):
        sure = (
            f" ({_percent(row['low'])} to {_percent(row['high'])})" if row["low"] == row["low"] and row["low"] else ""
        )
        points.append([row[column], row["goodput"], f"{text(row[column])}: {_percent(row['goodput'])}{sure}"])
    names = collected((float(at), name) for name, at in marks.items() if at)
    lines = [{"at": at, "name": ", ".join(these)} for at, these in names.items()]
    series = [{"colour": LINES[0], "mark": 0, "line": True, "points": points}]
    return chart_of(x, {"label": "goodput", "kind": "share"}, series, marks=lines, low=True)


def _tables(weeks: Goodput) -> str:
    facts, failures = weeks.summary, weeks.failures
    lost = failures.groupby("class")["rework_s"].sum() / facts["replications"]
    rows = [
        [name, Cell(f"{count:.4g}", count), Cell(long_time(lost.get(name, 0.0)), lost.get(name, 0.0))]
        for name, count in sorted(facts["failures_by_class"].items(), key=lambda item: -item[1])
    ]
    each = [
        [Cell(str(row["replication"]), row["replication"]), Cell(_percent(row['goodput']), row["goodput"]),
         Cell(f"{row['failures']:,}", row["failures"]), Cell(f"{row['stops']:,}", row["stops"]),
         Cell(long_time(row["rework_s"]), row["rework_s"])]
        for row in weeks.replications.to_dict("records")
    ]  # fmt: skip
    return (
        "<h2>Failures by class, per replication</h2>"
        f"{sorted_table(['class', 'failures', 'work lost'], rows)}"
        f"<h2>Replications</h2>{sorted_table(['replication', 'goodput', 'failures', 'stops', 'work lost'], each)}"
    )
