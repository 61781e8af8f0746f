"""What explain says to try next: against what costs the most, simulated, within memory."""

import json

import pytest
from support.paths import GOLDEN, SCENARIOS

ORACLES = GOLDEN / "explain"
CONTENTION, GPUS = SCENARIOS / "contention_slower.yaml", SCENARIOS / "h100_2x8.yaml"
FEW, MORE = ("--set", "schedule.microbatches=8"), ("--set", "schedule.microbatches=16")


@pytest.mark.slow
def test_every_gain_is_that_of_the_changed_run(explained, ran):
    found = explained(CONTENTION)
    before = found["step_time_s"] / 4
    assert {"network", "links", "bubble"} == {one["against"] for one in found["proposals"]}
    for one in found["proposals"]:
        if one["against"] != "links":
            sets = one["change"].replace(",gradients", "\ngradients").replace(",schedule", "\nschedule").split("\n")
            out, _ = ran(CONTENTION, *(word for each in sets for word in ("--set", each)), "--json")
            assert json.loads(out)["step_time_s"] == one["step_time_s"]
        assert one["gain"] == pytest.approx(1 - one["step_time_s"] / one["microbatches"] / before)


def test_a_schedule_with_less_bubble_where_the_bubble_costs(explained):
    found = explained(GPUS, *FEW)
    assert found["next"].startswith("schedule.kind=")
    assert {one["against"] for one in found["proposals"]} == {"bubble"}


def test_what_to_try_next_is_the_advice(explained):
    """In one line, with the keys of each change as `--set` takes them."""
    found = explained(CONTENTION)
    lines = found["advice"]["lines"]
    assert found["next"] == "; or ".join(
        f"{','.join(f'{key}={value}' for key, value in line['settings'].items())} ({-100 * line['gain']:+.1f} %)"
        for line in lines
    )
    assert {"schedule", "sharding"} <= {kind for line in lines for kind in line["kinds"]}


@pytest.mark.slow
def test_links_are_bought_where_no_setting_helps_as_much(explained):
    found = explained(SCENARIOS / "jobs" / "beside_background.yaml")
    assert found["next"] == "to buy: nic links twice as fast (-34.1 %)" and not found["advice"]["lines"]


@pytest.mark.slow
def test_the_slow_rank_where_there_is_one(explained):
    nodes = "cluster.nodes=[{count: 1}, {count: 1, speed: 0.8}]"
    assert explained(GPUS, *FEW, "--set", nodes)["next"].startswith("node 1 as quick as the others (-")
    assert explained(GPUS, *FEW, "--set", "slow=[{gpu: 3, factor: 0.8}]")["next"].startswith("gpu 3 as quick as")


@pytest.mark.slow
def test_uneven_ranks_are_met_with_settings_alone(explained, ran):
    """The output layer makes the last of eight pipeline ranks slow; no setting moves work where times are given."""
    first = SCENARIOS / "first.yaml"
    found = explained(first)
    cuts = [one for one in found["proposals"] if one["against"] == "uneven ranks"]
    assert cuts[0]["change"] == "parallel.stages=balanced" and cuts[0]["gain"] > 0.1
    for one in cuts:
        out, _ = ran(first, "--set", one["change"], "--json")
        assert json.loads(out)["step_time_s"] == one["step_time_s"]
    given = explained(ORACLES / "e8.yaml")
    assert "Rank 2 computes for " in given["verdict"]
    assert all("=" in one["change"] for one in given["proposals"])
    assert given["next"].partition("=")[0] in given["advice"]["lines"][0]["settings"]


@pytest.mark.slow
def test_every_entry_of_slow_has_its_line_and_cost(explained, ran):
    """Pipeline rank 7 holds the step up; what is slow costs 1.6 % of it, 0.25 %, and nothing."""
    first = SCENARIOS / "first.yaml"
    costs = {"nic node0/nic6": 0.05, "link node0/gpu1/nvlink-out": 0.5, "nic node0/nic3": 0.5}
    entries = [f"{{{name.replace(' ', ': ')}, factor: {factor}}}" for name, factor in costs.items()]
    more = ("--set", f"slow=[{', '.join(entries)}]")
    out, _ = ran("explain", first, *more, "--details")
    said = " ".join(out.split())  # lines are folded to the width of the terminal
    assert "Slow parts pipeline rank 7 computes for 1.44× as long as the average rank: with average work" in said
    facts = explained(first, *more)
    groups = {row["name"]: row["cost_s"] for row in facts["stragglers"]["at_the_mean"]}
    assert groups["nic node0/nic6"] > groups["link node0/gpu1/nvlink-out"] > groups["nic node0/nic3"] == 0
    for name in costs:
        _, _, cost = said.partition(f" {name.replace('nic ', 'NIC ')} is slow and costs ")
        share = f"{groups[name] / facts['step_time_s'] * 100:.3g} % of the step"
        assert (
            cost.startswith("nothing ") if not groups[name] else share in cost or "less than 0.01 % of the step" in cost
        )


def test_a_slow_nic_is_named_and_no_links_are_bought(explained):
    found, usual = explained(GPUS, *FEW, "--set", "slow=[{nic: node1/nic3, factor: 0.05}]"), explained(GPUS, *FEW)
    assert "NIC node1/nic3 is slow, which costs 43 % of the step." in found["verdict"]
    assert found["stragglers"]["at_the_mean"][0]["name"] == "nic node1/nic3"
    assert found["stragglers"]["at_the_mean"][0]["usual_step_time_s"] == usual["step_time_s"]
    assert found["next"].startswith("nic node1/nic3 as quick as the others (-42.7 %); then schedule.kind=")
    assert {one["against"] for one in found["proposals"]} == {"slow ranks", "bubble"}


@pytest.mark.slow
def test_mending_a_node_saves_what_a_usual_one_does(explained):
    nodes = "cluster.nodes=[{count: 1}, {count: 1, speed: %s}]"
    slow = explained(GPUS, *FEW, "--set", nodes % 0.8)
    usual = explained(GPUS, *FEW)
    assert slow["proposals"][0]["step_time_s"] == pytest.approx(usual["step_time_s"], rel=1e-9)


@pytest.mark.slow
def test_what_is_slow_for_a_while_is_to_blame(explained):
    slow = "slow=[{node: 1, factor: 0.2, from: 100 ms, until: 900 ms}]"
    found, usual = explained(GPUS, *FEW, "--set", slow), explained(GPUS, *FEW)
    assert "Node 1" in found["verdict"]
    assert found["stragglers"]["at_the_mean"][0]["usual_step_time_s"] == usual["step_time_s"]
    work = sum(row["compute_over_mean"] for row in found["stragglers"]["at_the_mean"] if "rank" in row["name"])
    assert work == pytest.approx(8)  # the mean over pipeline ranks of their time over the mean


@pytest.mark.slow
def test_what_needs_too_much_memory_is_not_proposed(explained):
    held = "workload.memory.activation=%s"
    kinds = [
        {one["change"].partition(",")[0] for one in explained(GPUS, *MORE, "--set", held % size)["proposals"]}
        for size in ("1 GB", "6.5 GB")
    ]
    assert "schedule.kind=zb-h2" in kinds[0]
    assert "schedule.kind=zb-h2" not in kinds[1]
    assert "schedule.kind=zb-h1" in kinds[1]


@pytest.mark.slow
def test_where_only_ops_cost_they_can_be_larger(explained):
    found = explained(SCENARIOS / "vit-l_8.yaml")
    assert found["verdict"] == "100 % of the step is computing."
    assert found["next"].startswith("schedule.microbatch_size=256 (-2.1 %, ")


def test_more_microbatches_are_measured_by_the_time_of_each(run):
    _, out, _ = run("explain", ORACLES / "e2.yaml", "--what-if", "schedule.microbatches=4")
    assert "schedule.microbatches=4: +71 % (−14.3 % per micro-batch)" in " ".join(out.split())
