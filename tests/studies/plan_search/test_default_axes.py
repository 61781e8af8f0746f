"""Without axes, a search varies what people ask about, whatever the file states, and says what it leaves."""

from contextlib import suppress

import pytest
from support import spaces

from hybrid_des import search
from hybrid_des.errors import ScenarioError
from hybrid_des.interface.cli.commands.search import _listed
from hybrid_des.pipeline import schedules
from hybrid_des.studies.plan_search.evaluation import scenario_in
from hybrid_des.studies.plan_search.space import plans_in, values_of

STATED = {
    "parallel": {"tensor": 2, "sequence": True, "pipeline": 2, "data": 2},
    "schedule": {"kind": "1f1b", "microbatch_size": 8},
    "recompute": "selective", "sharding": "zero-1", "gradients": {"overlap": True, "bucket": "1 MB"}, "batch": 64,
}  # fmt: skip
TINY = {**spaces.TINY, "layers": 8}


def settings(**sections):
    return spaces.settings(spaces.of_model(8, **{"model": {**TINY, "written": "megatron"}, **STATED, **sections}))


def possible(at):
    """The scenarios of the plans that are possible."""
    scenarios = []
    for plan in plans_in(at):
        with suppress(ScenarioError):
            scenarios.append(scenario_in(at, plan))
    assert len(scenarios) > len(plans_in(at)) // 2
    return scenarios


def test_what_the_file_states_of_layout_and_schedule_varies():
    varied = values_of(plans_in(settings()))
    assert {tuple(sorted(varied[f"parallel.{axis}"])) for axis in ("pipeline", "data")} == {(1, 2, 4, 8)}
    assert sorted(varied["parallel.tensor"]) == [1, 2, 4]
    assert varied["schedule.microbatch_size"] == [1, 2, 4, 8]  # the last is the file's
    assert varied["recompute"] == ["none", "full", "selective"]
    assert varied["schedule.kind"] == ["1f1b", "interleaved-1f1b"]  # Megatron-LM has no others
    assert "parallel.context" not in varied


def test_hugging_face_models_have_the_schedules_of_pytorch():
    def kinds(written):
        return {plan["schedule.kind"] for plan in plans_in(settings(model={**TINY, "written": written}))}

    assert kinds("transformers") == kinds("pytorch")


def test_what_is_not_varied_stays_as_the_file_has_it():
    for scenario in possible(settings()):
        assert (scenario.sharding, scenario.gradients.bucket, scenario.parallel.context) == ("zero-1", 10**6, 1)
        assert scenario.batch == 64


@pytest.mark.parametrize("model", [TINY, {**TINY, "written": "megatron"}, {**TINY, "written": "pytorch"}])
def test_the_plan_of_the_file_is_among_all(model):
    at = settings(model=model)
    assert at.written in possible(at)


def test_chunks_divide_the_layers():
    plans = plans_in(settings())
    for plan in plans:
        chunks = plan["schedule.chunks"]
        assert chunks is None or 8 % (plan["parallel.pipeline"] * chunks) == 0
    assert set(values_of(plans)["schedule.chunks"]) == {None, 2, 4}


def test_long_samples_may_be_divided():
    model = {**TINY, "written": "megatron", "sequence": 32 * 1024}
    assert sorted(values_of(plans_in(settings(model=model)))["parallel.context"]) == [1, 2, 4, 8]


def test_numbers_of_a_workload_have_all_schedules():
    varied = values_of(plans_in(spaces.settings(spaces.of_workload(8))))
    assert sorted(varied["schedule.kind"]) == schedules.names()
    assert set(varied) >= {"parallel.pipeline", "parallel.data", "recompute"}


def test_all_gpus_are_used_whatever_the_file_uses():
    values = spaces.of_workload(8, parallel={"pipeline": 3, "data": 1}, sharding="none", recompute="none")
    found = search({**values, "schedule": {"kind": "1f1b", "microbatches": 8}})
    assert {one.row["ranks"] for one in found.ranked} == {8}


@pytest.mark.parametrize("block", [{}, {"axes": ["schedule.microbatch_size"]}])
def test_a_list_says_what_stays_and_how_to_vary_it(block):
    at = spaces.settings(spaces.of_model(8, **STATED), **block)
    plans = plans_in(at)
    (last,) = (line for line in _listed(at, plans).splitlines() if "as the file" in line)
    axes = last.partition("search.axes=")[2].rstrip("'")
    freed = spaces.settings(spaces.of_model(8, **STATED), axes=[*axes.strip("[]").split(", ")])
    more = plans_in(freed)
    assert len(more) > len(plans)
    assert set(values_of(more)) >= {"sharding", "gradients.bucket", *values_of(plans)}
