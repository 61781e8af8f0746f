"""Write the tables of the report: `python scenarios/report/write_page.py [FOLDER]`.

It simulates every case of the sweeps beside it and writes `README.md` into the folder (default: this one). Two columns
are not in a sweep's own table:

    memory efficiency    bytes of the model on the rank with the highest peak / that peak
    response time        of a micro-batch: start of its first forward to end of its last backward, on average
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hybrid_des import Result, load, simulate
from hybrid_des.planning.planner import parts_of
from hybrid_des.report.files.staging import write_whole
from hybrid_des.studies.sweep import load_sweep
from hybrid_des.units import format_bytes, format_seconds, format_share

HERE = Path(__file__).parent
FILES = ("microbatches", "depth", "data_parallel")
COLUMNS = ("step", "speed-up", "communication", "peak memory", "memory efficiency", "response time")
OPENING = """\
# Three benchmarks

The benchmarks of the first prototype: 50 ms forward, 80 ms backward, 8 micro-batches, 2 stages x 2 replicas unless said
otherwise, messages between stages free. Communication is the exposed share of the step; memory efficiency is the share
of the highest peak that the model itself takes (parameters, gradients, optimizer); response time is that of a
micro-batch, from the start of its first forward to the end of its last backward, on average. `write_page.py` generates
this page; `python -m hybrid_des scenarios/report/depth.yaml --out DIR` gives all columns of a sweep and its plot.
"""


def page_of(files: list[Path]) -> str:
    """The page as Markdown: the comment, the command and the table of each file."""
    parts = [OPENING]
    for file in files:
        comment = [line[2:] for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("# ")][1:]
        parts.append(f"## [{file.stem}]({file.name})\n\n" + "\n".join(comment) + "\n\n" + table_of(file))
    return "\n".join(parts)


def table_of(file: Path) -> str:
    """One line per case of a sweep."""
    sweep = load_sweep(file)
    lines = [[*(path.partition(".")[2] for path in sweep.paths), *COLUMNS]]
    lines.append(["---:"] * len(lines[0]))
    for case in sweep.cases():
        settings = [f"{path}={value}" for path, value in case.items()]
        result = simulate(load(file, ["sweep=none", "plot=none", *settings]))
        lines.append([*(f"{value:g}" if isinstance(value, float) else str(value) for value in case.values()),
                      *figures_of(result)])  # fmt: skip
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def figures_of(result: Result) -> list[str]:
    """The figures of a case, in the order of `COLUMNS`."""
    facts: dict[str, Any] = result.summary
    peak = max(facts["peak_memory_bytes"])
    return [
        format_seconds(facts["step_time_s"]),
        f"{facts['speedup']:.2f}×",
        format_share(facts["exposed_communication_ratio"]),
        format_bytes(peak),
        format_share(memory_efficiency(result), 0),
        format_seconds(response_time(result)),
    ]


def memory_efficiency(result: Result) -> float:
    """Bytes of parameters, gradients and optimizer over the highest peak."""
    peaks = result.summary["peak_memory_bytes"]
    worst = peaks.index(max(peaks))
    return parts_of(result.run.scenario).costs.resident[worst] / peaks[worst]


def response_time(result: Result) -> float:
    """Mean seconds from the start of a micro-batch's first forward to the end of its last backward."""
    ops = result.timeline.query("lane == 'compute' and microbatch >= 0")
    mine = ops.groupby(["step", "replica", "microbatch"])
    return float((mine.end_s.max() - mine.start_s.min()).mean())


def write_page(folder: Path) -> Path:
    """Write the page into a folder and return its path."""

    def page(staging: Path) -> list[str]:
        (staging / "README.md").write_text(page_of([HERE / f"{name}.yaml" for name in FILES]), encoding="utf-8")
        return []

    write_whole(folder, page)
    return folder / "README.md"


if __name__ == "__main__":
    print(f"wrote {write_page(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)}")
