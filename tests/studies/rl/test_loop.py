"""Loops that end early or not at all, and what scenarios they are made of."""

from fractions import Fraction

import pytest
from support.loops import Engine, Training, loop_scenario, looped
from support.paths import SCENARIOS

from hybrid_des import fabric_of, load
from hybrid_des.collectives.benchmark import measure
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.codecs import find
from hybrid_des.cost_model.decode import DecodeEfficiency, decode_costs
from hybrid_des.errors import DeadlockError, Refusal, UsageError
from hybrid_des.studies.rl.engine_all_reduce import all_reduce_across_nodes
from hybrid_des.studies.rl.loop import LoopUnfinishedError, run_loop
from hybrid_des.studies.rl.parts_of_scenario import engines_said, parts_of


def test_what_a_stuck_trainer_waits_for_is_named():
    scenario = loop_scenario(batch=16, updates=2, take=2)
    few = scenario.model_copy(update={"rl": scenario.rl.model_copy(update={"ahead": Fraction(-1, 2)})})
    with pytest.raises(DeadlockError) as raised:
        looped(few)
    assert str(raised.value) == (
        "rl: the trainer waits for 8 prompts of batch 0, of which 4 are in the queue; 4 prompts have been begun, of 4 "
        "that rl.ahead allows"
    )


def test_a_room_below_one_sample_is_refused():
    looped(loop_scenario(), Engine(tokens=50))
    with pytest.raises(Refusal, match="room for 49 tokens, fewer than the 50 of a sample") as raised:
        looped(loop_scenario(), Engine(tokens=49))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"precision": "fp8"}, "12 % off on average"),
        ({}, "12 % off on average; none of them in bf16"),
        ({"data": 2, "precision": "fp8"}, "12 % off on average; none of them with data ranks"),
    ],
)
def test_engines_unlike_measured_ones_are_told(changes, said):
    (told,) = engines_said(loop_scenario(rollout={"nodes": "1-2", **changes}))
    assert told.endswith(said)


def test_engines_may_be_on_other_gpus_than_the_trainer():
    nodes = [{"count": 1, "gpus_per_node": 2}, {"count": 2, "gpus_per_node": 2, "gpu": "h20"}]
    mixed = load(loop_scenario(), {"cluster.nodes": nodes})
    (told,) = engines_said(mixed)
    assert told.endswith("none of them in bf16 or on h20")
    half = load(loop_scenario(), {"cluster.nodes": [nodes[0], {**nodes[0], "count": 2, "speed": 0.5}]})
    times = [parts_of(one).engines[0].costs.stretch_ps(4, 0, 100) for one in (loop_scenario(), half)]
    assert times[1] == pytest.approx(2 * times[0], rel=1e-9)


def test_tensor_ranks_on_two_nodes_reduce_by_messages():
    """Of a decode step of one sequence, each of 2·layers all-reduces takes what NCCL's takes on the links."""
    change = {"model": {"base": "llama3.1-8b"}, "cluster.gpu": "h100"}
    one, two = (load(SCENARIOS / "rl/async.yaml", {**change, "rl.rollout.tensor": tensor}) for tensor in (8, 16))
    assert all_reduce_across_nodes(one, one.rl.rollout[0]) is None
    bits, costs = find("fp16").build(), parts_of(two).engines[0].costs
    took = measure(fabric_of(two), "nccl", [range(64, 80)], lambda *_: Buffer(4096, bits), sharing="fifo").duration
    assert all_reduce_across_nodes(two, two.rl.rollout[0])(2 * 4096) == took / 10**12
    alone = decode_costs(
        two.model.network, two.cluster.kinds[0], tensor=16, efficiency=DecodeEfficiency(all_reduce=lambda size: 0.0)
    )
    assert costs.stretch_ps(1, 0, 1) - alone.step_ps(1) == pytest.approx(2 * 32 * took, abs=2)
    assert "tensor ranks on several nodes" in next(engines_said(two))
    assert "tensor ranks on several nodes" not in next(engines_said(one))
    longer = load(SCENARIOS / "rl/async.yaml", {**change, "rl.rollout.tensor": 8, "rl.rollout.efficiency.across": 3})
    assert next(engines_said(longer)).endswith("across has no effect: tensor ranks are on one node")


def test_a_replica_beside_a_border_of_nodes_counts():
    """Of pairs on nodes of three GPUs, only the second is on two nodes; all take its all-reduces."""
    loop = loop_scenario(rollout={"nodes": "1-2", "tensor": 2})
    pairs = load(loop, {"cluster.gpus_per_node": 3})
    assert all_reduce_across_nodes(pairs, pairs.rl.rollout[0]) is not None
    assert "tensor ranks on several nodes" in next(engines_said(pairs))
    assert all_reduce_across_nodes(loop, loop.rl.rollout[0]) is None


def test_engines_that_cannot_serve_are_named():
    scenario = load(SCENARIOS / "rl/async.yaml", {"rl.rollout.tensor": 64})
    with pytest.raises(Refusal, match=r"^rl\.rollout: 28 heads cannot be divided over 64 tensor ranks$"):
        run_loop(scenario)


def test_a_scenario_without_the_section_is_refused():
    with pytest.raises(UsageError, match="expected a section rl"):
        run_loop(loop_scenario().model_copy(update={"rl": None}))


def test_a_budget_ends_a_loop():
    with pytest.raises(LoopUnfinishedError, match="the budget of 0 s is spent"):
        run_loop(loop_scenario(batch=8192), engines=Engine(), trainer=Training(), sync_ps=0, budget_s=0)


def test_an_interrupt_leaves_nothing_behind():
    class Stops(Training):
        def take(self, updates):
            raise KeyboardInterrupt

    expected = looped(loop_scenario())
    with pytest.raises(KeyboardInterrupt):
        looped(loop_scenario(), training=Stops())
    assert looped(loop_scenario()) == expected


def test_a_scenario_says_all_parts_itself():
    scenario = loop_scenario(
        batch=8, steps=2, passes={"old": True}, rollout={"tensor": 2}, sync={"mechanism": "gather"}, ahead=0.5
    )
    record = run_loop(scenario)
    assert {"passes", "train", "sync"} <= {span.state for span in record.trainer}
    assert record.gpus_of_replicas == (2, 2) and record.trainer_gpus == 2
    assert record == run_loop(scenario)


def test_a_measured_trainer_takes_its_time():
    record = run_loop(loop_scenario(batch=8, steps=2, updates=2, trainer={"time": "1 ms"}), sync_ps=0)
    assert sum(span.end - span.begin for span in record.trainer if span.state == "train") == 2 * 10**9


def test_few_steps_of_a_sampled_trainer_are_all_simulated():
    records = [run_loop(loop_scenario(steps=2, trainer=kind), sync_ps=0) for kind in ("sampled", "simulated")]
    assert records[0] == records[1]


def test_measured_steps_are_read_from_a_file(tmp_path):
    (tmp_path / "steps.csv").write_text("sequences,tokens,seconds\n1,10,0.001\n1,1000,0.001\n")
    (tmp_path / "times.csv").write_text("tokens,seconds\n1,0.002\n")
    rollout = {"efficiency": {"table": str(tmp_path / "steps.csv")}, "concurrency": 1}
    scenario = loop_scenario(
        batch=2, samples=1, steps=2, response=20, rollout=rollout, trainer={"table": str(tmp_path / "times.csv")}
    )
    record = run_loop(scenario, sync_ps=0)
    decoded = {span.end - span.begin for span in record.engines if span.state == "decode"}
    assert decoded == {20 * 10**9}
    assert {span.end - span.begin for span in record.trainer if span.state == "train"} == {2 * 10**9}


def test_engines_of_two_kinds_share_the_work():
    rollout = [{"nodes": "1-1", "concurrency": 2}, {"nodes": "2-2", "tensor": 2, "concurrency": 8}]
    scenario = loop_scenario(steps=2)
    kinds = [loop_scenario(rollout=kind).rl.rollout[0] for kind in rollout]
    both = scenario.model_copy(update={"rl": scenario.rl.model_copy(update={"rollout": tuple(kinds)})})
    record = run_loop(both, engines=[Engine(), Engine(100)], trainer=Training(), sync_ps=0)
    assert record.gpus_of_replicas == (1, 1, 2)
    assert {sample.replica for sample in record.samples} == {0, 1, 2}
