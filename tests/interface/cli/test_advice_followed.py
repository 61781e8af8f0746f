"""Advice that is followed as it is printed: it loads, runs, and does what it promises."""

from collections import Counter

import pytest
from support.advice import followed
from support.campaigns import TIMES

DRAWN = 4 * TIMES


@pytest.mark.slow
def test_advice_loads_runs_and_does_what_it_promises(tmp_path):
    pieces = Counter(kind for number in range(DRAWN) for kind, _ in followed(number, tmp_path))
    print(*sorted(pieces.items()), sep="\n")  # how many pieces of each kind were followed: with -s, or if it fails
    assert {kind.partition(":")[0] for kind in pieces} == {"costs", "explain", "out of memory", "search"}
    assert sum(pieces.values()) > 4 * DRAWN
