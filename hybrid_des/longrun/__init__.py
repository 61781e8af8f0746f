"""Goodput over weeks: the result with its tables, curves, plots and files.

from hybrid_des import goodput, load
weeks = goodput(load("scenarios/goodput/llama3_54days.yaml"), jobs=2)
weeks.summary["goodput"], weeks.failures.groupby("class").size()
"""

from hybrid_des.longrun.tradeoffs import over_intervals, over_spares

__all__ = ["over_intervals", "over_spares"]
