"""Runs over seeds: tables, figures with confidence, paired differences, and the command."""

import json
from statistics import NormalDist

import numpy as np
import pandas as pd
import pytest
from support import scenarios, spaces
from support.paths import SCENARIOS
from support.scenarios import merged

from hybrid_des import simulate, spread
from hybrid_des.errors import UsageError
from hybrid_des.studies.spread.estimates import estimates_of
from hybrid_des.studies.spread.seeds import without_jitter

JITTER = {"distribution": "lognormal", "sigma": 0.1, "level": "rank-step"}
TEXT = """\
parallel: {pipeline: 2, data: 2}
schedule: {kind: 1f1b, microbatches: 4}
workload: {forward: 1 ms, backward: 2 ms, parameters: 1e6}
"""
RANDOM = TEXT + "jitter: {distribution: lognormal, sigma: 0.1}\nseed: 7\n"


OF_REPLICAS = {"cluster": {"gpus_per_node": 4}, "parallel": {"data": 2}, "workload": {"parameters": 1e6}}
OF_STAGES = merged(OF_REPLICAS, {"parallel": {"pipeline": 2}})


@pytest.mark.parametrize(
    "values",
    [
        merged(OF_STAGES, {"gradients": {"algorithm": "ring"}}),
        merged(OF_STAGES, {"gradients": {"algorithm": "parameter-server"}}),
        merged(OF_STAGES, {"gradients": {"algorithm": "double-binary-tree"}}),
        merged(OF_STAGES, {"sharding": "zero-1"}),
        merged(OF_REPLICAS, {"sharding": "zero-3"}),
        merged(OF_STAGES, {"gradients": {"every": 3}}),
        merged(OF_REPLICAS, {"workload": {"activation": "1 MB"}, "parallel": {"data": 4}, "gradients": {"every": 2}}),
        spaces.of_model(4, model=spaces.WITH_EXPERTS, parallel={"data": 4, "expert": 4}, batch=4,
                        experts={"concentration": 0.5}),
    ],
)  # fmt: skip
def test_a_row_is_what_a_run_of_its_own_says(values):
    """Planning is shared by all seeds, unless they draw the loads of experts."""
    values = values if "model" in values else scenarios.values(m=4, **values)
    table = spread(values | {"jitter": JITTER, "seed": 7}, 3)
    assert table.seed.tolist() == [7, 8, 9]
    for row in table.itertuples():
        facts = simulate(values | {"jitter": JITTER, "seed": row.seed}).summary
        assert row.step_time_s == facts["step_time_s"]
        assert table["idle_s.dependency"][row.Index] == facts["idle_s"]["dependency"]


def test_real_training_keeps_its_own_seed_for_every_run():
    scenario = scenarios.scenario("1f1b", 2, 2, 2, jitter=JITTER, numerics={"layers": 2, "width": 4})
    assert spread(scenario, 2).step_time_s[0] == simulate(scenario).summary["step_time_s"]


def test_a_scenario_without_jitter_has_no_spread():
    with pytest.raises(UsageError, match="nothing is random"):
        spread(scenarios.scenario("1f1b", 2))


def test_another_seed_draws_other_documents():
    drawn = {"lengths": {"kind": "lognormal", "mean": 900, "sigma": 1}, "packing": "greedy"}
    values = spaces.of_model(2, model=spaces.TINY | {"sequence": 2048}, parallel={"data": 2}, batch=8)
    table = spread(values | {"data": drawn}, 3)
    alone = [simulate(values | {"data": drawn, "seed": seed}).summary["step_time_s"] for seed in range(3)]
    assert table.step_time_s.tolist() == alone
    assert len(set(alone)) == 3
    with pytest.raises(UsageError, match="nothing is random"):
        spread(values | {"data": {**drawn, "seed": 1}}, 2)


def test_without_jitter_is_the_plain_step_time():
    plain = scenarios.scenario("1f1b", 2, 4, slow=[{"gpu": 1, "factor": 0.5}])
    assert (
        without_jitter(plain.model_copy(update={"jitter": scenarios.scenario(jitter=JITTER).jitter}))
        == (simulate(plain).summary["step_time_s"])
    )


def test_intervals_cover_the_truth_as_often_as_they_say():
    generator, truth = np.random.default_rng(1), NormalDist()
    exact = {"mean": 0, "p50": 0, "p90": truth.inv_cdf(0.9), "p99": truth.inv_cdf(0.99)}
    covered = dict.fromkeys(exact, 0)
    for _ in range(1000):
        for name, (_, low, high) in estimates_of(generator.standard_normal(1000)).items():
            covered[name] += low <= exact[name] <= high
    assert all(930 <= count <= 990 for count in covered.values()), covered


def test_a_sample_too_small_has_no_interval_at_its_end():
    figures = estimates_of(range(1, 101))
    assert figures["p50"][:2] == (50.5, 40)
    assert figures["p99"].high is None
    assert figures["mean"].value == 50.5


@pytest.mark.slow
def test_the_command_prints_figures_of_both_scenarios(run, write, tmp_path):
    file = write(RANDOM)
    code, out, err = run(
        "spread", file, "--with", "schedule.kind=gpipe", "--runs", 20, "--json", "--out", tmp_path / "out"
    )
    figures = json.loads(out)
    assert (code, err) == (0, [f"wrote 4 files to {tmp_path / 'out'}"])
    first, second = figures["runs"]
    assert first["seeds"] == second["seeds"] == [7, 26]
    table = pd.read_csv(tmp_path / "out" / "spread.csv")
    times = [rows.step_time_s.to_numpy() for _, rows in table.groupby("name", sort=False)]
    assert first["step_time_s"]["mean"] == pytest.approx(times[0].mean(), rel=1e-12)
    assert figures["difference_s"]["mean"] == pytest.approx((times[1] - times[0]).mean(), rel=1e-9)
    assert figures["difference_s"]["std"] < first["step_time_s"]["std"]
    assert json.loads((tmp_path / "out" / "spread.json").read_text()) == figures


def test_the_report_tells_jitter_from_the_rest(run, write):
    code, out, err = run("spread", write(RANDOM), "--runs", 10)
    assert (code, err) == (0, [])
    assert "10 runs, seeds 7 … 16" in out
    assert [line.split("  ")[1] for line in out.splitlines()[2:]] == [
        "mean", "median", "90 %", "99 %", "standard deviation", "without jitter",
    ]  # fmt: skip


def test_ties_are_counted_by_step_time(run):
    code, out, _ = run("spread", SCENARIOS / "contention_slower.yaml", "--ties", 12, "--json")
    (found,) = json.loads(out)["ties"]
    assert code == 0
    assert [round(row["step_time_s"] * 1e3, 1) for row in found["step_times"]] == [375.9, 377.8, 403.8]
    assert sum(row["orders"] for row in found["step_times"]) == found["orders"] == 12
    assert round(found["as_simulated_s"] * 1e3, 1) == 377.8


def test_without_ties_all_orders_take_the_same_time(run):
    _, out, _ = run("spread", SCENARIOS / "a100_8x.yaml", "--ties", 3)
    assert "in all of them" in out
