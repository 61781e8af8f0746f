"""Routing of tokens to experts: exact against enumeration, and against the figures of DeepSeek-V3."""

from collections import Counter
from fractions import Fraction
from itertools import combinations
from math import comb, prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid_des.workload.expert_loads import bounded
from hybrid_des.workload.models.routing import Choices, Routing


@st.composite
def routings(draw):
    groups, size = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    top = draw(st.integers(1, groups))
    return Routing(groups * size, draw(st.integers(1, top * size)), groups, top)


def choices(routing):
    """Every set of experts that a token may choose, once for each choice of groups."""
    size = routing.count // routing.groups
    for chosen in combinations(range(routing.groups), routing.top_groups):
        among = [expert for group in chosen for expert in range(group * size, (group + 1) * size)]
        yield list(combinations(among, routing.active))


@given(routings(), st.data())
def test_hits_are_those_of_all_choices_counted(routing, data):
    held = tuple(sorted(data.draw(st.sets(st.integers(0, routing.count - 1)))))
    shares = [Fraction(sum(not set(held).isdisjoint(one) for one in sets), len(sets)) for sets in choices(routing)]
    assert routing.hit(held) == sum(shares) / len(shares)


def chances(routing, weights):
    """The probability of every set of experts, by weights: by enumeration."""
    ways = Counter()
    for sets in choices(routing):
        for one in sets:
            ways[one] += prod(weights[expert] for expert in one)
    return {one: way / sum(ways.values()) for one, way in ways.items()}


@given(routings(), st.data())
def test_choices_are_as_likely_as_their_experts_weights(routing, data):
    weights = np.array(data.draw(st.lists(st.floats(0.1, 9), min_size=routing.count, max_size=routing.count)))
    found = Choices(routing, weights, np.zeros(routing.count, dtype=bool))
    exact = chances(routing, weights.tolist())
    each = [sum(chance for one, chance in exact.items() if expert in one) for expert in range(routing.count)]
    assert found.chosen() == pytest.approx(each, abs=1e-9)
    factors = np.array(data.draw(st.lists(st.floats(0, 1), min_size=routing.count, max_size=routing.count)))
    passed = sum(chance * prod(factors[list(one)]) for one, chance in exact.items())
    assert found.sums_of(factors[None])[0] / found.whole == pytest.approx(passed, abs=1e-9)


@given(st.integers(1, 4), st.lists(st.floats(0.05, 5), min_size=5, max_size=9))
def test_every_expert_gets_its_load(active, shares):
    count = len(shares)
    loads = bounded(shares, count / active)
    routing = Routing(count, active, loads=tuple(loads))
    for expert, load in enumerate(loads):
        assert float(routing.hit((expert,))) == pytest.approx(load * active / count, rel=1e-6)


def test_ranks_are_served_together_as_each_alone():
    routing = Routing(8, 3, 2, 2, loads=(1.6, 1.4, 0.2, 0.9, 1.0, 1.3, 0.7, 0.9))
    each = tuple(routing.held(rank, 4) for rank in range(4))
    assert routing.hits(each) == [routing.hit(held) for held in each]
    assert len(set(routing.hits(each))) == 4


def test_an_expert_that_every_token_wants_is_always_chosen():
    routing = Routing(4, 2, loads=(2.0, 1.0, 0.5, 0.5))
    assert float(routing.hit((0,))) == 1
    assert float(routing.hit((1,))) == pytest.approx(0.5)  # the other one of the two: 2 · 1/4
    assert float(routing.hit((1, 2))) == pytest.approx(0.75)


def test_copies_share_the_tokens_of_their_expert():
    placed = ((0, 1), (0, 2), (0, 3))
    routing = Routing(4, 1, loads=(3.0, 1 / 3, 1 / 3, 1 / 3), placed=placed)
    assert float(routing.hit(placed[0])) == pytest.approx(1 / 3)
    assert float(routing.hit((0,))) == pytest.approx(0.25)  # a third of three quarters
    assert routing.busiest(3) == pytest.approx(1)
    assert routing.slots(3) == 2


@given(st.integers(1, 3), st.lists(st.floats(0.05, 5), min_size=6, max_size=6), st.randoms())
def test_tokens_are_conserved_by_any_placement(active, shares, rng):
    slots = [*range(6), *rng.choices(range(6), k=3)]
    rng.shuffle(slots)
    placed = tuple(tuple(slots[rank * 3 : rank * 3 + 3]) for rank in range(3))
    routing = Routing(6, active, loads=tuple(bounded(shares, 6 / active)), placed=placed)
    assert sum(routing.of_rank(rank, 3) for rank in range(3)) == pytest.approx(3, rel=1e-12)


def test_a_capacity_drops_what_finds_no_room():
    routing = Routing(4, 1, loads=(2.0, 1.0, 0.5, 0.5), capacity=1.25)
    assert routing.dropped == pytest.approx(0.75 / 4)
    assert routing.busiest(4) == Fraction(5, 4)
    assert float(routing.hit((0,))) == pytest.approx(1.25 / 4)
    assert float(routing.hit((1,))) == pytest.approx(1 / 4)


def test_equal_loads_are_uniform():
    uniform, equal = Routing(64, 6, 8, 3), Routing(64, 6, 8, 3, (1.0,) * 64)
    for stop in (1, 8, 20):
        assert float(equal.hit(tuple(range(stop)))) == pytest.approx(float(uniform.hit(tuple(range(stop)))), rel=1e-12)


def test_uniform_hits_have_a_closed_form():
    for held in range(1, 200, 7):
        assert Routing(256, 8).hit(tuple(range(held))) == 1 - Fraction(comb(256 - held, 8), comb(256, 8))


def test_a_token_of_deepseek_visits_less_than_four_nodes():
    """DeepSeek-AI, arXiv 2412.19437, section 2.1.2: at most four, the groups of which it uses the experts."""
    routing = Routing(256, 8, 8, 4)
    nodes = [routing.hit(routing.held(node, 8)) for node in range(8)]
    assert len(set(nodes)) == 1
    assert float(sum(nodes)) == pytest.approx(3.63, abs=0.005)
    assert float(sum(nodes[1:])) == pytest.approx(3.17, abs=0.01)


def test_the_busiest_rank_holds_the_most_wanted_experts():
    assert Routing(4, 1).busiest(2) == 1
    assert Routing(4, 1, loads=(1.0, 1.0, 0.5, 1.5)).busiest(4) == Fraction(3, 2)
    assert Routing(4, 1, loads=(2.0, 1.0, 0.5, 0.5)).busiest(2) == Fraction(3, 2)
