"""The report on the terminal."""

import re

import matplotlib as mpl
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from rich.color import Color, ColorSystem
from support import handmade, spaces
from support.handmade import uniform
from support.scenarios import instant, shared_nics, values
from support.tables import from_table

from hybrid_des import load, plots, simulate
from hybrid_des.pipeline import schedules
from hybrid_des.pipeline.plan import PlanRequest
from hybrid_des.report.terminal import render
from hybrid_des.result import Result

MS = 10**9


def result_of(pipeline=2, microbatches=8, kind="1f1b", **options):
    plan = schedules.make_plan(kind, PlanRequest(pipeline, microbatches))
    return Result(handmade.run(plan, uniform(50 * MS, 80 * MS), **{"data": 2, "reduction": 40 * MS, **options}))


def test_the_headline_gives_the_figures_of_the_summary():
    text = render(result_of())
    for figure in ("1.21 s", "10.7 %", "3.44×", "86.0 % efficient", "3.3 %"):
        assert figure in text


def test_the_chart_shows_who_computes_when():
    plan = schedules.find("1f1b").build(PlanRequest(2, 2))
    result = Result(handmade.run(plan, uniform(1, 1), reduction=2))
    lines = [line for line in render(result, width=40).splitlines() if line.startswith("rank")]
    # rank 0: F F · B · B ~ ~    rank 1: · F B F B ~ ~ ·, of eight units four columns wide
    assert lines == ["rank 0  " + "".join(4 * c for c in "FF·B·B~~"), "rank 1  " + "".join(4 * c for c in "·FBFB~~·")]


def test_the_key_names_what_is_shown_and_no_more():
    text = render(result_of(reduction=0))
    key = next(line for line in text.splitlines() if "F forward" in line)
    assert key.split("   ")[-3:] == ["  F forward", "B backward", "· idle"]


@pytest.mark.parametrize("width", [40, 80, 100, 200])
def test_no_line_of_the_chart_is_wider_than_asked(width):
    for line in render(result_of(pipeline=4), width=width).splitlines():
        if line.startswith(("rank", "Not")):
            assert len(line) <= width


def test_equal_replicas_share_a_line_of_the_chart():
    lines = chart_lines(result_of(pipeline=1, data=16))
    assert [line.split("  ")[0] for line in lines] == ["rank 0 ×16"]
    assert "(× counts replicas with the same lines)" in render(result_of(pipeline=1, data=16))
    names = [line.split("  ")[0] for line in chart_lines(result_of(pipeline=2, data=3))]
    assert names == ["rank 0 ×3", "rank 3 ×3"]


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        ({}, "other work of the host, and jitter; "),
        ({"efficiency": {**spaces.EFFICIENCY, "launch": 0}}, "kernel launches, the host, and jitter; "),
        ({"jitter": {"distribution": "lognormal", "sigma": 0.01}}, "other work of the host; "),
    ],
)
def test_the_report_says_what_is_not_modelled(change, missing):
    text = render(simulate(spaces.of_model(1, batch=1, **change)), width=400)
    assert f"Not modelled: {missing}" in text


def test_the_report_knows_of_host_time():
    text = render(simulate(instant(workload={"overhead": {"between": "1 ms"}})), width=400)
    assert "Not modelled: other work of the host, jitter, and compute" in text


def test_the_report_says_what_background_traffic_does_not_slow():
    flow = {"from": "gpu0", "to": "gpu1", "rate": "1 GB/s"}
    for sharding, said in (("zero-3", True), ("zero-1", False)):
        found = simulate(spaces.of_model(2, batch=2, sharding=sharding, background=[flow]))
        assert ("background traffic does not slow them" in render(found, width=200)) == said


def test_replicas_that_differ_keep_their_lines():
    slow = simulate(shared_nics(slow=[{"gpu": 1, "factor": 0.5}]))
    names = [line.split("  ")[0].rstrip() for line in chart_lines(slow)]
    assert names == [f"rank {rank}" for rank in (0, 2, 4, 6, 1, 3, 5, 7)]
    assert "×" not in render(slow).partition("average step")[0].partition("efficient")[2]


def test_many_ranks_fold():
    wide = render(result_of(pipeline=4, data=8))
    assert sum(line.startswith("rank") for line in wide.splitlines()) == 4
    assert "the first of 8 replicas" in wide
    deep = render(result_of(pipeline=32, data=1))
    assert sum(line.startswith("rank") for line in deep.splitlines()) == 16
    assert "without its middle 16 ranks" in deep
    assert "⋮" in deep


def chart_lines(result, width=100):
    return [line for line in render(result, width=width).splitlines() if line.startswith("rank")]


def test_a_long_step_leaves_out_its_middle():
    plan = schedules.find("1f1b").build(PlanRequest(4, 64))
    result = Result(handmade.run(plan, uniform(1, 2)))
    first, *_, last = chart_lines(result, width=73)  # 60 columns beside the mark; an F is two letters
    assert first == "rank 0  " + "FFFFFFFF············BBBBFFBBBBFF" + "  ┊  " + "BBBBFFBBBB··BBBB··BBBB··BBBB"
    assert last == "rank 3  " + "······" + "FFBBBB" * 4 + "FF" + "  ┊  " + "BBBBFFBBBBFFBBBB············"
    scale = next(line for line in render(result, width=73).splitlines() if "┊" in line and "rank" not in line)
    assert result.run.timeline.duration == 201
    assert scale.split() == ["0", "16", "ps", "┊", "187", "ps", "201", "ps"]


@pytest.mark.parametrize(("pipeline", "microbatches"), [(4, 32), (8, 64), (8, 256), (12, 100)])
def test_every_op_of_what_is_shown_has_its_letters(pipeline, microbatches):
    """At equal times of two and four letters, or one and two, no op is lost or merged with another."""
    plan = schedules.find("1f1b").build(PlanRequest(pipeline, microbatches))
    for line in chart_lines(Result(handmade.run(plan, uniform(10, 20)))):
        for block in line[9:].split("  ┊  "):
            forwards, backwards = re.findall(r"(?<=B)F+(?=B)", block), re.findall(r"(?<=[F·])B+(?=[F·])", block)
            assert {len(run) for run in backwards} in ({2}, {4})
            assert {2 * len(run) for run in forwards} <= {len(backwards[0])}


def test_letters_show_shares_where_ops_are_too_short():
    plan = schedules.find("1f1b").build(PlanRequest(16, 512))
    result = Result(handmade.run(plan, uniform(10, 20)))
    text = render(result)
    assert "(letters show shares of time, since ops are shorter)" in text
    for line in chart_lines(result):
        cells = line[9:].ljust(91, "·")
        assert abs(cells.count("F") / 91 - 512 * 10 / result.run.timeline.duration) < 2 / 91
        assert abs(cells.count("B") / 91 - 512 * 20 / result.run.timeline.duration) < 2 / 91


def test_idle_time_is_told_by_cause():
    text = render(result_of())
    assert re.search(r"gradient reduction +40 ms +3\.3 %", text)
    assert re.search(r"computing +1\.04 s +86\.0 %", text)


def test_memory_verdict():
    result = result_of()
    assert re.search(r"memory +fits", render(result))
    result = result_of()
    result.run.peak_memory = [90 * 10**9] * 4
    assert re.search(r"memory +OUT OF MEMORY +peak 90 GB of 80 GB, on rank 0", render(result))


def test_the_report_says_how_sends_go():
    assert "sends are asynchronous, where plain Megatron-LM 1F1B blocks" in render(result_of(), width=300)
    result = result_of()
    result.run.scenario.schedule.p2p = "blocking"
    assert "sends block as in plain Megatron-LM 1F1B" in render(result, width=300)


def test_colour_adds_nothing_but_colour():
    result = result_of()
    painted, plain = render(result, color=True), render(result)
    assert "\x1b[" in painted
    assert "\x1b" not in plain
    stripped = re.sub(r"\x1b\[[0-9;]*m", "", painted)
    assert [line.rstrip() for line in stripped.splitlines()] == plain.splitlines()


def test_activities_have_the_colours_of_the_pictures():
    mpl.use("Agg")
    result = result_of()
    painted = render(result, color=True)
    legend = plots.gantt(result.run, Figure().add_subplot()).get_legend()
    drawn = {
        text.get_text(): to_hex(patch.get_facecolor())
        for text, patch in zip(legend.texts, legend.legend_handles, strict=True)
    }
    for label, letter in (("forward", "F"), ("backward", "B"), ("gradient reduction", "~")):
        number = Color.parse(drawn[label]).downgrade(ColorSystem.EIGHT_BIT).number
        assert f"\x1b[38;5;{number}m{letter}" in painted, label


def test_a_run_without_time_has_a_report():
    plan = schedules.find("1f1b").build(PlanRequest(2, 2))
    assert "0 s" in render(Result(handmade.run(plan, uniform(0, 0))))


def test_a_result_shows_itself():
    result = result_of()
    assert repr(result) == "<Result handmade: 4 ranks, step 1.21 s, bubble 10.7 %>"
    assert "<pre" in result._repr_html_()
    assert result.timeline is result.timeline
    assert result.plan is result.run.plan


TENSOR = {"model": {"base": "gpt2", "layers": 4}, "schedule": {"kind": "1f1b", "microbatches": 4}}


@from_table
def test_ranks_that_share_a_stage_are_one_line(order, names):
    result = simulate(load({**TENSOR, "parallel": {"tensor": 4, "pipeline": 2, "order": order}}))
    text = result.report()
    assert [line.split("  ")[0] for line in text.splitlines() if line.startswith("rank")] == names
    assert "2 pipeline ranks × 1 replica × 4 tensor ranks" in text


def test_middle_ranks_left_out_are_counted_one_by_one():
    sizes = {"cluster": {"nodes": 8}, "parallel": {"tensor": 2, "pipeline": 24, "context": 1}}
    model = {"base": "gpt2", "layers": 24, "heads": 12}
    text = simulate(load({**TENSOR, **sizes, "model": model})).report()
    assert sum(line.startswith("rank") for line in text.splitlines()) == 16
    assert "without its middle 16 ranks" in text


def test_a_model_is_told_in_a_few_lines():
    text = simulate(load({**TENSOR, "parallel": {"context": 2, "tensor": 2, "data": 2}, "sharding": "zero-1"}))
    text = text.report(width=160)
    assert "1 pipeline" not in text
    assert "2 replicas × 2 tensor ranks × 2 context ranks" in text
    assert re.search(
        r"^gpt2: 67\.\d\d million parameters, 1 sequence of 1,024 tokens per micro-batch; bf16, zero-1$", text, re.M
    )
    assert re.search(
        r"^exposed communication +\d+\.\d %   of the step: tensor .*s, context .*s, gradients .*s, "
        r"parameters .*s$",
        text,
        re.M,
    )
    assert re.search(r"^MFU +\d+\.\d %   of 312 TFLOP/s per GPU; HFU \d+\.\d %$", text, re.M)
    assert re.search(r"^tokens per second +[\d,]+   [\d,]+ per GPU$", text, re.M)
    assert re.search(
        r"^  by part +.* parameters, .* gradients, .* optimizer,\n +.* activations, .* transients$", text, re.M
    )
    assert re.search(r"^  tensor collectives ", text, re.M)


@pytest.mark.parametrize("bucket", [{}, {"bucket": "none"}, {"bucket": "100 MB"}])
@pytest.mark.parametrize("sharding", ["none", "zero-1"])
@pytest.mark.parametrize("pipeline", [1, 2])
def test_overlap_that_hides_nothing_says_what_would_hide(pipeline, sharding, bucket):
    sections = {
        "workload": {"forward": "2 ms", "backward": "4 ms", "parameters": 100_000_000},
        "gradients": {"overlap": True, **bucket}, "sharding": sharding,
    }  # fmt: skip
    stated = values("1f1b", pipeline, 2, 2, **sections)
    found = simulate(load(stated))
    (advice,) = re.findall(r"overlap hides nothing: [^;]*; (.*?) fills? them", " ".join(render(found).split()))
    changes = [change.replace(": ", "=") for change in advice.split(" and ")]
    followed = simulate(load(stated, changes))
    assert found.summary["gradient_communication_s"]["hidden"] == 0
    assert followed.summary["gradient_communication_s"]["hidden"] > 0
    assert followed.summary["step_time_s"] < found.summary["step_time_s"]
    assert "hides nothing" not in render(followed)


def test_streams_without_pairs_say_what_would_hide_exchanges():
    """A stream of its own hides nothing where no op of another micro-batch runs beside the exchange."""
    sizes = {"layers": 2, "hidden": 1024, "heads": 8, "ffn": 2048, "vocab": 4096, "sequence": 2048}
    stated = {
        "cluster": {"gpu": "h100", "gpus_per_node": 4},
        "model": {**sizes, "experts": {"count": 8, "active": 2, "ffn": 2048}},
        "parallel": {"data": 4, "expert": 4},
        "batch": 32,
        "schedule": {"kind": "1f1b"},
    }
    plain, streams, pairs = (
        simulate(load(stated, changes))
        for changes in ([], ["experts.streams=true"], ["experts.streams=true", "schedule.pairs=true"])
    )
    said = (
        "experts.streams hides no all-to-all: no op of another micro-batch runs at the same time; schedule.pairs: true"
    )
    assert [said in " ".join(render(result).split()) for result in (plain, streams, pairs)] == [False, True, False]
    assert streams.summary["step_time_s"] == plain.summary["step_time_s"]
    assert pairs.summary["step_time_s"] < plain.summary["step_time_s"]


def test_idle_time_names_what_was_waited_for(scenarios):
    text = render(simulate(load(scenarios / "contention_slower.yaml", ["slow=[{gpu: 0, factor: 0.8}]"])))
    labels = re.findall(r"^  (\S.*?)  +[\d.]+ m?s", text, flags=re.MULTILINE)
    assert labels[:9] == [
        "computing", "bubble: warm-up", "bubble: dependency", "bubble: drain",
        "pipeline message: queueing", "pipeline message: transfer",
        "gradient reduction", "waiting for a slower replica", "step barrier",
    ]  # fmt: skip


@pytest.mark.parametrize(("chunks", "said"), [(1, True), (2, False), (None, False)])
def test_a_note_says_what_interleaving_one_chunk_does(chunks, said):
    given = {"parallel": {"pipeline": 2}, "workload": {"forward": 1, "backward": 2}}
    schedule = {"kind": "interleaved-1f1b", "microbatches": 4, "chunks": chunks}
    text = simulate({**given, "schedule": {key: value for key, value in schedule.items() if value}}).report(width=200)
    note = "with one chunk per rank, interleaved-1f1b has 1F1B's bubble and more micro-batches in flight"
    assert (note in text) == said


def test_a_line_counts_the_identical_ranks_it_stands_for():
    folded = simulate({"parallel": {"data": 4}, "workload": {"forward": 1, "backward": 2}, "fold": 2})
    names = folded.gantt(Figure().subplots()).get_yticklabels()
    assert [text.get_text() for text in names] == ["rank 0 ×4"]  # two are simulated, each for two
