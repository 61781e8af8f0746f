"""Memory by part, and what would fit: equal to what a simulation of the change finds."""

import re
from itertools import islice

import pytest
from support import spaces
from support.campaigns import thinned
from support.scenarios import scenario as given

from hybrid_des import load, simulate
from hybrid_des.analysis.compare import compare, side_of_scenario
from hybrid_des.analysis.explanation import explain
from hybrid_des.errors import OutOfMemoryError
from hybrid_des.planning.lowering import planned_peaks
from hybrid_des.planning.planner import parts_of
from hybrid_des.report.compared import render_comparison
from hybrid_des.report.explained import render_explanation
from hybrid_des.report.page.document import PageRun, page_of
from hybrid_des.simulation.memory import memory_parts, misfit
from hybrid_des.simulation.memory_remedies import remedies, what_would_fit
from hybrid_des.units import format_bytes

GB = 10**9
MODEL = {"base": "gpt3-1.3b", "attention": "plain"}


def scenario(memory="80 GB", **sections):
    gpu = {"memory": memory, "peak": "312 TFLOP/s", "bandwidth": "2 TB/s", "multiprocessors": 108}
    sections.setdefault("schedule", {"kind": "1f1b", "microbatches": 8, "microbatch_size": 4})
    return load({
        "model": MODEL, "cluster": {"gpu": gpu}, "parallel": {"pipeline": 2, "data": 2, "tensor": 2},
        "efficiency": {"gemm": 0.8, "attention": 0.4, "memory": 0.8}, **sections,
    })  # fmt: skip


@pytest.mark.parametrize(
    "kind",
    thinned(
        ["1f1b", "gpipe", "zb-h1", "zb-v", "dualpipe", "interleaved-1f1b"],
        slow=["gpipe", "interleaved-1f1b", "zb-h1", "zb-v"],
    ),
)
def test_the_peak_of_a_plan_is_that_of_its_simulation(kind):
    chunks = {"chunks": 2} if kind == "interleaved-1f1b" else {}
    run = simulate(scenario(schedule={"kind": kind, "microbatches": 8, **chunks})).run
    layout = run.scenario.parallel.layout
    assert [planned_peaks(run.plan, run.costs)[place] for place in layout.along("pipeline")] == run.peak_memory


@pytest.mark.parametrize("sharding", thinned(["none", "zero-1", "zero-2", "zero-3"], slow=["zero-1", "zero-2"]))
def test_the_parts_of_memory_add_up_to_the_peak(sharding):
    summary = simulate(scenario(sharding=sharding)).summary
    parts = summary["memory_parts_bytes"]
    assert list(parts) == ["parameters", "gradients", "optimizer", "activations", "transients"]
    assert sum(parts.values()) == max(summary["peak_memory_bytes"])
    assert min(parts.values()) > 0


def test_without_sharding_a_parameter_takes_18_bytes():
    whole = scenario()
    costs = parts_of(whole).costs
    parts = memory_parts(costs, 0, costs.resident[0])
    count = costs.parameters[0]
    assert [parts[name] / count for name in ("parameters", "gradients", "optimizer")] == [2, 4, 12]


@pytest.mark.parametrize(
    ("memory", "said"), [(1, "parameters: 2 B, 1 B left"), (7, "optimizer: 4 B, 2 B left"), (10, "activations: 8 B")]
)
def test_the_part_that_does_not_fit_is_named(memory, said):
    parts = {"parameters": 2, "gradients": 3, "optimizer": 4, "activations": 8, "transients": 0}
    assert misfit(parts, memory).startswith(said)


CHANGED = {
    "recompute: selective": {"recompute": "selective"},
    "recompute: full": {"recompute": "full"},
    **{f"sharding: {level}": {"sharding": level} for level in ("zero-1", "zero-2", "zero-3")},
    "schedule.microbatch_size: 2, schedule.microbatches: 16": {
        "schedule": {"kind": "1f1b", "microbatches": 16, "microbatch_size": 2}
    },
}


@pytest.mark.parametrize("change", thinned(CHANGED, slow=[*CHANGED][:-1]))
def test_a_change_has_the_peak_of_its_simulation(change):
    small = scenario("4 GB")
    parts = parts_of(small)
    found = {remedy.change: remedy.peak.held for remedy in remedies(small, parts.plan, parts.fabric)}
    assert [*found] == [*CHANGED]
    assert found[change] == max(simulate(scenario(**CHANGED[change])).run.peak_memory)


def test_the_first_change_that_fits_is_named():
    run = simulate(scenario()).run
    selective = next(iter(remedies(run.scenario, run.plan, run.fabric))).peak.held
    enough = scenario(selective + 1)
    assert what_would_fit(enough, run.plan, run.fabric).startswith("recompute: selective, with ")
    full = next(islice(remedies(run.scenario, run.plan, run.fabric), 1, None)).peak.held
    assert what_would_fit(scenario(full + 1), run.plan, run.fabric).startswith("recompute: full, with ")
    assert what_would_fit(scenario("1 GB"), run.plan, run.fabric).startswith("no single change; the best is ")


LAYERED = {"parallel": {"data": 4}, "recompute": "full"}


@pytest.mark.parametrize("gradients", [{"bucket": "25 MB"}, {"bucket_rule": "ddp"}], ids=str)
def test_sharding_by_layers_is_advised_without_a_bucket(gradients):
    lacking = scenario("20 GB", gradients=gradients, **LAYERED)
    run = simulate(lacking).run
    advice = {remedy.change.partition(",")[0]: remedy for remedy in remedies(lacking, run.plan, run.fabric)}
    for level in ("zero-2", "zero-3"):
        remedy = advice[f"sharding: {level}"]
        assert remedy.change == f"sharding: {level}, gradients.bucket: none"
        followed = scenario("20 GB", gradients={**gradients, "bucket": "none"}, sharding=level, **LAYERED)
        assert max(simulate(followed).run.peak_memory) == remedy.peak.held


def test_a_change_that_is_refused_is_not_advised():
    reduced = scenario("20 GB", gradients={"algorithm": "recursive-doubling"}, **LAYERED)
    run = simulate(reduced).run
    assert [one for one in remedies(reduced, run.plan, run.fabric) if "sharding" in one.changes] == []
    waiting = scenario(
        "20 GB", gradients={"overlap": True}, overlap={"parameters": False}, sharding="zero-2", **LAYERED
    )
    run = simulate(waiting).run
    assert [one for one in remedies(waiting, run.plan, run.fabric) if "sharding" in one.changes] == []


def test_an_order_that_depends_on_times_is_planned_anew():
    values = spaces.of_model(8, parallel={"pipeline": 4, "data": 2}, schedule={"kind": "zb-auto"}, sharding="zero-3")
    values["cluster"] |= {"sharing": "fair", "infiniband": {"nics_per_node": 1, "bandwidth": "25 GB/s"}}
    values["cluster"]["gpu"] = {**spaces.CUSTOM, "memory": "20 MB"}
    run = simulate(load(values)).run
    peak = max(simulate(load({**values, "recompute": "full"})).run.peak_memory)
    advice = what_would_fit(run.scenario, run.plan, run.fabric)
    assert advice == f"no single change; the best is recompute: full, with {format_bytes(peak)}"


def test_a_run_that_does_not_fit_says_so_first():
    lacking = given(workload={"parameters": 6e9})
    result = simulate(lacking)
    first = result.report(width=200).splitlines()[1]
    assert re.fullmatch(r"OUT OF MEMORY: peak 96 GB of 80 GB, on rank 0: this step cannot run; its figures .*", first)
    explained = render_explanation(explain(lacking), width=200).splitlines()
    assert explained[1] == "OUT OF MEMORY: the fullest GPU needs 96 of 80 GB, 16 GB too much"
    assert explained[2] == "Memory     rank 0: parameters, gradients and optimizer 96 GB"
    side = side_of_scenario(lacking)
    assert "OUT OF MEMORY: " in render_comparison(compare(side, side)).splitlines()[1]
    assert '<p class="alarm">OUT OF MEMORY: ' in page_of([PageRun(result)])
    assert "OUT OF MEMORY" not in simulate(given()).report()


@pytest.mark.slow
def test_the_verdict_names_the_part_and_the_change():
    text = simulate(scenario("30 GB")).report()
    assert re.search(r"memory +OUT OF MEMORY   peak .* of 30 GB, on rank 0", text)
    assert re.search(r"does not fit +activations: .* left", text)
    assert re.search(r"would fit +recompute: selective, with ", text)
    with pytest.raises(OutOfMemoryError, match=r"does not fit: activations: .*; would fit: recompute: selective"):
        simulate(scenario("30 GB", on_oom="error"))


def test_a_workload_fits_only_with_its_activations():
    sizes = {"parameters": 1e9, "memory": {"per_parameter": 16}}
    text = simulate(given(workload=sizes)).report()
    assert re.search(r"memory +activations not given   without them peak 16 GB of 80 GB, on rank 0", text)
    sizes["memory"]["activation"] = "1 GB"
    assert re.search(r"memory +fits   peak 17 GB", simulate(given(workload=sizes)).report())
    sizes["parameters"] = 6e9
    text = simulate(given(workload=sizes)).report()
    assert "does not fit          parameters, gradients and optimizer: 96 GB, 80 GB left" in text
    assert "would fit" not in text
