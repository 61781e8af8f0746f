"""Pictures on matplotlib axes: of runs, of what explains them, of sweeps, searches, weeks and fabrics.

    from hybrid_des import plots
    plots.gantt(result.run, ranks=[0, 2], window=("100 ms", "400 ms"), size="column")
    plots.sweep(run_sweep(sweep), sweep.picture)
    plt.style.use("hybrid_des.report.plots.notebook")       # larger figures; `paper` for those of a column

`gantt`, `link_use` and `memory_curve` take `steps`, `ranks` and a `window` of time; they, `lines`, `sweep` and
`what_if_curves` take `colours`, `labels` and a `size`. Without axes, a new figure is as wide as a column of a paper,
unless a style says otherwise; SVG and PDF files hold text as text.
"""

from hybrid_des.report.plots.curves import lines, link_use, memory_curve, what_if_curves
from hybrid_des.report.plots.fabric_map import fabric_map
from hybrid_des.report.plots.figure import save_as
from hybrid_des.report.plots.gantt import draw, gantt, size_of
from hybrid_des.report.plots.style import save
from hybrid_des.studies.goodput.plot import history, over_intervals, over_spares
from hybrid_des.studies.plan_search.plot import draw as search
from hybrid_des.studies.sweep.results import draw as sweep

__all__ = [
    "draw", "fabric_map", "gantt", "history", "lines", "link_use", "memory_curve", "over_intervals", "over_spares",
    "save", "save_as", "search", "size_of", "sweep", "what_if_curves",
]  # fmt: skip
