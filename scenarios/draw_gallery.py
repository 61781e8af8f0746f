"""Draw the gallery of scenarios: `python scenarios/draw_gallery.py [FOLDER]`.

It simulates the first step of every scenario in the folder (default: this one), sweeps excepted, and writes the page
`README.md` with its pictures in `gallery/`: first all schedules side by side, and one picture of each other kind.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from PIL import Image

from hybrid_des import Result, load, plots, simulate, simulate_rl
from hybrid_des.pipeline import schedules
from hybrid_des.planning.program_table import OP_KINDS
from hybrid_des.planning.wiring import fabric_of
from hybrid_des.report import palette
from hybrid_des.report.files.staging import write_whole
from hybrid_des.report.palette import ACTIVITIES
from hybrid_des.report.plots.fabric_map import draw_fabric
from hybrid_des.report.plots.gantt import size_of, title_of
from hybrid_des.report.plots.style import LINES, patches_of, plain
from hybrid_des.scenario.loading import read_scenario
from hybrid_des.studies import sweep
from hybrid_des.studies.jobs.result import simulate_jobs
from hybrid_des.units import PICOSECONDS_PER_SECOND, format_seconds, format_share

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from hybrid_des.simulation.outcome import Run

PICTURES = "gallery"
WIDTH = 8.0  # inches, about 700 pixels on the site: 90 pixels per inch, so that 9 points are 11 pixels
DOTS_PER_INCH = 110
SHADES = "first and second chunk, or direction"
SWEEP = (
    "sweep=[{schedule.microbatches: [4, 8, 16, 32]}, {schedule.kind: [gpipe, 1f1b, zb-h1, zb-h2]}]",
    "plot={x: schedule.microbatches, y: efficiency, hue: schedule.kind}",
    "workload.memory.activation=11 GB",
)
MOST_RANKS = 16  # of more, one rank per stage of the first replica is drawn
OPENING = """\
# Scenarios

Run one with `python -m hybrid_des scenarios/a100_8x.yaml`; a comment at the top of each file says what it shows.
The pictures are timelines of the first step, one line per rank (`×2`: of two identical ones), or for more than 16 ranks
one line per pipeline rank of the first replica; numbers are micro-batches. `scenarios/draw_gallery.py` generates
this page and its pictures. The [reference](REFERENCE.md) lists all keys. Sweeps:
[three benchmarks](report/README.md) and the [experiments](experiments) on schedules.
"""
FAMILIES = {  # one schedule of each, and what sets it apart
    "1f1b": "one forward, one backward", "interleaved-1f1b": "several chunks per rank", "zb-h1": "split backwards",
    "zb-v": "split backwards, chunks in a V", "dualpipe": "both directions, fused pairs",
}  # fmt: skip
KINDS = {
    "schedules": "All schedules on 4 pipeline ranks with 8 micro-batches on one time axis: a forward and either part "
    "of the backward take one unit, links are free (`hybrid-des schedules`)",
    "families": "One schedule of each family, in the same way; a backward without its weight part is shorter",
    "sweep": "A sweep of micro-batches and schedules on [a100_8x](a100_8x.yaml) with large activations; hollow points "
    "do not fit into memory",
    "topology": "The links of [h100_2x8](h100_2x8.yaml) and the route from rank 0 to rank 9 (`hybrid-des topology`)",
    "link_use": "Where pipeline and gradient reduction meet: link use in [contention_slower](contention_slower.yaml), "
    "as shares of each link's bandwidth",
    "jobs": "Two jobs on one leaf and spine, [two_jobs](jobs/two_jobs.yaml) with `--set jobs.gpt.batch=16`: the use of "
    "the busiest links by job",
    "placements": "Three jobs under [three placements](jobs/three_placements.yaml): the slowdown of each",
    "background": "A job [beside background traffic](jobs/beside_background.yaml), as shares of each link's bandwidth",
    "loop": "Engines, queue and trainer of [rl/async](rl/async.yaml): running sequences of some replicas, groups in "
    "the queue, and what the trainer does; ages and lengths of samples",
    "loss": "The loss of the small model that the GPUs of [prototype_12gpu_training](prototype_12gpu_training.yaml) "
    "train",
}


def draw_gallery(folder: Path) -> int:
    """Simulate and draw all scenarios of a folder, write page and pictures, and return the number of scenarios."""
    files = [file for file in sorted(folder.glob("*.yaml")) if not read_scenario(file).value.get("sweep")]
    if not files:
        raise SystemExit(f"{folder}: no scenarios found; expected files such as a100_8x.yaml")
    sections: list[str] = []

    def pictures(staging: Path) -> list[str]:
        with ProcessPoolExecutor(os.cpu_count()) as pool:  # timelines of a thousand ranks are large: one per process
            drawn = [pool.submit(_draw_kind, name, folder, staging) for name in KINDS]
            sections.extend(pool.map(partial(_draw_file, staging=staging), files))
            for one in drawn:
                one.result()
        return []

    def page(staging: Path) -> list[str]:
        (staging / "README.md").write_text(page_of(sections), encoding="utf-8")
        return []

    write_whole(folder / PICTURES, pictures)
    write_whole(folder, page)
    return len(files)


def _draw_kind(name: str, folder: Path, staging: Path) -> None:
    """Draw a picture of `KINDS`."""
    draw = {
        "schedules": _schedules,
        "families": _families,
        "sweep": _sweep,
        "topology": _topology,
        "link_use": _link_use,
        "loop": _loop,
        "loss": _loss,
        "jobs": _jobs,
        "placements": _placements,
        "background": _background,
    }[name]
    _save(draw(folder), staging / f"{name}.png")


def _draw_file(file: Path, staging: Path) -> str:
    """Simulate and draw a scenario, and describe it."""
    result = simulate(load(file).model_copy(update={"steps": 1}))
    _draw(result, staging / f"{file.stem}.png")
    return section_of(file, result)


def _save(figure: Figure, path: Path) -> None:
    """Save a picture in 256 colours, which takes a third of the bytes."""
    drawn = BytesIO()
    figure.savefig(drawn, dpi=DOTS_PER_INCH, metadata={"Software": None})
    Image.open(drawn).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path)


def page_of(sections: Sequence[str]) -> str:
    """The page as Markdown."""
    kinds = [f"{text}:\n\n![{name}]({PICTURES}/{name}.png)\n" for name, text in KINDS.items()]
    return "\n".join([OPENING, *kinds, *sections])


def section_of(file: Path, result: Result) -> str:
    """Name, description, figures and picture of a scenario."""
    facts = result.summary
    return (
        f"## [{file.stem}]({file.name})\n\n{result.run.scenario.description or file.stem}: "
        f"step {format_seconds(facts['step_time_s'])}, bubble {format_share(facts['step_shares']['bubble'])}, "
        f"{format_share(facts['efficiency'])} efficient.\n\n![{file.stem}]({PICTURES}/{file.stem}.png)\n"
    )


def _draw(result: Result, path: Path) -> None:
    """Draw all ranks, or of many one per stage of the first replica."""
    whole = result.run.scenario.parallel.ranks <= MOST_RANKS

    def one_replica(run: Run, ax: Axes) -> Axes:
        plots.gantt(_one_replica(result), ax).set_title("".join(title_of(run)), loc="left", fontsize=10, pad=20)
        return ax

    figure = plots.draw(result.run, plots.gantt if whole else one_replica)
    height = figure.get_figheight() if whole else size_of(result.run.scenario.parallel.pipeline)[1]
    figure.set_size_inches(WIDTH, height)
    _save(figure, path)


def _draw_key(figure: Figure, results: Sequence[Result]) -> None:
    """Place one legend of all runs at the top of a figure; lighter shades are what each picture's title says."""
    kinds = {OP_KINDS[kind] for result in results for kind in result.run.timeline.op_rows()["kind"].tolist()}
    entries = palette.key([(ACTIVITIES[kind].label, ACTIVITIES[kind].colour) for kind in OP_KINDS if kind in kinds], 2,
                          two_way=False)  # fmt: skip
    shown = dict(entries[:-1]) | {SHADES: entries[-1][1]}
    figure.legend(**patches_of(shown), loc="upper right", ncols=len(shown), frameon=False, fontsize=8.5,
                  columnspacing=1.2)  # fmt: skip


def _schedules(folder: Path) -> Figure:
    """Every schedule on one time axis, the quickest first."""
    names = schedules.names()
    results = sorted((_schedule(name) for name in names), key=lambda one: one.run.timeline.duration)
    figure = Figure(figsize=(WIDTH, 1.3 * len(names)))
    grid = figure.subplots(len(names), sharex=True)
    _draw_key(figure, results)
    figure.subplots_adjust(left=0.065, right=0.99, top=0.975, bottom=0.015, hspace=0.35)
    end = results[-1].run.timeline.duration / PICOSECONDS_PER_SECOND
    for ax, result in zip(grid, results, strict=True):
        plots.gantt(result.run, ax, legend="none")
        step = result.run.timeline.duration / PICOSECONDS_PER_SECOND
        ax.set_title(f"{result.run.scenario.schedule.kind}: {step:g} units", loc="left", fontsize=9)
        ax.set_xlim(0, end)
        ax.set_xlabel("")
    return figure


def _families(folder: Path) -> Figure:
    """A schedule of each family, one below the other."""
    figure = Figure(figsize=(WIDTH, 1.75 * len(FAMILIES)))
    axes = figure.subplots(len(FAMILIES), sharex=True)
    figure.subplots_adjust(left=0.065, right=0.99, top=0.94, bottom=0.03, hspace=0.35)
    results = [_schedule(name) for name in FAMILIES]
    _draw_key(figure, results)
    for ax, result, (name, what) in zip(axes, results, FAMILIES.items(), strict=True):
        plots.gantt(result.run, ax, legend="none")
        ax.set_title(f"{name}: {what}", loc="left", fontsize=9)
        ax.set_xlim(0, 33)  # units of 1F1B
        ax.set_xlabel("")
    return figure


def _schedule(name: str) -> Result:
    many = {"chunks": 2} if schedules.find(name).facts["many_chunks"] else {}
    return simulate(load({
        "cluster": {"gpus_per_node": 4, "nvlink": {"bandwidth": "inf", "latency": 0}}, "parallel": {"pipeline": 4},
        "schedule": {"kind": name, "microbatches": 8, **many},
        "workload": {"per": "rank", "forward": 1, "backward": 2},
    }))  # fmt: skip


def _sweep(folder: Path) -> Figure:
    cases = sweep.load_sweep(folder / "a100_8x.yaml", SWEEP)
    assert cases.picture is not None
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    sweep.draw(sweep.run_sweep(cases), cases.picture, figure.subplots())
    return figure


def _topology(folder: Path) -> Figure:
    return _as_wide(draw_fabric(fabric_of(load(folder / "h100_2x8.yaml")), (0, 9)))


def _as_wide(figure: Figure) -> Figure:
    """The figure as wide as the others, in the same proportions."""
    figure.set_size_inches(WIDTH, figure.get_figheight() * WIDTH / figure.get_figwidth())
    return figure


def _link_use(folder: Path) -> Figure:
    figure = Figure(figsize=(WIDTH, 5), layout="constrained")
    plots.link_use(simulate(load(folder / "contention_slower.yaml", ["steps=1"])).run, figure.subplots())
    return figure


def _jobs(folder: Path) -> Figure:
    return _as_wide(simulate_jobs(folder / "jobs/two_jobs.yaml", ["jobs.gpt.batch=16"]).fabric_use())


def _placements(folder: Path) -> Figure:
    """A group of bars per placement, a bar per job."""
    rows = sweep.sweep_rows(sweep.load_sweep(folder / "jobs/three_placements.yaml"))
    figure = Figure(figsize=(8, 3.5), layout="constrained")
    ax = figure.subplots()
    names = [*rows[0]["jobs"]]
    for number, name in enumerate(names):
        places = [place + (number - 1) * 0.25 for place in range(len(rows))]
        ax.bar(places, [row["jobs"][name]["slowdown"] for row in rows], 0.22, color=LINES[number], label=name)
    ax.set_xticks(range(len(rows)), [row["placement"] for row in rows])
    ax.set_ylabel("step, relative to alone")
    ax.set_ylim(bottom=0.9)
    ax.legend(frameon=False)
    plain(ax)
    return figure


def _background(folder: Path) -> Figure:
    """The scenario as the only job of a cluster."""
    values = read_scenario(folder / "jobs/beside_background.yaml").value
    own = {key: values.pop(key) for key in ("parallel", "schedule", "workload", "gradients")}
    return _as_wide(simulate_jobs({**values, "jobs": {"training": own}}).fabric_use())


def _loop(folder: Path) -> Figure:
    return _as_wide(simulate_rl(folder / "rl/async.yaml").plot())


def _loss(folder: Path) -> Figure:
    facts = simulate(load(folder / "prototype_12gpu_training.yaml")).summary
    figure = Figure(figsize=(8, 3.5), layout="constrained")
    ax = figure.subplots()
    ax.plot(range(1, len(facts["loss"]) + 1), facts["loss"], color=LINES[0], marker="o", markersize=3)
    ax.set_xlabel("training step")
    ax.set_ylabel("loss")
    ax.set_ylim(bottom=0)
    plain(ax)
    return figure


def _one_replica(result: Result) -> pd.DataFrame:
    """Ops of the first replica, of one of the ranks that share each stage."""
    ops = result.timeline.query("lane == 'compute' and replica == 0")
    return ops[ops["rank"] == ops.groupby("pipeline_rank")["rank"].transform("min")]


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    print(f"drew {draw_gallery(folder)} scenarios in {folder / 'README.md'}")
