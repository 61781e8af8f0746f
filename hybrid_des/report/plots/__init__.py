"""Pictures on matplotlib axes: `gantt`, `link_use` and `memory_curve` of a run, `lines` of a sweep, `fabric_map`.

from hybrid_des.report import plots
plots.gantt(result.run, ax)
"""

from hybrid_des.report.plots.curves import lines, link_use, memory_curve
from hybrid_des.report.plots.fabric_map import fabric_map
from hybrid_des.report.plots.style import draw, gantt, save, size_of

__all__ = ["draw", "fabric_map", "gantt", "lines", "link_use", "memory_curve", "save", "size_of"]
