"""Options of pictures: what is shown, by structure: axes, labels, the number of bars, and text in vector files."""

import json
import re

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from support.campaigns import thinned
from support.paths import GOLDEN
from support.tables import from_table

from hybrid_des import explain, load, plots, simulate
from hybrid_des.errors import UsageError
from hybrid_des.report.plots.figure import WIDTHS
from hybrid_des.studies.sweep.axes import load_sweep
from hybrid_des.studies.sweep.results import draw
from hybrid_des.studies.sweep.runner import sweep_rows

PICTURES = {"gantt": plots.gantt, "link_use": plots.link_use, "memory_curve": plots.memory_curve}


@pytest.fixture(autouse=True)
def closed():
    mpl.use("Agg")
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def ran(scenarios):
    """Three steps of four stages with two replicas: 64 ops a step, forwards of 50 ms and backwards of 80 ms."""
    return simulate(load(scenarios / "a100_8x.yaml", ["steps=3"])).run


def bars(ax):
    """The number of bars of each colour."""
    colours = [to_hex(one).upper() for shapes in ax.collections for one in shapes.get_facecolors()]
    return {colour: colours.count(colour) for colour in colours}


def structure(ax):
    """What a reader sees: lines, bars, axes and words."""
    legend = ax.get_legend()
    return {
        "inches": tuple(np.round(ax.figure.get_size_inches(), 2)),
        "title": ax.get_title(loc="left"),
        "x": (ax.get_xlabel(), *np.round(ax.get_xlim(), 1)),
        "lines": [text.get_text() for text in ax.get_yticklabels()],
        "legend": [] if legend is None else [text.get_text() for text in legend.get_texts()],
        "bars": bars(ax),
    }


FORWARD, BACKWARD, REDUCTION = "#0072B2", "#E69F00", "#D55E00"
TITLE = "a100_8x with steps=3:  1f1b, p 4, d 2, m 8;  step 1.435 s,  bubble 27.3 %"
KINDS = ["forward", "backward", "gradient reduction"]
RANKS = [f"rank {rank} ×2" for rank in (0, 2, 4, 6)]  # both replicas are alike
STEP = {"inches": (3.5, 1.25), "title": "", "x": ("time (s);  the first 2 steps of 3", 0.0, 2.9), "lines": RANKS,
        "legend": KINDS, "bars": {FORWARD: 64, BACKWARD: 64, REDUCTION: 8}}  # fmt: skip
WHOLE = {"bars": {FORWARD: 96, BACKWARD: 96, REDUCTION: 12}}
GANTTS = {  # options → what differs from the run at the width of a column
    "none": ({}, {}),
    "steps": ({"steps": 1}, {"x": ("time (ms)", 1435.3, 2870.5), "bars": {FORWARD: 32, BACKWARD: 32, REDUCTION: 4}}),
    "ranks": ({"ranks": [6, 1], "steps": [0]}, {"inches": (3.5, 0.96), "x": ("time (ms)", 0.0, 1435.3),
              "lines": ["rank 6", "rank 1"], "bars": {FORWARD: 16, BACKWARD: 16, REDUCTION: 2}}),
    "window": ({"window": ("100 ms", 0.2)},
               {"x": ("time (ms)", 100, 200), "bars": {FORWARD: 8}, "legend": ["forward"]}),
    "colours": ({"colours": {"forward": "black"}}, {"bars": {"#000000": 64, BACKWARD: 64, REDUCTION: 8}}),
    "labels": ({"labels": {"forward": "F", "rank 0": "GPU 0", "title": "Ours", "x": "t"}},
               {"x": ("t", 0.0, 2.9), "title": "Ours", "lines": ["GPU 0", *RANKS[1:]], "legend": ["F", *KINDS[1:]]}),
    "bubble": ({"colours": {"bubble": "#D0D0D0"}},
               {"bars": {**STEP["bars"], "#D0D0D0": 4}, "legend": [*KINDS, "bubble"]}),
    "no legend": ({"legend": "none"}, {"legend": []}),
    "size": ({"size": "page"}, {"inches": (7.16, 1.66), "x": ("time (s)", 0.0, 4.3), **WHOLE}),
    "inches": ({"size": (5, 3)}, {"inches": (5, 3), "x": ("time (s)", 0.0, 4.3), **WHOLE}),
}  # fmt: skip


@pytest.mark.parametrize("option", GANTTS)
def test_a_gantt_chart_with_an_option(ran, option):
    options, differs = GANTTS[option]
    assert structure(plots.gantt(ran, **options)) == {**STEP, **differs}


NVLINKS = [f"node0/gpu{gpu}/nvlink-{way}  300 GB/s" for gpu in (0, 2) for way in ("in", "out")]
CURVES = ["pipeline rank 0", "pipeline rank 1", "pipeline rank 2", "pipeline rank 3"]


GREY, MESSAGES, BLACK, BLUE, RED = "#D9D9D9", "#56B4E9", "#000000", "#0072B2", "#FF0000"
USES = {"inches": (3.5, 2.4), "title": "", "x": ("time (s)", 0.0, 4.3), "y": "", "lanes": 16,
        "legend": ["pipeline messages", "gradient reduction"],
        "drawn": {GREY: 16, MESSAGES: 16, REDUCTION: 16}}  # fmt: skip
HELD = {"inches": (3.5, 2.0), "title": "", "x": ("time (s)", 0.0, 4.3), "y": "memory held (GB)",
        "legend": CURVES, "drawn": {BLUE: 1, REDUCTION: 1, "#009E73": 1, "#CC79A7": 1}}  # fmt: skip
STEPS = {"inches": (3.5, 2.24), "title": "", "x": ("less time in the class (%)", -3.8, 78.8), "y": "step (s)",
         "legend": ["rank 1", "rank 0", "B ops", "F ops", "nvlink links"],
         "drawn": {**HELD["drawn"], BACKWARD: 1}}  # fmt: skip
SWEPT = {"inches": (3.5, 2.24), "title": "", "x": ("microbatches", 3.8, 8.2), "y": "step time (s)",
         "legend": ["gpipe", "1f1b"], "drawn": {BLUE: 1, REDUCTION: 1}}  # fmt: skip
TWO = {"ranks": [6, 0]}
AXES = {  # what is drawn and an option → what differs from the picture at the width of a column
    "links": ({}, USES, {}),
    "links, steps": ({"steps": [1]}, USES, {"x": ("time (ms)", 1435.3, 2870.5)}),
    "links, ranks": ({"ranks": [0, 2]}, USES, {"lanes": 10, "drawn": {GREY: 10, MESSAGES: 10, REDUCTION: 10}}),
    "links, window": ({"window": ("1.3 s", 1.5)}, USES, {"x": ("time (ms)", 1300.0, 1500.0)}),
    "links, colours": ({"colours": {"gradient reduction": "black"}}, USES,
                       {"drawn": {GREY: 16, MESSAGES: 16, BLACK: 16}}),
    "links, labels": ({"labels": {"pipeline messages": "p2p", "title": "Ours", "x": "t"}}, USES,
                      {"title": "Ours", "x": ("t", 0.0, 4.3), "legend": ["p2p", "gradient reduction"]}),
    "links, size": ({"size": "page"}, USES,
                    {"inches": (7.16, 2.86)}),
    "memory": ({}, HELD, {}),
    "memory, steps": ({"steps": 1}, HELD, {"x": ("time (ms)", 1435.3, 2870.5)}),
    "memory, ranks": (TWO, HELD, {"legend": ["rank 6", "rank 0"], "drawn": {BLUE: 1, REDUCTION: 1}}),
    "memory, window": ({"window": ("1.3 s", 1.5)}, HELD, {"x": ("time (ms)", 1300.0, 1500.0)}),
    "memory, colours": ({**TWO, "colours": {"rank 6": "red"}}, HELD,
                        {"legend": ["rank 6", "rank 0"], "drawn": {RED: 1, REDUCTION: 1}}),
    "memory, labels": ({**TWO, "labels": {"rank 0": "first", "y": "GB"}}, HELD,
                       {"legend": ["rank 6", "first"], "y": "GB", "drawn": {BLUE: 1, REDUCTION: 1}}),
    "memory, size": ({"size": (4, 2)}, HELD, {"inches": (4.0, 2.0)}),
    "curves": ({}, STEPS, {}),
    "curves, colours": ({"colours": {"nvlink links": "black"}}, STEPS, {"drawn": {**HELD["drawn"], BLACK: 1}}),
    "curves, labels": ({"labels": {"nvlink links": "NVLink", "y": "s"}}, STEPS,
                       {"y": "s", "legend": [*STEPS["legend"][:4], "NVLink"]}),
    "curves, size": ({"size": "page"}, STEPS, {"inches": (7.16, 4.58)}),
    "sweep": ({}, SWEPT, {}),
    "sweep, colours": ({"colours": {"1f1b": "black"}}, SWEPT, {"drawn": {BLUE: 1, BLACK: 1}}),
    "sweep, labels": ({"labels": {"gpipe": "GPipe", "x": "m"}}, SWEPT,
                      {"x": ("m", 3.8, 8.2), "legend": ["GPipe", "1f1b"]}),
    "sweep, size": ({"size": 5}, SWEPT, {"inches": (5.0, 3.2)}),
}  # fmt: skip


@pytest.fixture(scope="module")
def pictures(ran, scenarios):
    """What draws each kind of picture, all of two small runs."""
    found = explain(GOLDEN / "explain/e2.yaml")
    axes = ["sweep=[{schedule.kind: [gpipe, 1f1b]}, {schedule.microbatches: [4, 8]}]"]
    axes += ["parallel={pipeline: 2, data: 1}"]
    axes.append("plot={x: schedule.microbatches, y: step_time_s, hue: [schedule.kind]}")
    swept = load_sweep(scenarios / "a100_8x.yaml", axes)
    rows = [{**row, "name": ""} for row in sweep_rows(swept)]
    return {
        "links": lambda **options: plots.link_use(ran, **options),
        "memory": lambda **options: plots.memory_curve(ran, **options),
        "curves": lambda **options: plots.what_if_curves(found, **options),
        "sweep": lambda **options: draw(rows, swept.picture, **options),
    }


def seen(ax, lanes):
    """What a reader sees of curves and of the use of links."""
    shapes = [*(line.get_color() for line in ax.get_lines()), *(patch.get_facecolor() for patch in ax.patches)]
    colours = [to_hex(one).upper() for one in shapes]
    whole = {**structure(ax), "y": ax.get_ylabel(), "lanes": len(ax.get_yticklabels())}
    whole["drawn"] = {colour: colours.count(colour) for colour in colours}
    return {key: whole[key] for key in ("inches", "title", "x", "y", "legend", "drawn", *(["lanes"] if lanes else []))}


@pytest.mark.parametrize("option", AXES)
def test_a_picture_with_an_option(pictures, option):
    options, usual, differs = AXES[option]
    assert seen(pictures[option.partition(",")[0]](**options), "lanes" in usual) == {**usual, **differs}


def test_a_narrow_window_is_drawn_finely(ran):
    """A message of 64 MiB at 300 GB/s takes 0.22 ms: hardly a bar in three steps, and most of its lane in 2 ms."""
    tops = []
    for window in (None, ("49 ms", "51 ms")):
        ax = plots.link_use(ran, links=["node0/gpu0/nvlink-out"], window=window, colours={"gradient reduction": "red"})
        mine = [patch.get_data().values.max() for patch in ax.patches if to_hex(patch.get_facecolor()) != "#ff0000"]
        tops.append(max(mine))
    assert tops[0] < 0.05
    assert 0.6 < tops[1] <= 0.9


def test_memory_is_that_of_the_ranks(ran):
    four = plots.memory_curve(ran).get_lines()
    assert [line.get_ydata().max() for line in four] == pytest.approx([6.8, 5.6, 4.4, 3.2])
    two = plots.memory_curve(ran, ranks=[6, 0]).get_lines()
    assert [line.get_ydata().max() for line in two] == pytest.approx([3.2, 6.8])


def test_links_of_some_ranks_are_those_that_they_use(ran):
    shown = [text.get_text() for text in plots.link_use(ran, ranks=[0, 2]).get_yticklabels()]
    assert set(NVLINKS) <= set(shown)
    assert not any("gpu5" in name for name in shown)  # rank 5 sends to ranks 3, 7 and 4 only


def test_lines_with_every_option():
    rows = [(p, kind, p * k) for p in (2, 4, 8) for k, kind in ((1, "gpipe"), (2, "1f1b"))]
    table = pd.DataFrame(rows, columns=["p", "kind", "time"])
    ax = plots.lines(table, "p", "time", "kind", colours={"1f1b": "black"}, labels={"gpipe": "GPipe", "y": "s"})
    assert [to_hex(line.get_color()) for line in ax.get_lines()] == ["#0072b2", "#000000"]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["GPipe", "1f1b"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("p", "s")
    assert ax.figure.get_figwidth() == WIDTHS["column"]


def test_curves_of_what_ifs_go_through_worked_steps():
    ax = plots.what_if_curves(explain(GOLDEN / "explain/e2.yaml"), labels={"nvlink links": "NVLink"}, size="page")
    named = {line.get_label(): dict(line.get_xydata().tolist()) for line in ax.get_lines()}
    assert named["nvlink links"] == pytest.approx({0: 10.5, 12.5: 10.375, 25: 10.25, 50: 10.0, 75: 9.75})
    assert len(named) == 5
    assert "NVLink" in [text.get_text() for text in ax.get_legend().get_texts()]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("less time in the class (%)", "step (s)")


@pytest.mark.parametrize("place", thinned(["above", "right", "below"], slow=["above"]))
def test_a_legend_is_where_it_is_asked_for(ran, place):
    for picture in PICTURES.values():
        ax = picture(ran, legend=place, size="page")
        ax.figure.draw_without_rendering()
        legend, data = ax.get_legend().get_window_extent(), ax.get_window_extent()
        outside = {"above": legend.y0 >= data.y1, "right": legend.x0 >= data.x1, "below": legend.y1 <= data.y0}
        assert [name for name, there in outside.items() if there] == [place]


def test_a_width_has_units(ran):
    assert plots.gantt(ran, steps=[0], size="8.5 cm").figure.get_figwidth() == pytest.approx(8.5 / 2.54)
    assert plots.gantt(ran, steps=[0], size="90mm").figure.get_figwidth() == pytest.approx(90 / 25.4)


def test_the_first_scenario_has_bars_in_a_column(scenarios):
    """Forwards of 28 ms in 2.9 s are two points wide: bars, where 2.5 points were asked for before."""
    ax = plots.gantt(simulate(load(scenarios / "first.yaml")).run)
    assert ax.get_xlabel() == "time (s)"
    assert bars(ax)[FORWARD] == bars(ax)[BACKWARD] == 8 * 16
    assert [text.get_text() for text in ax.get_yticklabels()] == [f"rank {rank} ×2" for rank in range(0, 16, 2)]


def test_replicas_that_differ_are_drawn_apart(scenarios):
    slow = "slow=[{gpu: 7, factor: 0.5}]"  # gradients are reduced after the ops, which alone differ
    ax = plots.gantt(simulate(load(scenarios / "a100_8x.yaml", [slow])).run)
    assert [text.get_text() for text in ax.get_yticklabels()] == [f"rank {rank}" for rank in (0, 2, 4, 6, 1, 3, 5, 7)]


@from_table
def test_a_wrong_option_is_told(ran, options, message):
    with pytest.raises(UsageError, match=message):
        plots.gantt(ran, **options)


def test_given_axes_keep_their_size(ran):
    ax = Figure(figsize=(6, 3), layout="constrained").add_subplot()
    for picture in PICTURES.values():
        with pytest.raises(UsageError, match="the given axes have a size"):
            picture(ran, ax, size="column")


@pytest.mark.slow
def test_text_stays_text_in_vector_files(ran, tmp_path):
    for _ in range(2):  # the second file is the same, byte for byte
        figure = plots.gantt(ran, steps=[0]).figure
        figure.savefig(tmp_path / "drawn.svg")
        plots.save_as(figure, tmp_path / f"again{_}.svg")
        plots.save_as(figure, tmp_path / f"again{_}.pdf")
    words = re.findall(r"<text[^>]*>([^<]+)</text>", (tmp_path / "drawn.svg").read_text())
    assert {"rank 0 ×2", "forward", "time (ms)", "7"} <= set(words)
    assert b"/Type0" in (tmp_path / "again0.pdf").read_bytes()  # TrueType, which can be searched, not Type 3
    for suffix in ("svg", "pdf"):
        assert (tmp_path / f"again0.{suffix}").read_bytes() == (tmp_path / f"again1.{suffix}").read_bytes()


def test_notebooks_have_larger_figures(ran):
    with plt.style.context("hybrid_des.report.plots.notebook"):
        ax = plots.gantt(ran, steps=[0])
        assert ax.figure.get_figwidth() == WIDTHS["notebook"]
        assert ax.get_title(loc="left") == TITLE
        assert plots.gantt(ran, size="column").figure.get_figwidth() == WIDTHS["column"]


@pytest.mark.parametrize("kind", thinned(["gantt", "links", "memory", "curves", "sweep"], slow=["curves"]))
def test_the_command_draws_every_kind(kind, run, scenarios, tmp_path):
    file = scenarios / ("experiments/microbatches.yaml" if kind == "sweep" else "a100_8x.yaml")
    few = [
        "--set",
        "sweep=[{schedule.microbatches: [p, 2p]}]",
        "--set",
        "plot={x: schedule.microbatches, y: step_time_s}",
    ]
    code, _, err = run("figure", kind, file, "--out", tmp_path / "a.svg", *(few if kind == "sweep" else ()))
    assert code == 0 and f"wrote {tmp_path}/a.svg" in err  # a warning follows: that file has 32 GPUs and uses 8
    assert "<text" in (tmp_path / "a.svg").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["a.svg"]


def test_the_command_passes_its_options_on(run, scenarios, tmp_path):
    file = tmp_path / "a.svg"
    some = ["--ranks", "0,2-3", "--window", "0s", "100ms", "--size", "4,2", "--budget", "1h"]
    words = [*some, "--label", "rank 3=third", "--colour", "forward=red"]
    code, _, err = run("figure", "gantt", scenarios / "a100_8x.yaml", "--out", file, *words)
    assert (code, err) == (0, [f"wrote {file}"])
    drawn = re.findall(r"<text[^>]*>([^<]+)</text>", file.read_text())
    assert [name for name in drawn if name.startswith(("rank", "third"))] == ["rank 0", "rank 2", "third"]
    assert 'width="288pt" height="144pt"' in file.read_text()
    assert "#ff0000" in file.read_text()
    _, out, _ = run("figure", "gantt", scenarios / "a100_8x.yaml", "--out", file, *words, "--json")
    told = json.loads(out)
    assert (told["inches"], told["legend"]) == ([4.0, 2.0], ["forward"])
    assert told["x"] == {"label": "time (ms)", "ends": [0.0, pytest.approx(100)]}


@from_table
def test_a_wrong_figure_command_is_told(words, message, refused, scenarios, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in refused("figure", words[0], scenarios / "a100_8x.yaml", *words[1:])
    assert list(tmp_path.iterdir()) == []


def test_bars_too_narrow_for_pixels_are_bands(ran):
    """Forwards of 50 ms in 1.435 s and 46.8 points: 1.6 points each, 2.3 pixels at 100 dots per inch, 4.5 at 200."""
    for dots, banded in ((100, True), (200, False)):
        figure = Figure(figsize=(0.65, 3), dpi=dots)
        ax = plots.gantt(ran, figure.add_axes((0, 0, 1, 1)), steps=[0])
        assert ax.get_xlabel().endswith("height: share of the time") == banded


def test_steps_and_ranks_may_be_numpy_numbers(ran):
    usual = plots.gantt(ran, steps=1, ranks=[0, 2], window=(0, 2), size=5)
    theirs = plots.gantt(ran, steps=np.int64(1), ranks=np.array([0, 2]), window=(np.float64(0), 2), size=np.float64(5))
    assert structure(theirs) == structure(usual)
