"""The section `faults`: what it reads, and one line for each mistake in it."""

from fractions import Fraction

import pytest
from support.scenarios import merged, plain, values

from hybrid_des.errors import ScenarioError
from hybrid_des.scenario import scenario_from, to_mapping

WHOLE = {
    "horizon": "54 d",
    "replications": 8,
    "classes": [
        {"what": "gpu", "mtbf": "50677 h"},
        {"what": "gpu", "count": 3, "over": "1 d"},
        {"what": "switch", "mtbf": "500000 h", "domain": 2, "repair": "1 h"},
        {"what": "link", "mtbf": "1e6 h", "effect": {"flap": "20 s"}},
        {"what": "node", "weibull": {"scale": "9 h", "shape": 0.7}, "effect": {"slow": 0.5, "lasts": "3 h"}},
        {"what": "job", "times": ["3 h", 7], "effect": "stop"},
    ],
    "detect": "60 s",
    "restart": {"time": "5 min"},
    "spares": {"nodes": 2, "swap": "60 s", "repair": "24 h"},
    "checkpoint": {"every": "30 min", "mode": "async", "blocking": "2 s", "write": "60 s"},
    "elastic": {"min_replicas": 2},
}
CLUSTER = {"cluster": {"nodes": 4, "gpus_per_node": 1}, "parallel": {"data": 4}}


def scenario(**changes):
    return scenario_from(merged(plain(**CLUSTER), {"faults": merged(WHOLE, changes)}), "here")


def test_all_of_it_reads_back_as_it_was():
    whole = scenario()
    assert scenario_from(to_mapping(whole)) == whole
    assert whole.faults.horizon == 54 * 86400
    assert whole.faults.names == ("gpu", "gpu 2", "switch", "link", "node", "job")
    assert whole.faults.classes[5].times == (3 * 3600, 7)
    assert whole.faults.restart.can_fail
    assert (whole.faults.elastic.batch, whole.faults.classes[5].effect) == ("keep", None)


def test_what_is_left_out_is_not_known():
    few = scenario_from(plain(faults={"horizon": 1, "classes": [{"what": "job", "mtbf": 1}]})).faults
    assert (few.detect, few.restart, few.spares, few.checkpoint, few.elastic) == (None,) * 5
    assert scenario_from(plain(faults="none")).faults is None
    assert scenario_from(plain()).faults is None


@pytest.mark.parametrize(
    ("every", "steps", "read"),
    [("30 min", None, 1800), (0.5, None, Fraction(1, 2)), ("200 steps", 200, "200 steps"), ("1 step", 1, "1 steps"),
     ("optimal", None, "optimal")],
)  # fmt: skip
def test_intervals_are_times_steps_or_the_optimum(every, steps, read):
    checkpoint = scenario(checkpoint={"every": every}).faults.checkpoint
    assert (checkpoint.every, checkpoint.steps) == (read, steps)


def test_no_checkpoints_are_not_unknown_ones():
    for written in ("none", {"every": "none"}):
        assert scenario_from(plain(faults={**FEW, "checkpoint": written})).faults.checkpoint.every == "none"


FEW = {"horizon": "1 d", "classes": [{"what": "node", "mtbf": "1 h"}]}


def one(**keys):
    """The class of a scenario with a single one."""
    return {"classes": [{"what": "node", "mtbf": 1, **keys}]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"horizon": 0}, "horizon: must be more than 0"),
        ({"horizon": None}, "horizon: expected a time such as 30 min or 54 d, found nothing"),
        ({"horizon": "54 days"}, 'horizon: unknown unit "days"; expected a time such as 30 min or 54 d'),
        ({"horizon": "1e11 h"}, "is more than can be simulated (at most 1e13 s)"),
        ({"replications": 0}, "replications: must be at least 1, not 0"),
        ({"horizn": 1}, 'horizn: unknown "horizn"; did you mean "horizon"?'),
        ({"classes": []}, "classes: is required: what fails, such as [{what: gpu, mtbf: 50000 h}]"),
        ({"classes": [{"mtbf": 1}]}, "classes[0].what: is required"),
        (one(what="gppu"), 'classes[0].what: unknown "gppu"; did you mean "gpu"?'),
        (one(what="nod"), 'classes[0].what: unknown "nod"; did you mean "node"?'),
        (one(mtbf=0), "classes[0].mtbf: must be more than 0"),
        (one(mtbf=-1), "classes[0].mtbf: -1 is negative; expected a time such as 30 min or 54 d"),
        (
            {"classes": [{"what": "node"}]},
            "classes[0]: a rate is required; expected one of mtbf, count and over",
        ),
        (one(times=[1]), "classes[0].times: replaces `mtbf`; give only one of the two"),
        ({"classes": [{"what": "node", "count": 3}]}, "classes[0].over: is required by `count`: failures in what time"),
        (one(over=3), "classes[0].over: is read with `count` only"),
        ({"classes": [{"what": "job", "weibull": {"scale": 1, "shape": 0}}]}, "shape: must be from 0.1 to 100, not 0"),
        ({"classes": [{**FEW["classes"][0], "name": "x"}] * 2}, 'classes[1].name: "x" is the name of classes[0] too'),
        (one(what="switch"), "classes[0].domain: is required: the number of nodes below a switch"),
        (one(what="switch", domain="leaf"), "domain: leaf: this topology has no leaves; expected a number of nodes"),
        (one(what="power", domain="none"), "domain: none: expected the number of nodes below a power"),
        (one(what="job", domain=2), "domain: a failure of the job takes down no nodes; expected none"),
        (one(domain="leef"), 'classes[0].domain: unknown "leef"; did you mean "leaf"?'),
        (one(effect="halt"), 'effect: expected stop, {flap: 20 s} or {slow: 0.5, lasts: 3 h}, found "halt"'),
        (one(effect={}), "classes[0].effect: expected stop, {flap: 20 s} or {slow: 0.5, lasts: 3 h}"),
        (one(effect={"flap": 0}), "classes[0].effect.flap: must be more than 0"),
        (one(effect={"slow": 0.5}), "classes[0].effect: `slow` needs `lasts` too"),
        (one(effect={"slow": 2, "lasts": 1}), "effect.slow: must be less than 1, a share of its speed, not 2"),
        (one(what="job", effect={"slow": 0.5, "lasts": 1}), "effect.slow: slows a gpu, node, nic or link, not"),
        (one(repair=1), "classes[0].repair: is read with `spares` only"),
        ({"restart": {}}, "restart.time: is required"),
        ({"spares": {"nodes": 1}}, "spares.repair: is required"),
        ({"spares": {"nodes": 5, "repair": 1}}, "spares.nodes: 5 spares are more than the 4 nodes of the job"),
        ({"spares": {"nodes": -1, "repair": 1}}, "spares.nodes: must be at least 0, not -1"),
        ({"checkpoint": {"every": 0, "cost": 1}}, "checkpoint.every: must be more than 0"),
        (
            {"checkpoint": {"every": "5 x", "cost": 1}},
            'every: unknown unit "x"; expected 30 min, 200 steps',
        ),
        ({"checkpoint": {"every": "0 steps", "cost": 1}}, "every: unknown unit"),
        ({"checkpoint": {"every": 1}}, "checkpoint.cost: is required by sync"),
        (
            {"checkpoint": {"every": 1, "cost": 1, "write": 1}},
            "checkpoint.write: is not read by sync; read by async",
        ),
        ({"checkpoint": {"every": 1, "mode": "asynch"}}, 'checkpoint.mode: unknown "asynch"; did you mean "async"?'),
        ({"checkpoint": {"every": "none", "cost": 1}}, "checkpoint.cost: is not read where nothing is saved"),
        (
            {"checkpoint": {"every": "optimal", "cost": 0}},
            "optimal: checkpoints that cost nothing have no best",
        ),
        (
            {**one(effect={"flap": 1}), "checkpoint": {"every": "optimal", "cost": 1}},
            "every: optimal: no class stops the job",
        ),
        (
            {**one(domain=2), "checkpoint": {"every": 1, "mode": "memory", "blocking": 1, "write": 1}},
            "checkpoint.persist: is required: node takes down several nodes",
        ),
        (
            {"elastic": {"min_replicas": 5}, "spares": {"nodes": 0, "repair": 1}},
            "elastic.min_replicas: 5 are more than the 4 of parallel.data",
        ),
        ({"elastic": {"min_replicas": 1}}, "spares: is required by elastic"),
        ({"elastic": {"min_replicas": 1, "batch": "kep"}}, 'elastic.batch: unknown "kep"; did you mean "keep"?'),
    ],
)
def test_one_mistake_is_one_line(change, said):
    with pytest.raises(ScenarioError) as error:
        scenario_from(merged(plain(**CLUSTER), {"faults": {**FEW, **change}}), source="here")
    assert len(error.value.problems) == 1, error.value.problems
    assert error.value.problems[0].startswith("here: faults.")
    assert said in error.value.problems[0]


def test_lines_of_a_file_are_named(problems):
    text = """\
schedule: {kind: 1f1b, microbatches: 4}
workload: {forward: 1 s, backward: 2 s}
faults:
  horizon: 54 d
  classes:
    - {what: gpu, mtbf: 1 h}
    - what: swich
      mtbf: 0
  spares: {nodes: 2, repair: 24 h}
  checkpoint: {every: 1 h}
"""
    assert problems(text) == [
        '7: faults.classes[1].what: unknown "swich"; did you mean "switch"?',
        "8: faults.classes[1].mtbf: must be more than 0",
        "9: faults.spares.nodes: 2 spares are more than the 1 nodes of the job",
        "10: faults.checkpoint.cost: is required by sync",
    ]


def test_leaves_of_a_topology_are_domains():
    from hybrid_des.renewal.sources import sources_of

    cluster = {"nodes": 6, "gpus_per_node": 1, "topology": "leaf-spine", "leaf_size": 4}
    faults = {"horizon": 1, "classes": [{"what": "switch", "mtbf": 1}]}
    (source,) = sources_of(scenario_from(values(d=6, cluster=cluster, faults=faults)))
    assert [list(places) for places in source.parts] == [[0, 1, 2, 3], [4, 5]]
