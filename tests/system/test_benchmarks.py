"""What a run may cost, in ratios measured in one process, at sizes that a test can afford.

`python tests/benchmarks/run.py` measures the full sizes and prints the table of the README.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

import pytest
from benchmarks import cases, textbook
from benchmarks.measure import command_seconds, measure, seconds
from support.paths import TESTS

from hybrid_des.result import simulate

pytestmark = pytest.mark.benchmark
SPINE = {"topology": "leaf-spine", "oversubscription": 4, "leaf_size": 4}


def median(pairs, limit, first=3, more=6):
    """The median of a few ratios; of more of them where it lies above the limit, for it may be the machine's mood."""
    ratios = [pairs() for _ in range(first)]
    if statistics.median(ratios) > limit:
        ratios += [pairs() for _ in range(more)]
    return statistics.median(ratios)


@pytest.mark.parametrize(
    "case, limit",
    [
        (cases.ring(256, "ring"), 3.2),
        (cases.ring(256), 6.5),
        (cases.mixed(32), 6.5),
        (cases.mixed(32, "fair"), 8.0),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_message_costs_little_more_than_a_bare_timeout(case, limit):
    assert median(lambda: measure(case, 1).ratio, limit) <= limit


@pytest.mark.parametrize("topology, limit", [("ring", 1.0), ("nodes", 2.0)])
def test_a_message_takes_an_event_a_further_link_and_one_for_its_receiver(topology, limit):
    for ranks in (8, 64, 256):
        figures = measure(cases.ring(ranks, topology), 1)
        assert figures.messages == 2 * ranks * (ranks - 1)
        assert figures.events <= limit * figures.messages + 8 * ranks  # a rank begins, reduces and ends


@pytest.mark.parametrize("cluster", [{}, SPINE], ids=["nic a gpu", "4:1 spine"])
def test_fair_takes_at_most_three_events_a_message(cluster):
    figures = measure(cases.mixed(16, "fair", **cluster), 1)
    assert figures.events <= 3 * figures.messages


@pytest.mark.parametrize("topology", ["ring", "nodes"])
def test_the_ratio_does_not_grow_with_the_number_of_ranks(topology):
    def growth():
        return measure(cases.ring(512, topology), 1).ratio / measure(cases.ring(64, topology), 5).ratio

    assert median(growth, 1.4, first=1, more=2) <= 1.4


def test_memory_stays_with_what_is_written_down():
    """A quarter of the messages of 1,024 ranks, which may take 400 MB, in a process of its own."""
    code = "import benchmarks.measure as m, benchmarks.cases as c; print(m.measure(c.ring(512), 1).peak)"
    tests = TESTS
    printed = subprocess.run([sys.executable, "-c", code], cwd=tests, check=True, stdout=subprocess.PIPE).stdout
    assert json.loads(printed) < 150


def test_a_ring_takes_a_fifth_of_the_textbook_form_and_equals_it():
    scenario = cases.ring(256).scenario
    results = []

    def share():
        ours = seconds(lambda: results.append(simulate(scenario).run))
        return ours / seconds(lambda: results.append(textbook.ring(scenario)))

    assert median(share, 0.2, first=1) <= 0.2
    run, by_the_book = results[:2]
    assert (run.duration, run.messages) == by_the_book


def test_a_pipeline_costs_what_its_micro_batches_cost():
    """Eight times the micro-batches."""

    def growth():
        short, long = (seconds(lambda m=m: simulate(cases.pipeline(m).scenario)) for m in (128, 1024))
        return long / short

    assert median(growth, 10, first=1) <= 10


def test_help_comes_at_once():
    def share():
        return command_seconds("-m", "hybrid_des", "--help") / command_seconds("-c", "import simpy, yaml")

    assert median(share, 3) <= 3
