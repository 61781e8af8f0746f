"""Ranks and coordinates: inverse to each other on every axis and in every order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid_des.layout import Layout

AXES = ("tensor", "data", "pipeline", "context")
layouts = st.builds(
    Layout,
    st.fixed_dictionaries({axis: st.integers(1, 4) for axis in AXES}),
    st.permutations(AXES).map(tuple),
)


@given(layouts)
def test_rank_and_coordinates_are_inverse(layout):
    assert [layout.rank(**layout.coordinates(rank)) for rank in range(layout.ranks)] == list(range(layout.ranks))
    assert len({tuple(layout.coordinates(rank).values()) for rank in range(layout.ranks)}) == layout.ranks


@given(layouts, st.sampled_from(AXES))
def test_one_axis_at_a_time_agrees_with_all_at_once(layout, axis):
    places = [layout.coordinates(rank)[axis] for rank in range(layout.ranks)]
    assert places == [layout.coordinate(rank, axis) for rank in range(layout.ranks)] == layout.along(axis).tolist()


@given(layouts, st.lists(st.sampled_from(AXES), unique=True), st.data())
def test_a_group_varies_along_its_axes_only(layout, axes, data):
    rank = data.draw(st.integers(0, layout.ranks - 1))
    at = layout.coordinates(rank)
    alike = [
        other
        for other in range(layout.ranks)
        if all(place == at[axis] for axis, place in layout.coordinates(other).items() if axis not in axes)
    ]
    assert layout.group(rank, *axes) == alike


def test_the_first_axis_varies_fastest():
    sizes = {"tensor": 1, "data": 2, "pipeline": 2}
    replicas_first = Layout(sizes, ("tensor", "data", "pipeline"))
    assert [replicas_first.coordinate(rank, "data") for rank in range(4)] == [0, 1, 0, 1]
    pipeline_first = Layout(sizes, ("tensor", "pipeline", "data"))
    assert [pipeline_first.coordinate(rank, "pipeline") for rank in range(4)] == [0, 1, 0, 1]


@pytest.mark.parametrize(
    "order", [("tensor", "context", "data", "pipeline"), ("pipeline", "data", "tensor", "context")]
)
def test_holders_are_groups_by_rule(order):
    layout = Layout({"tensor": 2, "context": 3, "data": 4, "pipeline": 2}, order)
    for tensor, holders in zip(layout.group(0, "tensor"), layout.holders, strict=True):
        listed = layout.group(tensor, "context", "data")
        assert list(holders) == [holders[place] for place in range(12)] == holders.array.tolist() == listed
        assert list(holders[1::3]) == listed[1::3]
        assert list(holders[1::3].shifted(5)) == [rank + 5 for rank in listed[1::3]]
        assert holders[-1] == listed[-1]


def test_successive_ranks_share_experts_and_layers():
    order = ("tensor", "context", "data", "pipeline")
    layout = Layout({"tensor": 1, "context": 2, "data": 2, "pipeline": 2}, order, expert=2)
    assert layout.shared == {"context": [[0, 1], [2, 3], [4, 5], [6, 7]], "expert": [[0, 1], [2, 3], [4, 5], [6, 7]]}
    assert layout.groups("data") == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert Layout({"tensor": 1, "data": 4, "pipeline": 2}, order=("tensor", "data", "pipeline")).shared == {}
