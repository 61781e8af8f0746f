"""Advice undoes what one move made worse, and comes to rest when it is followed again and again."""

from itertools import pairwise

import pytest
import yaml
from support.campaigns import thinned
from support.own_runs import simulated
from support.plans_to_change import GOOD, SLOW_13B, SLOW_70B, worsened

from hybrid_des import advise, applied, load
from hybrid_des.errors import HybridDesError

COSTS = 1.05  # of what a move for the worse costs
LEAST = 0.02  # by which lines differ
ROUNDS = 10
STARTS = {
    "a 7B's quarter": GOOD["quarter of a 7B"],
    "recomputed": {**GOOD["quarter of a 7B"], "recompute": "full"},
    "13B": SLOW_13B,
    "70B": SLOW_70B,
}


def worse_plans(source):
    """The moves for the worse that cost 5 %, with their settings and steps."""
    good = load(source)
    before = simulated(good)
    assert before.peak.fits
    for name, settings in worsened(good):
        try:
            after = simulated(load(source, settings))
        except HybridDesError:  # such as more tensor ranks than heads
            continue
        if after.step_s >= COSTS * before.step_s:
            yield name, settings, before.step_s, after.step_s


@pytest.mark.parametrize("name", thinned(GOOD, [name for name in GOOD if name != "GPT-2"]))
def test_a_move_for_the_worse_is_undone(name):
    """Its inverse, or a plan as quick, is among the lines."""
    undone = 0
    for move, settings, before, after in worse_plans(GOOD[name]):
        advice = advise(GOOD[name], settings)
        assert advice.step_s == after, move
        assert min((line.step_s for line in advice.lines), default=after) <= (1 + LEAST) * before, move
        undone += 1
    assert undone >= 2


@pytest.mark.slow
@pytest.mark.parametrize("start", thinned(STARTS, ["recomputed", "13B", "70B"]))
def test_following_the_first_line_again_and_again_ends(start):
    source, steps = STARTS[start], []
    for _ in range(ROUNDS + 1):
        advice = advise(source)
        steps.append(advice.step_s)
        if not advice.lines:
            break
        source = yaml.safe_load(applied(source, advice.lines[0]))
    assert not advice.lines
    assert 2 <= len(steps) <= ROUNDS + 1
    assert all(after <= (1 - LEAST) * before for before, after in pairwise(steps)), steps
