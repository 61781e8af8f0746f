"""What plans of a search share is made once: validated sections, orders of ops; few orders are lowered."""

from collections import Counter
from random import Random

from support import spaces

from hybrid_des.errors import ScenarioError
from hybrid_des.pipeline import schedules
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.loading import scenario_of
from hybrid_des.studies.plan_search import branch, evaluation
from hybrid_des.studies.plan_search.best_plan import explore
from hybrid_des.studies.plan_search.evaluation import evaluate
from hybrid_des.studies.plan_search.space import factors, plans_in
from hybrid_des.studies.sweep.runner import with_case

FEW_OF_A_MODEL = [
    {"parallel.context": [1]}, {"schedule.kind": ["1f1b", "gpipe"]}, {"schedule.microbatch_size": [1]},
    {"recompute": ["none"]}, {"sharding": ["none", "zero-1"]}, {"gradients.bucket": ["none", "200 kB"]},
]  # fmt: skip


def test_no_section_of_plans_is_validated_twice(monkeypatch):
    made, honest = Counter(), Scenario.model_validate

    def counted(values):
        made.update(name for name, value in values.items() if isinstance(value, dict))
        return honest(values)

    settings = spaces.settings(spaces.of_model(), axes=FEW_OF_A_MODEL)
    plans = plans_in(settings)
    assert len(plans) == 72
    monkeypatch.setattr(Scenario, "model_validate", counted)
    explore(settings, plans)
    layouts, counts = len(list(factors(8, 3))) - 1, 4  # but eight tensor ranks; 2, 4, 8 and 16 micro-batches
    assert made == {
        "cluster": 1, "model": 1, "efficiency": 1, "parallel": layouts, "schedule": 2 * counts, "gradients": 2,
    }  # fmt: skip


def test_sections_that_are_known_make_the_same_scenario_or_message():
    """In another order, so that some plans are wrong before and some after others made their sections known."""
    wrong = [{"schedule.microbatch_size": [1, 3]}, {"gradients.bucket": ["none", "much"]}, {"sharding": ["none", 1]}]
    settings = spaces.settings(spaces.of_model(), axes=[*FEW_OF_A_MODEL[:2], {"recompute": ["none"]}, *wrong])
    plans = plans_in(settings)
    outcomes = Counter()
    for plan in Random(1).sample(plans, len(plans)):
        document = with_case(settings.document, plan, "search")
        made = [scenario_or_message(document, known) for known in (None, settings.known)]
        assert made[0] == made[1]
        assert repr(made[0]) == repr(made[1])
        outcomes[type(made[0])] += 1
    assert min(outcomes[Scenario], outcomes[str]) > 5


def scenario_or_message(document, known):
    try:
        return scenario_of(document, known)
    except ScenarioError as error:
        return str(error)


def test_few_plans_of_a_model_are_lowered(monkeypatch):
    """The collectives of layers count before orders are lowered, and plans of one order share it."""
    steps, orders, honest = Counter(), Counter(), schedules.planned

    def counted(settings, step, case):
        steps[step] += 1
        return evaluate(settings, step, case)

    def planned(kind, request, arguments):
        orders[kind, request] += 1
        return honest(kind, request, arguments)

    monkeypatch.setattr(branch, "evaluate", counted)
    monkeypatch.setattr(evaluation.schedules, "planned", planned)
    slow = {"bandwidth": "200 MB/s", "latency": "5 us"}
    cluster = {"gpu": spaces.CUSTOM, "nodes": 2, "gpus_per_node": 4, "nvlink": slow}
    settings = spaces.settings(spaces.of_model(cluster=cluster), axes=FEW_OF_A_MODEL, top=1)
    found = explore(settings, plans_in(settings))
    assert found.best is not None
    assert steps["weigh"] <= steps["price"] / 2
    assert sum(orders.values()) <= steps["price"] / 2
