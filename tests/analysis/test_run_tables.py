"""Tables of links, memory, waits and collectives, against the summary and the timeline."""

import doctest

import pandas as pd
import pytest
from support.paths import ROOT, SCENARIOS

from hybrid_des.analysis.run_tables import COLLECTIVES, LINKS, MEMORY, WAITS
from hybrid_des.measured.imports.imported import Imported
from hybrid_des.result import Result, simulate
from hybrid_des.scenario.loading import load

RUNS = {"a100_8x": ["steps=2"], "h100_2x8": [], "llama3.1-8b_8": [], "jitter_64": ["record=compute"]}


@pytest.fixture(scope="module", params=RUNS)
def result(request):
    return simulate(load(SCENARIOS / f"{request.param}.yaml", RUNS[request.param]))


def test_waits_sum_to_the_idle_time_of_the_summary(result):
    table = result.wait_table()
    assert tuple(table.columns) == WAITS
    shares = table.groupby("cause").waited_s.sum() / result.summary["ranks_simulated"] / result.run.scenario.steps
    assert shares.to_dict() == pytest.approx({key: idle for key, idle in result.summary["idle_s"].items() if idle})
    assert (table.end_s - table.start_s).to_numpy() == pytest.approx(table.waited_s.to_numpy())


def test_links_carry_the_bytes_of_the_timeline(result):
    table, timeline = result.link_table(windows=30), result.timeline
    assert tuple(table.columns) == LINKS
    carried = timeline[timeline.lane != "compute"].groupby("lane").bytes.sum()
    assert table.groupby("link").bytes.sum().to_dict() == pytest.approx(carried.to_dict())
    assert len(table) == 30 * len(carried)
    for link, rows in table.groupby("link"):
        bandwidth = float(result.run.fabric.links[link].bandwidth)
        assert rows.utilisation_ratio.to_numpy() == pytest.approx((rows.bytes_per_s / bandwidth).to_numpy())
    assert (table.utilisation_ratio <= 1 + 1e-9).all()


def test_memory_over_time_peaks_as_the_summary_says(result):
    table = result.memory_table()
    assert tuple(table.columns) == MEMORY
    peaks = table.groupby("pipeline_rank")[["held_bytes", "activations"]].max()
    assert peaks.held_bytes.tolist() == result.summary["peak_memory_bytes"]
    assert peaks.activations.tolist() == pytest.approx(result.summary["peak_activations"])
    assert table.time_s.is_monotonic_increasing


def test_collectives_last_as_long_as_was_recorded(result):
    table, run = result.collective_table(), result.run.timeline
    assert tuple(table.columns) == COLLECTIVES
    counts = table.kind.value_counts().to_dict()
    assert counts.get("gradients", 0) == len(run.reductions["rank"]) > 0
    assert counts.get("parameters", 0) == len(run.gathers["rank"])
    assert (table.end_s >= table.start_s).all()
    assert table[table.kind == "gradients"].bucket.notna().all()
    if result.run.scenario.steps == 1:  # with sharded states, a rank's step ends with its gathers
        ended = table.groupby("rank").end_s.max()
        assert ended.max() <= result.summary["step_time_s"] + 1e-12


def test_collectives_inside_ops_are_named_by_their_axis():
    table = simulate(load(SCENARIOS / "mixtral-8x7b_64.yaml", ["batch=64"])).collective_table()
    assert {"expert", "gradients"} <= set(table.kind)
    assert table[table.kind == "expert"].stage.isna().all()


@pytest.mark.parametrize(
    "method", [Result.link_table, Result.memory_table, Result.wait_table, Result.collective_table, Imported.tables]
)
def test_the_example_of_a_table_runs(method, monkeypatch):
    monkeypatch.chdir(ROOT)
    (found,) = doctest.DocTestFinder().find(method, method.__name__, globs={})
    assert found.examples
    failed = []
    doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(found, out=failed.append)
    assert not failed, "".join(failed)


def test_a_run_without_rows_has_empty_tables():
    result = simulate(load(SCENARIOS / "a100_8x.yaml", ["record=none", "parallel.data=1"]))
    for table in (result.link_table(), result.collective_table()):
        assert isinstance(table, pd.DataFrame) and table.empty
    assert tuple(result.link_table().columns) == LINKS
