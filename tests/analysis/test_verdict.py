"""The verdict: one main loss, named for what it is, and laws of efficiency."""

from fractions import Fraction

import pytest
from support.scenarios import merged
from support.scenarios import values as small
from support.verdicts import of_model

from hybrid_des.analysis.counterfactual.attribution import Straggler
from hybrid_des.analysis.losses import losses
from hybrid_des.analysis.step_breakdown import SHARES
from hybrid_des.analysis.verdict import main_loss, shares_text, verdict
from hybrid_des.scenario.loading import scenario_from

SCENARIO = scenario_from(of_model(parallel={"tensor": 4, "pipeline": 2}, recompute="full"))
NODE = Straggler("node 1", 1.11, mean=8, usual=8)


def shares(**some):
    """Shares in percent; the rest is computing."""
    every = dict.fromkeys(SHARES, Fraction(0)) | {name: Fraction(part, 100) for name, part in some.items()}
    return every | {"computing": 1 - sum(every.values())}


def test_the_largest_share_besides_computing_is_the_main_loss():
    assert main_loss(shares(tensor=27, recomputing=17, bubble=4)) == "tensor"
    assert main_loss(shares(tensor=9, bubble=9)) is None
    assert main_loss(shares(bubble=10)) == "bubble"
    almost = shares() | {"tensor": Fraction(96, 1000)}  # shown as 10 %
    assert main_loss(almost) == "tensor" and "10 % of the step" in verdict(SCENARIO, almost)


@pytest.mark.parametrize(("some", "said"), [
    ({"tensor": 27}, "27 % of the step goes to tensor-parallel communication: every layer exchanges "),
    ({"recomputing": 25}, "25 % of the step goes to recomputing activations: to save memory, the backward "),
    ({"bubble": 43}, "43 % of the step goes to the pipeline bubble: GPUs wait for each other while 4 micro-"),
    ({"tensor": 7}, "93 % of the step is computing; nothing else takes a tenth of it."),
])  # fmt: skip
def test_a_verdict_names_one_loss_and_why(some, said):
    assert verdict(SCENARIO, shares(**some)).startswith(said)


def test_what_is_slow_is_blamed_for_waits_only():
    wait = verdict(SCENARIO, shares(slower=30), NODE, 0.2)
    assert wait == (
        "30 % of the step goes to waiting for slower GPUs. Node 1 computes for 1.11× as long as the average rank, "
        "which costs 20 % of the step."
    )
    beside = verdict(SCENARIO, shares(tensor=30), NODE, 0.2)
    assert beside.index("exchanges activations") < beside.index("Node 1 computes")
    assert "Node 1" not in verdict(SCENARIO, shares(tensor=30), NODE, 0.05)
    assert "Node 1" in verdict(SCENARIO, shares(tensor=5), NODE, 0.05)


def test_listed_shares_are_those_from_one_percent_on():
    text = shares_text(shares(tensor=27, bubble=4) | {"host": Fraction(1, 150)})
    assert text == (
        "GPUs spend 69 % of the step computing, 27 % in tensor-parallel communication and 4 % in the pipeline bubble."
    )


@pytest.mark.parametrize("values", [
    small("1f1b", 1, 2),
    small("gpipe", 1, 4, workload={"activation": "10 MB"}),
    of_model(efficiency={"launch": 0, "layer_overhead": 0}),
])  # fmt: skip
def test_one_gpu_is_efficient(values):
    found = losses(scenario_from(values))
    assert found.breakdown.efficiency == 1
    assert found.verdict == "100 % of the step is computing."


def test_the_host_alone_makes_one_gpu_inefficient():
    found = losses(scenario_from(of_model(efficiency={"launch": "200 us"})))
    assert found.breakdown.efficiency == 1 - found.breakdown.shares["host"] < 1


def test_exposed_communication_lowers_efficiency():
    base = of_model(parallel={"tensor": 2, "pipeline": 2, "data": 2}, gradients={"overlap": False})
    rates = [
        losses(
            scenario_from(merged(base, {"cluster": {"infiniband": {"bandwidth": rate}, "nvlink": {"bandwidth": rate}}}))
        )
        for rate in ("inf", "400 GB/s", "50 GB/s", "5 GB/s")
    ]
    efficiency, exposed = ([getattr(one.breakdown, name) for one in rates] for name in ("efficiency", "exposed"))
    assert efficiency == sorted(efficiency, reverse=True) and exposed == sorted(exposed)
    assert all(0 < one <= 1 for one in efficiency) and efficiency[0] > 1.5 * efficiency[-1]
