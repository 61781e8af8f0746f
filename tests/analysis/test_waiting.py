"""Idle time in parts, from the rows of a run: the sums of the summary, the parts of a traced run."""

from collections import Counter
from random import Random

import numpy as np
import pytest
from support.paths import GOLDEN, SCENARIOS
from system.fuzzing.valid import scenario

from hybrid_des.analysis.critical_path.graph import graph_of
from hybrid_des.analysis.critical_path.idle_pieces import IdleTime
from hybrid_des.analysis.critical_path.traced import traced_run
from hybrid_des.analysis.idle import account, passed
from hybrid_des.analysis.step_times import step_times
from hybrid_des.analysis.waiting import waiting
from hybrid_des.scenario.loading import load
from hybrid_des.shortcuts.run import run

SEEDS = sorted({*range(20)} - {1})  # whose groups a collective refuses
FILES = [SCENARIOS / "contention_slower.yaml", SCENARIOS / "a100_8x.yaml", GOLDEN / "explain/e4.yaml"]


@pytest.mark.parametrize("seed", SEEDS)
def test_parts_sum_to_the_causes_of_the_summary(seed):
    found = run(load(scenario(Random(seed))))
    whole = account(found.timeline, step_times(found.timeline))
    ranks, messages = waiting(found)
    assert sum(ranks.values()) == whole["dependency"] + whole["end_of_step"]
    assert ranks["end_of_step"] <= whole["end_of_step"]  # some of it is the drain of the pipeline
    assert not messages or sum(messages.values()) == whole["pipeline_message"]
    assert all(time >= 0 for time in (*ranks.values(), *messages.values()))


@pytest.mark.parametrize("sharing", ["fifo", "fair"])
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_waits_for_messages_are_those_of_a_traced_run(file, sharing):
    traced = traced_run(load(file, [f"cluster.sharing={sharing}"]))
    sums = Counter()
    for piece in IdleTime(graph_of(traced)).pieces():
        if piece.cause == "pipeline_message":
            sums[piece.reason] += piece.end - piece.start
    assert {name: time for name, time in waiting(traced)[1].items() if time} == dict(sums)


def test_time_that_passed_of_periods_is_counted_to_the_instant():
    start, end = np.array([10, 30]), np.array([20, 35])
    until = np.array([0, 10, 15, 20, 25, 32, 40])
    assert passed(start, end, until).tolist() == [0, 0, 5, 10, 10, 12, 15]


def test_what_is_not_recorded_is_not_split():
    assert waiting(run(load(FILES[0], ["record=compute"])))[1] == {}
    assert waiting(run(load(FILES[0], ["schedule.p2p=blocking"])))[1] == {}
