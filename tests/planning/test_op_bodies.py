"""What an action does on idle links, and what its collectives send: as found piece by piece, in fractions."""

from collections import Counter
from fractions import Fraction
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hybrid_des.cost_model.layer_collectives import LayerCollective
from hybrid_des.cost_model.stages import visits
from hybrid_des.planning.layer_traffic import loads_of
from hybrid_des.planning.op_bodies import body_of
from hybrid_des.planning.planner import parts_of
from hybrid_des.planning.program import Compute, ComputeSpeed, Start
from hybrid_des.scenario.loading import load

TIMES = st.integers(0, 50)  # picoseconds
EXCHANGES = st.lists(st.tuples(st.integers(1, 3), TIMES, TIMES, TIMES), max_size=2)  # repeats and times of collectives
LAYERS, DURATIONS = st.tuples(TIMES, EXCHANGES), st.integers(0, 900)


def layer(time, exchanges):
    """A layer with collectives along the context axis, whichever kind of op it is."""
    each = tuple(
        LayerCollective("context", "ring", 8, repeats, launch, alone, overlapped, 0, 0, True, lost=Fraction(1, 4))
        for repeats, launch, alone, overlapped in exchanges
    )
    return SimpleNamespace(collectives=(each, each), time=lambda kind: time)


def in_fractions(layers, duration):
    """The picoseconds of computation before each collective, and after the last."""
    pieces = []
    for one in layers:
        each = [exchange for exchange in one.collectives[0] for _ in range(exchange.repeats)]
        share = Fraction(one.time("F") - sum(exchange.waits for exchange in each), len(each) + 1)
        pieces += [(share, exchange) for exchange in (*each, None)]
    taken = [max(each.launch + each.alone, each.overlapped + each.taken) for _, each in pieces if each]
    computes, whole = max(0, duration - sum(taken)), sum(share for share, _ in pieces) or 1
    done, until, before = 0, 0, [0]
    for number, (_, exchange) in enumerate(pieces):
        until = int(computes * sum(share for share, _ in pieces[: number + 1]) / whole)
        before[-1] += max(0, until - done)
        done = until
        before += [0] if exchange else []
    return [*before[:-1], before[-1] + computes - done]


@given(st.lists(LAYERS, min_size=1, max_size=3), st.lists(st.integers(0, 2), min_size=1, max_size=6), DURATIONS)
@example([(1, [(1, 0, 4, 0)]), (10, [])], [0, 1], 100)  # the first computes less than it waits
@example([(1, [(1, 0, 4, 0)]), (3, [])], [0, 1], 100)  # all together compute as long as they wait
def test_computation_is_divided_as_in_fractions(kinds, order, duration):
    made = [layer(*one) for one in kinds]
    layers = [made[number % len(made)] for number in order]
    body = body_of([(0, SimpleNamespace(layers=layers), "F")], duration, ComputeSpeed(), {"context"}, [])
    before = [0]
    for instruction in body:
        if isinstance(instruction, Start):
            before.append(0)
        elif isinstance(instruction, Compute) and instruction.whole is not None:
            before[-1] += instruction.duration
    assert before == in_fractions(layers, duration)


@pytest.mark.parametrize("name", ["documents/sft_8b", "llama3.1-70b_128"])
def test_traffic_of_layers_is_summed_over_all_visits(name, scenarios):
    parts = parts_of(load(scenarios / f"{name}.yaml"))
    axes, found = ["context", "tensor"], Counter()
    for visit in visits(parts.plan, parts.costs):
        for exchange in (one for layer in visit.costs.layers for way in layer.collectives for one in way):
            if exchange.axis in axes:
                count, place = visit.times * exchange.repeats, (exchange.axis, visit.position[0], visit.lane)
                found[*place, "collectives"] += count
                found[*place, "messages"] += count * exchange.messages
                found[*place, "bytes"] += count * exchange.sent
    steps = 1 if parts.costs.lanes is None else parts.costs.lanes.steps
    assert any(found.values())
    for place, traffic in loads_of(parts.plan, parts.costs, axes)[0].items():
        assert traffic == tuple(round(Fraction(found[*place, name], steps)) for name in traffic._fields)
