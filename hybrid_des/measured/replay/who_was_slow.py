"""Who was slow in a measured run, in words and tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hybrid_des.analysis.counterfactual.attribution import MOST
from hybrid_des.measured.replay.measured import SLOW
from hybrid_des.measured.replay.stragglers import Stragglers
from hybrid_des.report.text_tables import text_table
from hybrid_des.units import format_seconds, format_share

MOST_ROWS = 8  # of classes
NAMES = {
    "worker": "stage {stage} of replica {replica}",
    "stage": "stage {stage}",
    "replica": "replica {replica}",
    "kind": "",
}
ABOVE = "more than 100 %: the other ops are faster than the mean, and so would be the step"
BELOW = "negative: faster than the mean; at the mean the step would be longer"


def told(stragglers: Stragglers, width: int | None) -> list[str]:
    """Who was slow: a sentence, the whole slowdown, and a table at most as wide as given."""
    ideal = f"{format_seconds(stragglers.what_if.loss.ideal)} with all ops at the mean"
    return [
        "",
        f"who was slow  {verdict(stragglers)}",
        f"slowdown      {stragglers.what_if.slowdown:.3f} over {ideal}",
        "",
        table_of(stragglers, width),
    ]


def verdict(stragglers: Stragglers) -> str:
    """Who was slow, in a sentence."""
    culprit = stragglers.culprit()
    if stragglers.what_if.slowdown < SLOW:
        return f"no straggler: differences between ops cost less than {format_share(SLOW - 1, 0)}"
    if culprit is None:
        return f"no single stage or replica explains {format_share(MOST, 0)} of the loss"
    more = {"worker": "", "stage": ", in all replicas", "replica": ", all of its stages"}[culprit["what"]]
    name = NAMES[culprit["what"]].format(**culprit) + more
    share = "all" if culprit["removed"] >= 1 else format_share(culprit["removed"], 0)
    return f"{name}: slowdown {culprit['slowdown']:.3f} by itself, {share} of the loss"


def table_of(stragglers: Stragglers, width: int | None) -> str:
    """The classes that cost most, at most as wide as given."""
    table = stragglers.classes.sort_values(["what", "slowdown"], ascending=[True, False], kind="stable")
    rows, removed = [], []
    for what in NAMES:
        for row in table[table.what == what].head(MOST_ROWS).to_dict("records"):
            name = NAMES[what].format_map(row) or ("forwards" if row["kind"] == "F" else "backwards")
            removed.append(round(row["removed"], 3) + 0.0)  # never -0.0 %
            rows.append([name, f"{row['slowdown']:.3f}", format_share(removed[-1])])
    notes = [text for text, true in ((ABOVE, max(removed) > 1), (BELOW, min(removed) < 0)) if true]
    heads = ["only this as measured", "slowdown", "removed if ideal"]
    return "\n".join([text_table(heads, rows, width=width), *notes])


def told_of_ranks(figures: Mapping[str, Any], width: int | None) -> list[str]:
    """For whom others waited: a sentence and a table; nothing for traces that do not say."""
    rows, step = figures.get("by_rank") or [], figures["measured_step_time_s"]
    if not step:
        return []
    if not rows or not rows[0]["collectives"]:
        return ["", "who was slow  not known: no collective has a trace of each of its members"]
    slowest = max(rows, key=lambda row: float(row["held_up_s"]))
    held = slowest["held_up_s"]
    said = f"rank {slowest['rank']}: it came last to {slowest['last']} of {slowest['collectives']} collectives, by "
    said = f"{said}{format_seconds(held)}, {format_share(held / step)} of the step"
    text = (
        said
        if held > (SLOW - 1) * step
        else f"no rank holds up others by {format_share(SLOW - 1, 0)} of the step; most {said}"
    )
    shown = sorted(rows, key=lambda row: -float(row["held_up_s"]))[:MOST_ROWS]
    keys = ("compute_s", "wait_s", "held_up_s")
    cells = [[str(row["rank"]), *(format_seconds(row[key]) for key in keys), str(row["last"])] for row in shown]
    table = text_table(["rank", "computes", "waits", "holds up", "last to"], cells, width=width)
    return ["", f"who was slow  {text}", "", table]
