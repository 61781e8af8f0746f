"""User-defined functions that return or yield the wrong thing: one line that names them, not a traceback."""

import pytest
from support.scenarios import scenario

from hybrid_des.cluster.fabric import Fabric, LinkSpec, Route
from hybrid_des.cluster.topologies.registration import topology
from hybrid_des.collectives.registration import collective
from hybrid_des.errors import HybridDesError
from hybrid_des.pipeline.plan import Op, Plan, loop
from hybrid_des.pipeline.schedules.registration import schedule
from hybrid_des.result import simulate

OPS = [Op("F", 0), Op("B", 0)]
PATHS = [loop(1, 1)]


@pytest.fixture(autouse=True)
def forgotten(scratch):
    """What a test registers is forgotten."""


def line(**sections):
    with pytest.raises(HybridDesError) as error:
        simulate(scenario(**sections))
    (text,) = str(error.value).splitlines()
    return text


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (lambda: [OPS], 'schedule "wrong" returned an object of type list; expected a Plan'),
        (lambda: None, 'schedule "wrong" returned nothing; expected a Plan'),
        (lambda: Plan.of(OPS, PATHS, [0]), "expected a list of ops for each pipeline rank"),
        (lambda: Plan.of([["F0"]], PATHS, [0]), "rank 0, action 0: found 'F'; expected an Op such as"),
        (lambda: Plan.of([[("F", 0)]], PATHS, [0]), "rank 0, action 0: found 'F'; expected an Op such as"),
        (lambda: Plan.of([[Op("X", 0)]], PATHS, [0]), "kind='X', microbatch=0, chunk=0); expected an Op such as"),
        (lambda: Plan.of([OPS], PATHS, [1]), "micro-batch 0: there is no path 1, of 1 in the plan"),
    ],
)
def test_a_schedule_that_returns_no_plan_is_one_line(returned, said):
    schedule("wrong", summary="", time="", memory="", source="")(lambda request: returned())
    assert said in line(p=1, m=1, schedule={"kind": "wrong"})


def test_a_function_that_takes_other_arguments_is_one_line():
    schedule("wrong", summary="", time="", memory="", source="")(lambda request, options: None)
    assert "missing a required argument: 'options'; it is called with 1" in line(p=1, m=1, schedule={"kind": "wrong"})


def wired(cluster, links=None, route=None):
    """Two GPUs on two cables."""
    known = {name: LinkSpec(name, None) for name in ("there", "back")}
    routes = route or (lambda a, b: Route(("there" if a else "back",), (0,)))
    return Fabric(links(known) if links else known, routes, cluster.gpus, cluster.node_of)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (lambda cluster: {}, 'topology "wrong" returned an object of type dict; expected a Fabric'),
        (
            lambda cluster: wired(cluster, lambda links: list(links)),
            "its links are in a list; expected a dict, by name",
        ),
        (lambda cluster: wired(cluster, lambda links: {"there": 1}), 'link "there" is a int; expected a LinkSpec'),
        (lambda cluster: wired(cluster, lambda links: {"x": LinkSpec("x", "fast")}), "has a bandwidth of fast; expect"),
        (lambda cluster: wired(cluster, route=lambda a, b: ["there"]), "is ['there']; expected a Route of link names"),
        (lambda cluster: wired(cluster, route=lambda a, b: Route(("there",), 0)), "latencies=0); expected a Route of"),
    ],
)
def test_a_topology_that_returns_no_fabric_is_one_line(returned, said):
    topology("wrong", summary="")(returned)
    assert said in line(p=2, m=1, cluster={"topology": "wrong"}, workload={"activation": 1})


def yields(value):
    def wrong(group, buffer):
        yield value

    return wrong


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda group, buffer: None, 'collective "wrong" returned nothing; expected a Generator'),
        (lambda group, buffer: [1], 'collective "wrong" returned an object of type list; expected a Generator'),
        (yields(3), "a process yields 3; expected an event, such as what receive() returns"),
        (yields(None), "a process yields None; expected an event, such as what receive() returns"),
    ],
)
def test_a_collective_that_yields_no_events_is_one_line(wrong, said):
    collective("wrong", summary="")(wrong)
    assert said in line(p=1, m=1, d=2, workload={"parameters": 10}, gradients={"algorithm": "wrong"})
