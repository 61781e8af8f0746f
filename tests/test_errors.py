"""Errors: their messages and how they travel."""

import copy
import pickle

import pytest

from hybrid_des.engine.recorder import TimeRangeError
from hybrid_des.errors import CircularOrderError, HybridDesError, ScenarioError
from hybrid_des.models.kinds import ModelRefusal
from hybrid_des.network.topologies import OptionRefusal


@pytest.mark.parametrize(
    "error",
    [
        HybridDesError("a"),
        ScenarioError(["a.yaml:1: b", "a.yaml:2: c"]),
        ScenarioError([]),
        CircularOrderError("a\nb" * 30),
        TimeRangeError(),
        OptionRefusal("links", "a", 1, 2),
        ModelRefusal("model.width", "a"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize(
    "sent", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy], ids=["pickled", "copied"]
)
def test_an_error_stays_the_same_on_its_way(error, sent):
    other = sent(error)
    assert (type(other), str(other), vars(other)) == (type(error), str(error), vars(error))
