"""Rings that a run takes at once: everything else happens as it does with their messages."""

from collections import Counter

import pytest
from support.campaigns import TIMES
from support.ring_runs import RingRuns, variants

FOLDED, ALL, MESSAGES = "FoldedRings", "RingTransport", "Transport"  # networks


@pytest.fixture
def runs(monkeypatch):
    return RingRuns(monkeypatch)


@pytest.mark.parametrize("seed", range(4))
def test_random_runs_end_as_they_do_with_messages(runs, seed):
    for variant in variants(seed):
        runs.check(variant)


@pytest.mark.slow
def test_many_random_runs_end_as_they_do_with_messages(runs):
    found = Counter()
    for seed in range(400 * TIMES):
        for variant in variants(seed):
            outcome = runs.check(variant)
            found[outcome.network if outcome.taken else ""] += 1
    assert min(found[FOLDED], found[ALL], found[MESSAGES]) > 50 * TIMES, found
