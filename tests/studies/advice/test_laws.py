"""What advice promises holds when it is followed: memory, truth, the same work, and no line in vain."""

from functools import cache

import pytest
from support.campaigns import thinned
from support.followed_lines import followed, in_order
from support.paths import SCENARIOS
from support.plans_to_change import GOOD
from support.scenarios import merged

from hybrid_des import advise, applied, load
from hybrid_des.scenario.loading import document_of, scenario_from
from hybrid_des.studies.plan_search.evaluation import STEPS, evaluate
from hybrid_des.studies.plan_search.terms import settings_of

SMALL = GOOD["quarter of a 7B"]
TOO_LARGE = {
    "cluster": {"gpu": "a100-40gb", "gpus_per_node": 4},
    "model": {"base": "llama2-7b", "sequence": 4096},
    "parallel": {"pipeline": 4},
    "schedule": {"kind": "1f1b", "microbatches": 4, "microbatch_size": 1},
}


@cache
def advised():
    """Advice on the model that fits."""
    return advise(SMALL)


@cache
def advised_too_large():
    """Advice on the model that does not."""
    return advise(TOO_LARGE)


SHIPPED = [
    "a100_8x", "h100_2x8", "prototype_4gpu", "contention_slower", "resnet50_4stages", "vit-l_8", "first",
    "llama3.1-8b_8", "search/13b_64", "llama3.1-70b_128", "mixtral-8x7b_64", "llama3.1-405b_512",
    "deepseek-v3_256", "gpt3-175b_1024",
]  # fmt: skip


@pytest.mark.parametrize("name", thinned(SHIPPED, [name for name in SHIPPED if name != "prototype_4gpu"]))
def test_advice_on_shipped_scenarios_is_true_and_in_order(name):
    file = SCENARIOS / f"{name}.yaml"
    advice = advise(file)
    followed(file, advice)
    in_order(advice)


@pytest.mark.parametrize(
    "source, found", [(SMALL, advised), (TOO_LARGE, advised_too_large)], ids=["fits", "does not fit"]
)
def test_advice_on_models_is_true_and_in_order(source, found):
    advice = found()
    assert advice.lines
    followed(source, advice)
    in_order(advice)


def test_the_written_file_of_a_line_is_its_plan(tmp_path):
    advice = advised()
    for number, line in enumerate(advice.lines):
        file = tmp_path / f"{number}.yaml"
        file.write_text(applied(SMALL, line))
        written = load(file)
        assert written.model_copy(update={"name": line.scenario.name}) == line.scenario


@pytest.mark.slow  # test_an_explanation_has_tables_and_advice asks twice too, of a smaller one
def test_the_same_scenario_has_the_same_advice():
    assert advise(SMALL).to_mapping() == advised().to_mapping()


@pytest.mark.slow
def test_advice_is_the_same_in_any_order_of_its_tasks():
    """As with several processes: the budget is counted, never timed."""

    def backwards(tasks):
        return [task() for task in reversed(tasks)][::-1]

    assert advise(SMALL, at_once=backwards).to_mapping() == advised().to_mapping()


def test_bounds_rise_from_step_to_step_of_the_evaluation():
    settings = settings_of(document_of(SMALL))
    for line in advised().lines:
        least = [evaluate(settings, step, line.settings).least for step in STEPS]
        assert least == sorted(least) and least[0] > 0, line.change


def test_what_does_not_fit_has_only_plans_that_do():
    advice = advised_too_large()
    assert not advice.fits
    assert all(line.held <= line.memory for line in advice.lines)
    assert any(line.change == "full recompute" for line in advice.lines)


def test_where_nothing_fits_the_closest_plan_is_named():
    advice = advise(merged(TOO_LARGE, {"model": {"base": "llama2-70b", "sequence": 4096}}))
    assert not advice.fits and not advice.lines
    assert advice.nearest is not None and advice.nearest.held > advice.nearest.memory
    assert not any(remark.startswith("tight") for remark in advice.nearest.remarks)  # what lacks memory has none left


def test_a_workload_keeps_the_work_of_its_ops():
    values = {
        "cluster": {"gpus_per_node": 4},
        "parallel": {"pipeline": 4},
        "schedule": {"kind": "gpipe", "microbatches": 8},
        "workload": {"forward": "10 ms", "backward": "20 ms", "activation": "1 MB"},
    }
    advice = advise(values)
    assert {line.kinds for line in advice.lines} == {("schedule",)}
    assert scenario_from(values).workload == advice.lines[0].scenario.workload
