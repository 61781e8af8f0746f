"""Rows of two timelines that mean the same op or message, side by side, and what differs between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hybrid_des.units import PICOSECONDS_PER_SECOND

if TYPE_CHECKING:
    import pandas as pd
from hybrid_des.analysis.table import COMPUTE

KEY = ["step", "rank", "lane", "kind", "microbatch", "chunk", "stage", "peer", "hop"]


def matched(this: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """Match the rows of two timelines by step, rank, kind, micro-batch, chunk and stage.

    Messages are also matched by peer, link and hop; those that agree in all of these, such as those of a collective, in
    order of start. Rows of one side only are kept. Columns `took_a`, `took_b`, `start_a`, `start_b` are picoseconds,
    missing if a side has no such row; `_merge` says which sides have it.
    """
    return _keyed(this).merge(_keyed(other), how="outer", on=[*KEY, "repeat"], suffixes=("_a", "_b"), indicator=True)


def _keyed(rows: pd.DataFrame) -> pd.DataFrame:
    keyed = rows[KEY].copy()
    for name in ("microbatch", "chunk", "stage", "peer", "hop"):
        keyed[name] = keyed[name].astype("Int64").fillna(-1).astype("int64")
    keyed["took"] = rows["end_ps"] - rows["start_ps"]
    keyed["start"] = rows["start_ps"]
    keyed = keyed.sort_values("start", kind="stable")
    keyed["repeat"] = keyed.groupby(KEY, sort=False).cumcount()
    return keyed


def changes(pairs: pd.DataFrame, by: Sequence[str], lane: str) -> list[dict[str, Any]]:
    """Changes of the durations of rows, summed by some columns, the largest change first.

    Args:
        pairs: the result of `matched`.
        by: columns to group by.
        lane: "compute" for ops, "links" for messages.
    """
    both = pairs[pairs["_merge"] == "both"]
    mine = both[(both["lane"] == COMPUTE) == (lane == COMPUTE)]
    mine = mine.assign(change=(mine["took_b"] - mine["took_a"]).astype("int64"))
    mine = mine[mine["change"] != 0]
    if not len(mine):
        return []
    sums = mine.groupby(list(by))["change"].agg(["sum", "count"]).reset_index()
    sums = sums.iloc[sums["sum"].abs().sort_values(ascending=False, kind="stable").index]
    return [
        {**{name: row[name] for name in by}, "rows": row["count"],
         "change_s": row["sum"] / PICOSECONDS_PER_SECOND}
        for row in sums.to_dict("records")
    ]  # fmt: skip


def unmatched(pairs: pd.DataFrame) -> dict[str, int]:
    """Numbers of ops and messages that only one side has."""
    compute = pairs["lane"] == COMPUTE
    return {
        f"{what}_only_in_{side}": int(((pairs["_merge"] == word) & chosen).sum())
        for what, chosen in (("ops", compute), ("messages", ~compute))
        for side, word in (("a", "left_only"), ("b", "right_only"))
    }


def first_difference(pairs: pd.DataFrame) -> dict[str, Any] | None:
    """The first row, in A's time, where a rank or link does something else in B; None if the orders are the same."""
    both = pairs[pairs["_merge"] == "both"].copy()
    ops = both["lane"] == COMPUTE
    both["place"] = both["lane"].where(~ops, "rank " + both["rank"].astype(str))
    for side in "ab":
        both = both.sort_values(f"start_{side}", kind="stable")
        both[f"turn_{side}"] = both.groupby("place").cumcount()
    other = both[both["turn_a"] != both["turn_b"]]
    other = other[other.groupby("place")["took_a"].transform("max") > 0]
    if not len(other):
        return None
    first = other.sort_values(["start_a", "place"], kind="stable").iloc[0]
    instead = both[(both["place"] == first["place"]) & (both["turn_b"] == first["turn_a"])].iloc[0]
    return {
        "place": str(first["place"]),
        "at_s": int(first["start_a"]) / PICOSECONDS_PER_SECOND,
        "in_a": _name(first),
        "in_b": _name(instead),
    }


def _name(row: pd.Series[Any]) -> str:
    number = "" if row["microbatch"] < 0 else str(int(row["microbatch"]))
    ends = f" {int(row['rank'])}>{int(row['peer'])}" if row["peer"] >= 0 else f"@{int(row['rank'])}"
    return f"{row['kind']}{number}{ends}"
