"""Pictures show what the rows say, leave pyplot's state alone, and stay small however many ranks there are."""

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from support import handmade
from support.handmade import uniform
from support.scenarios import scenario

from hybrid_des import plots
from hybrid_des.analysis.link_use import link_rates
from hybrid_des.cluster.channel import Channel
from hybrid_des.cluster.purposes import ACTIVATION, GRADIENT, REDUCTION
from hybrid_des.pipeline import schedules
from hybrid_des.pipeline.plan import PlanRequest
from hybrid_des.planning.wiring import fabric_of
from hybrid_des.report.palette import ACTIVITIES, shades
from hybrid_des.report.plots import gantt
from hybrid_des.report.plots.curves import times_and_bandwidths
from hybrid_des.report.plots.fabric_map import draw_fabric
from hybrid_des.report.plots.style import LINES, title
from hybrid_des.result import Result, simulate
from hybrid_des.studies.spread.plot import histogram

MS = 10**9
SCALES = {"time (s)": 1, "time (ms)": 1000}
COLOURS = {kind: activity.colour for kind, activity in ACTIVITIES.items()}


@pytest.fixture(autouse=True)
def no_screen():
    mpl.use("Agg")


def run_of(pipeline=4, microbatches=8, kind="1f1b", chunks=1, **options):
    plan = schedules.make_plan(kind, PlanRequest(pipeline, microbatches, chunks))
    options = {"delay": MS, "data": 2, "reduction": 20 * MS, "optimizer": 5 * MS, **options}
    return handmade.run(plan, uniform(50 * MS, 80 * MS, weight=40 * MS), **options)


def table_of(run):
    return Result(run).timeline


def axes():
    return Figure(figsize=(12, 4), layout="constrained").add_subplot()


def boxes(ax):
    """Every bar as (left, right, middle, height), by colour."""
    found = {}
    for collection in ax.collections:
        colours = collection.get_facecolors()
        for path, colour in zip(collection.get_paths(), colours, strict=True):
            (left, low), (right, high) = path.vertices.min(axis=0), path.vertices.max(axis=0)
            found.setdefault(to_hex(colour).upper(), []).append((left, right, (low + high) / 2, high - low))
    return {colour: np.array(bars) for colour, bars in found.items()}


def test_a_bar_for_every_op_in_its_place():
    run = run_of()
    ax = plots.gantt(run, axes())
    bars, rows = boxes(ax), table_of(run)
    for kind in ("F", "B", "optimizer"):
        mine = rows[(rows["kind"] == kind) & (rows["replica"] == 0)]  # the other replica is alike
        assert np.sort(bars[COLOURS[kind]][:, 0]) == pytest.approx(np.sort(mine["start_s"]) * 1000)
        assert np.sort(bars[COLOURS[kind]][:, 1]) == pytest.approx(np.sort(mine["end_s"]) * 1000)
    waits = bars[COLOURS["reduction"]]
    assert len(waits) == 4
    assert waits[:, 1] - waits[:, 0] == pytest.approx(20)
    assert waits[:, 3].max() < bars[COLOURS["F"]][:, 3].min() / 2  # thin beside ops


def test_reduction_that_overlaps_compute_is_shown():
    run = run_of(data=1, reduction=0)
    starts = (600, 620, 640, 900)  # three pieces on end and a later one
    rows = [(0, start * MS, start * MS, (start + 20) * MS, 10) for start in starts]
    handmade.add_messages(run, Channel(0, 2, REDUCTION, "ring", 0, 0, "gpu0/out", 0), rows)
    for source in (run, table_of(run)):
        waits = boxes(plots.gantt(source, axes()))[COLOURS["reduction"]]
        assert waits[:, :2] == pytest.approx(np.array([[600, 660], [900, 920]]))


def test_lines_go_replica_by_replica_down_the_pipeline():
    ax = plots.gantt(run_of(), axes(), ranks=range(8))
    assert [label.get_text() for label in ax.get_yticklabels()] == [f"rank {r}" for r in (0, 2, 4, 6, 1, 3, 5, 7)]
    first = boxes(ax)[COLOURS["F"]]
    starts = [first[np.isclose(first[:, 2], line), 0].min() for line in range(8)]
    assert starts == pytest.approx([0, 51, 102, 153] * 2)


def test_a_timeline_gives_the_same_ops_as_its_run():
    run = run_of()
    whole, table = boxes(plots.gantt(run, axes())), boxes(plots.gantt(table_of(run), axes()))
    for kind in ("F", "B", "optimizer"):
        assert whole[COLOURS[kind]] == pytest.approx(table[COLOURS[kind]][np.argsort(_order(table, whole, kind))])


def _order(table, whole, kind):
    """Where each bar of one picture is in the other."""
    keys = {(round(b[0], 6), round(b[2], 6)): i for i, b in enumerate(whole[COLOURS[kind]])}
    return [keys[round(b[0], 6), round(b[2], 6)] for b in table[COLOURS[kind]]]


def test_a_filtered_timeline_can_be_drawn():
    rows = table_of(run_of())
    ax = plots.gantt(rows[(rows["replica"] == 1) & (rows["lane"] == "compute")], axes())
    assert [label.get_text() for label in ax.get_yticklabels()] == ["rank 1", "rank 3", "rank 5", "rank 7"]


def test_an_empty_timeline_is_an_empty_picture():
    ax = plots.gantt(table_of(run_of(record="none")), axes())
    assert boxes(ax) == {}


def test_numbers_where_there_is_room_and_nowhere_else():
    few = [text.get_text() for text in plots.gantt(run_of(), axes()).texts if text.get_text().isdigit()]
    assert sorted(few) == sorted([str(m) for m in range(8)] * 8)
    many = plots.gantt(run_of(pipeline=16, microbatches=128, data=1), axes())
    assert not any(text.get_text().isdigit() for text in many.texts)


def test_chunks_are_shades_of_their_kind():
    one = boxes(plots.gantt(run_of(), axes()))
    two = boxes(plots.gantt(run_of(kind="hanayo", chunks=2), axes()))
    assert len(two) == len(one) + 2
    assert len(two[COLOURS["F"]]) == len(one[COLOURS["F"]])


def test_title_and_legend_say_what_is_shown():
    ax = plots.gantt(run_of(reduction=0, optimizer=0), axes())
    assert "step 1.446 s" in ax.get_title(loc="left")
    assert "bubble 27.6 %" in ax.get_title(loc="left")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["forward", "backward"]


def test_128_ranks_are_two_collections():
    figure = plots.draw(run_of(pipeline=16, data=8), plots.gantt)
    assert len(figure.axes[0].collections) == 2
    assert figure.get_size_inches()[1] < 18.1
    assert len(figure.axes[0].get_yticks()) <= 40


def test_of_more_ranks_than_rows_some_replicas_are_drawn(monkeypatch):
    run = run_of(data=6, reduction=0)
    monkeypatch.setattr(gantt, "MOST_LINES", 8)
    axes = plots.draw(run, plots.gantt).axes[0]
    assert axes.get_xlabel().endswith("one replica in 3")
    drawn = [label.get_text().removeprefix("rank ") for label in axes.get_yticklabels()]
    assert drawn == ["0 ×2", "6 ×2", "12 ×2", "18 ×2"]
    assert sum(len(bars.get_paths()) for bars in axes.collections) == 4 * (2 * 8 + 1)


def test_pyplot_knows_nothing_of_figures_for_files():
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    plots.draw(run_of(), plots.gantt)
    assert plt.get_fignums() == before
    ax = plots.gantt(run_of())  # without axes it is pyplot's, so that notebooks show it
    assert plt.get_fignums() == [*before, ax.figure.number]
    plt.close(ax.figure)


def test_a_run_without_time_is_drawn():
    plan = schedules.make_plan("1f1b", PlanRequest(2, 2))
    run = handmade.run(plan, uniform(0, 0))
    for picture in (plots.gantt, plots.link_use, plots.memory_curve):
        picture(run, axes()).figure.draw_without_rendering()


def test_link_use_conserves_bytes():
    run = run_of(reduction=123_456_789, delay=17 * MS)
    flow = link_rates(run.timeline, windows=37)
    carried = (flow.rate * np.diff(flow.edges) / 1e12).sum(axis=1)
    rows = table_of(run)
    sent = rows[rows["lane"] != "compute"].groupby("lane")["bytes"].sum()
    assert carried == pytest.approx(sent[list(flow.links)].to_numpy(dtype=float), rel=1e-9)
    parts = [
        link_rates(run.timeline, windows=37, purposes=kind).rate for kind in ((ACTIVATION, GRADIENT), (REDUCTION,))
    ]
    assert parts[0] + parts[1] == pytest.approx(flow.rate, abs=1e-3)


def test_link_use_puts_a_message_where_it_is():
    run = run_of(pipeline=2, microbatches=1, data=1, reduction=0, optimizer=0, delay=26 * MS, size=26)
    flow = link_rates(run.timeline, windows=312)  # 312 ms: one window a millisecond
    there = dict(zip(flow.links, flow.rate, strict=True))["gpu0/to/gpu1"]
    assert np.flatnonzero(there).tolist() == list(range(50, 76))
    assert there[50:76] == pytest.approx(1000)


def test_messages_that_take_no_time_count_too():
    run = run_of(pipeline=2, microbatches=1, data=1, reduction=0, optimizer=0, delay=0, size=5)
    flow = link_rates(run.timeline, windows=10)
    assert (flow.rate * np.diff(flow.edges) / 1e12).sum() == pytest.approx(10)


def test_link_use_has_a_lane_for_each_link_asked_for():
    ax = plots.link_use(run_of(), axes(), links=["gpu0/out", "gpu0/to/gpu2"])
    assert [label.get_text() for label in ax.get_yticklabels()] == ["gpu0/out", "gpu0/to/gpu2"]
    assert len(plots.link_use(run_of(pipeline=16), axes()).get_yticks()) == 16


def test_a_link_used_in_full_fills_its_lane():
    result = simulate(scenario("1f1b", 2, 4, cluster={"nvlink": {"bandwidth": "2 GB/s", "latency": 0}},
                               workload={"forward": "1 ms", "backward": "2 ms", "activation": "8 MB"}))  # fmt: skip
    ax = plots.link_use(result.run, axes(), links=["node0/gpu0/nvlink-out", "node0/gpu1/nvlink-in"])
    assert [text.get_text() for text in ax.get_yticklabels()] == [
        "node0/gpu0/nvlink-out  2 GB/s", "node0/gpu1/nvlink-in  2 GB/s",
    ]  # fmt: skip
    tops = [
        patch.get_data().values.max()
        for patch in ax.patches
        if patch.get_data().values.max() > patch.get_data().baseline.min()
    ]
    assert max(tops) == pytest.approx(1.9)  # the upper lane, of nine tenths
    assert ax.get_title(loc="left") == "links: a full lane is the link's bandwidth"


def test_one_narrow_op_leaves_all_without_numbers():
    plan = schedules.make_plan("1f1b", PlanRequest(4, 8))
    for narrow, numbers in ((MS, 0), (25 * MS, 64)):
        run = handmade.run(plan, lambda kind, rank, chunk, narrow=narrow: narrow if rank == 0 else 50 * MS)
        texts = [text for text in plots.gantt(run, axes()).texts if text.get_text().isdigit()]
        assert len(texts) == numbers


def test_a_fused_pair_shows_both_micro_batches():
    run = run_of(pipeline=2, microbatches=4, kind="dualpipe", data=1)
    texts = {text.get_text() for text in plots.gantt(run, axes()).texts}
    pairs = {f"{f.microbatch}+{b.microbatch}" for program in run.plan.programs for f, b in
             (action for action in program if len(action) == 2)}  # fmt: skip
    assert pairs
    assert pairs <= texts


def test_the_legend_shows_the_shades_of_all_chunks():
    ax = plots.gantt(run_of(kind="hanayo", chunks=2, reduction=0, optimizer=0), axes())
    legend = ax.get_legend()
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["forward", "backward", "chunks 0 to 1, dark to light"]
    shown = {to_hex(patch.get_facecolor()).upper() for patch in legend.findobj(Patch)}
    assert set(shades(COLOURS["F"], 2)) <= shown & boxes(ax).keys()


@pytest.mark.parametrize(("kind", "microbatches"), [("dualpipe", 8), ("chimera", 4)])
def test_two_directions_have_shades_and_names(kind, microbatches):
    """A forward of a micro-batch that enters at the last rank is lighter than the others, on every rank."""
    run = run_of(kind=kind, microbatches=microbatches, data=1)
    ax = plots.gantt(run, axes())
    assert "from the first rank, from the last rank" in [text.get_text() for text in ax.get_legend().get_texts()]
    rows, bars = table_of(run), boxes(ax)
    for half, shade in enumerate(shades(COLOURS["F"], 2)):
        theirs = rows[(rows["kind"] == "F") & (rows["microbatch"] // (microbatches // 2) == half)]
        assert np.sort(bars[shade][:, 0]) == pytest.approx(np.sort(theirs["start_s"]) * SCALES[ax.get_xlabel()])


def test_of_many_steps_the_first_visible_ones_are_drawn():
    run = run_of(microbatches=4, data=1, steps=40)
    ax = plots.gantt(run, axes())
    assert ax.get_xlabel() == "time (s);  the first 14 steps of 40"
    rows, bars = table_of(run), boxes(ax)
    for kind in ("F", "B", "optimizer"):
        first = rows[(rows["kind"] == kind) & (rows["step"] < 14)]
        assert np.sort(bars[COLOURS[kind]][:, 0]) == pytest.approx(np.sort(first["start_s"]))
    assert ax.get_xlim()[1] == pytest.approx(rows[rows["step"] == 14]["start_s"].min())
    assert bars[COLOURS["reduction"]][:, 1].max() <= ax.get_xlim()[1]
    assert plots.gantt(run_of(steps=3), axes()).get_xlabel() == "time (s)"


def test_bands_show_the_share_of_each_kind():
    run = run_of(pipeline=2, microbatches=600, data=1)  # 1,200 ops in about 800 points
    ax = plots.gantt(run, axes())
    assert ax.get_xlabel() == "time (s);  height: share of the time"
    middle = ax.get_xlim()[1] / 2
    heights = {}
    for bands in ax.collections:
        path = bands.get_paths()[0].vertices  # of rank 0
        if len(path) > 100:
            there = path[np.isclose(path[:, 0], middle, atol=0.1), 1]
            heights[to_hex(bands.get_facecolors()[0]).upper()] = np.ptp(there)
    assert heights == pytest.approx({COLOURS["F"]: 0.86 * 50 / 131, COLOURS["B"]: 0.86 * 80 / 131}, rel=0.03)
    assert [text.get_text() for text in ax.get_legend().get_texts()][:2] == ["forward", "backward"]


def test_the_title_says_schedule_and_sizes():
    assert "1f1b, p 4, d 2, m 8" in plots.gantt(run_of(), axes()).get_title(loc="left")


def test_memory_curve_reaches_the_peak():
    ax = plots.memory_curve(run_of(), axes())
    assert [line.get_ydata().max() for line in ax.get_lines()] == [4, 3, 2, 1]


def test_lines_of_a_sweep():
    rows = [(p, kind, p * k) for p in (4, 2, 8) for k, kind in ((1, "gpipe"), (2, "1f1b"))]
    table = pd.DataFrame([*rows, (16, "gpipe", None)], columns=["p", "kind", "time"])
    ax = plots.lines(table, "p", "time", "kind", axes())
    assert [line.get_label() for line in ax.get_lines()] == ["gpipe", "1f1b"]
    assert ax.get_lines()[1].get_xdata().tolist() == [2, 4, 8]
    assert ax.get_lines()[1].get_ydata().tolist() == [4, 8, 16]
    assert [line.get_color() for line in ax.get_lines()] == list(LINES[:2])


EVIL = "$x_{^ \x1b[2J\n$"


@pytest.mark.slow
def test_names_of_users_are_no_formulas(tmp_path):
    links = [{"between": [gpu, EVIL], "bandwidth": "1 GB/s"} for gpu in ("gpu0", "gpu1")]
    cluster = {"topology": "links", "links": links, "gpu": {"name": EVIL, "memory": "1 GB"}}
    changes = {"name": EVIL, "cluster": cluster, "workload": {"activation": "1 MB", "parameters": 1e7}}
    result = simulate(scenario("1f1b", 2, **changes))
    for draw in (plots.gantt, plots.link_use, plots.memory_curve):
        ax = axes()
        draw(result.run, ax)
        plots.save(ax.figure, tmp_path, "picture")
    plots.save(draw_fabric(fabric_of(result.run.scenario)), tmp_path, "picture")
    plots.save(times_and_bandwidths(EVIL, {EVIL: [(1, 1, 1.0)]}), tmp_path, "picture")
    assert (
        plots.gantt(result.run, axes()).get_title(loc="left").startswith("\\$x_{^ \N{REPLACEMENT CHARACTER}[2J \\$: ")
    )


WIDE = "W" * 119  # as a title longer than two of its pictures, which left matplotlib no room for the axes


@pytest.mark.parametrize("inches", [4, 10])
def test_long_names_are_cut_and_what_follows_stays(inches):
    ax = Figure((inches, 3), layout="constrained").add_subplot()
    title(ax, WIDE, ", replication 0: 3 failures")
    ax.figure.draw_without_rendering()  # a warning would fail
    shown = ax.get_title(loc="left")
    assert "W…, replication 0: 3 failures" in shown and 12 < len(shown) < len(WIDE)


@pytest.mark.slow
def test_a_distribution_of_long_names_has_room(tmp_path):
    plots.save(histogram({WIDE: [1.0, 2.0], "other": [1.0, 3.0]}), tmp_path, "picture")
    plots.save(histogram({WIDE: [1.0, 2.0]}), tmp_path, "picture")
