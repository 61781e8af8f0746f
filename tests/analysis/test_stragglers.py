"""Whatever `slow` names is the first straggler where it costs something, whichever kind it is and however long."""

import re
from itertools import count, islice
from random import Random

import pytest
import support.scenarios
from support.campaigns import TIMES
from support.counterfactuals import stragglers
from system.fuzzing.valid import scenario

from hybrid_des.analysis.counterfactual import attribution
from hybrid_des.analysis.counterfactual.attribution import Loss, culprit
from hybrid_des.analysis.critical_path.traced import traced_run
from hybrid_des.analysis.explanation import explain
from hybrid_des.errors import HybridDesError
from hybrid_des.planning.planner import plan_of
from hybrid_des.planning.wiring import fabric_of
from hybrid_des.report.explained import render_explanation
from hybrid_des.scenario.loading import load
from hybrid_des.shortcuts.run import run

COSTLY = 1.03  # of the step without
COMPUTING = ("gpu", "node", "stage")
SORTS = [
    *((kind, sort) for kind in COMPUTING for sort in ("permanent", "interval")),
    *((kind, sort) for kind in ("nic", "link") for sort in ("permanent", "interval", "late", "flap")),
]


def planted(kind, sort):
    """Random scenarios with one component of a kind made slow: the run without, the scenario with, its name."""
    for seed in count():
        rng = Random(f"{kind} {sort} {seed}")
        usual = scenario(rng)
        try:
            base = run(load(usual))
        except HybridDesError:  # a collective refuses these sizes
            continue
        if (name := component(kind, base, rng)) is not None:
            slow = {kind: name, **effect(kind, sort, base.duration, rng)}
            yield base, load(usual | {"slow": [slow]}), f"{kind} {name}"


def component(kind, base, rng):
    """A component that the run uses; None if it uses none of the kind."""
    used = [c.link for c in base.timeline.channels if base.fabric.links[c.link].bandwidth is not None]
    nics = [link.rpartition("/")[0] for link in used if re.fullmatch(r"node\d+/nic\d+/(in|out)", link)]
    rank = rng.randrange(base.scenario.parallel.ranks)
    node = base.scenario.cluster.spec.node_of[rank]
    some = {"gpu": [rank], "node": [node], "stage": range(base.plan.stages), "link": used, "nic": nics}[kind]
    return rng.choice(some) if some else None


def effect(kind, sort, end, rng):
    """How a component of a run that takes `end` picoseconds is slow."""
    factor = {"factor": rng.choice((0.25, 0.5, 0.8) if kind in COMPUTING else (0.02, 0.1, 0.3))}
    begin, lasts = rng.random() * end / 2, (0.1 + rng.random()) * end
    return {
        "permanent": factor,
        "interval": factor | {"from": seconds(begin), "until": seconds(begin + lasts)},
        "late": {"latency": seconds(lasts / 10)},
        "flap": {"flap": seconds(lasts), "from": seconds(begin)},
    }[sort]


def seconds(picoseconds):
    return f"{round(picoseconds) + 1} ps"


@pytest.mark.parametrize(("kind", "sort"), SORTS)
def test_what_slow_names_is_the_first_straggler(kind, sort):
    reached = 0
    for base, changed, name in islice(planted(kind, sort), 40 * TIMES):
        if run(changed).duration <= COSTLY * base.duration:
            continue
        slow = traced_run(changed)
        found = stragglers(slow)
        assert (found.groups[0].name, found.groups[0].usual) == (name, base.duration)
        assert found.culprit(slow.duration) is found.groups[0]
        reached += 1
        if reached == TIMES:
            return
    pytest.fail(f"only {reached} cost 3 %")


def test_the_costliest_of_many_entries_is_named():
    slow = [{"gpu": gpu, "factor": 0.99} for gpu in range(11)] + [{"gpu": 11, "factor": 0.5}]
    found = stragglers(traced_run(support.scenarios.scenario("1f1b", 4, 4, 3, slow=slow)))
    assert found.groups[0].name == "gpu 11"


def test_entries_too_many_to_try_alone_are_tried_together(monkeypatch):
    monkeypatch.setattr(attribution, "EVENTS", 0)
    most = [{"gpu": gpu, "factor": f"0.{80 + gpu}"} for gpu in range(8)]
    rest = [{"gpu": gpu, "factor": 0.99} for gpu in range(8, 12)]
    explanation = explain(support.scenarios.scenario("1f1b", 4, 4, 3, slow=[*most, *rest]))
    stated = [one for one in explanation.slow.groups if one.stated]
    assert {one.name for one in stated if one.together == 1} == {f"gpu {gpu}" for gpu in range(8)}
    (together,) = (one for one in stated if one.together > 1)
    without = run(support.scenarios.scenario("1f1b", 4, 4, 3, slow=most)).duration
    assert (together.name, together.usual) == ("gpu 8, gpu 9, gpu 10 and 1 more", without)
    assert "GPU 8, GPU 9, GPU 10 and 1 more are slow and together cost " in render_explanation(
        explanation, 200, details=True
    )


def test_entries_for_one_component_are_one_straggler():
    slow = [{"gpu": 1, "factor": 0.8, "from": f"{at} ms", "until": f"{at + 6} ms"} for at in (0, 6, 12)]
    usual = support.scenarios.scenario("1f1b", 4, 4)
    found = stragglers(traced_run(support.scenarios.scenario("1f1b", 4, 4, slow=slow)))
    assert [(one.name, one.usual) for one in found.groups if one.stated] == [("gpu 1", run(usual).duration)]


def test_a_given_plan_is_kept_without_the_slow_nic():
    usual = support.scenarios.shared_nics()
    slow = support.scenarios.shared_nics(slow=[{"nic": "node1/nic0", "factor": 0.1, "latency": "1 us"}])
    own, gpipe = plan_of(usual), plan_of(support.scenarios.shared_nics(schedule={"kind": "gpipe"}))
    for plan in (own, gpipe):
        first = stragglers(traced_run(slow, plan, fabric_of(slow))).groups[0]
        assert (first.name, first.usual) == ("nic node1/nic0", run(usual, plan).duration)
    assert run(usual, gpipe).duration != run(usual, own).duration


@pytest.mark.parametrize(
    ("removed", "named"), [((0.4, 0.45), None), ((0.5, 0.55), 0), ((0.5, 0.6), 1), ((), None), ((0.49, 0.5), 0)]
)
def test_the_smallest_class_behind_most_of_a_loss(removed, named):
    assert culprit([*enumerate(removed)]) == named


def test_a_run_without_a_loss_has_none_to_remove():
    assert (Loss(4, 4).slowdown, Loss(4, 4).removed(4), Loss(5, 4).removed(4)) == (1, 0, 1)
