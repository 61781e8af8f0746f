"""Searches: the same plan as simulating all, whatever stops and goes on, and every plan with its reason."""

import json
import math
import re
from collections import Counter
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure
from support import spaces
from support.campaigns import TIMES, thinned

from hybrid_des import simulate
from hybrid_des.errors import ScenarioError, UsageError
from hybrid_des.measured.imports.exporting import write_traces
from hybrid_des.pipeline import schedules
from hybrid_des.scenario.loading import scenario_from
from hybrid_des.scenario.strict_yaml import Document
from hybrid_des.simulation.watch import BudgetSpentError
from hybrid_des.studies import pool
from hybrid_des.studies.plan_search import branch, evaluation
from hybrid_des.studies.plan_search.best_plan import explore, search
from hybrid_des.studies.plan_search.branch import EXCLUDED, IMPOSSIBLE, MISFIT, SAME, SIMULATED, UNKNOWN
from hybrid_des.studies.plan_search.evaluation import evaluate, scenario_in
from hybrid_des.studies.plan_search.outcome import SearchResult
from hybrid_des.studies.plan_search.plot import draw
from hybrid_des.studies.plan_search.search_log import LOG, Kept
from hybrid_des.studies.plan_search.space import factors, plans_in, values_of
from hybrid_des.studies.plan_search.terms import settings_of

SPACES = 15 * TIMES
PLANS = 12
AXES = ["parallel", {"schedule.kind": ["gpipe", "1f1b", "zb-h1"]}]
FEW = [*AXES, {"sharding": ["none"]}, {"recompute": ["none"]}]


def kinds_of(number):
    """Three schedules, all of them in turn."""
    names = schedules.names()
    return [names[(3 * number + i) % len(names)] for i in range(3)]


def small_space(number, **block):
    """The settings of a random search, and some of its plans."""
    rng = Random(number)
    values = spaces.random_space(rng, kinds_of(number))
    values["search"] |= block
    settings = settings_of(Document(values, "scenario"))
    plans = plans_in(settings)
    return settings, rng.sample(plans, min(len(plans), PLANS))


def exhaustive(settings, plans):
    """What every plan comes to by simulating it."""
    return [evaluate(settings, "simulate", plan) for plan in plans]


@cache
def explored(number):
    """The same, and what the search finds among them."""
    settings, plans = small_space(number)
    return settings, plans, explore(settings, plans)


@pytest.mark.parametrize("number", thinned(range(SPACES), slow=[0, 5, 6, 8, 10]))
def test_a_search_finds_what_simulating_all_plans_finds(number):
    settings, plans, found = explored(number)
    everything = exhaustive(settings, plans)
    costs = sorted(one.least for one in everything if not one.reason)
    assert [one.least for one in found.ranked[:1]] == costs[:1]
    distinct = found.counts[SIMULATED] + found.counts[EXCLUDED]
    top = min(settings.block.top, distinct)
    assert all(one.least in costs for one in found.ranked)
    assert len(found.ranked) >= top
    for candidate, known in zip(found.candidates, everything, strict=True):
        assert candidate.status != UNKNOWN
        assert bool(known.reason) == (candidate.status in (MISFIT, IMPOSSIBLE)) or candidate.status == EXCLUDED
        if candidate.status == EXCLUDED and not known.reason:
            assert candidate.least <= known.least
            assert known.least >= found.ranked[top - 1].least


@pytest.mark.parametrize("number", thinned(range(SPACES), slow=[0, 5, 6, 8, 10]))
def test_only_plans_that_fit_are_shown(number):
    """Each is simulated by itself, apart from what the search knows of it."""
    settings, _, found = explored(number)
    most = settings.block.memory or 4 * 10**9  # of the GPU
    for one in (*found.ranked, *found.front()):
        held = simulate(scenario_in(settings, one.case)).summary["peak_memory_bytes"]
        assert 0 < max(held) <= most, one.case


@pytest.mark.slow
def test_the_random_spaces_are_not_trivial():
    counts = Counter()
    for number in range(SPACES - 9, SPACES):  # mostly those that this process has just explored
        counts += explored(number)[2].counts
    assert all(counts[status] > 2 for status in (SIMULATED, EXCLUDED, MISFIT, IMPOSSIBLE)), counts
    assert counts[SAME]


@pytest.mark.parametrize("number", [9, 14])
def test_a_front_is_what_no_simulated_plan_undercuts(number):
    ranked = [(one.least, one.held) for one in explored(number)[2].ranked]
    best = [
        one for one in ranked if not any(o != one and all(x <= y for x, y in zip(o, one, strict=True)) for o in ranked)
    ]
    assert [(one.least, one.held) for one in explored(number)[2].front()] == sorted(set(best))


@pytest.mark.slow
def test_a_front_holds_what_less_memory_makes_the_best():
    for number in range(3):
        settings, plans = small_space(number, front=True, top=1)
        fitting = [one for one in exhaustive(settings, plans) if not one.reason]
        best = {
            (one.least, one.held)
            for one in fitting
            if not any(o.least <= one.least and o.held <= one.held and (o.least, o.held) != (one.least, one.held)
                       for o in fitting)
        }  # fmt: skip
        assert {(one.least, one.held) for one in explore(settings, plans).front()} == best


def test_the_plans_of_a_search_fill_its_picture():
    ax = draw(explored(3)[2], Figure().subplots())
    x, y = np.concatenate([np.asarray(group.get_offsets()) for group in ax.collections]).T
    for values, (low, high) in ((x, ax.get_xlim()), (y, ax.get_ylim())):
        assert len(set(values)) > 2
        assert 0 <= low < min(values) < max(values) < high
    assert np.ptp(y) > 0.8 * np.ptp(ax.get_ylim())


@pytest.mark.slow
def test_plans_that_are_the_same_take_the_same_time():
    axes = [{"schedule.kind": ["1f1b", "gpipe", "eager-1f1b", "zb-h1"]}, {"parallel.pipeline": [1, 4]}]
    axes += [{"parallel.context": [1]}, {"parallel.tensor": [1, 2]}, {"schedule.microbatch_size": [1]}]
    settings = spaces.settings(spaces.of_model(), axes=[*axes, {"sharding": ["none", "zero-1"]}])
    plans = plans_in(settings)
    weighed = [evaluate(settings, "weigh", plan) for plan in plans]
    first = {}
    same = [(first.setdefault(one.fingerprint, i), i) for i, one in enumerate(weighed) if one.fingerprint]
    pairs = [(a, b) for a, b in same if a != b]
    assert pairs
    for a, b in pairs:
        one, other = (evaluate(settings, "simulate", plans[place]) for place in (a, b))
        assert one.least == other.least


def test_seldom_exchanges_count_in_the_time_of_a_plan():
    values = spaces.of_workload(
        8, parallel={"data": 4}, cluster={"gpus_per_node": 4}, sharding="none", recompute="none"
    )
    settings = spaces.settings(values, axes=[{"gradients.every": [2, 8]}])
    costs = []
    for plan in plans_in(settings):
        order, whole = (evaluate(settings, step, plan) for step in ("weigh", "simulate"))
        costs.append(whole.least)
        assert order.least <= whole.least == simulate(scenario_in(settings, plan)).summary["outer"]["mean_step_s"]
    assert costs[0] > costs[1]


STREAMS = {
    "model": spaces.WITH_EXPERTS, "parallel": {"pipeline": 2, "data": 4, "expert": 2}, "experts": {"streams": True},
    "schedule": {"kind": "dualpipe-v", "chunks": 2, "microbatch_size": 1},
}  # fmt: skip
BUCKETS = {
    "schedule": {"kind": "1f1b", "microbatch_size": 1},
    "gradients": {"codec": "bf16", "overlap": True, "bucket": "200 kB", "bucket_rule": "ddp"},
}


@pytest.mark.parametrize(
    ("sections", "axes"),
    [
        (STREAMS, [{"experts.delay_weight": [False, True]}, {"experts.multiprocessors": [2, 4]}]),
        (BUCKETS, [{"efficiency.slowed": [0, 0.25, 0.5]}]),
    ],
)
def test_plans_of_different_times_are_not_the_same(sections, axes):
    values = spaces.of_model(recompute="none", sharding="none", **sections)
    settings = spaces.settings(values, axes=axes)
    found = [[evaluate(settings, step, plan) for step in ("weigh", "simulate")] for plan in plans_in(settings)]
    assert len({order.fingerprint for order, _ in found}) == len({whole.least for _, whole in found}) == len(found) > 2


def test_the_default_plans_use_all_gpus_at_one_batch():
    values = spaces.of_model(8, gradients={"codec": "bf16", "overlap": True})
    settings = spaces.settings(values, axes=["parallel", "schedule.kind"])
    plans = plans_in(settings)
    for plan in plans:
        assert math.prod(plan[f"parallel.{axis}"] for axis in ("pipeline", "data", "tensor", "context")) == 8
        assert plan["batch"] == 16
    varied = values_of(plans)
    assert varied["schedule.microbatch_size"] == [1, 2, 4, 8]
    assert sorted(varied["schedule.kind"]) == schedules.names()
    assert varied["recompute"] == ["none", "full"]
    assert varied["sharding"] == ["none", "zero-1", "zero-2", "zero-3"]
    assert varied["gradients.bucket"] == [None, "128 MiB", "none"]  # that of Megatron-LM; with zero-2 and zero-3 none
    assert len({repr(plan) for plan in plans}) == len(plans)


def test_a_given_axis_restricts_the_default_ones():
    settings = spaces.settings(spaces.of_model(8), axes=[{"parallel.tensor": [2]}, {"sharding": ["none"]}])
    plans = plans_in(settings)
    assert {plan["parallel.tensor"] for plan in plans} == {2}
    layouts = {(plan["parallel.pipeline"], plan["parallel.data"], plan["parallel.context"]) for plan in plans}
    assert layouts == set(factors(4, 3))
    assert "sharding" not in values_of(plans)


def test_what_nobody_names_stays_as_the_file_states():
    parallel = {"data": 4, "tensor": 2, "sequence": True}
    gradients = {"overlap": True, "bucket": "1 MB"}
    values = spaces.of_model(8, parallel=parallel, sharding="zero-1", recompute="full", gradients=gradients, batch=32)
    settings = spaces.settings(values, axes=["schedule.microbatch_size"])
    plans = plans_in(settings)
    assert values_of(plans) == {"schedule.microbatch_size": [1, 2, 4, 8]}
    for plan in plans:
        scenario = scenario_in(settings, plan)
        layout = {axis: getattr(scenario.parallel, axis) for axis in ("pipeline", "data", "tensor", "context")}
        assert layout == {"pipeline": 1, "data": 4, "tensor": 2, "context": 1}
        assert (scenario.schedule.kind, scenario.sharding, scenario.recompute) == ("1f1b", "zero-1", "full")
        assert scenario.gradients.bucket == 10**6


@pytest.mark.parametrize("stated", ["microbatch_size", "microbatches"])
def test_stated_microbatches_keep_their_size(stated):
    values = spaces.of_model(8, schedule={"kind": "1f1b", "microbatches": 4, stated: 4})
    del values["batch"]
    assert "schedule.microbatch_size" not in values_of(plans_in(spaces.settings(values, axes=["recompute"])))


def test_an_axis_by_name_varies_what_the_file_states():
    values = spaces.of_model(8, sharding="zero-1", recompute="full", schedule={"kind": "zb-v", "chunks": 2})

    def varied(*axes):
        return set(values_of(plans_in(spaces.settings(values, axes=list(axes)))))

    kept = varied("schedule.microbatch_size")
    assert varied("sharding") - kept == {"sharding"}
    assert varied("recompute") - kept == {"recompute"}
    assert varied("schedule.kind") - kept == set()  # without a pipeline all orders are the same
    assert varied("parallel", "schedule.kind") - kept >= {"schedule.kind", "schedule.chunks", "parallel.tensor"}
    assert varied({"parallel.tensor": [1, 2]}) - kept == {
        f"parallel.{axis}" for axis in ("pipeline", "data", "tensor", "context")
    }


def test_a_rule_of_buckets_stays_where_no_bucket_is_stated():
    gradients = {"overlap": True, "bucket_rule": "ddp"}
    schedule = {"kind": "1f1b", "microbatch_size": 1}
    values = spaces.of_model(8, sharding="none", gradients=gradients, schedule=schedule)
    settings = spaces.settings(values, axes=["recompute"])
    sizes = {scenario_in(settings, plan).gradients.bucket for plan in plans_in(settings)}
    assert sizes == {25 * 2**20, 128 * 2**20}


def test_execution_traces_leave_nothing_to_plan(tmp_path):
    write_traces(scenario_from({"workload": {"forward": "1 ms", "backward": "2 ms"}}), tmp_path)
    settings = spaces.settings({"workload": {"trace": str(tmp_path)}})
    with pytest.raises(ScenarioError, match=r"workload\.trace: is one plan, done as recorded"):
        plans_in(settings)


def test_numbers_of_one_rank_keep_their_pipeline():
    values = spaces.of_workload(8)
    values["workload"] |= {"per": "rank"}
    plans = plans_in(spaces.settings(values, axes=["parallel"]))
    assert len(plans) > 1
    assert not any("parallel.pipeline" in plan for plan in plans)


def test_every_excluded_plan_has_its_reason():
    values = spaces.of_workload(schedule={"kind": "gpipe", "microbatches": 2})
    found = search({**values, "search": {"axes": ["parallel", "schedule.kind"], "memory": "1 GB"}})
    for candidate in found.candidates:
        assert bool(candidate.reason) == (candidate.status in (MISFIT, IMPOSSIBLE, SAME))
    four = [one for one in found.candidates if one.case["parallel.pipeline"] == 4]
    (reason,) = {one.reason for one in four if one.case.get("schedule.kind") == "dualpipe"}
    assert reason == "dualpipe needs an even number of micro-batches, at least 2·pipeline = 8, not 4"
    misfit = next(one for one in found.candidates if one.status == MISFIT)
    assert "1 GB fit" in misfit.reason


def test_a_reserve_is_memory_that_no_plan_may_use():
    def largest(**block):
        found = search({**spaces.of_workload(), "search": {"axes": FEW, "top": 20, **block}})
        return max(one.held for one in found.ranked)

    assert largest() > 1.5e9
    assert largest(reserve="2.5 GB") <= 1.5e9
    assert largest(memory="3 GB", reserve="50 %") <= 1.5e9


def test_the_objective_may_be_tokens_per_gpu():
    values = {**spaces.of_model(4), "search": {"axes": FEW, "objective": "tokens_per_gpu_s"}}
    found = search(values)
    best = found.best
    assert found.settings.objective.value(best.least) == pytest.approx(best.row["tokens_per_gpu_s"])
    assert best.row["tokens_per_gpu_s"] == max(one.row["tokens_per_gpu_s"] for one in found.ranked)


def test_a_search_that_is_stopped_and_resumed_loses_nothing(tmp_path, monkeypatch):
    settings = spaces.settings(spaces.of_workload(), axes=AXES, top=3)
    plans = plans_in(settings)
    whole = explore(settings, plans)
    budget = [2]

    def interrupted(settings, step, case):
        if step == "simulate":
            if not budget[0]:
                raise KeyboardInterrupt
            budget[0] -= 1
        return evaluate(settings, step, case)

    monkeypatch.setattr(branch, "evaluate", interrupted)
    first = explore(settings, plans, Kept(tmp_path))
    assert first.stopped == "interrupted"
    assert first.counts[SIMULATED] == 2
    assert 0 < first.least <= whole.best.least <= first.best.least
    assert first.counts[UNKNOWN]
    with (tmp_path / LOG).open("a") as file:
        file.write('{"step": "simulate", "pl')  # what a kill leaves
    budget[0] = whole.counts[SIMULATED] - 2
    second = explore(settings, plans, Kept(tmp_path, resume=True))
    assert (second.stopped, second.counts) == ("", whole.counts)
    assert [one.least for one in second.ranked] == [one.least for one in whole.ranked]


def test_only_the_same_search_is_resumed(tmp_path):
    settings = spaces.settings(spaces.of_workload(), axes=AXES)
    plans = plans_in(settings)
    with pytest.raises(UsageError, match="nothing to resume"):
        explore(settings, plans, Kept(tmp_path, resume=True))
    explore(settings, plans, Kept(tmp_path))
    other = spaces.settings(spaces.of_workload(), axes=AXES, reserve="1 GB")
    with pytest.raises(UsageError, match="from a different search; --resume needs the same scenario, plans"):
        explore(other, plans, Kept(tmp_path, resume=True))
    with pytest.raises(UsageError, match=f"from a different search of {len(plans)} plans, not {len(plans) - 1};"):
        explore(settings, plans[1:], Kept(tmp_path, resume=True))


@pytest.mark.parametrize(
    ("spoilt", "said"),
    [
        (lambda head, *findings: findings, '1: expected the head of a log, {"search": …, "plans": …}; start again'),
        (lambda head, *findings: [], "1: expected the head of a log"),
        (lambda head, *findings: [head, "{}", *findings], "2: not a finding of a search; delete this line"),
        (lambda head, *findings: [head, findings[0][:-9], *findings[1:]], "2: not a finding of a search"),
        (lambda head, *findings: [head, findings[0].replace("held", "hold")], "2: not a finding of a search"),
    ],
    ids=["no head", "empty", "no fields", "cut", "unknown field"],
)
def test_a_spoilt_log_of_a_search_says_where(tmp_path, spoilt, said):
    settings = spaces.settings(spaces.of_workload(), axes=AXES[:1])
    plans = plans_in(settings)[:2]
    explore(settings, plans, Kept(tmp_path))
    log = tmp_path / LOG
    log.write_text("".join(f"{line}\n" for line in spoilt(*log.read_text().splitlines())))
    with pytest.raises(UsageError, match=re.escape(f"{log}:{said}")):
        explore(settings, plans, Kept(tmp_path, resume=True))


def test_a_budget_leaves_a_gap_that_is_told(monkeypatch):
    ticks = iter(range(10**6))
    monkeypatch.setattr(pool, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))
    settings = spaces.settings(spaces.of_workload(8))
    state = branch.BranchAndBound(settings, plans_in(settings))
    with pytest.raises(BudgetSpentError):
        state.run(pool.Pool(until=12.0))
    state.stop()
    found = SearchResult(settings, state.candidates, state.least, "after 12 s")
    assert found.counts[UNKNOWN]
    assert found.sentence.startswith("stopped (after 12 s)")
    assert f"{found.counts[UNKNOWN]} unknown" in found.sentence


def test_some_plans_are_simulated_before_all_are_screened(monkeypatch):
    ticks = iter(range(10**6))
    monkeypatch.setattr(pool, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))
    monkeypatch.setattr(branch, "TOGETHER", 1)
    settings = spaces.settings(spaces.of_workload(8), axes=AXES)
    state = branch.BranchAndBound(settings, plans_in(settings))
    with pytest.raises(BudgetSpentError):
        state.run(pool.Pool(until=17.0))
    state.stop()
    found = SearchResult(settings, state.candidates, state.least, "after 17 s")
    assert any(not one.done for one in found.candidates)
    assert found.counts[SIMULATED] == 1
    assert re.match(
        r"stopped \(after 17 s\), a gap of \d+\.\d % is left to .* among the plans screened: 1 sim", found.sentence
    )


def test_early_plans_are_also_those_that_hold_least():
    """The quicker a plan, the more it holds, and only the one that holds least fits."""
    settings = spaces.settings(spaces.of_workload(8), axes=AXES)
    plans, order = plans_in(settings), []

    def outcome(step, number):
        held = len(plans) - number
        if step in ("weigh", "simulate") and held > 1:
            return evaluation.Evaluation("too large", misfit=True)
        return evaluation.Evaluation(least=1.0 + number, held=held, fingerprint=str(number))

    class Counted:
        until = 1e18

        def run(self, next_task, lost):
            while task := next_task():
                order.extend((step, candidate.number) for step, candidate in task.keys if step != "screen")
                yield task, [outcome(step, candidate.number) for step, candidate in task.keys]

    state = branch.BranchAndBound(settings, plans)
    state.run(Counted())
    assert order.index(("simulate", len(plans) - 1)) < 20 < len(plans)


@pytest.mark.parametrize("gpus", thinned([4, 8], slow=[8]))
def test_a_limit_that_is_not_reached_changes_no_plan(gpus):
    settings = spaces.settings(spaces.of_workload(gpus), axes=AXES)
    plans = plans_in(settings)
    limited = branch.BranchAndBound(settings, plans)
    limited.run(pool.Pool(until=1e18))
    found, without = SearchResult(settings, limited.candidates, limited.least), explore(settings, plans)
    assert [(one.number, one.least) for one in found.ranked[:1]] == [
        (one.number, one.least) for one in without.ranked[:1]
    ]
    assert not found.gap


def test_no_step_validates_a_plan_again(monkeypatch):
    validated = Counter()

    def counted(settings, case):
        validated[repr(case)] += 1
        return scenario_in(settings, case)

    monkeypatch.setattr(evaluation, "scenario_in", counted)
    settings = spaces.settings(spaces.of_workload(8), axes=AXES)
    explore(settings, plans_in(settings))
    assert set(validated.values()) == {1}


def test_a_bug_in_one_plan_leaves_the_others(monkeypatch):
    def lost(settings, step, case):
        if step == "weigh" and case.get("schedule.kind") == "gpipe":
            raise RuntimeError("lost")
        return evaluate(settings, step, case)

    monkeypatch.setattr(branch, "evaluate", lost)
    settings = spaces.settings(spaces.of_workload(), axes=AXES)
    found = explore(settings, plans_in(settings), executor=Elsewhere())
    assert found.best is not None
    reasons = {one.reason for one in found.candidates if one.case["schedule.kind"] == "gpipe" and one.reason}
    assert "its worker was lost twice: RuntimeError" in reasons


class Elsewhere:
    """An executor whose jobs may fail, as those of other processes may."""

    def submit(self, function, /, *arguments):
        future = Future()
        try:
            future.set_result(function(*arguments))
        except RuntimeError as error:
            future.set_exception(error)
        return future


def test_the_table_has_every_plan_and_the_best_first():
    found = search({**spaces.of_workload(), "search": {"axes": AXES}})
    table = found.table()
    assert len(table) == len(found.candidates)
    assert table.iloc[0]["step_time_s"] == found.best.least == table.step_time_s.min()
    assert set(table.status) == set(found.counts)
    json.dumps(json.loads(table.to_json()), allow_nan=False)


def test_no_search_has_more_workers_than_plans(monkeypatch):
    asked = []

    @contextmanager
    def counted(count):
        asked.append(count)
        yield [Elsewhere()] * count

    monkeypatch.setattr(pool, "local_workers", counted)
    settings = spaces.settings(spaces.of_workload(), axes=FEW)
    plans = plans_in(settings)
    assert explore(settings, plans, jobs=300).best is not None
    assert asked == [len(plans)]
