"""Rows of two timelines that mean the same op or message, side by side, and what differs between them.

A backward pass that is split is one op with its weight gradients, so that it is matched with one that is not. Where
ranks do not have the same ops even so, as under another layout or with other micro-batches, nothing is matched: equal
numbers would mean other work. Such runs are compared by what their ops do (`classes`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hybrid_des.units import PICOSECONDS_PER_SECOND

if TYPE_CHECKING:
    import pandas as pd
from hybrid_des.analysis.table import COMPUTE

BACKWARD, WEIGHT, PAIR = "B", "W", "FB"
FORWARDS, BACKWARDS, BOTH = "forward", "backward", "forward and backward"
CLASSES = {"F": FORWARDS, BACKWARD: BACKWARDS, WEIGHT: BACKWARDS, PAIR: BOTH}
KEY = ["step", "rank", "lane", "kind", "microbatch", "chunk", "stage", "peer", "hop"]


def matched(this: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """Match the rows of two timelines by step, rank, kind, micro-batch, chunk and stage.

    The weight gradients of a split backward belong to it if the other timeline splits none. Messages are also matched
    by peer, link and hop; those that agree in all of these, such as those of a collective, in order of start. Rows of
    one side only are kept. Columns `took_a`, `took_b`, `start_a`, `start_b` are picoseconds, missing if a side has no
    such row; `_merge` says which sides have it.
    """
    split = [bool(((rows["lane"] == COMPUTE) & (rows["kind"] == WEIGHT)).any()) for rows in (this, other)]
    sides = zip((this, other), split, strict=True)
    first, second = (_keyed(_whole(rows) if own and not all(split) else rows) for rows, own in sides)
    return first.merge(second, how="outer", on=[*KEY, "repeat"], suffixes=("_a", "_b"), indicator=True)


def _whole(rows: pd.DataFrame) -> pd.DataFrame:
    """A timeline whose backward passes also take the time of their weight gradients; where those begin is lost."""
    weights = rows[(rows["lane"] == COMPUTE) & (rows["kind"] == WEIGHT)]
    of_an_op = [name for name in KEY if name not in ("lane", "kind")]
    took = (weights["end_ps"] - weights["start_ps"]).groupby([weights[name] for name in of_an_op], dropna=False).sum()
    rest = rows.drop(weights.index)
    more = rest[of_an_op].merge(took.rename("more").reset_index(), how="left", on=of_an_op)["more"].fillna(0).to_numpy()
    backward = ((rest["lane"] == COMPUTE) & (rest["kind"] == BACKWARD)).to_numpy()
    return rest.assign(end_ps=rest["end_ps"] + (more * backward).astype("int64"))


def have_same_ops(pairs: pd.DataFrame) -> bool:
    """Whether the same ranks have the same ops, whatever the order and the time that they take."""
    return bool((pairs.loc[pairs["lane"] == COMPUTE, "_merge"] == "both").all())


def apart(pairs: pd.DataFrame) -> pd.DataFrame:
    """The rows of both sides, none of them matched."""
    import pandas as pd

    sides = []
    for other, word in (("b", "left_only"), ("a", "right_only")):
        own = pairs[pairs["_merge"].isin(["both", word])].copy()
        own[[f"took_{other}", f"start_{other}"]] = None
        own["_merge"] = word
        sides.append(own)
    return pd.concat(sides, ignore_index=True)


def classes(this: pd.DataFrame, other: pd.DataFrame) -> list[dict[str, Any]]:
    """Time of ops by what they do, mean seconds per GPU of a whole run; backward includes weight gradients.

    If one side runs fused pairs, forward and backward passes are one class.
    """
    sides = [rows[rows["lane"] == COMPUTE] for rows in (this, other)]
    fused = any((rows["kind"] == PAIR).any() for rows in sides)
    sums = []
    for rows in sides:
        names = rows["kind"].map(lambda kind: BOTH if fused and kind in CLASSES else CLASSES.get(kind, kind))
        ranks = max(rows["rank"].nunique(), 1) * PICOSECONDS_PER_SECOND
        sums.append(((rows["end_ps"] - rows["start_ps"]).groupby(names).sum() / ranks).to_dict())
    return side_by_side("class", *sums)


def side_by_side(what: str, first: Mapping[Any, float], second: Mapping[Any, float]) -> list[dict[str, Any]]:
    """The seconds of both sides, by name, and their change."""
    rows = ((name, first.get(name, 0.0), second.get(name, 0.0)) for name in dict.fromkeys([*first, *second]))
    return [{what: name, "a_s": a, "b_s": b, "change_s": b - a} for name, a, b in rows]


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
