"""What a sweep shows: its table in a file and on the terminal, and its picture."""

import csv
import json

import pytest
from matplotlib.figure import Figure
from support.sweeps import AXES, BASE, without_wall
from support.tables import from_table

from hybrid_des.errors import UsageError
from hybrid_des.studies.sweep.axes import Plot, load_sweep
from hybrid_des.studies.sweep.page import write as write_sweep
from hybrid_des.studies.sweep.results import Ranking, draw, number, render
from hybrid_des.studies.sweep.rows import table
from hybrid_des.studies.sweep.runner import sweep_rows
from hybrid_des.units import format_share


def test_out_holds_a_table_and_a_picture(run, write, tmp_path):
    for folder in ("first", "second"):
        assert run(write(BASE + AXES), "--out", tmp_path / folder, "--quiet") == (0, "", [])
        assert sorted(path.name for path in (tmp_path / folder).iterdir()) == ["sweep.csv", "sweep.html", "sweep.png"]
    first, second = ((tmp_path / name / "sweep.csv").read_text() for name in ("first", "second"))
    rows = list(csv.DictReader(first.splitlines()))
    assert without_wall(rows) == without_wall(csv.DictReader(second.splitlines()))
    assert list(rows[0])[:4] == ["parallel.pipeline", "schedule.microbatches", "schedule.kind", "version"]
    assert [row["events"] == "" for row in rows] == [bool(row["error"]) for row in rows]
    assert rows[2]["ranks"] == "2"
    assert json.loads(rows[2]["peak_memory_bytes"]) == [0, 0]
    assert float(rows[2]["idle_s.dependency"]) > 0
    png = [(tmp_path / name / "sweep.png").read_bytes() for name in ("first", "second")]
    assert png[0] == png[1]


def test_write_needs_no_picture(write, tmp_path):
    plain = load_sweep(write(BASE + AXES), ["plot=none"])
    rows = sweep_rows(plain)
    written = write_sweep(rows, plain, tmp_path / "o")
    assert [path.name for path in written.paths] == ["sweep.csv", "sweep.html"]
    assert len(table(rows)) == 6


def test_the_table_on_the_terminal_is_cut(write):
    many = load_sweep(write(BASE + f"sweep:\n  - {{seed: [{', '.join(map(str, range(50)))}]}}\n"))
    text = render(sweep_rows(many), many)
    assert "50 cases, 0 failed; the best 40 are shown" in text
    assert len(text.splitlines()) == 44


def test_long_swept_texts_are_cut_in_the_table(write, run):
    _, out, _ = run(write(BASE + f"sweep: [{{name: [{'x' * 1000}, b]}}]\n"))
    assert max(map(len, out.splitlines())) < 200


def test_the_bubble_of_a_table_is_that_of_the_report(write):
    """A share of the step, as in `step_shares`; not one of the pipeline's time, where gradients follow it."""
    model = "schedule: {kind: 1f1b, microbatches: 2}\nmodel: {base: gpt2, layers: 4, written: megatron}\n"
    sweep = load_sweep(write(model + "parallel: {pipeline: 2, data: 4}\nsweep: [{schedule.microbatches: [2, 8]}]\n"))
    rows = sweep_rows(sweep)
    lines = render(rows, sweep).splitlines()
    for row, line in zip(rows, lines[1:3], strict=True):
        share = row["step_shares"]["bubble"]
        assert abs(share - row["bubble_ratio"]) > 0.005
        assert f" {format_share(share)} " in line
        assert f" {format_share(row['bubble_ratio'])} " not in line


RANKED = """sweep:
  - {schedule.kind: [gpipe, 1f1b, zb-h1, dualpipe]}
  - {schedule.microbatches: [4, 32]}
parallel: {pipeline: 4}
plot: {x: schedule.microbatches, y: bubble_ratio, hue: schedule.kind}
"""


def test_a_table_is_ranked_by_what_is_plotted(write):
    sweep = load_sweep(write(BASE + RANKED), ["workload.memory.activation=5 GB"])
    rows = sweep_rows(sweep)
    lines = render(rows, sweep).splitlines()
    kinds = [line.split()[:2] for line in lines[1:9]]
    assert kinds[-2:] == [["gpipe", "32"], ["dualpipe", "4"]]
    assert "160 GB does not fit" in lines[7]
    ratios = [float(line.split()[-1]) for line in lines[1:7]]  # what is plotted is not among the usual columns
    assert ratios == sorted(ratios)
    best = min((row for row in rows if "error" not in row), key=lambda row: row["bubble_ratio"])
    figure = f"bubble ratio {format_share(best['bubble_ratio'])}"
    assert lines[-2] == f"best: schedule.kind {best['schedule.kind']}, schedule.microbatches 32: {figure}"
    assert lines[-1] == "8 cases, 1 do not fit, 1 failed"


def test_larger_is_better_where_it_is(write):
    sweep = load_sweep(
        write(BASE + "sweep: [{parallel.pipeline: [1, 2, 4]}]\n"), ["plot={x: parallel.pipeline, y: speedup}"]
    )
    lines = render(sweep_rows(sweep), sweep).splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["4", "2", "1"]
    assert lines[0].split()[-1] == "speedup"


SIZES = "sweep: [{schedule.microbatches: [8, 64]}]\nparallel: {pipeline: 4}\n"


def test_cases_of_different_sizes_are_compared_per_micro_batch(write):
    sweep = load_sweep(write(BASE + SIZES), ["cluster.nvlink.latency=0"])
    lines = render(sweep_rows(sweep), sweep).splitlines()
    each = [(m + 3) * 30 / m for m in (8, 64)]  # ms: 4 stages of 30 ms
    assert "per micro-batch" in lines[0]
    assert all(f"{ms:.4g} ms" in line for ms, line in zip(each, lines[1:3], strict=True))
    assert lines[-2] == "best: schedule.microbatches 64: step time 2.01 s, 31.41 ms per micro-batch"


def test_samples_count_all_replicas_and_micro_batches(write):
    model = "schedule: {kind: 1f1b, microbatches: 2}\nmodel: {base: gpt2, layers: 2}\ncluster: {gpus_per_node: 4}\n"
    sizes = "schedule.microbatch_size: [1, 1, 2, 2], schedule.microbatches: [2, 2, 1, 4]"
    rows = sweep_rows(load_sweep(write(f"{model}sweep: [{{parallel.data: [1, 4, 1, 1], {sizes}}}]\n")))
    assert Ranking.of(rows, "step_time_s").unit == "sample"
    assert Ranking.of([rows[0], rows[2]], "step_time_s").unit == ""  # two samples in both
    ranking = Ranking.of(rows, "step_time_s")
    samples = [row["step_time_s"] / ranking.share(row, "step_time_s") for row in rows]
    assert samples == pytest.approx([2, 8, 2, 8])


def test_what_does_not_grow_with_samples_is_compared_whole(write):
    rows = sweep_rows(load_sweep(write(BASE + SIZES)))
    for column in ("bubble_ratio", "peak_memory_bytes", "efficiency", "microbatches_per_s", "wall_s"):
        ranking = Ranking.of(rows, column)
        assert [ranking.share(row, column) for row in rows] == [number(column, row[column]) for row in rows]
    ranking = Ranking.of(rows, "messages")
    assert [ranking.share(row, "messages") for row in rows] == [6.0, 6.0]  # both ways over three links
    assert ranking.share(rows[1], "idle_s.dependency") == rows[1]["idle_s"]["dependency"] / 64


@pytest.mark.parametrize("order", ["[20 ms, 10 ms]", "[10 ms, 20 ms]"])
def test_a_tie_goes_to_the_shortest_step(write, order):
    axes = f"sweep: [{{workload.forward: {order}}}]\nplot: {{x: workload.forward, y: bubble_ratio}}\n"
    sweep = load_sweep(write(BASE + axes))
    assert "best: workload.forward 10 ms: bubble ratio 0.0 %" in render(sweep_rows(sweep), sweep).splitlines()


def test_the_best_goodput_is_the_largest():
    weeks = [{"goodput": share, "step_time_s": 1.0, "microbatches_per_s": 4.0} for share in (0.8, 0.9)]
    assert min(weeks, key=Ranking.of(weeks, "goodput").key)["goodput"] == 0.9


def test_a_key_that_is_left_out_shows_as_default(write):
    axes = "sweep: [{seed: [null, 3]}]\nplot: {x: seed, y: step_time_s, hue: seed}\n"
    sweep = load_sweep(write(BASE + axes))
    rows = sweep_rows(sweep)
    text = render(rows, sweep)
    assert "best: seed default: " in text
    assert "None" not in text
    drawn = draw(rows, sweep.picture, Figure().subplots())
    assert [one.get_text() for one in drawn.get_legend().get_texts()] == ["default", "3"]


def test_the_largest_memory_is_a_column_of_numbers(write):
    frame = table(sweep_rows(load_sweep(write(BASE + AXES), ["workload.memory={activation: 5 GB}"])))
    fits = frame[frame["error"].isna()]
    assert fits["peak_memory_bytes.max"].tolist() == [max(cell) for cell in fits["peak_memory_bytes"]]
    assert fits["peak_activations.max"].tolist() == [max(cell) for cell in fits["peak_activations"]]


@pytest.mark.parametrize(
    ("cells", "written"),
    [
        ([9007199254740993, None], ["9007199254740993", ""]),
        ([9007199254740993, 1.5], ["9007199254740993", "1.5"]),
        ([2**63 - 1, None, -(2**63) + 1], ["9223372036854775807", "", "-9223372036854775807"]),
        ([10**30, None], [str(10**30), ""]),
        ([2**63, -1], [str(2**63), "-1"]),
        ([2**53 + 1, "p"], [str(2**53 + 1), "p"]),
        ([True, None], ["True", ""]),
        ([1, 2.5, None], ["1.0", "2.5", ""]),
    ],
)
def test_whole_numbers_are_written_exactly(cells, written):
    frame = table([{"seed": cell, "name": "a"} if cell is not None else {"name": "a"} for cell in cells])
    assert frame.to_csv(index=False, columns=["seed"]).splitlines()[1:] == [cell or '""' for cell in written]


def test_what_does_not_fit_is_drawn_hollow(write):
    sweep = load_sweep(write(BASE + RANKED), ["workload.memory.activation=5 GB"])
    ax = draw(sweep_rows(sweep), sweep.picture, Figure().subplots())
    hollow = [line for line in ax.lines if line.get_markerfacecolor() == "white" and len(line.get_xdata())]
    assert [line.get_xdata().tolist() for line in hollow] == [[32.0]]
    assert "hollow: does not fit" in [text.get_text() for text in ax.get_legend().get_texts()]
    gpipe = next(line for line in ax.lines if line.get_label() == "gpipe")
    assert gpipe.get_markevery() == [0]


@from_table
def test_a_picture_of_missing_columns_fails_at_the_first_row(run, write, tmp_path, plot, said):
    assert run(write(BASE + AXES), "--set", plot, "--out", tmp_path / "o") == (2, "", [f"plot: {said}"])
    assert not (tmp_path / "o").exists()
    done = []
    sweep = load_sweep(write(BASE + AXES), [plot])
    with pytest.raises(UsageError, match="plot: "):
        sweep_rows(sweep, progress=lambda cases, total: done.append(cases))
    assert done == [1]


def test_a_picture_says_what_it_shows(write):
    axes = "sweep:\n  - {workload.forward: [2 ms, 10 ms, 1 s]}\n  - {parallel.pipeline: [2, 4]}\n  - {seed: [0, 1]}\n"
    rows = sweep_rows(load_sweep(write(BASE + axes)))
    ax = draw(rows, Plot("workload.forward", "step_time_s", ("parallel.pipeline",), {"seed": 0}), Figure().subplots())
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_title(loc="left")) == ("forward", "step time (s)", "a,  seed 0")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["2", "4"]
    assert ax.get_legend().get_title().get_text() == "pipeline"
    assert [line.get_xdata().tolist() for line in ax.lines] == [[0.002, 0.01, 1.0]] * 2
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["2 ms", "10 ms", "1 s"]


def test_a_picture_keeps_word_order_and_list_maxima(write):
    axes = "sweep:\n  - {schedule.kind: [zb-h1, gpipe, 1f1b]}\nparallel: {pipeline: 2}\n"
    rows = sweep_rows(load_sweep(write(BASE + axes)))
    ax = draw(rows, Plot("schedule.kind", "peak_activations"), Figure().subplots())
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["zb-h1", "gpipe", "1f1b"]
    assert ax.lines[0].get_ydata().tolist() == [2, 4, 2]


def test_equal_lines_stay_in_sight(write):
    rows = sweep_rows(
        load_sweep(write(BASE + AXES), ["sweep.1.schedule.kind=[gpipe, 1f1b]", "cluster.nvlink.latency=0"])
    )
    ax = draw(rows, Plot("parallel.pipeline", "pipeline_time_s", ("schedule.kind",)), Figure().subplots())
    below, above = ax.lines
    assert below.get_xydata() == pytest.approx(above.get_xydata())
    assert (below.get_linestyle(), above.get_linestyle()) == ("-", "--")  # its colour shows between the dashes
    assert below.get_markersize() > above.get_markersize()


def test_equal_lines_are_no_thicker_than_others(write):
    kinds = "sweep.1.schedule.kind=[gpipe, 1f1b, zb-h1]"
    rows = sweep_rows(load_sweep(write(BASE + AXES), [kinds, "cluster.nvlink.latency=0"]))
    ax = draw(rows, Plot("parallel.pipeline", "pipeline_time_s", ("schedule.kind",)), Figure().subplots())
    assert len({line.get_linewidth() for line in ax.lines}) == 1


@pytest.mark.parametrize("plot", ["{x: name, y: step_time_s}", "{x: seed, y: step_time_s, hue: name}"])
def test_swept_texts_are_no_formulas_in_pictures(write, run, tmp_path, plot):
    axes = f"sweep: [{{name: ['$x_{{^$', '$$', 'a$b']}}, {{seed: [1]}}]\nplot: {plot}\n"
    assert run(write(BASE + axes), "--out", tmp_path / "o", "--quiet") == (0, "", [])
    assert (tmp_path / "o" / "sweep.png").is_file()
