"""What nothing else can touch, taken at once: the same times as piece by piece, with fewer events."""

from fractions import Fraction
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from support.runs import totals

from hybrid_des import load
from hybrid_des.collectives.communicator import OnStream, Stream
from hybrid_des.cost_model.layer_collectives import LayerCollective
from hybrid_des.engine.clock import Environment
from hybrid_des.engine.lineage import LineageEnvironment
from hybrid_des.engine.recorder import Recorder
from hybrid_des.planning.program import (
    COMPUTE,
    GRADIENT,
    Begin,
    Compute,
    End,
    Join,
    Program,
    Record,
    Start,
    Wait,
    call_of,
)
from hybrid_des.shortcuts.run import run
from hybrid_des.shortcuts.stretches import Stretch, Stretches
from hybrid_des.simulation.outcome import Run
from hybrid_des.simulation.speeds import DurationOverride

QUICKER = DurationOverride(lambda rank, call, took: round(took * Fraction(9, 10)), lambda rank: 0)

MIXTURE = {
    "kind": "transformer", "layers": 8, "hidden": 256, "heads": 8, "ffn": 512, "vocab": 512, "sequence": 256,
    "experts": {"count": 8, "active": 2, "ffn": 256},
}  # fmt: skip

PAIRED = {
    "cluster": {"gpu": "h100", "nodes": 2, "gpus_per_node": 4}, "model": MIXTURE, "tensor_traffic": "replay",
    "parallel": {"pipeline": 2, "data": 4, "expert": 4}, "schedule": {"kind": "1f1b", "microbatches": 8, "pairs": True},
    "experts": {"streams": True, "multiprocessors": 20}, "record": "compute",
}  # fmt: skip


class _AnyOrder:
    def ordered(self, this: int, other: int) -> bool:
        return True

    def joined(self, this: int, other: int) -> int:
        return 0


class Compared(NamedTuple):
    """Piece by piece, and in stretches."""

    pieces: Run
    stretches: Run


def compared(values, retime=None):
    scenario = load(values)
    return Compared(*(run(scenario, retime=retime, fold_from=2, by_messages=one) for one in (True, False)))


def rows(table):
    return sorted(zip(*(table[name].tolist() for name in sorted(table)), strict=True))


def outcome(found):
    timeline = found.timeline
    tables = [rows(table) for table in (timeline.steps, timeline.ops, timeline.waits, timeline.exchanges)]
    peaks = found.peak_memory, found.peak_chunks
    return found.duration, totals(found), *peaks, found.any_order, found.unfolded, found.ranks, tables


def test_what_follows_from_a_stretch_has_the_same_lineage():
    def lineage(*, at_once):
        env = LineageEnvironment(_AnyOrder())
        gpu = SimpleNamespace(context=SimpleNamespace(env=env, recorder=Recorder(detailed=False)), computation=None)
        env.begin(3)
        ends = []

        def process():
            yield env.timeout(7)
            if at_once:
                yield from Stretch((5, 9, 20), (), 0).carry_out(gpu, None)
            else:
                for delay in (5, 4, 11):
                    yield env.timeout(delay)
            ends.append((env.now, env.lineage, env.born))

        env.process(process())
        env.run()
        return ends, env.events

    (whole, events), (pieces, more) = lineage(at_once=True), lineage(at_once=False)
    assert whole == pieces
    assert events == more - 2


@pytest.mark.parametrize("multiprocessors", [0, 20])
@pytest.mark.parametrize("retime", [None, QUICKER])
def test_paired_ops_take_as_long_by_fewer_events(retime, multiprocessors):
    experts = {"streams": True, "delay_weight": True, "multiprocessors": multiprocessors}
    found = compared({**PAIRED, "experts": experts}, retime)
    assert outcome(found.stretches) == outcome(found.pieces)
    assert found.stretches.fold is not None
    assert 3 * found.stretches.events < found.pieces.events
    assert bool(found.stretches.slowed) == bool(multiprocessors)


def test_ops_beside_reductions_are_taken_piece_by_piece():
    """The second chunk is reduced while the first one's backward is computed, which that slows."""
    schedule = {"kind": "interleaved-1f1b", "chunks": 2, "microbatches": 8, "pairs": True}
    gradients = {"overlap": True, "codec": "bf16", "pad": True}
    job = {**PAIRED, "schedule": schedule, "steps": 2, "barrier": False}
    found = compared({**job, "gradients": gradients})
    assert outcome(found.stretches) == outcome(found.pieces)
    assert found.stretches.fold is not None
    assert found.stretches.events < found.pieces.events
    late = compared({**job, "gradients": {**gradients, "overlap": False}})
    assert late.pieces.fold is not None
    assert found.pieces.slowed > late.pieces.slowed


def test_messages_of_layers_are_taken_one_by_one():
    found = compared({**PAIRED, "tensor_traffic": "messages"})
    assert found.stretches.events == found.pieces.events


def test_whole_runs_are_taken_piece_by_piece():
    found = compared({**PAIRED, "fold": "off"})
    assert found.stretches.events == found.pieces.events


GROUP = ("expert", 0, 0)
COMPUTES = [Compute(10), Compute(20)]
START = Start(GROUP, LayerCollective("expert", "all-to-all", 0, 1, 0, 30, 0, 0, 0, True))
EXCHANGES = [Compute(10), START, Compute(5), Join(0)]
OTHERS = [Wait("filled"), Record("done")]


def moments_in(*calls, others=OTHERS):
    """Of each call with stretches, the moments of these."""
    env = Environment()
    ops = (*(call_of(*instructions) for instructions in calls), call_of(Record("filled"), Wait("done")))
    program = Program({COMPUTE: ops, GRADIENT: (call_of(*others),)})
    with_stretches = Stretches(slowed=False).of(program, {GROUP: OnStream(env, Stream(env, None), None)})
    return [[one.moments for one in pieces if isinstance(one, Stretch)] for pieces in with_stretches.values()]


def test_pieces_of_a_stretch_follow_each_other():
    assert moments_in(COMPUTES, [Begin(), *EXCHANGES, End(), *COMPUTES]) == [[(10, 30)], [(10, 15, 40), (10, 30)]]


def test_collectives_that_go_on_are_taken_piece_by_piece():
    across = [START, *COMPUTES, End(), Join(0)]
    assert moments_in(COMPUTES, across, COMPUTES) == [[(10, 30)], [(10, 30)]]
    assert moments_in(COMPUTES, [START], COMPUTES, [Join(0)]) == [[(10, 30)]]


def test_stretches_end_where_another_stream_may_go_on():
    assert moments_in(COMPUTES, [Record("filled")], COMPUTES, others=[Wait("filled"), *OTHERS]) == [[(10, 30)]]


@pytest.mark.parametrize(
    "others",
    [
        [Record("done")], [Wait("filled"), *OTHERS], [Wait("filled"), Record("filled"), Record("done")],
        [Wait("filled"), Record("unheard")], [*OTHERS, Wait("filled")],
    ],
)  # fmt: skip
def test_there_are_none_beside_a_stream_under_way(others):
    assert moments_in(COMPUTES, others=others) == []
