"""The bill of a whole training equals arithmetic by hand, spelled out in each test."""

import re
from fractions import Fraction

import pytest
from support.paths import SCENARIOS
from support.scenarios import FREE, values

from hybrid_des.analysis.bill import bill
from hybrid_des.analysis.compare import compare
from hybrid_des.analysis.metrics import RunAnalysis
from hybrid_des.cluster import gpus
from hybrid_des.errors import ScenarioError
from hybrid_des.report.billed import bill_headline
from hybrid_des.report.compared import render_comparison
from hybrid_des.report.terminal import render
from hybrid_des.scenario.export import to_mapping
from hybrid_des.scenario.loading import load, scenario_from
from hybrid_des.shortcuts.run import run


def findings(**sections):
    """Two pipeline ranks, four micro-batches: (4 + 1) · 3 ms = 15 ms, each rank busy for 4 · 3 = 12 ms of it."""
    cluster = {"gpu": "h100", "gpus_per_node": 2, "nvlink": FREE}
    return RunAnalysis(run(scenario_from(values(p=2, cluster=cluster, **sections), "here")))


def test_days_and_gpu_hours_of_given_steps():
    facts = findings(train={"steps": 240_000_000}).summary["bill"]
    assert facts["days"] == pytest.approx(240_000_000 * 0.015 / 86400)  # 3.6e6 s
    assert facts["gpu_hours"] == pytest.approx(2000)  # two GPUs for 1,000 hours
    assert facts["steps"] == 240_000_000
    assert not {"tokens", "cost", "energy_mwh"} & facts.keys()


def test_money_is_hours_times_the_price():
    facts = findings(train={"steps": 240_000_000}, price={"gpu_hour": "2.5 USD"}).summary["bill"]
    assert facts["cost"] == pytest.approx(2000 * 2.5)
    assert facts["currency"] == "USD"


def test_without_a_length_the_bill_is_that_of_a_day():
    """Two GPUs for 24 hours; 1,000 W, as in the test of energy below; tokens are not known without a model."""
    power = {"busy": "500 W", "idle": 0.5, "node": "1 kW"}
    found = findings(price={"gpu_hour": "2.5 USD"}, power=power)
    facts = found.summary["bill_per_day"]
    assert (facts["gpu_hours"], facts["cost"], facts["currency"]) == (48, 120, "USD")
    assert facts["energy_mwh"] == pytest.approx((900 + 1000) * 24 / 1e6)
    assert "bill" not in found.summary and "days" not in facts
    assert re.search(r"^money per day +120 USD", render(found), re.M)
    assert "2 h100 at 2.5 USD per hour" in render(found)


def test_a_day_of_a_model_prices_its_tokens():
    changes = ["train=null"]
    found = RunAnalysis(run(load(SCENARIOS / "bill" / "llama_8b.yaml", changes)))
    whole = RunAnalysis(run(load(SCENARIOS / "bill" / "llama_8b.yaml"))).summary["bill"]
    facts = found.summary["bill_per_day"]
    assert facts["cost_per_million_tokens"] == pytest.approx(whole["cost_per_million_tokens"])
    assert facts["tokens"] == pytest.approx(found.summary["tokens_per_s"] * 86400)


def test_energy_counts_busy_idle_node_and_centre():
    power = {"busy": "500 W", "idle": 0.5, "node": "1 kW", "pue": 1.2}
    facts = findings(train={"steps": 240_000_000}, power=power).summary["bill"]
    # busy for 12 of 15 ms: 0.8 + 0.5 · 0.2 = 0.9 of 500 W, two GPUs: 900 W; one node: 1,000 W; 1,000 hours
    assert facts["energy_mwh"] == pytest.approx(1.2 * (900 + 1000) * 1000 / 1e6)


def test_energy_takes_the_data_sheet_by_default():
    facts = findings(train={"steps": 240_000_000}, power={}).summary["bill"]
    assert gpus.part("h100").power == 700
    assert facts["energy_mwh"] == pytest.approx(2 * 700 * 1000 / 1e6)  # idle as busy, nothing else, PUE 1


def test_tokens_make_whole_steps():
    scenario = load(SCENARIOS / "bill" / "llama_8b.yaml")
    facts = bill(scenario, Fraction(12), Fraction(1))
    # 128 sequences of 8,192 tokens are 1,048,576 per step; 15e12 / 1,048,576 = 14,305,114.7
    assert facts["steps"] == 14_305_115
    assert facts["tokens"] == 14_305_115 * 1_048_576
    assert facts["gpu_hours"] == pytest.approx(8 * 14_305_115 * 12 / 3600)
    assert facts["cost"] == pytest.approx(2.5 * 8 * 14_305_115 * 12 / 3600)
    assert facts["cost_per_million_tokens"] == pytest.approx(2.5 * 8 * 12 / 3600 / 1.048576)
    watts = 1.2 * (8 * 700 + 2000)
    assert facts["energy_mwh_per_million_tokens"] == pytest.approx(watts * 12 / 3600e6 / 1.048576)


def test_each_kind_of_gpu_has_its_price():
    nodes = [{"gpu": name, "count": 1, "gpus_per_node": 1} for name in ("h100", "a100-80gb")]
    price = {"gpu_hour": {"h100": "3 EUR", "a100-80gb": "1 EUR"}}
    given = values(p=2, price=price, train={"steps": 1000})
    given["cluster"] = {"nodes": nodes}
    facts = bill(scenario_from(given, "here"), Fraction(36, 10), Fraction(1))
    assert facts["cost"] == 3 + 1  # 1,000 steps of 3.6 s are an hour on each
    assert facts["currency"] == "EUR"


def billed(microbatches, **sections):
    given = values(p=2, m=microbatches, train={"steps": 240_000_000}, **sections)
    given["cluster"] = {"gpu": "h100", "gpus_per_node": 2, "nvlink": FREE}
    return scenario_from(given, "here")


def test_a_comparison_has_the_difference_of_both_bills():
    price = {"gpu_hour": "2.5 USD"}
    comparison = compare(billed(4, price=price), billed(9, price=price))  # steps of 15 and of (9 + 1) · 3 = 30 ms
    assert comparison.bill()["gpu_hours"] == pytest.approx({"a": 2000, "b": 4000, "change": 2000})
    assert comparison.bill()["cost"] == pytest.approx({"a": 5000, "b": 10000, "change": 5000})
    lines = render_comparison(comparison, 200).splitlines()
    (line,) = (line for line in lines if line.startswith("Bill"))
    assert "2000 GPU-hours → 4000 (+2000) · 5000 USD → 10,000 (+5000)" in line


@pytest.mark.parametrize("price", [{}, {"price": {"gpu_hour": "2 EUR"}}])
def test_bills_in_different_currencies_are_not_compared(price):
    comparison = compare(billed(4, price={"gpu_hour": "2.5 USD"}), billed(9, **price))
    assert "bill" not in comparison.to_mapping()
    assert "Bill" not in render_comparison(comparison)


def test_the_report_has_the_bill_and_its_assumptions():
    text = render(findings(train={"steps": 240_000_000}, price={"gpu_hour": "2.5 USD"}, power={}), width=200)
    for said in ("41.67 days", "2000 GPU-hours", "5000 USD", "1.4 MWh", "2.5 USD per hour", "no failures"):
        assert said in text
    assert "bill" not in render(findings())
    assert "bill" not in findings().summary


def test_energy_is_told_in_kilowatt_hours_per_million_tokens():
    (_, energy) = bill_headline({"bill": {"days": 1, "gpu_hours": 24, "steps": 9, "energy_mwh": 2.0, "tokens": 4e9,
                                          "energy_mwh_per_million_tokens": 0.0005}})  # fmt: skip
    assert (energy.value, energy.note) == ("2 MWh", "0.5 kWh per million tokens")


def test_a_bill_reads_back_as_it_was():
    scenario = load(SCENARIOS / "bill" / "llama_8b.yaml")
    assert scenario_from(to_mapping(scenario), scenario.name) == scenario


STEPS = {"steps": 10}


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"price": {"gpu_hour": 2.5}, "train": STEPS}, "expected a price such as 2.5 USD"),
        ({"price": {"gpu_hour": {}}, "train": STEPS}, "found an empty mapping"),
        ({"price": {"gpu_hour": {"h100": "1 USD", "b200": "1 EUR"}}, "train": STEPS}, "expected one currency"),
        ({"price": {"gpu_hour": {"b200": "1 EUR"}}, "train": STEPS}, "has no price of h100"),
        ({"power": {"idle": 2}, "train": STEPS}, "must be a share from 0 to 1, not 2"),
        ({"power": {"busy": "7 GB"}, "train": STEPS}, "expected a power such as 700 W or 2 kW"),
        ({"power": {"pue": 0.5}, "train": STEPS}, "must be from 1 to 10, not 0.5"),
        ({"train": {}}, "expected either tokens or steps"),
        ({"train": {"steps": 1, "tokens": 1}}, "not both"),
        ({"train": {"tokens": "1e9"}}, "is read with a `model` of tokens only"),
    ],
)
def test_a_wrong_bill_is_one_clear_line(sections, said):
    with pytest.raises(ScenarioError) as refused:
        findings(**sections)
    assert said in str(refused.value)
    assert "Traceback" not in str(refused.value)
