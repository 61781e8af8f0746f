"""Print the cost of simulations, as in docs/background/speed.md, then the limits: `python tests/benchmarks/run.py`.

Each case runs at least three times in a separate process. "× bare loop" is the median of its time over that of a bare
SimPy loop in the same process, with one SimPy process per GPU and as many timeouts as the run has messages and ops. A
limit is a ratio of times, or a time; the exit code is 1 if one is exceeded.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.cases import Case, folded, mixed, pipeline, ring
from benchmarks.limits import limits
from benchmarks.measure import Figures, measure
from support.interrupts import heed_interrupts

SPINE = {"topology": "leaf-spine", "oversubscription": 4, "leaf_size": 4}
CASES: dict[str, Callable[[], Case]] = {
    **{f"ring all-reduce, physical ring, {n} GPUs": lambda n=n: ring(n, "ring") for n in (8, 64, 256, 1024)},
    **{f"ring all-reduce, ports and a switch, {n} GPUs": lambda n=n: ring(n) for n in (8, 64, 256, 1024)},
    **{f"1F1B, p=64, m={m}": lambda m=m: pipeline(m) for m in (128, 1024)},
    **{f"mixed step, p=16, d={d}, m=16": lambda d=d: mixed(d) for d in (16, 128, 512, 1024)},
    **{f"mixed step, p=16, d={d}, m=16, folded": lambda d=d: folded(d) for d in (1024, 8192, 65536)},
    **{f"mixed step, p=16, d={d}, m=16, fair": lambda d=d: mixed(d, "fair") for d in (16, 128)},
    "mixed step, p=16, d=128, m=16, fair, 4:1 spine": lambda: mixed(128, "fair", **SPINE),
}


def main() -> None:
    """Print the table of costs and the table of limits."""
    parser = argparse.ArgumentParser(prog="python tests/benchmarks/run.py", description=__doc__.splitlines()[0])
    largest = "leave out larger cases; of a folded one a 64th counts"
    parser.add_argument("--largest", type=int, default=2048, metavar="GPUS", help=largest)
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(dataclasses.asdict(measure(CASES[arguments.case]()))))
        return
    print("| | messages | events | events per message | µs per event | × bare loop | peak memory |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, make in CASES.items():
        if make().size <= arguments.largest:
            print(row(name, in_a_new_process(name)), flush=True)
    print("\n| limit | measured | at most | |\n|---|---:|---:|---|")
    heed_interrupts()  # live pages that a limit serves end as by Ctrl-C
    kept = True
    for limit in limits():
        line, within = limit.line()
        print(line, flush=True)
        kept &= within
    sys.exit(0 if kept else 1)


def in_a_new_process(name: str) -> Figures:
    """Measure a case alone, so that its peak memory is not that of an earlier one."""
    command = [sys.executable, __file__, "--case", name]
    return Figures(**json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))


def row(name: str, figures: Figures) -> str:
    """One line of the table."""
    each = figures.events / figures.messages
    time = figures.seconds / figures.events * 1e6
    return (
        f"| {name} | {figures.messages:,} | {figures.events:,} | {each:.2f} | {time:.2f} | {figures.ratio:.2g}"
        f" | {figures.peak:.0f} MB |"
    )


main()
