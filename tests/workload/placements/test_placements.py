"""Placements of experts: EPLB's example, tokens conserved by every placement, and plug-ins that are wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import registries

from hybrid_des.errors import Refusal, UsageError
from hybrid_des.workload.expert_loads import bounded
from hybrid_des.workload.models.routing import Routing
from hybrid_des.workload.placements import Wanted, names, placed, placement

# deepseek-ai/EPLB, README: two layers of 12 experts in 4 groups, 16 slots on 8 GPUs of 2 nodes
LOADS = (
    (90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86),
    (20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27),
)
SLOTS = (
    (5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1),
    (7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1),
)


@pytest.mark.parametrize(("loads", "slots"), [*zip(LOADS, SLOTS, strict=True)])
def test_the_example_of_eplb_gives_its_placement(loads, slots):
    wanted = Wanted(tuple(map(float, loads)), (0, 0, 0, 0, 1, 1, 1, 1), 4)
    found = placed("redundant", wanted, {"copies": 4})
    assert tuple(expert for held in found for expert in held) == slots


@st.composite
def wanteds(draw):
    ranks = draw(st.sampled_from((2, 4, 8)))
    groups = draw(st.sampled_from((1, 2, 4)))
    experts = 8 * draw(st.integers(1, 4))
    shares = draw(st.lists(st.floats(0.01, 100), min_size=experts, max_size=experts))
    on_node = draw(st.sampled_from([size for size in (1, 2, 4, 8) if ranks % size == 0]))
    nodes = tuple(rank // on_node for rank in range(ranks))
    return Wanted(tuple(bounded(shares, experts / 2)), nodes, groups)


def placements_of(wanted):
    """Those of all registered placements, and of a user's."""
    with registries.scratch():
        placement("reversed", summary="in reverse order")(lambda wanted: wanted.in_order[::-1])
        for name in names():
            yield name, placed(name, wanted, {"copies": 2 * len(wanted.nodes)})


@given(wanteds())
def test_every_placement_conserves_tokens(wanted):
    ranks, experts = len(wanted.nodes), len(wanted.loads)
    tried = dict(placements_of(wanted))
    assert {"static", "balanced", "redundant", "reversed"} <= tried.keys()
    for found in tried.values():
        routing = Routing(experts, 2, loads=wanted.loads, placed=found)
        served = [routing.of_rank(rank, ranks) for rank in range(ranks)]
        assert sum(served) == pytest.approx(ranks, rel=1e-9)
        assert {len(held) for held in found} == {routing.slots(ranks)}
        assert {expert for held in found for expert in held} == set(range(experts))


@given(wanteds())
def test_a_balanced_placement_is_within_the_bound_of_greedy_packing(wanted):
    """Graham's bound: no rank is over the mean by more than one expert, the most wanted of its slots."""
    ranks = len(wanted.nodes)
    one_node = Wanted(wanted.loads, (0,) * ranks)
    found = placed("balanced", one_node, {})
    sums = [sum(wanted.loads[expert] for expert in held) for held in found]
    if len(found[0]) > 1:
        assert max(sums) - min(sums) <= 2 * max(wanted.loads) + 1e-9


def test_copies_go_to_the_most_wanted_expert():
    found = placed("redundant", Wanted((9.0, 1.0, 1.0, 1.0), (0, 0, 0, 0)), {"copies": 4})
    held = [expert for of_rank in found for expert in of_rank]
    assert [held.count(expert) for expert in range(4)] == [5, 1, 1, 1]


def test_groups_stay_on_a_node():
    """Four groups on two nodes: the experts of a group are never on both."""
    loads = (4.0, 4.0, 1.0, 1.0, 3.0, 3.0, 2.0, 2.0)
    found = placed("balanced", Wanted(loads, (0, 0, 1, 1), 4), {})
    nodes = {expert: rank // 2 for rank, held in enumerate(found) for expert in held}
    assert all(nodes[first] == nodes[first + 1] for first in (0, 2, 4, 6))
    assert sum(loads[expert] for expert in range(8) if nodes[expert] == 0) == 10


def test_copies_that_cannot_be_divided_are_refused():
    with pytest.raises(Refusal, match=r"experts.copies: 7 experts and copies cannot be divided evenly over 4 ranks"):
        placed("redundant", Wanted((1.0,) * 4, (0, 0, 0, 0)), {"copies": 3})


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (((0,), (1, 2)), "expected equal numbers of experts on 2 ranks, found 1, 2"),
        (((0, 1), (0, 1)), "expert 2 is on no rank"),
        (((0, 1, 2), (0, 3, 4)), "there is no expert 4; they are 0 … 3"),
    ],
)
def test_wrong_plugins_are_told(found, said):
    with registries.scratch():
        placement("wrong", summary="wrong")(lambda wanted: found)
        with pytest.raises(UsageError) as error:
            placed("wrong", Wanted((1.0,) * 4, (0, 0)), {})
    assert said in str(error.value)
