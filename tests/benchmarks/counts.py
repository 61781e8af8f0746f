"""Print what an event costs in steps that do not depend on the machine, as in docs/background/speed.md.

`python tests/benchmarks/counts.py` counts, while events are processed, calls of Python functions, resumptions of
generators and calls of compiled functions, per message or op; planning before and tables after are left out.
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.cases import Case, pipeline, ring
from benchmarks.measure import waiting

from hybrid_des.planning.planner import parts_of
from hybrid_des.simulation.jobs import started

CASES = {
    "ring all-reduce, physical ring": ring(128, "ring"),
    "ring all-reduce, ports and a switch": ring(128),
    "1F1B, p=64": pipeline(128),
}
KINDS = ("Python functions", "generators", "compiled functions")


def counted(work: Callable[[], object]) -> Counter[str]:
    """How often each kind is called."""
    counts = Counter[str]()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            counts["generators" if frame.f_code.co_flags & inspect.CO_GENERATOR else "Python functions"] += 1
        elif event == "c_call":
            counts["compiled functions"] += 1

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return counts


def bare(processes: int = 64, timeouts: int = 256) -> tuple[Counter[str], int, int]:
    """The counts of SimPy's own loop, its events, and its timeouts."""
    return counted(waiting(processes, timeouts).run), processes * timeouts, processes * timeouts


def simulated(case: Case) -> tuple[Counter[str], int, int]:
    """The counts of a simulation, its events, and its messages and ops."""
    job = started(case.scenario, parts_of(case.scenario, None, None, None))
    env = job.transport.env
    counts = counted(env.run)
    return counts, env.events, job.transport.sent()["messages"] + case.ops


def row(name: str, counts: Counter[str], events: int, each: int) -> str:
    """One line of the table."""
    return " | ".join(["", name, f"{events / each:.2f}", *(f"{counts[kind] / each:.1f}" for kind in KINDS), ""]).strip()


def main() -> None:
    """Print the table."""
    print("| per message or op | events |", " | ".join(KINDS), "|")
    print("|---|" + "---:|" * (1 + len(KINDS)))
    print(row("bare SimPy loop, per timeout", *bare()))
    for name, case in CASES.items():
        print(row(name, *simulated(case)))


if __name__ == "__main__":
    main()
