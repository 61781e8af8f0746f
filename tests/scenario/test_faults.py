"""The section `faults`: what it reads, and one line for each mistake in it."""

from fractions import Fraction

import pytest
from support.scenarios import merged, plain, values

from hybrid_des.scenario.export import to_mapping
from hybrid_des.scenario.loading import scenario_from

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
    from hybrid_des.studies.goodput.failures import sources_of

    cluster = {"nodes": 6, "gpus_per_node": 1, "topology": "leaf-spine", "leaf_size": 4}
    faults = {"horizon": 1, "classes": [{"what": "switch", "mtbf": 1}]}
    (source,) = sources_of(scenario_from(values(d=6, cluster=cluster, faults=faults)))
    assert [list(places) for places in source.parts] == [[0, 1, 2, 3], [4, 5]]
