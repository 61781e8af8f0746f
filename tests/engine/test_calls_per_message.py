"""What a message costs in calls, which no machine changes: the counts of docs/background/speed.md."""

import pytest
from benchmarks.cases import ring
from benchmarks.counts import KINDS, simulated


@pytest.mark.parametrize(("topology", "events", "most"), [("ring", 1, 18), ("nodes", 2, 24)])
def test_a_message_costs_few_events_and_calls(topology, events, most):
    counts, happened, messages = simulated(ring(32, topology))
    assert happened // messages == events
    assert sum(counts[kind] for kind in KINDS) < most * messages
