"""Draw one figure for a paper: gantt, links or memory of a run, curves of what-ifs, or a sweep.

The figure is as wide as a column of a paper, and text in PDF and SVG stays text. FILE ends in .pdf, .svg or .png.
--colour and --label take the names shown in the figure; --label also takes x, y and title.

  hybrid-des figure gantt scenarios/a100_8x.yaml --out gantt.pdf --ranks 0,2,4-6 --window 200ms 700ms --label forward=F
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_des.errors import LONGEST_SHOWN, UsageError, one_line
from hybrid_des.interface.cli.arguments import add_budget, add_common, add_out, one_scenario
from hybrid_des.interface.cli.deadline import within
from hybrid_des.interface.cli.output import progress_line, say, status_line
from hybrid_des.report.plots import gantt
from hybrid_des.report.plots.figure import LEGENDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OF_A_RUN = ("gantt", "links", "memory")
KINDS = (*OF_A_RUN, "curves", "sweep")
MOST_NUMBERS = 100_000  # that a range of ranks or steps names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a kind, a scenario, the file, and what is drawn how."""
    parser.add_argument("kind", metavar="KIND", choices=KINDS, help=", ".join(KINDS))
    parser.add_argument("file", metavar="SCENARIO", help="a scenario file; for sweep, one with a sweep and a plot")
    add_out(parser, "the figure: a .pdf, .svg or .png file", metavar="FILE")
    parser.add_argument("--steps", metavar="N,N-M", type=_numbers, help="steps to draw (default: all that are visible)")
    parser.add_argument("--ranks", metavar="N,N-M", type=_numbers, help="ranks to draw (default: as many as fit)")
    parser.add_argument("--window", metavar=("BEGIN", "END"), nargs=2, help="time to draw, such as 200ms 700ms")
    size = "column, page, notebook, a width such as 8.5cm, inches, or W,H"
    parser.add_argument("--width", "--size", dest="size", metavar="WIDTH", default="column", help=size)
    parser.add_argument("--legend", metavar="PLACE", choices=LEGENDS, help=", ".join(LEGENDS))
    for name, what in (("colour", "COLOUR"), ("label", "TEXT")):
        usual = {"action": "append", "default": [], "metavar": f"NAME={what}"}
        parser.add_argument(f"--{name}", help=f"another {name} for what the picture calls NAME", **usual)  # type: ignore[arg-type]
    parser.add_argument("--json", action="store_true", help="print what the figure shows as JSON")
    add_budget(parser, "end after this time, such as 60s, without a figure; exit code 3")
    add_common(parser)


def run(args: argparse.Namespace) -> int:
    """Simulate, draw, and write the file."""
    if args.out is None:
        raise UsageError("figure: no file to write to; expected --out FILE.pdf, .svg or .png")
    shown = {"steps": args.steps, "ranks": args.ranks, "window": args.window and tuple(args.window)}
    given = [f"--{name}" for name, value in shown.items() if value is not None]
    if given and args.kind not in OF_A_RUN:
        raise UsageError(f"{', '.join(given)}: only {', '.join(OF_A_RUN)} have them, not {args.kind}")
    look: dict[str, Any] = {"colours": _pairs("colour", args.colour), "labels": _pairs("label", args.label)}
    look |= {"size": _size(args.size), "legend": args.legend}
    with status_line(args.json) as show, within(args.budget, one_line(args.file)):
        ax = _drawn(args, {**shown, **look} if args.kind in OF_A_RUN else look, show)
    _write(args.out, ax)
    if args.json:
        print(json.dumps(_words(ax), indent=2))
    say(f"wrote {one_line(str(args.out))}")
    return 0


def _words(ax: Axes) -> dict[str, Any]:
    """The size, texts and ends of the axes of a picture."""
    figure, legend = ax.get_figure(root=True), ax.get_legend()
    assert figure is not None
    return {
        "inches": figure.get_size_inches().tolist(),
        "title": ax.get_title(loc="left"),
        "x": {"label": ax.get_xlabel(), "ends": [*ax.get_xlim()]},
        "y": {"label": ax.get_ylabel(), "ends": [*ax.get_ylim()]},
        "legend": [] if legend is None else [text.get_text() for text in legend.get_texts()],
    }


def _drawn(args: argparse.Namespace, options: dict[str, Any], show: Callable[[str], None] | None) -> Axes:
    """The picture of the asked kind."""
    import matplotlib as mpl

    mpl.use("Agg")  # no window
    if args.kind == "sweep":
        from hybrid_des.studies.sweep.axes import load_sweep
        from hybrid_des.studies.sweep.results import draw
        from hybrid_des.studies.sweep.runner import sweep_rows

        sweep = load_sweep(args.file, args.set, args.imports)
        if sweep.picture is None:
            raise UsageError(f"{args.file}: no plot to draw; expected plot: {{x: …, y: …}} beside the sweep")
        return draw(sweep_rows(sweep.only(sweep.picture.where)), sweep.picture, **options)
    from hybrid_des.analysis.explanation import explain
    from hybrid_des.report.plots import curves
    from hybrid_des.result import simulate

    scenario = one_scenario("figure", args.file, args.set)
    if args.kind == "curves":
        return curves.what_if_curves(explain(scenario), **options)
    picture: Any = {"gantt": gantt.gantt, "links": curves.link_use, "memory": curves.memory_curve}[args.kind]
    progress = None if show is None else lambda headway: show(progress_line(headway))
    ax: Axes = picture(simulate(scenario, progress=progress).run, **options)
    return ax


def _write(path: Path, ax: Axes) -> None:
    from hybrid_des.report.files.staging import write_whole
    from hybrid_des.report.plots.figure import save_as, too_small

    figure = ax.get_figure(root=True)
    assert figure is not None
    if too_small(figure):
        width, height = (f"{2.54 * one:.3g}" for one in figure.get_size_inches())
        raise UsageError(f"--width: {width} × {height} cm are too small for the labels of this picture")
    write_whole(path.parent, lambda folder: save_as(figure, folder / path.name))


def _numbers(text: str) -> list[int]:
    """Parse numbers and ranges such as 0,2,4-6."""
    chosen: list[int] = []
    for part in text.split(","):
        ends = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part.strip())
        numbers = range(int(ends[1]), int(ends[2] or ends[1]) + 1) if ends else range(0)
        if not 0 < len(numbers) <= MOST_NUMBERS:
            shown = one_line(text, LONGEST_SHOWN)
            raise argparse.ArgumentTypeError(f'expected numbers such as 0,2,4-6, found "{shown}"')
        chosen += numbers
    return chosen


def _pairs(option: str, texts: Iterable[str]) -> dict[str, str]:
    """Parse NAME=VALUE."""
    for text in texts:
        if "=" not in text:
            raise UsageError(f'--{option}: expected NAME=VALUE, found "{one_line(text, LONGEST_SHOWN)}"')
    return dict(text.split("=", 1) for text in texts)


def _size(text: str) -> Any:
    """Parse the name of a width, inches, or two numbers of them."""
    if not re.fullmatch(r"[0-9.]+(,[0-9.]+)?", text):
        return text
    try:
        inches = tuple(float(one) for one in text.split(","))
    except ValueError:
        raise UsageError(f"--size {text}: expected inches such as 3.5 or 3.5,2") from None
    return inches if len(inches) == 2 else inches[0]
