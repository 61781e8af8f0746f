"""Routing of tokens to experts: exact against enumeration, and against the figures of DeepSeek-V3."""

from fractions import Fraction
from itertools import combinations
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid_des.workload.models.routing import Routing


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


@given(routings(), st.data())
def test_unequal_experts_are_drawn_by_their_weights(routing, data):
    loads = tuple(data.draw(st.integers(1, 9)) for _ in range(routing.count))
    held = tuple(sorted(data.draw(st.sets(st.integers(0, routing.count - 1)))))
    shares = []
    for sets in choices(routing):
        weights = [Fraction(1) for _ in sets]
        for place, one in enumerate(sets):
            for expert in one:
                weights[place] *= loads[expert]
        hit = sum(weight for weight, one in zip(weights, sets, strict=True) if not set(held).isdisjoint(one))
        shares.append(hit / sum(weights))
    weighted = Routing(routing.count, routing.active, routing.groups, routing.top_groups, loads)
    assert float(weighted.hit(held)) == pytest.approx(float(sum(shares) / len(shares)), abs=1e-9)


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
