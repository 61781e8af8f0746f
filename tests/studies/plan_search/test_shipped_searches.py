"""The shipped searches, and one of 336 plans whose every plan was once simulated."""

import pytest
from support.paths import SCENARIOS, TESTS

from hybrid_des.scenario.loading import read_scenario
from hybrid_des.studies.plan_search.best_plan import explore
from hybrid_des.studies.plan_search.branch import IMPOSSIBLE, SIMULATED
from hybrid_des.studies.plan_search.space import plans_in
from hybrid_des.studies.plan_search.terms import settings_of

FILES = sorted((SCENARIOS / "search").rglob("*.yaml"))
LEAST = {"13b_64": 400, "405b_1024": 3000, "70b_128": 1500, "mixtral_64": 1500}
LEAST |= {"gpt3-175b_64": 2000, "gpt3-175b_128": 900, "llama3.1-405b_512": 2500}  # published plans


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_shipped_search_holds_the_plan_of_its_file(file):
    settings = settings_of(read_scenario(file))
    plans = plans_in(settings)
    assert len(plans) >= LEAST[file.stem]
    written = settings.written
    own = {
        **{f"parallel.{axis}": getattr(written.parallel, axis) for axis in ("pipeline", "data", "tensor", "context")},
        "schedule.kind": written.schedule.kind,
        "schedule.microbatch_size": written.schedule.microbatch_size,
        "recompute": written.recompute,
        "sharding": written.sharding,
    }
    chunks = (None, written.schedule.chunks)
    matching = [plan for plan in plans if own.items() <= plan.items() and plan["schedule.chunks"] in chunks]
    assert len({plan["batch"] for plan in plans}) == 1
    assert matching


@pytest.mark.slow
def test_at_most_a_fifth_of_336_plans_is_simulated():
    settings = settings_of(read_scenario(TESTS / "studies" / "plan_search" / "korthikanti.yaml"))
    plans = plans_in(settings)
    found = explore(settings, plans)
    assert len(plans) == 336
    assert found.counts[SIMULATED] <= 336 // 5
    assert found.counts[IMPOSSIBLE] == 48  # 48 layers make no 32 or 64 stages
    # of all plans simulated one by one, this one and its twin under 1f1b were the fastest
    best = found.best.case
    assert (best["schedule.kind"], best["schedule.microbatch_size"], best["recompute"]) == ("zb-h1", 2, "none")
    assert [best[f"parallel.{axis}"] for axis in ("tensor", "pipeline", "data")] == [1, 1, 64]
