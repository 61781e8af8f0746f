"""The step of each state of the cluster is that of a scenario which says the same."""

from fractions import Fraction

import pytest
from support.paths import GOLDEN
from support.scenarios import values

from hybrid_des.errors import UsageError
from hybrid_des.scenario.loading import scenario_from
from hybrid_des.shortcuts.run import run
from hybrid_des.studies.goodput.states import SlowPart, State, Steps, replicas_of, stages_of

FAULTS = {
    "horizon": "1 d",
    "classes": [{"what": "node", "mtbf": "1 h"}],
    "spares": {"nodes": 0, "repair": "1 h"},
    "elastic": {"min_replicas": 1},
}
WORK = {"activation": "1 MiB", "parameters": 1e6}


def scenario(kind="1f1b", p=2, m=4, d=3, nodes=None, elastic=None, **sections):
    cluster = {"nodes": nodes or p * d, "gpus_per_node": 1}
    faults = {**FAULTS, **({"elastic": elastic} if elastic else {})}
    return scenario_from(values(kind, p, m, d, cluster=cluster, workload=WORK, faults=faults, **sections))


def alone(*sizes, **sections):
    """The time of the step of a scenario."""
    return run(scenario(*sizes, **sections)).duration


def test_fewer_replicas_with_their_batch_take_more_microbatches():
    """12 micro-batches on three replicas are 6 on each of two, 12 on one."""
    steps = Steps(scenario())
    assert steps.healthy.time == steps.healthy.useful == alone()
    for replicas, each in ((2, 6), (1, 12)):
        step = steps.of(State(replicas))
        assert step.time == alone("1f1b", 2, each, replicas)
        assert (step.useful, step.slow, step.fewer) == (alone(), 0, step.time - alone())


def test_fewer_replicas_with_fewer_samples_are_less_useful():
    steps = Steps(scenario(elastic={"min_replicas": 1, "batch": "shrink"}))
    step = steps.of(State(2))
    assert step.time == alone("1f1b", 2, 4, 2)
    assert step.useful == round(Fraction(2, 3) * alone())
    assert step.time == step.useful + step.fewer


def test_shares_are_rounded_up_to_what_the_schedule_allows():
    """DualPipe needs an even number of micro-batches: 24 on two replicas are 12, on five 5, so 6."""
    steps = Steps(scenario("dualpipe", 2, 4, 6))
    assert steps.of(State(2)).time == alone("dualpipe", 2, 12, 2)
    assert steps.of(State(5)).time == alone("dualpipe", 2, 6, 5)


def part(what, stage, share=Fraction(1, 2), number=0):
    """A state with all three replicas, in which something of a pipeline rank is slow."""
    return State(3, (SlowPart(what, (stage,), number, share),))


@pytest.mark.parametrize("what", ["node", "gpu"])
@pytest.mark.parametrize("stage", [0, 1])
def test_a_slow_node_is_a_node_with_less_speed(stage, what):
    """Nodes of stage 0 come first: replicas vary fastest; each has one GPU."""
    whole = scenario()
    assert stages_of(whole) == [(0,)] * 3 + [(1,)] * 3
    kinds = [{"count": 3 * stage}, {"speed": 0.5}, {"count": 5 - 3 * stage}]
    slow = alone(nodes=[kind for kind in kinds if kind.get("count") != 0])
    step = Steps(whole).of(part(what, stage))
    assert step.time == slow > alone()
    assert (step.useful, step.fewer, step.slow, step.jitter) == (alone(), 0, slow - alone(), 0)


def test_a_slow_nic_carries_less():
    step = Steps(scenario()).of(part("nic", 1))
    assert step.time == alone(slow=[{"nic": "node3/nic0", "factor": 0.5}]) > alone()


def test_slow_nodes_of_unlike_kinds_keep_their_speed():
    kinds = [{"count": 4}, {"count": 2, "speed": 0.8}]
    step = Steps(scenario(nodes=kinds)).of(part("node", 1))
    faster = [{"count": 3}, {"speed": 0.5}, {"count": 2, "speed": 0.8}]
    assert step.time == alone(nodes=faster)


def test_slow_parts_and_jitter_are_no_useful_time():
    more = {"slow": [{"stage": 1, "factor": 0.8}], "jitter": {"distribution": "lognormal", "sigma": 0.1}}
    step = Steps(scenario(**more)).healthy
    assert step.useful == alone()
    assert step.slow == alone(slow=more["slow"]) - alone() > 0
    assert step.time == alone(**more) == step.useful + step.slow + step.jitter
    assert step.jitter != 0


def test_a_state_that_cannot_be_simulated_is_named():
    """An order for 8 micro-batches has no place for the 12 of two replicas."""
    order = {"kind": None, "file": str(GOLDEN / "orders/1f1b_p4_m8.csv")}
    steps = Steps(scenario(None, 4, 8, 3, schedule=order))
    assert steps.healthy.time == alone("1f1b", 4, 8, 3)
    with pytest.raises(UsageError, match=r"no step with 2 replicas: .* schedule.microbatches is 12"):
        steps.of(State(2))


def test_nodes_know_their_replicas_and_stages():
    """Eight ranks on nodes of three GPUs: replicas 0, 1, stages 0 to 3; the last node has two."""
    whole = scenario_from(values(p=4, d=2, cluster={"nodes": 3, "gpus_per_node": 3}, faults=FAULTS))
    assert stages_of(whole) == [(0, 1), (1, 2), (3,)]
    assert replicas_of(whole) == [{0, 1}, {0, 1}, {0, 1}]
