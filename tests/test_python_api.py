"""What the public functions take and give."""

import json

import pandas as pd
import pytest
from support.scenarios import MINIMAL, plain

from hybrid_des import (
    compare,
    costs,
    explain,
    fabric_of,
    goodput,
    load,
    load_sweep,
    parts_of,
    run_sweep,
    search,
    simulate,
    spread,
    verify,
)
from hybrid_des.errors import UsageError
from hybrid_des.scenario import to_mapping
from hybrid_des.sweep import draw, sweep_rows

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


def test_a_scenario_is_loaded_again_with_changes():
    given = load(plain())
    assert load(given) is given
    changed = load(given, ["schedule.microbatches=7"])
    assert (changed.schedule.microbatches, changed.workload) == (7, given.workload)
    assert load(to_mapping(changed)) == changed


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
