"""Draw a folder of scenarios: one line and one picture each, in its README.md.

Every scenario's first step is simulated; pictures go to `gallery/` beside the README. Files with a sweep are left out.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from hybrid_des.errors import UsageError

if TYPE_CHECKING:
    from hybrid_des.result import Result

PICTURES = "gallery"
WIDTH = 9.0  # inches
DOTS_PER_INCH = 80
OPENING = """\
# Scenarios

Run one with `python -m hybrid_des {folder}/{first}.yaml`; each file opens with a comment that says what it shows.
The pictures show who computes what when, in the first step; numbers are micro-batches. This page and its pictures are
drawn by `python -m hybrid_des gallery {folder}`.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Take the folder."""
    parser.add_argument("folder", nargs="?", default="scenarios", type=Path, help="where the scenarios are (scenarios)")


def run(args: argparse.Namespace) -> int:
    """Simulate and draw them all, then write page and pictures."""
    from hybrid_des.report.files import write_whole
    from hybrid_des.scenario import read_scenario

    if not args.folder.is_dir():
        raise UsageError(f"{args.folder}: no such folder")
    files = [file for file in sorted(args.folder.glob("*.yaml")) if not read_scenario(file).value.get("sweep")]
    if not files:
        raise UsageError(f"{args.folder}: no scenarios here, expected files such as a100_8x.yaml")
    results = {file: _first_step(file) for file in files}

    def pictures(workshop: Path) -> list[str]:
        for file, result in results.items():
            _draw(result, workshop / f"{file.stem}.png")
        return []

    def page(workshop: Path) -> list[str]:
        (workshop / "README.md").write_text(page_of(args.folder, results), encoding="utf-8")
        return []

    write_whole(args.folder / PICTURES, pictures)
    write_whole(args.folder, page)
    print(f"drew {len(results)} scenarios in {args.folder / 'README.md'}")
    return 0


def page_of(folder: Path, results: dict[Path, Result]) -> str:
    """Write the page: for each scenario its name, its line, its figures and its picture."""
    from hybrid_des.units import format_seconds

    parts = [OPENING.format(folder=folder.as_posix(), first=next(iter(results)).stem)]
    for file, result in results.items():
        facts, scenario = result.summary, result.run.scenario
        parts.append(
            f"## [{file.stem}]({file.name})\n\n{scenario.description or file.stem}: "
            f"step {format_seconds(facts['step_time_s'])}, bubble {facts['bubble_ratio']:.1%}, "
            f"{facts['efficiency']:.1%} efficient.\n\n![{file.stem}]({PICTURES}/{file.stem}.png)\n"
        )
    return "\n".join(parts)


def _first_step(file: Path) -> Result:
    from hybrid_des.result import simulate
    from hybrid_des.scenario import load

    return simulate(load(file, ["steps=1"]))


def _draw(result: Result, path: Path) -> None:
    from hybrid_des.report import plots

    figure = plots.draw(result.run, plots.gantt)
    figure.set_size_inches(WIDTH, figure.get_size_inches()[1])
    figure.savefig(path, dpi=DOTS_PER_INCH, metadata={"Software": None})
