"""Rings that a run takes at once: everything else happens as it does with their messages."""

from collections import Counter
from random import Random

import pytest
from support.campaigns import TIMES
from support.ring_runs import RingRuns, alone, alone_case, variants

from hybrid_des.simulation.ring_links import DisturbedError

FOLDED, ALL, MESSAGES = "FoldedRings", "RingTransport", "Transport"  # networks
TAKEN = {
    0: (MESSAGES, MESSAGES), 1: (ALL, ALL), 3: (FOLDED, FOLDED), 5: (ALL, ALL), 6: (MESSAGES, MESSAGES), 7: (ALL, ALL),
    8: (FOLDED, FOLDED), 9: (MESSAGES, ALL), 10: (ALL, ALL), 11: (ALL, ALL), 13: (MESSAGES, ALL),
    14: (MESSAGES, FOLDED),
    17: (MESSAGES, ALL), 23: (FOLDED, FOLDED), 28: (MESSAGES, ALL), 32: (FOLDED, FOLDED), 35: (ALL, ALL),
    37: (FOLDED, FOLDED), 38: (MESSAGES, ALL), 40: (ALL, ALL), 41: (MESSAGES, FOLDED), 46: (ALL, ALL),
    50: (MESSAGES, ALL),
    52: (FOLDED, FOLDED), 53: (MESSAGES, ALL), 56: (ALL, FOLDED), 58: (ALL, ALL),
}  # fmt: skip


@pytest.fixture
def runs(monkeypatch):
    return RingRuns(monkeypatch)


def same_alone(seed):
    """Whether members and links end as with messages; None if rings are not taken at once."""
    case = alone_case(Random(seed))
    try:
        found = alone(*case, at_once=True)
    except DisturbedError:
        return None
    return found == alone(*case, at_once=False)


def test_rings_alone_take_the_times_of_their_messages(runs):
    found = Counter(map(same_alone, range(60)))
    assert found[True] > 15
    assert not found[False]


@pytest.mark.parametrize("seed", TAKEN)
def test_random_runs_end_as_they_do_with_messages(runs, seed):
    assert tuple(runs.check(variant).network for variant in variants(seed)) == TAKEN[seed]


@pytest.mark.slow
def test_many_rings_alone_take_the_times_of_their_messages(runs):
    found = Counter(map(same_alone, range(60, 1000 * TIMES)))
    assert found[True] > 300 * TIMES
    assert not found[False]


@pytest.mark.slow
def test_many_random_runs_end_as_they_do_with_messages(runs):
    found = Counter()
    for seed in range(400 * TIMES):
        for variant in variants(seed):
            outcome = runs.check(variant)
            found[outcome.network if outcome.taken else ""] += 1
    assert min(found[FOLDED], found[ALL], found[MESSAGES]) > 50 * TIMES, found
