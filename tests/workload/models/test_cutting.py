"""Cutting a model into stages: every layer once, in order, and the slowest stage as fast as can be."""

from fractions import Fraction
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import from_table

from hybrid_des.errors import Refusal, UsageError
from hybrid_des.workload.models.catalogue import model
from hybrid_des.workload.models.layer import Layer
from hybrid_des.workload.models.stages import balanced, cut

LAYERS = model({"base": "llama3.1-405b", "layers": 16}).layers  # embedding, 16 blocks, logits


def blocks(layers, ranges):
    return [sum(layers[place].place == "block" for place in held) for held in ranges]


@pytest.mark.parametrize(
    ("stages", "rule", "counts"),
    [
        (1, "even", [16]),
        (4, "even", [4, 4, 4, 4]),
        (6, "ends-1", [2, 3, 3, 3, 3, 2]),
        (1, "ends-1", [16]),
        (2, "ends-1", [8, 8]),
        (18, "ends-1", [0, *[1] * 16, 0]),
        (3, [5, 6, 5], [5, 6, 5]),
        (3, [0, 16, 0], [0, 16, 0]),
    ],
)
def test_rules_give_their_counts(stages, rule, counts):
    ranges = cut(LAYERS, stages, rule)
    assert blocks(LAYERS, ranges) == counts
    assert [place for held in ranges for place in held] == list(range(18))


@from_table
def test_impossible_cuts_are_refused_in_one_line(stages, rule, said):
    with pytest.raises(Refusal) as error:
        cut(LAYERS, stages, rule, [1] * 18)
    assert str(error.value) == said


def test_an_unknown_rule_is_answered_with_the_nearest():
    with pytest.raises(UsageError, match='stages: unknown "evn"; did you mean "even"'):
        cut(LAYERS, 4, "evn")
    with pytest.raises(UsageError, match="balanced stages need the costs of 18 layers"):
        cut(LAYERS, 4, "balanced")


def test_balanced_stages_make_room_for_the_logits():
    ranges = cut(LAYERS, 4, "balanced", [0, *[2] * 16, 3])
    assert blocks(LAYERS, ranges) == [4, 4, 5, 3]
    assert max(sum([0, *[2] * 16, 3][place] for place in held) for held in ranges) == 10


def test_predictions_may_have_stages_of_their_own():
    layers = model({"base": "llama3.1-405b", "layers": 16, "predictions": 2}).layers
    assert cut(layers, 4, [8, 8, "mm", "L"]) == [range(9), range(9, 17), range(17, 19), range(19, 20)]
    assert cut(layers, 3, [8, "t" * 8 + "m", "mL"]) == [range(9), range(9, 18), range(18, 20)]
    assert cut(layers, 2, [8, "t" * 8 + "mmL"]) == cut(layers, 2, [8, 8])


def test_a_prediction_of_several_blocks_stays_in_one_stage():
    values = {"layers": 4, "hidden": 64, "heads": 4, "ffn": 128, "vocab": 96, "sequence": 64}
    kinds = {"a": {"ffn": "none"}, "f": {"mixer": "none"}}
    layers = model({**values, "kinds": kinds, "pattern": "a f", "predictions": {"kinds": "a f", "passes": 2}}).layers
    assert cut(layers, 4, [4, "m", "m", "L"]) == [range(5), range(5, 7), range(7, 9), range(9, 10)]


def test_a_model_without_ends_is_cut_too():
    layers = [Layer(name=str(i), output=0) for i in range(5)]
    assert cut(layers, 2, [2, 3]) == [range(2), range(2, 5)]


def slowest(costs, stages):
    """The least over all divisions."""
    every = combinations(range(1, len(costs)), stages - 1)
    return min(max(sum(costs[start:end]) for start, end in pairwise((0, *cuts, len(costs)))) for cuts in every)


@given(st.data())
def test_the_slowest_stage_is_as_fast_as_can_be(data):
    costs = data.draw(st.lists(st.integers(0, 30).map(lambda n: Fraction(n, 3)), min_size=1, max_size=9))
    stages = data.draw(st.integers(1, len(costs)))
    counts = balanced(costs, stages)
    assert len(counts) == stages
    assert min(counts) >= 1
    assert sum(counts) == len(costs)
    ends = [sum(counts[:i]) for i in range(stages + 1)]
    assert max(sum(costs[start:end]) for start, end in pairwise(ends)) == slowest(costs, stages)


@given(st.data())
def test_stages_of_equal_layers_differ_by_at_most_one(data):
    layers = data.draw(st.integers(1, 20))
    counts = balanced([1] * layers, data.draw(st.integers(1, layers)))
    assert max(counts) - min(counts) <= 1
