"""Published runs: Llama 3's 54 days, the rates of Meta's research clusters."""

import statistics

import pytest
from support.paths import SCENARIOS
from support.weeks import S, lived, weeks

from hybrid_des import load
from hybrid_des.scenario.loading import scenario_from
from hybrid_des.studies.goodput.failures import history, sources_of
from hybrid_des.studies.goodput.process import job_of, mtbf_of

LLAMA = SCENARIOS / "goodput/llama3_54days.yaml"
COUNTS = [148, 72, 54, 35, 32, 19, 17, 7, 7, 6, 6, 3, 3, 2, 2, 2, 2, 2]  # arXiv 2407.21783, table 5
CHI_SQUARE = 40.79  # of 17 degrees of freedom, 0.1 %


@pytest.fixture(scope="module")
def failures():
    """Unexpected failures of Llama 3 by class, of 32 replications."""
    scenario = load(LLAMA)
    sources = sources_of(scenario)
    horizon = int(scenario.faults.horizon) * S
    counts = []
    for number in range(32):
        struck = [strike.source for strike in history(sources, horizon, 0, number) if not strike.spare]
        counts.append([struck.count(i) for i, source in enumerate(sources) if source.name != "planned maintenance"])
    return counts


def test_llama_has_its_failures_in_54_days(failures):
    assert sum(COUNTS) == 419
    totals = [sum(row) for row in failures]
    assert abs(statistics.fmean(totals) - 419) <= 2 * (419 / len(totals)) ** 0.5
    assert sum(abs(total - 419) <= 2 * 419**0.5 for total in totals) >= 0.8 * len(totals)


def test_llama_has_its_failures_of_each_class(failures):
    for mean, expected in zip(map(statistics.fmean, zip(*failures, strict=True)), COUNTS, strict=True):
        assert abs(mean - expected) <= 3 * (expected / len(failures)) ** 0.5


def test_classes_have_the_shares_of_their_rates(failures):
    """Chi-square of all failures over the classes."""
    found = [sum(column) for column in zip(*failures, strict=True)]
    expected = [count / 419 * sum(found) for count in COUNTS]
    assert sum((a - b) ** 2 / b for a, b in zip(found, expected, strict=True)) < CHI_SQUARE


def llama_losing(minutes):
    """The effective time if every stop, unexpected or planned, loses this many minutes, all of them restarting."""
    stops = [{"what": "job", "count": count, "over": "54 d"} for count in (419, 47)]
    scenario = weeks(6, horizon="54 d", classes=stops, detect=0, restart={"time": f"{minutes} min"},
                     checkpoint={"every": "1 steps", "cost": 0})  # fmt: skip
    job, outcomes = lived(scenario, range(16))
    return statistics.fmean(one.ledger["useful"] / job.horizon for one in outcomes)


@pytest.mark.slow
def test_llama_trains_above_90_percent_losing_16_minutes():
    assert llama_losing(16) >= 0.90 > llama_losing(20)


def cluster(nodes, gpus_per_node=8, **faults):
    """Nodes that fail 6.5 times per 1,000 node-days, with a replica per GPU."""
    return scenario_from(
        {
            "cluster": {"nodes": nodes, "gpus_per_node": gpus_per_node},
            "parallel": {"data": nodes * gpus_per_node},
            "schedule": {"kind": "1f1b", "microbatches": 1},
            "workload": {"forward": 10, "backward": 20},
            "record": "none",
            "faults": {"horizon": "40 d", "classes": [{"what": "node", "mtbf": f"{24 * 1000 / 6.5} h"}], **faults},
        }
    )


@pytest.mark.parametrize(("gpus", "hours", "tolerance"), [(16_384, 1.8, 0.01), (131_072, 0.23, 0.03)])
def test_rsc_fails_as_often_as_it_says(gpus, hours, tolerance):
    job = job_of(cluster(gpus // 8))
    assert mtbf_of(job.sources, job.horizon) / 3600 == pytest.approx(hours, rel=tolerance)


@pytest.mark.parametrize(("every", "ettr"), [("1 h", 0.7202), pytest.param("5 min", 0.9345, marks=pytest.mark.slow)])
def test_rsc_is_productive_as_it_says(every, ettr):
    """16,000 GPUs: hourly checkpoints and every five minutes, 5 min per restart."""
    scenario = cluster(2000, 1, detect=0, restart={"time": "5 min"}, checkpoint={"every": every, "cost": 0})
    job, outcomes = lived(scenario, range(20))
    found = statistics.fmean(one.ledger["useful"] / job.horizon for one in outcomes)
    assert found == pytest.approx(ettr, abs=0.003)
