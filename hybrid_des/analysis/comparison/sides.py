"""One side of a comparison: a scenario that is simulated, or the folder that a run was written to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_des.analysis.explaining import traced_run
from hybrid_des.analysis.metrics import summary
from hybrid_des.analysis.spreadsheets import read_cell
from hybrid_des.analysis.table import COLUMNS, EXACT, table
from hybrid_des.errors import UsageError
from hybrid_des.scenario import Scenario, Source, given_values, load
from hybrid_des.simulation.run import Run
from hybrid_des.units import PICOSECONDS_PER_SECOND

if TYPE_CHECKING:
    import pandas as pd

SUMMARY, CSV, PARQUET = "summary.json", "timeline.csv", "timeline.parquet"
NEEDED = ("name", "ranks", "step_time_s", "busy_s", "idle_s")


@dataclass(frozen=True)
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

    @property
    def steps(self) -> int:
        """Number of training steps."""
        return int(self.rows["step"].max()) + 1 if len(self.rows) else 0


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
