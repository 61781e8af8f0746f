"""What a run costs, counted: SimPy events per message, bytes per recorded row; tests/benchmarks measures times."""

import gc
import tracemalloc

import pytest
from benchmarks import cases, textbook
from support.campaigns import thinned

from hybrid_des.engine.recorder import MESSAGE_COLUMNS
from hybrid_des.result import simulate

SPINE = {"topology": "leaf-spine", "oversubscription": 4, "leaf_size": 4}
ROW = 8 * len(MESSAGE_COLUMNS)  # bytes


@pytest.mark.parametrize(("topology", "links"), [("ring", 1), ("nodes", 2)])
@pytest.mark.parametrize("ranks", [8, 32, 128])
def test_a_message_takes_one_event_per_link(topology, links, ranks):
    """One per further link of its route and one for its receiver; a rank begins, reduces and ends."""
    run = simulate(cases.ring(ranks, topology).scenario).run
    assert run.messages == 2 * ranks * (ranks - 1)
    assert run.events <= links * run.messages + 8 * ranks


@pytest.mark.parametrize("cluster", [{}, SPINE], ids=["one NIC per GPU", "4:1 spine"])
def test_a_fair_message_takes_at_most_three_events(cluster):
    run = simulate(cases.mixed(16, "fair", **cluster).scenario).run
    assert run.events <= 3 * run.messages


@pytest.mark.slow
@pytest.mark.parametrize("topology", thinned(["ring", "nodes"], slow=["ring"]))
def test_memory_grows_by_a_row_per_message_and_link(topology):
    few, many = (allocated(cases.ring(40, topology).scenario.model_copy(update={"steps": steps})) for steps in (1, 4))
    rows, kept, peak = (after - before for before, after in zip(few, many, strict=True))
    assert kept <= rows * ROW * 9 / 8  # a growing array keeps up to an eighth in reserve
    assert peak <= rows * ROW * 2  # and copies itself


def allocated(scenario):
    """Message rows of a run, and the bytes allocated for it: at its end, after a collection, and at the peak."""
    tracemalloc.start()
    try:
        run = simulate(scenario).run
        messages = len(run.timeline.messages["tag"])
        _, peak = tracemalloc.get_traced_memory()
        gc.collect()
        return messages, tracemalloc.get_traced_memory()[0], peak
    finally:
        tracemalloc.stop()


def test_a_ring_equals_its_textbook_form():
    scenario = cases.ring(32).scenario
    run = simulate(scenario).run
    assert (run.duration, run.messages) == textbook.ring(scenario)
