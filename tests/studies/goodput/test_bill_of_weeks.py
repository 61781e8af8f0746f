"""The bill of a training with failures equals arithmetic by hand on a history that is written down."""

import pytest
from support.weeks import weeks

from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.export import to_mapping
from hybrid_des.scenario.loading import scenario_from
from hybrid_des.studies.goodput.goodput import goodput


def with_sections(scenario: Scenario, **sections) -> Scenario:
    """A scenario with further sections."""
    return scenario_from({**to_mapping(scenario), **sections}, "here")


def struck(*, spares=None, mtbf=None, **sections) -> Scenario:
    """A node whose step takes 10 s, saved every 100 s; at 455 s it fails, and is down for 95 s of 1,000.

    It loses 55 s of work and continues at 550 s: 400 + 450 s are useful, 85 %.
    """
    classes = [{"what": "job", "times": [455]} if mtbf is None else {"what": "job", "mtbf": mtbf}]
    more = {} if spares is None else {"spares": {"nodes": spares, "swap": 0, "repair": 1}}
    faults = {
        "horizon": 1000, "replications": 2, "classes": classes, "detect": 20, "restart": {"time": 75},
        "checkpoint": {"every": 100, "cost": 0}, **more,
    }  # fmt: skip
    return with_sections(weeks(10, **faults), **sections)


TRAIN = {"steps": 8500}  # 85,000 s of useful steps: 100,000 s of wall time
POWER = {"busy": "1 kW", "idle": 0.5, "node": "500 W", "pue": 1.2}


def bill(**sections):
    return goodput(struck(**sections)).summary["bill"]


def test_days_are_those_of_wall_time():
    facts = bill(train=TRAIN)
    assert goodput(struck(train=TRAIN)).summary["goodput"] == 0.85
    assert facts["days"] == pytest.approx(100_000 / 86400)
    assert facts["gpu_hours"] == pytest.approx(100_000 / 3600)


def test_money_is_paid_while_the_job_is_down():
    assert bill(train=TRAIN, price={"gpu_hour": "3.6 USD"})["cost"] == pytest.approx(100)


def test_energy_counts_repeated_steps_as_busy():
    # busy for 850 + 55 of 1,000 s: 0.905 + 0.5 · 0.095 = 0.9525 of 1 kW; with the node 1,452.5 W, and 1.2 times that
    assert bill(train=TRAIN, power=POWER)["energy_mwh"] == pytest.approx(1.2 * 1452.5 * 100_000 / 3.6e9)


def test_spares_are_paid_and_wait():
    facts = bill(train=TRAIN, power=POWER, price={"gpu_hour": "3.6 USD"}, spares=1)
    assert facts["gpu_hours"] == pytest.approx(2 * 100_000 / 3600)
    assert facts["cost"] == pytest.approx(200)
    # it draws half of 1 kW, and the rest of its node
    assert facts["energy_mwh"] == pytest.approx(1.2 * (1452.5 + 1000) * 100_000 / 3.6e9)
    assert any("1 spare node held" in said for said in facts["assumes"])


def test_the_report_has_the_bill_and_its_assumptions():
    text = goodput(struck(train=TRAIN, price={"gpu_hour": "3.6 USD"})).report()
    for said in ("1.157 days", "27.78 GPU-hours: 8,500 steps", "100 USD", "in 2 replications"):
        assert said in " ".join(text.split())
    assert "money" not in goodput(struck()).report()


def test_a_training_that_keeps_no_step_has_no_end():
    weeks_of_it = goodput(struck(train=TRAIN, mtbf=5))
    assert "bill" not in weeks_of_it.summary
    assert "without end" in weeks_of_it.report()


def test_time_that_faults_do_not_state_is_named():
    scenario = weeks(10, horizon=1000, classes=[{"what": "job", "times": [455]}])
    facts = goodput(with_sections(scenario, train=TRAIN)).summary["bill"]
    assert any("faults.detect" in said and "the cost is a lower bound" in said for said in facts["assumes"])
