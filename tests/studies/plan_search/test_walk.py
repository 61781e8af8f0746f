"""The walk of a search from the plan of its file: as good as advice, the same everywhere, the proof as it is."""

from concurrent.futures import Future

import pytest
from support import spaces

from hybrid_des import advise, search
from hybrid_des.studies.plan_search import walk
from hybrid_des.studies.plan_search.best_plan import explore
from hybrid_des.studies.plan_search.branch import SIMULATED, BranchAndBound
from hybrid_des.studies.plan_search.evaluation import evaluate
from hybrid_des.studies.plan_search.search_log import Kept
from hybrid_des.studies.plan_search.space import plans_in
from hybrid_des.studies.pool import Pool

BILLIONS = {  # a 7B on two nodes, better than which there is much
    "cluster": {"gpu": "h100", "nodes": 2},
    "model": {"base": "llama2-7b", "sequence": 4096, "written": "megatron"},
    "parallel": {"tensor": 2, "sequence": True, "pipeline": 2, "data": 4},
    "batch": 64,
    "schedule": {"kind": "1f1b", "microbatch_size": 2},
    "sharding": "zero-1",
    "gradients": {"overlap": True, "bucket_rule": "megatron", "pad": True},
    "overlap": {"parameters": True},
}
EXPERTS = spaces.of_model(
    8, model={**spaces.WITH_EXPERTS, "written": "megatron"}, parallel={"data": 4, "pipeline": 2, "expert": 2},
    sharding="zero-1", recompute="full",
)  # fmt: skip
WORKLOAD = spaces.of_workload(8)
OF_EXPERTS, OF_WORKLOAD = (
    pytest.param(EXPERTS, id="experts", marks=pytest.mark.slow),
    pytest.param(WORKLOAD, id="workload"),
)
JOBS = pytest.mark.parametrize(
    "values", [pytest.param(BILLIONS, id="7B", marks=pytest.mark.slow), OF_EXPERTS, OF_WORKLOAD]
)
AXES = ["parallel", {"schedule.kind": ["gpipe", "1f1b", "zb-h1"]}]


class Elsewhere:
    """An executor that runs what it is given at once."""

    def submit(self, function, /, *arguments):
        future = Future()
        future.set_result(function(*arguments))
        return future


def walked(settings, pool=None):
    """A walk to its end, and the plans of its space."""
    plans = plans_in(settings)
    done = walk.Walk(settings, plans, known={}, note=lambda *_: None, progress=lambda _: None)
    done.run(pool or Pool())
    return done, plans


def best_of(done):
    """The cost of the best plan that a walk found."""
    inside = [done.known["simulate", number].least for number in done.found]
    return min([*inside, *([done.beyond.least] if done.beyond else [])])


def single_lines(values):
    """The steps of lines of advice that are one move, and cost nothing but a layout of checkpoints."""
    lines = (line for line in advise(values).lines if len(line.kinds) == 1)
    return [line.step_s for line in lines if all(remark.startswith("checkpoints") for remark in line.remarks)]


@JOBS
def test_a_walk_is_never_worse_than_one_line_of_advice(values):
    assert best_of(walked(spaces.settings(values))[0]) <= min(single_lines(values))


@JOBS
def test_a_walk_is_the_same_in_any_processes(values):
    here, there = (walked(spaces.settings(values), pool)[0] for pool in (Pool(), Pool([Elsewhere(), Elsewhere()])))
    assert here.found == there.found
    assert here.known.keys() == there.known.keys()
    assert (here.beyond and here.beyond.case) == (there.beyond and there.beyond.case)


@pytest.mark.parametrize("values", [OF_EXPERTS, OF_WORKLOAD])
def test_a_walk_leaves_the_proof_as_it_is(values):
    settings = spaces.settings(values, axes=AXES, top=3)
    plans = plans_in(settings)
    with_walk, without = (explore(settings, plans, walks=walks) for walks in (True, False))
    assert [(one.status, one.least, one.held, one.reason) for one in with_walk.candidates] == [
        (one.status, one.least, one.held, one.reason) for one in without.candidates
    ]
    assert with_walk.sentence == without.sentence


@pytest.mark.parametrize("values", [OF_EXPERTS, OF_WORKLOAD])
def test_within_a_limit_the_proof_begins_with_what_was_walked(values):
    settings = spaces.settings(values, axes=AXES, top=3)
    done, plans = walked(settings, Pool(until=1e18))
    state = BranchAndBound(settings, plans, known=done.known, simulated=done.found)
    state.run(Pool(until=1e18))
    simulated = sorted(one.least for one in state.candidates if one.status == SIMULATED)
    assert done.found
    assert simulated[:3] == [one.least for one in explore(settings, plans).ranked[:3]]
    assert state.least == simulated[0]


def test_axes_that_are_given_are_kept():
    """No plan beyond them is tried."""
    done, plans = walked(spaces.settings(EXPERTS, axes=[{"parallel.tensor": [1]}, {"sharding": ["none"]}]))
    assert done.found
    assert done.beyond is None
    assert {plans[number]["parallel.tensor"] for number in done.found} == {1}


@pytest.mark.slow
def test_a_plan_beyond_those_listed_is_told_apart():
    values = {**EXPERTS, "sharding": "none", "gradients": {"codec": "bf16"}}
    found = search(values)
    assert found.best.beyond
    assert found.best.number == len(plans_in(spaces.settings(values)))
    assert "beyond the plans listed" in found.sentence
    assert found.best.least < min(one.least for one in found.ranked if not one.beyond)
    assert search({**values, "search": {"axes": AXES}}).best.beyond is False


def test_what_was_walked_before_an_interrupt_is_kept(tmp_path, monkeypatch):
    settings, seen = spaces.settings(WORKLOAD, axes=AXES), []
    plans = plans_in(settings)
    whole = explore(settings, plans, walks=True)

    def interrupted(settings, step, case):
        if step == "simulate":
            seen.append(str(case))
            if len(seen) == 3:
                raise KeyboardInterrupt
        return evaluate(settings, step, case)

    monkeypatch.setattr(walk, "evaluate", interrupted)
    first = explore(settings, plans, Kept(tmp_path), walks=True)
    assert (first.stopped, first.counts[SIMULATED]) == ("interrupted", 2)
    again = explore(settings, plans, Kept(tmp_path, resume=True), walks=True)
    assert [one.least for one in again.ranked] == [one.least for one in whole.ranked]
    assert len(seen) == len(set(seen)) + 1  # only the interrupted one ran again
