"""Rings that a run takes at once: everything else happens as it does with their messages."""

from collections import Counter

import pytest
from support.campaigns import TIMES
from support.ring_runs import RingRuns, variants


@pytest.fixture
def runs(monkeypatch):
    return RingRuns(monkeypatch)


def check(runs, variant):
    """Compare a run by messages with one of rings taken at once; the latter's outcome."""
    whole, detailed, short = (
        runs.of(variant, messages=messages, detailed=rows)
        for messages, rows in ((True, True), (False, True), (False, False))
    )
    assert whole.facts == detailed.facts
    assert whole.facts[:3] == short.facts[:3]
    if variant.scenario.steps < 3:  # others may not simulate all steps
        assert whole.totals == detailed.totals == short.totals
    return short


@pytest.mark.parametrize("seed", range(4))
def test_random_runs_end_as_they_do_with_messages(runs, seed):
    for variant in variants(seed):
        check(runs, variant)


@pytest.mark.slow
def test_many_random_runs_end_as_they_do_with_messages(runs):
    found = Counter()
    for seed in range(400 * TIMES):
        for variant in variants(seed):
            outcome = check(runs, variant)
            found["by messages" if outcome.again else "taken" if outcome.taken else "none"] += 1
    assert min(found["taken"], found["by messages"]) > 100 * TIMES, found
