"""Programs: what ranks share, how an op's parts add up, and which streams there are."""

from collections import Counter
from fractions import Fraction

import pytest
from support import scenarios

from hybrid_des.planning import program as instructions
from hybrid_des.planning.planner import parts_of
from hybrid_des.planning.program import (
    COMPUTE,
    GRADIENT,
    MEETING,
    MESSAGE,
    PARAMETER,
    RECEIPT,
    Compute,
    ComputeSpeed,
    Confirm,
    Instruction,
    Send,
)
from hybrid_des.simulation import gpu

BUCKETS = {"workload": {"parameters": 1e6}, "gradients": {"overlap": True, "bucket": "1 MB", "bucket_rule": "ddp"}}


def program(*sizes, rank=0, speed=1, **sections):
    return parts_of(scenarios.scenario(*sizes, **sections)).lowering.lower(rank, ComputeSpeed(Fraction(speed)))


def computes(call):
    return [one for one in call.block.instructions if isinstance(one, Compute)]


def test_micro_batches_share_a_block():
    calls = program("1f1b", 4, 64).ops.values()
    assert len(calls) == 128
    assert len({id(call.block) for call in calls}) == 2


def test_an_op_that_fills_buckets_has_its_own_block():
    calls = program("1f1b", 4, 8, 2, **BUCKETS).ops.values()
    assert len({id(call.block) for call in calls}) == 3
    *_, last = calls
    parts = computes(last)
    assert len(parts) > 3
    assert [one.before for one in parts] == [sum(before.duration for before in parts[:i]) for i in range(len(parts))]
    assert {one.whole for one in parts} == {last.duration} == {2 * 10**9}


def test_other_durations_keep_blocks_shared_and_their_parts_whole():
    before = program("1f1b", 4, 8, 2, **BUCKETS)
    after = before.lasting(lambda call, took: 3 * took if call.number % 2 else took)
    assert [call.duration for call in after.ops.values()] == [
        (3 if number % 2 else 1) * call.duration for number, call in before.ops.items()
    ]
    assert len({id(call.block) for call in after.ops.values()}) < 8
    assert all(one.whole == call.duration for call in after.ops.values() for one in computes(call))


def test_calls_that_share_durations_ask_once_per_block():
    before, asked = program("1f1b", 4, 8, 2, **BUCKETS), []
    after = before.lasting(lambda call, took: asked.append(call) or 3 * took, each=False)
    assert [call.duration for call in after.ops.values()] == [3 * call.duration for call in before.ops.values()]
    assert len(asked) == sum(len(block.durations) for block in {call.block for call in before.ops.values()})


def test_a_blocking_send_is_confirmed_after_it():
    block = program("1f1b", 2, 2, schedule={"p2p": "blocking"}).ops[0].block.instructions
    assert [one.__class__ for one in block[-2:]] == [Send, Confirm]
    assert Confirm not in {one.__class__ for one in program("1f1b", 2, 2).ops[0].block.instructions}


@pytest.mark.parametrize(
    ("sections", "streams"),
    [
        ({}, [COMPUTE]),
        ({"workload": {"parameters": 10}}, [COMPUTE, GRADIENT]),
        (
            {"workload": {"parameters": 10}, "sharding": "zero-1", "overlap": {"parameters": True}},
            [COMPUTE, GRADIENT, PARAMETER],
        ),
    ],
)
def test_streams_are_those_that_have_something_to_do(sections, streams):
    assert list(program("1f1b", 1, 2, 2, **sections).streams) == streams


@pytest.mark.parametrize(
    "sections",
    [
        {},
        BUCKETS,
        {"schedule": {"p2p": "blocking"}},
        {**BUCKETS, "sharding": "zero-1", "overlap": {"parameters": True}},
        {"schedule": {"kind": "interleaved-1f1b", "chunks": 2}, **BUCKETS},
    ],
    ids=["plain", "buckets", "blocking", "sharded", "interleaved"],
)
def test_every_signal_that_is_waited_for_is_released_as_often(sections):
    awaited, released = Counter(), Counter()
    for rank in range(4):
        for call in program("1f1b", 4, 8, 2, rank=rank, **sections).calls:
            for one, waits_for, _, releases in call.block.effects:
                if waits_for not in (None, MEETING):
                    awaited[waits_for, rank, one.signal(call.ops)] += 1
                released.update((signal, one.receiver(signal, rank), one.signal(call.ops)) for signal in releases)
    receipts = {signal for signal in released if signal[0] == RECEIPT}
    assert awaited and receipts
    assert awaited == Counter({one: times for one, times in released.items() if one in awaited or one not in receipts})


def test_a_gpu_knows_every_signal():
    kinds = {one for one in vars(instructions).values() if isinstance(one, type) and issubclass(one, Instruction)}
    assert {kind.waits_for for kind in kinds} == {None, MESSAGE, *gpu.WAITS}
    assert {signal for kind in kinds for signal in kind.releases} == {MESSAGE, RECEIPT, *gpu.RELEASES}
    assert {*gpu.WAITS} - {MEETING} == {RECEIPT, *gpu.RELEASES}
