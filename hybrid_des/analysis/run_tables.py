"""What happened in a run as tidy tables: a row per observation, units in the names of the columns."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hybrid_des.analysis.idle import CAUSES, idle_pieces
from hybrid_des.analysis.link_use import link_rates
from hybrid_des.cluster.purposes import PARAMETERS, PURPOSES, REDUCTION
from hybrid_des.engine.recorder import CHUNK
from hybrid_des.planning.program_table import NONE, Column, Columns
from hybrid_des.simulation.outcome import Run
from hybrid_des.units import PICOSECONDS_PER_SECOND

if TYPE_CHECKING:
    import pandas as pd

LINKS = ("link", "start_s", "end_s", "bytes", "bytes_per_s", "utilisation_ratio")
MEMORY = ("rank", "replica", "pipeline_rank", "time_s", "held_bytes", "activations")
WAITS = ("step", "rank", "replica", "pipeline_rank", "cause", "start_s", "end_s", "waited_s")
COLLECTIVES = ("step", "rank", "replica", "pipeline_rank", "kind", "stage", "bucket", "layer", "start_s", "end_s")


def link_table(run: Run, windows: int = 200) -> pd.DataFrame:
    """The use of every link that carried messages, window by window."""
    import pandas as pd

    use = link_rates(run.timeline, windows)
    if use is None:
        return pd.DataFrame(columns=[*LINKS])
    start, end = (_seconds(edges) for edges in (use.edges[:-1], use.edges[1:]))
    most = np.array([_bandwidth(run, link) for link in use.links])
    rate = use.rate.reshape(-1)
    took, links = np.tile(end - start, len(use.links)), np.array(use.links, dtype=object)
    columns = (
        np.repeat(links, windows), np.tile(start, len(links)), np.tile(end, len(links)),
        rate * took, rate, rate / np.repeat(most, windows),
    )  # fmt: skip
    return pd.DataFrame(dict(zip(LINKS, columns, strict=True)))


def memory_table(run: Run) -> pd.DataFrame:
    """Every change of what a GPU holds."""
    rows = run.timeline.memory
    values = {
        **_places(run, rows["rank"]),
        "time_s": _seconds(rows["time"]),
        "held_bytes": rows["bytes"],
        "activations": rows["activations"] / CHUNK,
    }
    return _table(values, MEMORY, (rows["time"], rows["rank"]))


def wait_table(run: Run) -> pd.DataFrame:
    """All idle time in pieces, each with its cause."""
    rows = idle_pieces(run.timeline)
    values = {
        "step": rows["step"],
        **_places(run, rows["rank"]),
        "cause": np.array(CAUSES, dtype=object)[rows["cause"]],
        "start_s": _seconds(rows["start"]),
        "end_s": _seconds(rows["end"]),
        "waited_s": _seconds(rows["end"] - rows["start"]),
    }
    return _table(values, WAITS, (rows["start"], rows["rank"]))


def collective_table(run: Run) -> pd.DataFrame:
    """Every collective by messages, as each of its ranks sees it."""
    import pandas as pd

    timeline = run.timeline
    inside = np.array([purpose.name for purpose in PURPOSES], dtype=object)
    parts = [
        _collectives(run, timeline.reductions, REDUCTION.key, ("stage", "bucket")),
        _collectives(run, timeline.gathers, PARAMETERS.key, ("stage", "layer")),
        _collectives(run, timeline.exchanges, inside[timeline.exchanges["purpose"]], ()),
    ]
    table = pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
    return table.sort_values(["start_s", "rank", "kind"], kind="stable", ignore_index=True)


def _collectives(run: Run, rows: Columns, kind: Any, known: Sequence[str]) -> pd.DataFrame:
    import pandas as pd

    missing = np.full(len(rows["rank"]), NONE)
    numbers = {name: rows[name] if name in known else missing for name in ("stage", "bucket", "layer")}
    values = {
        "step": rows["step"],
        **_places(run, rows["rank"]),
        "kind": np.broadcast_to(np.asarray(kind, dtype=object), len(missing)),
        **{name: pd.arrays.IntegerArray(values, values == NONE) for name, values in numbers.items()},
        "start_s": _seconds(rows["start"]),
        "end_s": _seconds(rows["end"]),
    }
    return _table(values, COLLECTIVES)


def _table(values: dict[str, Any], columns: Sequence[str], order: Sequence[Column] = ()) -> pd.DataFrame:
    """A table, ordered by the first of some numbers, then by the next."""
    import pandas as pd

    table = pd.DataFrame(values, columns=[*columns])
    return table.iloc[np.lexsort([*reversed(order)])].reset_index(drop=True) if order else table


def _places(run: Run, rank: Column) -> dict[str, Column]:
    timeline = run.timeline
    return {"rank": rank, "replica": timeline.replica[rank], "pipeline_rank": timeline.pipeline_rank[rank]}


def _bandwidth(run: Run, link: str) -> float:
    """Bytes per second of a link; NaN if it is infinite, or measured as times by size."""
    spec = run.fabric.links.get(link) if run.fabric is not None else None
    return float(spec.bandwidth) if spec is not None and isinstance(spec.bandwidth, Fraction) else np.nan


def _seconds(picoseconds: Column) -> NDArray[np.float64]:
    return np.asarray(picoseconds / PICOSECONDS_PER_SECOND)
