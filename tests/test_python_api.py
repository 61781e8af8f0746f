"""What the public functions take and give."""

import doctest
import inspect
import json
import re

import numpy as np
import pandas as pd
import pytest
from support.paths import ROOT
from support.scenarios import MINIMAL, plain

import hybrid_des
from hybrid_des import (
    advise,
    collective,
    collectives,
    compare,
    costs,
    explain,
    fabric_of,
    goodput,
    import_profile,
    load,
    load_sweep,
    parts_of,
    replay,
    run_sweep,
    search,
    simulate,
    spread,
    verify,
)
from hybrid_des.errors import ScenarioError, UsageError
from hybrid_des.pipeline.plan import PlanRequest
from hybrid_des.pipeline.schedules.registration import make_plan
from hybrid_des.scenario.export import to_mapping
from hybrid_des.studies.sweep.results import draw
from hybrid_des.studies.sweep.runner import sweep_rows

JITTER = {"distribution": "lognormal", "sigma": 0.1}
FAULTS = {"horizon": "1 d", "replications": 1, "classes": [{"what": "gpu", "mtbf": "1000 h"}]}
TAKE_A_SCENARIO = {
    "simulate": lambda source: simulate(source).summary["step_time_s"],
    "costs": lambda source: costs(source).forward_s.tolist(),
    "explain": lambda source: explain(source).to_mapping()["step_time_s"],
    "compare": lambda source: compare(source, source).change,
    "spread": lambda source: spread(source, 2, jobs=1).step_time_s.tolist(),
    "goodput": lambda source: goodput(source).summary["goodput"],
    "verify": verify,
    "parts_of": lambda source: parts_of(source).costs,
    "fabric_of": lambda source: sorted(fabric_of(source).links),
    "search": lambda source: search(source).sentence,
}
TAKE_CHANGES = {
    "load": lambda source, changes: load(source, changes).steps,
    "simulate": lambda source, changes: simulate(source, overrides=changes).summary["step_time_s"],
    "costs": lambda source, changes: costs(source, overrides=changes).forward_s.tolist(),
    "explain": lambda source, changes: explain(source, overrides=changes).to_mapping()["step_time_s"],
    "spread": lambda source, changes: spread(source, 2, jobs=1, overrides=changes).step_time_s.tolist(),
    "goodput": lambda source, changes: goodput(source, overrides=changes).summary["goodput"],
    "verify": lambda source, changes: verify(source, overrides=changes),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TAKE_A_SCENARIO)
def test_a_path_a_mapping_and_a_scenario_are_the_same(name, tmp_path):
    values = plain(jitter=JITTER, faults=FAULTS, name="a", search={"axes": [{"schedule.microbatches": [1, 2]}]})
    path = tmp_path / "a.yaml"
    path.write_text(json.dumps(values, default=str))
    given = load({key: value for key, value in values.items() if key != "search"})
    answer = TAKE_A_SCENARIO[name]
    expected = answer(path)
    assert answer(str(path)) == answer(values) == expected
    if name != "search":  # a scenario has no space of plans
        assert answer(given) == expected


def test_what_is_no_scenario_is_told():
    for name in ("simulate", "costs", "explain", "spread", "goodput", "verify"):
        with pytest.raises(UsageError, match="found an object of type list; expected the path of a scenario file, a "):
            TAKE_A_SCENARIO[name]([1])


def test_numpy_values_are_those_of_python():
    values = plain(
        parallel={"pipeline": 4, "data": 2}, schedule={"kind": "gpipe", "microbatches": 8}, steps=2, seed=3,
        workload={"forward": [0.5, 0.25, 0.5, 0.5], "backward": 0.05}, jitter=JITTER, gradients={"overlap": False},
    )  # fmt: skip
    given = plain(
        parallel={"pipeline": np.int64(4), "data": np.array(2)}, steps=np.float64(2), seed=np.uint8(3),
        schedule={"kind": np.str_("gpipe"), "microbatches": np.int32(8)}, gradients={"overlap": np.bool_(False)},
        workload={"forward": np.array([0.5, 0.25, 0.5, 0.5]), "backward": np.float64(0.05)},
        jitter={np.str_("distribution"): "lognormal", "sigma": np.float64(0.1)},
    )  # fmt: skip
    assert load(given) == load(values)
    swept = run_sweep({**given, "sweep": [{"schedule.microbatches": np.arange(1, 3)}]})
    assert swept["schedule.microbatches"].tolist() == [1, 2]
    assert swept["step_time_s"].notna().all()


def test_options_of_plugins_may_be_numpy_values():
    request = PlanRequest(4, 8, forward=(1,) * 4, input=(1,) * 4, weight=(1,) * 4)
    given = make_plan("zb-auto", request, {"max_activations": np.float64(4)})
    assert given == make_plan("zb-auto", request, {"max_activations": 4})
    sizes = np.array([1024, 4096])
    table = collective("ring", {**plain(), "cluster": {"gpus_per_node": np.int64(4)}}, sizes=sizes, ranks=np.int64(4))
    assert table.bytes.tolist() == [1024, 4096]
    configured = collectives.find("ring").arguments({"channels": np.int64(2)})
    assert configured == collectives.find("ring").arguments({"channels": 2})


@pytest.mark.parametrize("value", [np.datetime64("2020"), 1 + 2j, object()])
def test_values_that_are_no_numbers_are_refused(value):
    with pytest.raises(ScenarioError, match=r"workload\.forward: expected a time such as 50 ms, found"):
        load(plain(workload={"forward": value, "backward": 1}))


def test_a_scenario_is_loaded_again_with_changes():
    given = load(plain())
    assert load(given) is given
    changed = load(given, ["schedule.microbatches=7"])
    assert (changed.schedule.microbatches, changed.workload) == (7, given.workload)
    assert load(to_mapping(changed)) == changed


def test_a_mapping_may_name_its_base(scenarios):
    file = scenarios / "a100_8x.yaml"
    based = load({"base": str(file), "name": "a100_8x", "schedule": {"kind": "gpipe"}}, ["steps=2"])
    assert based.schedule == load(file, ["schedule.kind=gpipe"]).schedule and based.steps == 2
    with pytest.raises(ScenarioError) as wrong:
        load({"base": str(file), "parallel": {"stags": 3}})
    assert wrong.value.problems[0].startswith('scenario: parallel.stags: unknown "stags"')


def test_overrides_of_a_searched_mapping_are_read():
    values = plain(search={"axes": [{"schedule.microbatches": [1, 2]}]})
    changed = search(values, ["search.axes=[{schedule.microbatches: [1]}]"])
    assert 2 * len(changed.table()) == len(search(values).table())


def test_a_sweep_gives_a_data_frame(write):
    text = (
        MINIMAL
        + "sweep:\n  - {schedule.microbatches: [2, 4, 0]}\nplot: {x: schedule.microbatches, y: peak_memory_bytes}\n"
    )
    file = write(text)
    frame, rows = run_sweep(file), sweep_rows(load_sweep(file))
    assert isinstance(frame, pd.DataFrame)
    assert frame.step_time_s.tolist()[:2] == [row["step_time_s"] for row in rows[:2]]
    assert frame.error.notna().tolist() == [False, False, True]
    picture = load_sweep(file).picture
    drawn = [draw(one, picture).lines[0].get_xydata().tolist() for one in (frame, rows)]
    assert drawn[0] == drawn[1]


ELSEWHERE = {"record", "megatron", "torchtitan"}  # examples on a page: the first needs PyTorch
FACE = [name for name in hybrid_des.__all__ if inspect.isroutine(getattr(hybrid_des, name)) and name not in ELSEWHERE]


@pytest.mark.parametrize("name", FACE)
def test_the_example_of_a_public_function_runs(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    (found,) = doctest.DocTestFinder().find(getattr(hybrid_des, name), name, globs={})
    assert found.examples
    failed = []
    doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(found, out=failed.append)
    assert not failed, "".join(failed)


def test_what_is_found_is_shown_in_a_line():
    """Tables and runs inside would fill the screen of a notebook."""
    short = plain(faults=FAULTS, search={"axes": [{"schedule.microbatches": [1, 2]}]})
    scenario = load({key: value for key, value in short.items() if key != "search"})
    for found in (simulate(scenario), explain(scenario), compare(scenario, scenario), search(short), goodput(scenario)):
        assert len(repr(found).splitlines()) == 1
        assert len(repr(found)) < 150


def test_an_explanation_has_tables_and_advice():
    """Advice is that of `advise`, looked for once; with a plan of the user's there is none."""
    scenario = plain(parallel={"pipeline": 2, "data": 2})
    explained, result = explain(scenario), simulate(scenario)
    assert explained.advice is explained.advice
    assert explained.advice.to_mapping() == result.explain().advice.to_mapping() == advise(scenario).to_mapping()
    assert result.explain()["ladder"].equals(explained.tables()["ladder"])
    assert simulate(scenario, result.plan).explain().advice is explain(scenario, plan=result.plan).advice is None


def test_a_comparison_gives_data_frames():
    """A folder has no effects of changes; its table of them is empty."""
    tables = compare(plain(), load(plain(), ["schedule.kind=gpipe"])).tables()
    assert set(tables) == {"settings", "times", "causes", "classes", "ranks", "ops", "links", "effects", "pairs"}
    assert tables["effects"].name.tolist() == ["schedule"]
    causes = tables["causes"]
    assert (causes.b_s - causes.a_s).tolist() == pytest.approx(causes.change_s.tolist())


def test_a_collective_takes_its_time_on_the_given_cluster(scenarios):
    """A ring takes 2(n−1)(latency + S/(n·bandwidth)); each file's own `gradients` are left aside."""
    size = 2**30
    port = collective("ring", ranks=8, sizes=[size]).iloc[0]
    assert port.time_us == pytest.approx(14 * (1 + size / 8 / 25e3), abs=1e-6)
    assert port.bus_bandwidth_gb_per_s == pytest.approx(size / port.time_us / 1e3 * 14 / 8)
    file = scenarios / "h100_2x8.yaml"
    one, all_rings = (
        collective("ring", file, changes, sizes=[size]).time_us[0] for changes in (["gradients.channels=1"], ())
    )
    assert one > 2 * all_rings
    assert set(collective("all", ranks=4, sizes=[4096]).algorithm) < set(collectives.all_reduces())


def test_a_collective_that_cannot_run_is_refused():
    for sizes, ranks, match in (([1], 1, "at least 2"), (["1 potato"], 2, "sizes: .*potato"), ([0], 2, "sizes: 0")):
        with pytest.raises(UsageError, match=match):
            collective("ring", sizes=sizes, ranks=ranks)


def test_every_public_name_is_in_the_reference_of_python():
    page = (ROOT / "docs/reference/python.md").read_text()
    shown = set(re.findall(r"^::: [\w.]+\.(\w+)$", page, flags=re.MULTILINE)) | set(
        re.findall(r"`hybrid_des\.(\w+)`", page)
    )
    assert set(hybrid_des.__all__) <= shown


@pytest.mark.parametrize("name", TAKE_CHANGES)
def test_changes_are_a_list_or_a_mapping(name):
    """NumPy's numbers count, and a change to the value that holds already changes nothing."""
    values = plain(jitter=JITTER, faults=FAULTS, name="a")
    answer = TAKE_CHANGES[name]
    changed = answer({**values, "steps": 3}, ())
    assert answer(values, ["steps=3"]) == answer(values, {"steps": np.int64(3)}) == changed
    assert answer(values, {"steps": 3, "description": None}) == changed


def test_changes_that_are_none_are_told():
    with pytest.raises(hybrid_des.Error, match='overrides: found "steps=3"; expected a list of strings such as'):
        load(plain(), "steps=3")
    with pytest.raises(hybrid_des.Error, match="overrides: found 3 in place of a path"):
        load(plain(), {3: 4})
    with pytest.raises(hybrid_des.Error, match=r'--set stepps=3: stepps: unknown "stepps"; did you mean "steps"'):
        load(plain(), {"stepps": 3})


def test_a_comparison_with_changes_is_one_with_a_changed_scenario():
    values = plain()
    changed = compare(values, overrides={"schedule.kind": "gpipe"})
    assert changed.to_mapping() == compare(values, load(values, ["schedule.kind=gpipe"])).to_mapping()
    with pytest.raises(UsageError, match="a finished run, which cannot be changed"):
        compare(changed.a, overrides=["steps=2"])


def test_every_result_shows_itself_in_a_notebook(tmp_path):
    short = plain(faults=FAULTS, name="<b>", search={"axes": [{"schedule.microbatches": [1, 2]}]})
    scenario = load({key: value for key, value in short.items() if key != "search"})
    measured = "scenarios/durations/a100_8x_slow_gpu.csv"
    results = [simulate(scenario), explain(scenario), compare(scenario, scenario), search(short), goodput(scenario),
               replay(ROOT / measured), import_profile(ROOT / measured)]  # fmt: skip
    for shown in (result._repr_html_() for result in results):
        assert shown.startswith("<p")
        assert "<b>" not in shown
