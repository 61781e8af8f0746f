"""Histories of failures: one stream per class, the same whatever else there is."""

import pytest
from support.tables import from_table
from support.weeks import S, weeks

from hybrid_des.errors import UsageError
from hybrid_des.studies.goodput.failures import history, sources_of
from hybrid_des.studies.goodput.process import job_of

GPU = {"what": "gpu", "mtbf": "40 h"}
OLD = {"what": "node", "weibull": {"scale": "90 h", "shape": 3}}


def strikes(*classes, horizon=1000, seed=0, replication=0, spares=0):
    """When each class strikes what, by its name; the horizon in hours."""
    scenario = weeks(p=2, d=3, horizon=horizon * 3600, classes=list(classes),
                     spares={"nodes": spares, "repair": "1 d"} if spares else None)  # fmt: skip
    sources = sources_of(scenario)
    found = {source.name: [] for source in sources}
    for strike in history(sources, horizon * 3600 * S, seed, replication):
        if not strike.spare:
            found[sources[strike.source].name].append((strike.time, strike.part))
    return found


def test_one_more_class_changes_no_other():
    alone = strikes(GPU, OLD)
    more = strikes({"what": "nic", "mtbf": "100 h"}, OLD, GPU, {"what": "switch", "mtbf": "99 h", "domain": 2})
    assert {name: more[name] for name in alone} == alone
    assert all(alone.values())


def test_a_longer_horizon_goes_on_with_the_same_history():
    short, long = strikes(GPU, OLD, horizon=700), strikes(GPU, OLD, horizon=1000)
    for name, found in long.items():
        assert [strike for strike in found if strike[0] < 700 * 3600 * S] == short[name]
        assert len(found) > len(short[name])


def test_spares_change_no_failure_of_the_job():
    assert strikes(GPU, OLD, spares=2) == strikes(GPU, OLD)


@pytest.mark.parametrize("change", [{"seed": 1}, {"replication": 1}])
def test_another_seed_is_another_history(change):
    assert strikes(GPU, **change) == strikes(GPU, **change) != strikes(GPU)


def test_classes_of_the_same_kind_are_independent():
    found = strikes(GPU, GPU, {**GPU, "name": "other"})
    assert list(found) == ["gpu", "gpu 2", "other"]
    assert len({str(times) for times in found.values()}) == 3


def test_failures_come_in_order_of_time():
    sources = sources_of(weeks(d=3, horizon="1000 h", classes=[GPU, OLD, {"what": "job", "times": [7, 5, 7]}]))
    times = [strike.time for strike in history(sources, 1000 * 3600 * S, 0, 0)]
    assert times == sorted(times)
    assert times[:3] == [5 * S, 7 * S, 7 * S]


@from_table
def test_parts_take_down_the_nodes_that_they_serve(one, parts, spare_parts):
    """Five ranks on two nodes of three GPUs and two NICs, and one spare."""
    from hybrid_des.scenario.loading import scenario_from

    (source,) = sources_of(
        scenario_from(
            {
                "cluster": {"nodes": 4, "gpus_per_node": 3, "infiniband": {"nics_per_node": 2}},
                "parallel": {"data": 5},
                "schedule": {"kind": "1f1b", "microbatches": 1},
                "workload": {"forward": 1, "backward": 1},
                "faults": {
                    "horizon": 1,
                    "classes": [{"mtbf": 1, **one}],
                    "spares": {"nodes": 1, "repair": 1},
                },
            }
        )
    )
    assert [list(places) for places in source.parts] == parts
    assert [list(places) for places in source.spare_parts] == spare_parts


def test_too_many_failures_are_refused_with_their_number():
    with pytest.raises(UsageError, match=r"weeks: faults: 2.76e\+08 failures in all replications are more than"):
        job_of(weeks(horizon="100 d", classes=[{"what": "job", "mtbf": 1}]))
