"""Draw the gallery of scenarios: `python scenarios/draw_gallery.py [FOLDER]`.

It simulates the first step of every scenario in the folder (default: this one), sweeps excepted, and writes the page
`README.md` with its pictures in `gallery/`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from hybrid_des import Result, load, plots, simulate
from hybrid_des.report.files import write_whole
from hybrid_des.scenario import read_scenario
from hybrid_des.units import format_seconds

PICTURES = "gallery"
WIDTH = 9.0  # inches
DOTS_PER_INCH = 80
OPENING = """\
# Scenarios

Run one with `python -m hybrid_des scenarios/a100_8x.yaml`; a comment at the top of each file says what it shows.
The pictures are timelines of the first step, one line per rank; numbers are micro-batches. `scenarios/draw_gallery.py`
generates this page and its pictures. The [reference](REFERENCE.md) lists all keys.
"""


def draw_gallery(folder: Path) -> int:
    """Simulate and draw all scenarios of a folder, write page and pictures, and return the number of scenarios."""
    files = [file for file in sorted(folder.glob("*.yaml")) if not read_scenario(file).value.get("sweep")]
    if not files:
        raise SystemExit(f"{folder}: no scenarios found; expected files such as a100_8x.yaml")
    results = {file: simulate(load(file, ["steps=1"])) for file in files}

    def pictures(workshop: Path) -> list[str]:
        for file, result in results.items():
            _draw(result, workshop / f"{file.stem}.png")
        return []

    def page(workshop: Path) -> list[str]:
        (workshop / "README.md").write_text(page_of(results), encoding="utf-8")
        return []

    write_whole(folder / PICTURES, pictures)
    write_whole(folder, page)
    return len(results)


def page_of(results: dict[Path, Result]) -> str:
    """The page as Markdown: name, description, figures and picture of each scenario."""
    parts = [OPENING]
    for file, result in results.items():
        facts = result.summary
        parts.append(
            f"## [{file.stem}]({file.name})\n\n{result.run.scenario.description or file.stem}: "
            f"step {format_seconds(facts['step_time_s'])}, bubble {facts['bubble_ratio']:.1%}, "
            f"{facts['efficiency']:.1%} efficient.\n\n![{file.stem}]({PICTURES}/{file.stem}.png)\n"
        )
    return "\n".join(parts)


def _draw(result: Result, path: Path) -> None:
    figure = plots.draw(result.run, plots.gantt)
    figure.set_size_inches(WIDTH, figure.get_size_inches()[1])
    figure.savefig(path, dpi=DOTS_PER_INCH, metadata={"Software": None})


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    print(f"drew {draw_gallery(folder)} scenarios in {folder / 'README.md'}")
