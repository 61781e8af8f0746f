"""How a run is measured: against a bare SimPy loop in the same process, pair by pair.

Times are of the processor, not of the clock on the wall: what else the machine does is left out as far as it can be.
"""

from __future__ import annotations

import gc
import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

import simpy
from benchmarks.cases import Case

from hybrid_des.result import simulate

MOST_TIMEOUTS = 2**22  # of the bare loop beside a folded case; with fewer processes each takes less time


@dataclass(frozen=True)
class Figures:
    """What a case cost.

    Attributes:
        ratios: time of the run / time of the bare loop beside it, one entry per repeat.
        seconds: of processor time that the quickest run took.
        peak: megabytes of the process, interpreter and imports included, before any table was made.
    """

    messages: int
    events: int
    ratios: list[float]
    seconds: float
    peak: float

    @property
    def ratio(self) -> float:
        """The median of the pairs."""
        return statistics.median(self.ratios)


def measure(case: Case, repeats: int = 3) -> Figures:
    """Simulate a case at least `repeats` times, each beside a bare loop of as many timeouts; the timeline is kept.

    Short runs are repeated for a tenth of a second, so that the first one, with cold caches, does not decide; long ones
    end with the repeat in which a minute is over. Beside a folded case, whose messages are too many to
    simulate one by one, a part of the bare loop is measured, and the rest counted alike.
    """
    ratios: list[float] = []
    times: list[float] = []
    while sum(times) < 0.1 or (len(times) < repeats and sum(times) < 60):
        gc.collect()
        start = process_time()
        run = simulate(case.scenario).run
        times.append(process_time() - start)
        messages, events = run.messages, run.events
        kept = run.timeline.messages["end"] if run.timeline.stream is None else run.timeline.stream
        assert len(kept) * run.timeline.alike >= messages
        del run, kept
        timeouts = -(-(messages + case.ops) // case.ranks)
        share = min(1, MOST_TIMEOUTS / (case.ranks * timeouts)) if case.scenario.fold == "auto" else 1
        processes = max(1, int(case.ranks * share))
        ratios.append(times[-1] / (bare_loop(processes, timeouts) * case.ranks / processes))
    return Figures(messages, events, ratios, min(times), peak_memory())


def peak_memory() -> float:
    """Megabytes of this process at its peak, as Linux tells; getrusage counts the process it was forked from too."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].removesuffix("kB")) * 1024 / 10**6


def waiting(processes: int, timeouts: int) -> simpy.Environment:
    """SimPy with processes that only wait, each the given number of times."""
    env = simpy.Environment()

    def wait():
        for _ in range(timeouts):
            yield env.timeout(1)

    for _ in range(processes):
        env.process(wait())
    return env


def bare_loop(processes: int, timeouts: int) -> float:
    """Seconds that SimPy takes for such processes."""
    env = waiting(processes, timeouts)
    gc.collect()
    start = process_time()
    env.run()
    return process_time() - start


def seconds(work: Callable[[], object]) -> float:
    """Processor time of one call."""
    gc.collect()
    start = process_time()
    work()
    return process_time() - start


def command_seconds(*arguments: str) -> float:
    """Processor time of one run of Python as a command, whose modules were compiled before, as by an installation."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = bytecode().name
    times = []
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return times[-1]  # the first may have compiled them


@cache
def bytecode() -> TemporaryDirectory[str]:
    """A folder for compiled modules: an editable installation of a clone may have none."""
    return TemporaryDirectory()
