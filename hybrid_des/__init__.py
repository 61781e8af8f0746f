"""A discrete-event simulator of hybrid-parallel deep-learning training.

from hybrid_des import load, simulate
result = simulate(load("scenarios/a100_8x.yaml"))
result.summary["step_time_s"]
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybrid_des import plots
    from hybrid_des.analysis.compare import Comparison, compare
    from hybrid_des.analysis.costs import collective, costs
    from hybrid_des.analysis.explanation import Explanation, explain
    from hybrid_des.interchange.frameworks.megatron import megatron
    from hybrid_des.interchange.frameworks.torchtitan import torchtitan
    from hybrid_des.interchange.profiles.imported import Imported
    from hybrid_des.interchange.profiles.importing import import_profile
    from hybrid_des.jobs.report import simulate_jobs
    from hybrid_des.pipeline import schedules
    from hybrid_des.plan_search import SearchResult, search
    from hybrid_des.planning.planner import parts_of
    from hybrid_des.planning.wiring import fabric_of
    from hybrid_des.renewal.goodput import Goodput, goodput
    from hybrid_des.report.explained import draw_comparison, render_comparison, render_explanation
    from hybrid_des.result import Result, simulate
    from hybrid_des.scenario import Scenario, load
    from hybrid_des.seeds.spread import spread
    from hybrid_des.stragglers.replaying import Replayed, replay
    from hybrid_des.sweep import Sweep, load_sweep, run_sweep

__version__ = "0.2.0"
__all__ = [
    "Comparison", "Explanation", "Goodput", "Imported", "Replayed", "Result", "Scenario", "SearchResult", "Sweep",
    "collective", "compare", "costs", "draw_comparison", "explain", "fabric_of", "goodput", "import_profile", "load",
    "load_sweep", "megatron", "parts_of", "plots", "render_comparison", "render_explanation", "replay", "run_sweep",
    "schedules", "search", "simulate", "simulate_jobs", "spread", "torchtitan", "verify",
]  # fmt: skip

_HOME = {
    "load": "hybrid_des.scenario",
    "Scenario": "hybrid_des.scenario",
    "collective": "hybrid_des.analysis.costs",
    "Comparison": "hybrid_des.analysis.compare",
    "compare": "hybrid_des.analysis.compare",
    "costs": "hybrid_des.analysis.costs",
    "draw_comparison": "hybrid_des.report.explained",
    "Explanation": "hybrid_des.analysis.explanation",
    "explain": "hybrid_des.analysis.explanation",
    "fabric_of": "hybrid_des.planning.wiring",
    "parts_of": "hybrid_des.planning.planner",
    "render_comparison": "hybrid_des.report.explained",
    "render_explanation": "hybrid_des.report.explained",
    "Replayed": "hybrid_des.stragglers.replaying",
    "replay": "hybrid_des.stragglers.replaying",
    "Sweep": "hybrid_des.sweep",
    "load_sweep": "hybrid_des.sweep",
    "run_sweep": "hybrid_des.sweep",
    "verify": "hybrid_des.cli.commands.verify",
    "goodput": "hybrid_des.renewal.goodput",
    "Goodput": "hybrid_des.renewal.goodput",
    "search": "hybrid_des.plan_search",
    "SearchResult": "hybrid_des.plan_search",
    "megatron": "hybrid_des.interchange.frameworks.megatron",
    "torchtitan": "hybrid_des.interchange.frameworks.torchtitan",
    "import_profile": "hybrid_des.interchange.profiles.importing",
    "Imported": "hybrid_des.interchange.profiles.imported",
    "simulate": "hybrid_des.result",
    "Result": "hybrid_des.result",
    "plots": "hybrid_des.plots",
    "schedules": "hybrid_des.pipeline",
    "spread": "hybrid_des.seeds.spread",
    "simulate_jobs": "hybrid_des.jobs.report",
}


def __getattr__(name: str) -> Any:
    """Import the public names on first use, to keep start-up fast."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(_HOME[name])
    return module if _HOME[name] == f"{__name__}.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    """Include the public names, which are imported only on first use."""
    return sorted({*globals(), *__all__})
