"""Draw the gallery of scenarios: `python scenarios/draw_gallery.py [FOLDER]`.

It simulates the first step of every scenario in the folder (default: this one), sweeps excepted, and writes the page
`README.md` with its pictures in `gallery/`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hybrid_des import Result, load, plots, simulate
from hybrid_des.report.files import write_whole
from hybrid_des.report.plots.chart import size_of
from hybrid_des.scenario import read_scenario
from hybrid_des.units import format_seconds

if TYPE_CHECKING:
    import pandas as pd

PICTURES = "gallery"
WIDTH = 9.0  # inches
DOTS_PER_INCH = 80
MOST_RANKS = 16  # of more, one rank per stage of the first replica is drawn
OPENING = """\
# Scenarios

Run one with `python -m hybrid_des scenarios/a100_8x.yaml`; a comment at the top of each file says what it shows.
The pictures are timelines of the first step, one line per rank, or for more than 16 ranks one line per pipeline rank of
the first replica; numbers are micro-batches. `scenarios/draw_gallery.py` generates this page and its pictures. The
[reference](REFERENCE.md) lists all keys. Sweeps: [three benchmarks](report/README.md) and the
[experiments](experiments) on schedules.
"""


def draw_gallery(folder: Path) -> int:
    """Simulate and draw all scenarios of a folder, write page and pictures, and return the number of scenarios."""
    files = [file for file in sorted(folder.glob("*.yaml")) if not read_scenario(file).value.get("sweep")]
    if not files:
        raise SystemExit(f"{folder}: no scenarios found; expected files such as a100_8x.yaml")
    sections: list[str] = []

    def pictures(workshop: Path) -> list[str]:
        for file in files:  # one at a time: the timeline of a thousand ranks is large
            result = simulate(load(file, ["steps=1"]))
            _draw(result, workshop / f"{file.stem}.png")
            sections.append(section_of(file, result))
        return []

    def page(workshop: Path) -> list[str]:
        (workshop / "README.md").write_text(page_of(sections), encoding="utf-8")
        return []

    write_whole(folder / PICTURES, pictures)
    write_whole(folder, page)
    return len(files)


def page_of(sections: Sequence[str]) -> str:
    """The page as Markdown."""
    return "\n".join([OPENING, *sections])


def section_of(file: Path, result: Result) -> str:
    """Name, description, figures and picture of a scenario."""
    facts = result.summary
    return (
        f"## [{file.stem}]({file.name})\n\n{result.run.scenario.description or file.stem}: "
        f"step {format_seconds(facts['step_time_s'])}, bubble {facts['bubble_ratio']:.1%}, "
        f"{facts['efficiency']:.1%} efficient.\n\n![{file.stem}]({PICTURES}/{file.stem}.png)\n"
    )


def _draw(result: Result, path: Path) -> None:
    whole = result.run.scenario.parallel.ranks <= MOST_RANKS
    figure = plots.draw(result.run, plots.gantt if whole else lambda _, ax: plots.gantt(_one_replica(result), ax))
    lines = result.run.scenario.parallel.ranks if whole else result.run.scenario.parallel.pipeline
    figure.set_size_inches(WIDTH, size_of(lines)[1])
    figure.savefig(path, dpi=DOTS_PER_INCH, metadata={"Software": None})


def _one_replica(result: Result) -> pd.DataFrame:
    """Ops of the first replica, of one of the ranks that share each stage."""
    ops = result.timeline.query("lane == 'compute' and replica == 0")
    return ops[ops["rank"] == ops.groupby("pipeline_rank")["rank"].transform("min")]


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    print(f"drew {draw_gallery(folder)} scenarios in {folder / 'README.md'}")
