"""A discrete-event simulator of hybrid-parallel deep-learning training.

from hybrid_des import load, simulate
result = simulate(load("scenarios/a100_8x.yaml"))
result.summary["step_time_s"]
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybrid_des.analysis.cost_table import costs
    from hybrid_des.longrun.study import Goodput, goodput
    from hybrid_des.pipeline import schedules
    from hybrid_des.report import plots
    from hybrid_des.result import Result, simulate
    from hybrid_des.scenario import Scenario, load
    from hybrid_des.seeds.runs import spread

__version__ = "0.1.0"
__all__ = ["Goodput", "Result", "Scenario", "costs", "goodput", "load", "plots", "schedules", "simulate", "spread"]

_HOME = {
    "load": "hybrid_des.scenario",
    "Scenario": "hybrid_des.scenario",
    "costs": "hybrid_des.analysis.cost_table",
    "goodput": "hybrid_des.longrun.study",
    "Goodput": "hybrid_des.longrun.study",
    "simulate": "hybrid_des.result",
    "Result": "hybrid_des.result",
    "plots": "hybrid_des.report",
    "schedules": "hybrid_des.pipeline",
    "spread": "hybrid_des.seeds.runs",
}


def __getattr__(name: str) -> Any:
    """Import the public names on first use, to keep start-up fast."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(_HOME[name])
    return getattr(module, name) if hasattr(module, name) else importlib.import_module(f"{_HOME[name]}.{name}")


def __dir__() -> list[str]:
    """Include the public names, which are imported only on first use."""
    return sorted({*globals(), *__all__})
