"""Bills of sweeps, of several jobs and of jittered runs: columns with units, equal to arithmetic by hand."""

import json

import pytest
from support.scenarios import FREE, values

from hybrid_des.report.billed import bill_columns
from hybrid_des.studies.jobs.result import simulate_jobs
from hybrid_des.studies.sweep.results import run_sweep

CLUSTER = {"gpu": "h100", "gpus_per_node": 2, "nvlink": FREE}
BILL = {"train": {"steps": 240_000_000}, "price": {"gpu_hour": "2.5 USD"}}  # a step of 15 ms: 1,000 hours


def test_a_sweep_has_the_bill_of_each_case():
    table = run_sweep({**values(p=2, cluster=CLUSTER, **BILL), "sweep": [{"schedule.microbatches": [4, 9]}]})
    assert table["bill.days"].tolist() == pytest.approx([1000 / 24, 2000 / 24])  # steps of 15 and 30 ms
    assert table["bill.cost"].tolist() == pytest.approx([5000, 10_000])


def test_a_sweep_prints_days_and_money(ran, write):
    given = {**values(p=2, cluster=CLUSTER, **BILL), "sweep": [{"schedule.microbatches": [4, 9]}]}
    text, _ = ran(write(json.dumps(given), "sweep.yaml"))
    head, first, second = text.splitlines()[:3]
    assert head.split("peak memory")[1].split() == ["days", "GPU-hours", "money", "(USD)"]
    assert first.split()[-3:] == ["41.67", "2000", "5000"]
    assert second.split()[-3:] == ["83.33", "4000", "10,000"]


def test_every_job_has_its_own_bill():
    job = {key: value for key, value in values(p=2).items() if key != "cluster"}
    jobs = {"a": {**job, **BILL, "nodes": [0]}, "b": {**job, "nodes": [1]}}
    found = simulate_jobs({"cluster": {**CLUSTER, "nodes": 2}, "jobs": jobs})
    assert found.summary["jobs"]["a"]["bill"]["cost"] == pytest.approx(5000)
    assert "bill" not in found.summary["jobs"]["b"]
    (line,) = (line for line in found.report().splitlines() if "5000" in line)
    assert line.split() == ["a", "41.67", "2000", "5000"]


def test_jittered_runs_have_the_bill_of_their_mean(ran, write):
    jitter = {"distribution": "lognormal", "sigma": 0.05}
    file = write(json.dumps(values(p=2, cluster=CLUSTER, jitter=jitter, **BILL)), "jitter.yaml")
    (found,) = json.loads(ran("spread", file, "--runs", 4, "--jobs", 1, "--json")[0])["runs"]
    mean = found["step_time_s"]["mean"]
    assert found["bill"]["cost"] == pytest.approx(2.5 * 2 * 240_000_000 * mean / 3600)
    assert "money" in ran("spread", file, "--runs", 4, "--jobs", 1)[0]


def test_bills_in_several_currencies_name_theirs():
    euros, dollars = ({"days": 1.0, "gpu_hours": 24.0, "cost": 48.0, "currency": name} for name in ("EUR", "USD"))
    assert bill_columns([euros, None, dollars])["money"] == ["48 EUR", "", "48 USD"]
    assert bill_columns([None, None]) == {}
