"""Means over random histories are those of the closed forms, within four standard errors."""

import itertools
import statistics

import pytest
from support.weeks import S, expected_goodput, lived, segment_time, weeks, within

from hybrid_des.studies.goodput.summary import at_most, share_down

HOUR = 3600
MTBF = 3 * HOUR
TABLE = [  # τ, C, R in seconds; mean and deviation of a segment if restarts can fail, and if they cannot
    ((1800, 60, 300), (2086.944272, 616.286305), (2086.153880, 614.315991)),
    ((3600, 120, 600), (4694.727091, 1932.588706), (4687.744965, 1919.754050)),
    ((1800, 0, 0), (1958.692459, 461.454667), (1958.692459, 461.454667)),
]


def job(tau, cost, restart, can_fail, horizon="250 d"):
    return weeks(60, horizon=horizon, classes=[{"what": "job", "mtbf": MTBF}], detect=0,
                 restart={"time": restart, "can_fail": can_fail}, checkpoint={"every": tau, "cost": cost})  # fmt: skip


def segments(replication, length):
    """The times from one saved checkpoint to the next, in seconds; every run begins where one was saved."""
    saved = [0]
    for row in replication.intervals:
        if row.phase == "running":
            saved += range(row.start + length * S, row.end + 1, length * S)
    return [(end - begin) / S for begin, end in itertools.pairwise(saved)]


@pytest.mark.parametrize("can_fail", [True, False])
@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row[0]}")
def test_segments_last_as_long_as_the_exponential_says(row, can_fail):
    (tau, cost, restart), *figures = row
    mean, deviation = figures[not can_fail]
    _, (one,) = lived(job(tau, cost, restart, can_fail))
    times = segments(one, tau + cost)[:4000]  # as many in every history: those at its end are too short
    assert len(times) == 4000
    assert within(statistics.fmean(times), mean, deviation, len(times))
    fourth = statistics.fmean((time - mean) ** 4 for time in times)
    spread = (fourth / deviation**4 - 1) ** 0.5 / 2  # of the deviation, over its own size and √n
    assert within(statistics.pstdev(times, mean) / deviation, 1, spread, len(times))


@pytest.mark.parametrize("can_fail", [True, False])
def test_goodput_is_work_over_the_expected_segment(can_fail):
    scenario = job(1800, 60, 300, can_fail, horizon="60 d")
    campaign, outcomes = lived(scenario, range(12))
    goodputs = [one.ledger["useful"] / campaign.horizon for one in outcomes]
    expected = expected_goodput(1800, 60, 300, MTBF, can_fail)
    assert within(statistics.fmean(goodputs), expected, statistics.stdev(goodputs), len(goodputs))


def test_all_parts_of_a_recovery_count_as_restart():
    """Detection, swap and restart one after the other, each of which can be hit, are a restart as long as all."""
    scenario = weeks(60, d=4, horizon="60 d", classes=[{"what": "node", "mtbf": 4 * MTBF}], detect=100,
                     restart={"time": 150}, checkpoint={"every": 1800, "cost": 60},
                     spares={"nodes": 4, "swap": 50, "repair": 0})  # fmt: skip
    campaign, outcomes = lived(scenario, range(12))
    goodputs = [one.ledger["useful"] / campaign.horizon for one in outcomes]
    expected = 1800 / segment_time(1860, 300, MTBF)
    assert within(statistics.fmean(goodputs), expected, statistics.stdev(goodputs), len(goodputs))


def test_enough_spares_are_there_as_the_binomial_says():
    scenario = weeks(600, d=32, horizon="300 d", classes=[{"what": "node", "mtbf": "30 d"}], detect=0,
                     restart={"time": 0}, checkpoint={"every": "1 steps", "cost": 0},
                     spares={"nodes": 2, "swap": 0, "repair": "24 h"})  # fmt: skip
    campaign, outcomes = lived(scenario, range(16))
    there = [1 - one.ledger["repair"] / campaign.horizon for one in outcomes]
    expected = at_most(2, 34, share_down(30, 1))
    assert within(statistics.fmean(there), expected, statistics.stdev(there), len(there))


def test_a_replica_of_k_nodes_works_if_all_do():
    """(1 − ρ)^k of the replicas, k = 2, ρ = 0.1, after the first weeks, in which all nodes are young."""
    scenario = weeks(600, p=2, d=8, horizon="400 d", classes=[{"what": "node", "mtbf": "900 h"}], detect=0,
                     restart={"time": 0}, checkpoint={"every": "1 steps", "cost": 0},
                     spares={"nodes": 0, "swap": 0, "repair": "100 h"}, elastic={"min_replicas": 1})  # fmt: skip
    campaign, outcomes = lived(scenario, range(8))
    young = 200 * HOUR * S
    shares = [
        sum(max(row.end - max(row.start, young), 0) * row.replicas for row in one.intervals)
        / (8 * (campaign.horizon - young))
        for one in outcomes
    ]
    assert within(statistics.fmean(shares), (1 - share_down(900, 100)) ** 2, statistics.stdev(shares), len(shares))


def test_lives_of_weibull_have_the_mean_of_their_distribution():
    """Renewals over a long time come at one over the mean life; shape 0.5 has the mean 2·scale."""
    classes = [{"what": "node", "weibull": {"scale": "5 h", "shape": 0.5}}]
    _, outcomes = lived(weeks(HOUR, horizon="500 d", classes=classes), range(12))
    counts = [len(one.failures) for one in outcomes]
    assert within(statistics.fmean(counts), 500 * 24 / 10, statistics.stdev(counts), len(counts))


def test_weibull_of_shape_one_is_exponential():
    lives = {"scale": "10 h", "shape": 1}
    both = [
        lived(weeks(HOUR, horizon="90 d", classes=[{"what": "node", "name": "x", **rate}]))[1][0].failures
        for rate in ({"mtbf": "10 h"}, {"weibull": lives})
    ]
    assert both[0] == both[1]
