"""Sweeps: variants of one scenario, run here or on any executor with a `submit`; each is a row of a table.

    sweep:
      - {parallel.pipeline: [2, 4], schedule.microbatches: [4, 8]}     # keys of one item vary together
      - {schedule.kind: [gpipe, 1f1b]}                                # Cartesian product of items

    sweep = load_sweep("scenarios/experiments/chunks.yaml")
    frame = run_sweep(sweep, jobs=2)      # a DataFrame; `sweep_rows` gives the rows as mappings
    draw(frame, sweep.picture)

An impossible or failed case is a row with the reason in `error`; the other cases still run.
"""

from hybrid_des.studies.pool import WorkersLostError
from hybrid_des.studies.sweep.axes import Case, Plot, Sweep, load_sweep, sweep_of
from hybrid_des.studies.sweep.log import sweep_log
from hybrid_des.studies.sweep.page import write
from hybrid_des.studies.sweep.results import draw, render, run_sweep
from hybrid_des.studies.sweep.rows import PARTIAL, Row, journal, table
from hybrid_des.studies.sweep.runner import dropped, jobs_for, sweep_rows

__all__ = [
    "PARTIAL", "Case", "Plot", "Row", "Sweep", "WorkersLostError", "draw", "dropped", "jobs_for", "journal",
    "load_sweep", "render", "run_sweep", "sweep_log", "sweep_of", "sweep_rows", "table", "write",
]  # fmt: skip
